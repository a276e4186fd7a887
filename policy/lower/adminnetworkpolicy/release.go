package adminnetworkpolicy

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/anpv1"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/lower/internal/upstream"
)

// maxPerList bounds rules of a direction, peers of a rule and ports of a rule in
// the released definitions.
const maxPerList = 100

// released is a policy of a release, in either shape and of either kind.
type released struct {
	upstream.Policy
	baseline bool
	priority *int32            // nil in a baseline
	ports    [2][][]anpv1.Port // by flow.Direction and rule
}

// releasedOf brings an object of one of the four released types into one form;
// false for any other.
func releasedOf(o *api.Object) (*released, bool) {
	r := &released{Policy: upstream.Policy{Object: o, Dialect: V017, Band: rule.BandAdmin, Allow: actionAllow}}
	switch p := o.Value.(type) {
	case *anpv1.AdminNetworkPolicy:
		s := &p.Spec
		r.priority = s.Priority
		r.fill(&s.Subject, ingress(r, s.Ingress, ingressPeer), egress(r, s.Egress, egressPeer))
	case *anpv1.AdminNetworkPolicy011:
		s := &p.Spec
		r.Dialect, r.priority = V011, s.Priority
		r.fill(&s.Subject, ingress(r, s.Ingress, peer011), egress(r, s.Egress, peer011))
	case *anpv1.BaselineAdminNetworkPolicy:
		s := &p.Spec
		r.baseline = true
		r.fill(&s.Subject, ingress(r, s.Ingress, ingressPeer), egress(r, s.Egress, baselinePeer))
	case *anpv1.BaselineAdminNetworkPolicy011:
		s := &p.Spec
		r.Dialect, r.baseline = V011, true
		r.fill(&s.Subject, ingress(r, s.Ingress, peer011), egress(r, s.Egress, peer011))
	default:
		return nil, false
	}
	if r.baseline {
		r.Band, r.Rank = rule.BandBaseline, upstream.RankBaselineANP
	} else if r.priority != nil {
		r.Rank = float64(*r.priority)
	}
	return r, true
}

func (r *released) fill(s *anpv1.Subject, in, out []upstream.Rule) {
	r.Subject = upstream.Subject{Namespaces: s.Namespaces, Pods: podsOf(s.Pods)}
	r.Ingress, r.Egress = in, out
}

func ingress[P any](r *released, rules []anpv1.IngressRule[P], peer func(*P) upstream.Peer) []upstream.Rule {
	var out []upstream.Rule
	for i := range rules {
		in := &rules[i]
		out = append(out, ruleOf(r, flow.Ingress, in.Name, in.Action, in.Ports, peers(in.From, peer)))
	}
	return out
}

func egress[P any](r *released, rules []anpv1.EgressRule[P], peer func(*P) upstream.Peer) []upstream.Rule {
	var out []upstream.Rule
	for i := range rules {
		in := &rules[i]
		out = append(out, ruleOf(r, flow.Egress, in.Name, in.Action, in.Ports, peers(in.To, peer)))
	}
	return out
}

func peers[P any](in []P, peer func(*P) upstream.Peer) []upstream.Peer {
	out := make([]upstream.Peer, len(in))
	for i := range in {
		out[i] = peer(&in[i])
	}
	return out
}

func ruleOf(r *released, d flow.Direction, name, action string, ports []anpv1.Port, peers []upstream.Peer) upstream.Rule {
	r.ports[d] = append(r.ports[d], ports)
	out := upstream.Rule{Name: name, Action: action, Peers: peers}
	if ports == nil {
		out.L4 = []rule.L4{rule.AnyL4}
	}
	for i := range ports {
		if l4, ok := releasedPort(&ports[i]); ok {
			out.L4 = append(out.L4, l4)
			out.NamedPort = out.NamedPort || l4.Name != ""
		}
	}
	return out
}

func podsOf(p *anpv1.NamespacedPod) *upstream.Pods {
	if p == nil {
		return nil
	}
	return &upstream.Pods{Namespaces: p.NamespaceSelector, Pods: p.PodSelector}
}

func ingressPeer(p *anpv1.IngressPeer) upstream.Peer {
	return upstream.Peer{Namespaces: p.Namespaces, Pods: podsOf(p.Pods)}
}

func egressPeer(p *anpv1.EgressPeer) upstream.Peer {
	return upstream.Peer{
		Namespaces: p.Namespaces, Pods: podsOf(p.Pods), Nodes: p.Nodes, Networks: p.Networks, DomainNames: p.DomainNames,
	}
}

func baselinePeer(p *anpv1.BaselineEgressPeer) upstream.Peer {
	return upstream.Peer{Namespaces: p.Namespaces, Pods: podsOf(p.Pods), Nodes: p.Nodes, Networks: p.Networks}
}

func peer011(p *anpv1.Peer011) upstream.Peer {
	out := upstream.Peer{NamespaceSet: setOf(p.Namespaces)}
	if p.Pods != nil {
		out.PodSet = &upstream.PodSet{Namespaces: setOf(p.Pods.Namespaces), Pods: p.Pods.PodSelector}
	}
	return out
}

func setOf(s *anpv1.NamespaceSet) *upstream.NamespaceSet {
	if s == nil {
		return nil
	}
	return &upstream.NamespaceSet{Selector: s.NamespaceSelector, SameLabels: s.SameLabels, NotSameLabels: s.NotSameLabels}
}

// releasedPort lowers one item of ports; ok is false for one that validation
// refuses, which then matches nothing.
func releasedPort(p *anpv1.Port) (rule.L4, bool) {
	switch {
	case p.PortNumber != nil && p.NamedPort == nil && p.PortRange == nil:
		proto, ok := protocolOf(p.PortNumber.Protocol)
		l4, ok2 := upstream.Ports(proto, p.PortNumber.Port, p.PortNumber.Port)
		return l4, ok && ok2
	case p.PortNumber == nil && p.NamedPort != nil && p.PortRange == nil:
		return upstream.NamedPort(*p.NamedPort), *p.NamedPort != ""
	case p.PortNumber == nil && p.NamedPort == nil && p.PortRange != nil:
		proto, ok := protocolOf(p.PortRange.Protocol)
		l4, ok2 := upstream.Ports(proto, p.PortRange.Start, p.PortRange.End)
		return l4, ok && ok2
	}
	return rule.L4{}, false
}

func protocolOf(p corev1.Protocol) (flow.Proto, bool) {
	switch p {
	case "", corev1.ProtocolTCP:
		return flow.TCP, true
	case corev1.ProtocolUDP:
		return flow.UDP, true
	case corev1.ProtocolSCTP:
		return flow.SCTP, true
	}
	return flow.AnyProto, false
}

// validate checks what the released definitions' schemas check.
func (r *released) validate(f *kube.Findings) {
	limits := upstream.Limits{
		Actions: []string{actionAllow, actionDeny, actionPass}, Rules: maxPerList, Peers: maxPerList,
		EgressFields: []string{"namespaces", "pods", "nodes", "networks", "domainNames"},
	}
	switch {
	case r.baseline:
		limits.Actions = limits.Actions[:2]
		limits.EgressFields = limits.EgressFields[:4]
		if r.Object.Name != "default" {
			f.Error("metadata.name", "a cluster has one BaselineAdminNetworkPolicy, and it is called default", "write `name: default`")
		}
	case r.priority == nil:
		f.Error("spec.priority", "priority is missing", "write a number from 0 (strongest) to 1000")
	case *r.priority < 0 || *r.priority > MaxPriority:
		f.Error("spec.priority", fmt.Sprintf("priority %d is out of range", *r.priority), "write a number from 0 to 1000")
	case *r.priority == 0:
		f.Warn("spec.priority", "priority 0 is the strongest there is, not a baseline",
			"if a baseline is meant, write a BaselineAdminNetworkPolicy")
	}
	if r.Dialect == V011 {
		limits.EgressFields = limits.EgressFields[:2]
	}
	r.Validate(f, limits)
	for _, d := range []flow.Direction{flow.Ingress, flow.Egress} {
		for i, ports := range r.ports[d] {
			path := kube.At("spec."+d.String(), i) + ".ports"
			switch n := len(ports); {
			case ports == nil:
			case n == 0:
				f.Error(path, "an empty list of ports", "leave `ports` out to mean every port and protocol")
			case n > maxPerList:
				f.Error(path, fmt.Sprintf("%d items, at most %d are allowed", n, maxPerList), "split the policy into several")
			}
			for j := range ports {
				checkReleasedPort(f, kube.At(path, j), &ports[j])
			}
		}
	}
}

func checkReleasedPort(f *kube.Findings, path string, p *anpv1.Port) {
	set := 0
	for _, is := range []bool{p.PortNumber != nil, p.NamedPort != nil, p.PortRange != nil} {
		if is {
			set++
		}
	}
	if set != 1 {
		f.Error(path, fmt.Sprintf("the item sets %d of portNumber, namedPort, portRange", set), "set exactly one; items of the list are OR-ed")
	}
	if n := p.PortNumber; n != nil {
		checkProtocol(f, path+".portNumber", n.Protocol)
		upstream.CheckPort(f, path+".portNumber.port", n.Port)
	}
	if p.NamedPort != nil {
		upstream.CheckPortName(f, path+".namedPort", *p.NamedPort)
	}
	if r := p.PortRange; r != nil {
		at := path + ".portRange"
		checkProtocol(f, at, r.Protocol)
		start, end := upstream.CheckPort(f, at+".start", r.Start), upstream.CheckPort(f, at+".end", r.End)
		switch {
		case !start || !end || r.Start < r.End:
		case r.Start > r.End:
			f.Error(at, fmt.Sprintf("start %d is larger than end %d", r.Start, r.End), "`start` is the first and `end` the last port of the range")
		default:
			f.Warn(at, fmt.Sprintf("the range is one port, %d", r.Start), "write portNumber")
		}
	}
}

func checkProtocol(f *kube.Findings, path string, p corev1.Protocol) {
	if p == "" {
		return // TCP
	}
	kube.Port{Protocol: &p}.Check(f, path)
}
