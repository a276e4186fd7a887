package clusternetworkpolicy

import (
	"fmt"
	"strings"

	"github.com/tierwall/tierwall/policy/api"
	cnp "github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/lower/internal/upstream"
)

const (
	// MaxPriority is the weakest priority.
	MaxPriority = 1000
	// MaxItems bounds the rules of a direction, the peers of a rule and its
	// protocols.
	MaxItems = 25
)

// Validate checks one policy as the published definition's schema does, and its
// tierwall.io annotations.
func (Dialect) Validate(o *api.Object) diag.List {
	f := &kube.Findings{Object: o}
	p, ok := o.Value.(*cnp.ClusterNetworkPolicy)
	if !ok {
		f.Error("", fmt.Sprintf("not a ClusterNetworkPolicy but a %T", o.Value), kube.InternalHint)
		return f.List
	}
	if o.Namespace != "" {
		f.Error("metadata.namespace", "ClusterNetworkPolicy is cluster-scoped", "remove metadata.namespace")
	}
	s := &p.Spec
	tier(f, s.Tier)
	switch {
	case s.Priority < 0 || s.Priority > MaxPriority:
		f.Error("spec.priority", fmt.Sprintf("priority %d is out of range", s.Priority), "write a number from 0 (strongest) to 1000")
	case o.Raw != nil && field(o.Raw, "spec", "priority") == nil:
		f.Error("spec.priority", "priority is missing", "write a number from 0 (strongest) to 1000")
	}
	// A policy without a tier has no band; the rest of it can be checked all the same.
	checked := *o
	if s.Tier != cnp.Baseline {
		withTier := *p
		withTier.Spec.Tier = cnp.Admin
		checked.Value = &withTier
	}
	shared, _ := policyOf(&checked)
	shared.Validate(f, upstream.Limits{
		Actions: []string{string(cnp.Accept), string(cnp.Deny), string(cnp.Pass)}, Rules: MaxItems, Peers: MaxItems,
		EgressFields: []string{"namespaces", "pods", "nodes", "networks", "domainNames"},
	})
	for i := range s.Ingress {
		protocols(f, kube.At("spec.ingress", i)+".protocols", s.Ingress[i].Protocols, item(listOf(field(o.Raw, "spec", "ingress")), i))
	}
	for i := range s.Egress {
		protocols(f, kube.At("spec.egress", i)+".protocols", s.Egress[i].Protocols, item(listOf(field(o.Raw, "spec", "egress")), i))
	}
	return f.List
}

func tier(f *kube.Findings, t cnp.Tier) {
	switch t {
	case cnp.Admin, cnp.Baseline:
	case "":
		f.Error("spec.tier", "tier is missing", "write Admin (before NetworkPolicy) or Baseline (after it)")
	default:
		hint := "write Admin or Baseline"
		for _, known := range []cnp.Tier{cnp.Admin, cnp.Baseline} {
			if strings.EqualFold(string(t), string(known)) {
				hint = "write " + string(known) + ": tiers are case-sensitive"
			}
		}
		f.Error("spec.tier", fmt.Sprintf("unknown tier %q", t), hint)
	}
}

// protocols checks the protocols of one rule. raw is the rule as it was written.
func protocols(f *kube.Findings, path string, list []cnp.Protocol, raw any) {
	switch n := len(list); {
	case list == nil:
		return
	case n == 0:
		f.Error(path, "an empty list of protocols", "leave `protocols` out to mean every protocol and port")
	case n > MaxItems:
		f.Error(path, fmt.Sprintf("%d items, at most %d are allowed", n, MaxItems), "split the rule in two")
	}
	items := listOf(field(raw, "protocols"))
	for i := range list {
		protocol(f, kube.At(path, i), &list[i], item(items, i))
	}
}

func protocol(f *kube.Findings, path string, p *cnp.Protocol, raw any) {
	const one = "set exactly one of tcp, udp, sctp, destinationNamedPort; items of the list are OR-ed"
	set, _, _ := protocolOf(p)
	_, emptyName := field(raw, "destinationNamedPort").(string)
	emptyName = emptyName && p.DestinationNamedPort == ""
	switch {
	case emptyName:
		f.Error(path+".destinationNamedPort", "the port name is empty", "write the name of a container port")
	case len(set) == 0:
		f.Error(path, "the item names no protocol", one)
	case len(set) > 1:
		f.Error(path, "the item sets "+strings.Join(set, " and "), one)
	}
	if p.TCP != nil {
		port(f, path+".tcp", p.TCP.DestinationPort, field(raw, "tcp", "destinationPort"))
	}
	if p.UDP != nil {
		port(f, path+".udp", p.UDP.DestinationPort, field(raw, "udp", "destinationPort"))
	}
	if p.SCTP != nil {
		port(f, path+".sctp", p.SCTP.DestinationPort, field(raw, "sctp", "destinationPort"))
	}
	if p.DestinationNamedPort != "" {
		upstream.CheckPortName(f, path+".destinationNamedPort", p.DestinationNamedPort)
	}
}

// port checks the destinationPort of a protocol at path.
func port(f *kube.Findings, path string, p *cnp.Port, raw any) {
	if p == nil {
		f.Error(path, "the protocol has no destinationPort",
			"for every port write `destinationPort: {range: {start: 1, end: 65535}}`; for every protocol leave `protocols` out")
		return
	}
	path += ".destinationPort"
	_, zero := field(raw, "number").(int64)
	zero = zero && p.Number == 0
	switch {
	case (p.Number != 0 || zero) && p.Range != nil:
		f.Error(path, "destinationPort sets number and range", "set exactly one of number, range")
	case p.Number != 0 || zero:
		upstream.CheckPort(f, path+".number", p.Number)
	case p.Range == nil:
		f.Error(path, "destinationPort selects nothing", "set exactly one of number, range")
	}
	if r := p.Range; r != nil {
		start := upstream.CheckPort(f, path+".range.start", r.Start)
		if end := upstream.CheckPort(f, path+".range.end", r.End); start && end && r.Start >= r.End {
			hint := "`start` is the first and `end` the last port of the range"
			if r.Start == r.End {
				hint = "write `number`"
			}
			f.Error(path+".range", fmt.Sprintf("start %d is not smaller than end %d", r.Start, r.End), hint)
		}
	}
}

// fieldHint answers fields of the APIs this one came from.
func fieldHint(path string) string {
	parent, name := path, ""
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		parent, name = path[:i], path[i+1:]
	}
	list := strings.TrimRight(parent, "0123456789]")
	switch {
	case parent == "spec" && name == "appliedTo":
		return "in " + Group + " it is called subject"
	case parent == "spec.subject" && (name == "namespaceSelector" || name == "podSelector" || name == "namespaceAndPodSelector"):
		return "write `namespaces: …`, a label selector, or `pods: {namespaceSelector: …, podSelector: …}`"
	case strings.HasSuffix(parent, ".namespaces") && name == "namespaceSelector":
		return "`namespaces` is the label selector itself: write `namespaces: {matchLabels: …}`, or `namespaces: {}` for all"
	case strings.HasSuffix(parent, ".namespaces") && (name == "sameLabels" || name == "notSameLabels" || name == "self" || name == "notSelf"):
		return "a peer of this API cannot be compared with the subject: write a label selector, or a policy for each namespace or tenant"
	case strings.HasSuffix(parent, ".pods") && name == "namespaces":
		return "write `pods: {namespaceSelector: …, podSelector: …}`"
	case name == "ports" || name == "l4Selector":
		return "write `protocols`, a list of items such as `tcp: {destinationPort: {number: 80}}`"
	case strings.HasSuffix(list, ".from[") || strings.HasSuffix(list, ".to["):
		switch name {
		case "namespaceSelector":
			return "write `namespaces: …`, the label selector itself"
		case "podSelector", "namespacedPods":
			return "write `pods: {namespaceSelector: …, podSelector: …}`"
		case "nodes", "networks", "domainNames", "ipBlock":
			if strings.HasPrefix(path, "spec.ingress") {
				return "ingress rules select only namespaces and pods"
			}
			if name == "ipBlock" {
				return "write `networks: [CIDR, …]`"
			}
		}
	case strings.HasSuffix(list, ".protocols["):
		if name == "namedPort" {
			return "write destinationNamedPort"
		}
		return "write one of tcp, udp, sctp, destinationNamedPort"
	case strings.HasSuffix(parent, ".destinationPort") && (name == "port" || name == "start" || name == "end"):
		return "write `number: …` or `range: {start: …, end: …}`"
	}
	return ""
}
