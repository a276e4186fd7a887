package cilium

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

const (
	// MaxPorts bounds the ports of one toPorts item and the fields of one icmps
	// item, as in Cilium's admission.
	MaxPorts = 40
)

// Validate checks one policy as Cilium's schema and agent do, refuses the parts
// that are not enforced, and checks the tierwall.io annotations.
func (Dialect) Validate(o *api.Object) diag.List {
	f := &kube.Findings{Object: o}
	p, ok := o.Value.(*cilium.Policy)
	if !ok {
		f.Error("", fmt.Sprintf("not a Cilium policy but a %T", o.Value), kube.InternalHint)
		return f.List
	}
	kube.ParseSettings(f)
	switch {
	case o.Kind.Namespaced && o.Namespace == "":
		f.Error("metadata.namespace", "a "+o.Kind.Kind+" belongs to a namespace", "write metadata.namespace")
	case !o.Kind.Namespaced && o.Namespace != "":
		f.Error("metadata.namespace", "a "+o.Kind.Kind+" is cluster-scoped", "remove metadata.namespace")
	}
	v := checker{f, o.Namespace}
	specs := specsOf(p)
	if len(specs) == 0 {
		f.Error("spec", "the policy has neither spec nor specs", "write one of them")
	}
	for _, s := range specs {
		v.spec(s)
	}
	return f.List
}

type checker struct {
	*kube.Findings
	namespace string // "" for a clusterwide policy
}

func (v *checker) spec(s spec) {
	v.order(s)
	switch {
	case s.NodeSelector != nil && v.namespace != "":
		v.Error(s.path+".nodeSelector", "a namespaced policy cannot be about nodes", "write endpointSelector")
	case s.NodeSelector != nil:
		v.Error(s.path+".nodeSelector", "policies of nodes are not enforced: Tierwall filters the traffic of pods", "write endpointSelector")
	case s.EndpointSelector == nil:
		v.Error(s.path+".endpointSelector", "endpointSelector is missing", "write {} to mean every pod")
	}
	if s.EndpointSelector != nil {
		checkSelector(v.Findings, s.path+".endpointSelector", s.EndpointSelector, v.namespace)
	}
	layer7 := false
	for _, ln := range linesOf(s) {
		layer7 = v.line(&ln) || layer7
	}
	if layer7 && (s.Order != nil || s.Priority != nil) { // S3-16
		v.Error(s.path+"."+orderField(s), "layer 7 rules cannot have an order", "remove the order, or the layer 7 rules")
	}
	for _, d := range []flow.Direction{flow.Ingress, flow.Egress} {
		v.defaultDeny(s, d)
	}
}

// defaultDeny warns about a direction that a spec neither isolates nor limits.
func (v *checker) defaultDeny(s spec, d flow.Direction) {
	n, name := len(s.Ingress), "ingress"
	if d == flow.Egress {
		n, name = len(s.Egress), "egress"
	}
	if n > 0 && !isolates(s.Rule, d) {
		v.Warn(s.path+".enableDefaultDeny."+name, "the allow rules of "+name+" take effect only on pods that another policy isolates", "remove the field if the policy is meant to isolate the pods it selects")
	}
}

func orderField(s spec) string {
	if s.Order == nil && s.Priority != nil {
		return "priority"
	}
	return "order"
}

func (v *checker) order(s spec) {
	if s.Order != nil && s.Priority != nil {
		v.Error(s.path+".priority", "order and priority are names of the same field", "write only order")
	}
	if n := orderOf(s.Rule); n < 0 && v.namespace != "" { // S3-15
		v.Error(s.path+"."+orderField(s), fmt.Sprintf("order %d: a namespaced policy cannot be stronger than order 0", n),
			"write 0 or more, or a "+NameClusterwide)
	}
}

// line checks one rule and reports whether it has a layer 7 part.
func (v *checker) line(ln *line) (layer7 bool) {
	v.peers(ln)
	if len(ln.toPorts) > 0 && len(ln.icmps) > 0 {
		v.Error(ln.path+".icmps", "icmps together with toPorts", "write two rules")
	}
	for i := range ln.toPorts {
		layer7 = v.ports(kube.At(ln.path+".toPorts", i), &ln.toPorts[i]) || layer7
	}
	for i := range ln.icmps {
		at, fields := kube.At(ln.path+".icmps", i), ln.icmps[i].Fields
		v.count(at+".fields", len(fields))
		for j := range fields {
			checkICMP(v.Findings, kube.At(at+".fields", j), &fields[j])
		}
	}
	if ln.auth != nil {
		v.authentication(ln.path+".authentication.mode", ln.auth.Mode)
	}
	return layer7
}

func (v *checker) count(path string, n int) {
	switch {
	case n == 0:
		v.Warn(path, "the list is empty: the item matches nothing", "remove the field to match everything, or list what is meant")
	case n > MaxPorts:
		v.Error(path, fmt.Sprintf("%d items: at most %d", n, MaxPorts), "split the list in two")
	}
}

func (v *checker) ports(path string, r *cilium.PortRule) (layer7 bool) {
	for _, part := range []struct {
		field, message string
		is             bool
	}{
		{"rules", "layer 7 rules are not enforced", r.Rules != nil},
		{"terminatingTLS", "TLS is not terminated here", r.TerminatingTLS != nil},
		{"originatingTLS", "TLS is not originated here", r.OriginatingTLS != nil},
		{"serverNames", "server names of TLS are not looked at", r.ServerNames != nil},
		{"listener", "traffic cannot be redirected to a listener", r.Listener != nil},
	} {
		if part.is {
			layer7 = true
			v.Error(path+"."+part.field, part.message, "without it the rule would allow more than it says: state what may pass by address and port")
		}
	}
	v.count(path+".ports", len(r.Ports))
	for i := range r.Ports {
		checkPort(v.Findings, kube.At(path+".ports", i), &r.Ports[i])
	}
	return layer7
}

func (v *checker) authentication(path, mode string) {
	switch mode {
	case authRequired, authAlwaysFail:
		v.Warn(path, "nothing here can authenticate: connections the rule matches are dropped, also those another rule allows", "remove the field, or write mode: disabled, where no authentication is needed")
	case authDisabled:
		v.Warn(path, "this does not lift the authentication another rule asks for", "remove it, or the authentication of the other rule")
	case "":
		v.Error(path, "mode is missing", "write required, disabled or test-always-fail")
	default:
		v.Error(path, fmt.Sprintf("unknown mode %q", mode), "write required, disabled or test-always-fail")
	}
}

func (v *checker) peers(ln *line) {
	var filled []string
	for _, l := range ln.peerLists() {
		if l.len > 0 && l.name != "Requires" {
			field := ln.field(l.name)
			filled = append(filled, field[strings.LastIndexByte(field, '.')+1:])
		}
	}
	if len(filled) > 1 {
		v.Error(ln.path, strings.Join(filled, " together with "), "write one rule for each")
	}
	if ln.silent() {
		v.silent(ln)
	}
	if len(ln.services) > 0 && len(ln.toPorts) > 0 {
		v.Error(ln.path+".toPorts", "toPorts together with toServices", "a rule to Services is about all ports of their pods; for some ports name the pods with toEndpoints")
	}
	if ln.requires != nil {
		v.Error(ln.field("Requires"), "requirements on other rules are not enforced", "write the labels into the selectors of "+strings.TrimPrefix(ln.field("Endpoints"), ln.path+"."))
	}
	if ln.groups != nil {
		v.Error(ln.field("Groups"), "groups of cloud providers are not looked up", "write the addresses with "+strings.TrimPrefix(ln.field("CIDR"), ln.path+"."))
	}
	for i := range ln.endpoints {
		checkSelector(v.Findings, kube.At(ln.field("Endpoints"), i), &ln.endpoints[i], "")
	}
	for i := range ln.nodes {
		kube.CheckSelector(v.Findings, kube.At(ln.field("Nodes"), i), nodeSelector(&ln.nodes[i]))
	}
	for i, s := range ln.cidr {
		v.cidr(kube.At(ln.field("CIDR"), i), s, true)
	}
	for i := range ln.cidrSet {
		v.cidrSet(kube.At(ln.field("CIDRSet"), i), &ln.cidrSet[i])
	}
	for i := range ln.entities {
		v.entity(kube.At(ln.field("Entities"), i), ln, ln.entities[i])
	}
	for i := range ln.services {
		v.service(kube.At(ln.field("Services"), i), &ln.services[i])
	}
	for i := range ln.fqdns {
		checkFQDN(v.Findings, kube.At(ln.field("FQDNs"), i), &ln.fqdns[i])
	}
}

// silent speaks about a rule without content. One alone in its list is the
// customary way to isolate.
func (v *checker) silent(ln *line) {
	if ln.auth != nil {
		v.Warn(ln.path, "the rule names neither peers nor ports: it matches nothing, and asks nobody for authentication", "write fromEndpoints, toEndpoints or another peer beside it")
	}
	if ln.deny {
		v.Warn(ln.path, "the rule names neither peers nor ports: it denies nothing",
			"write `"+strings.TrimPrefix(ln.field("Entities"), ln.path+".")+": [all]` to deny everything")
	}
}

// entities that are known and not expressed, and why.
var refusedEntities = map[string]string{
	entityAPIServer: "the API server's addresses are not known; write them with a CIDR rule, or its nodes with fromNodes or toNodes",
	entityIngress:   "there is no ingress proxy of Cilium here; write its pods as endpoints",
	entityUnmanaged: "every pod is managed here; write the pods as endpoints",
}

var knownEntities = []string{
	entityAll, entityNone, entityWorld, entityWorld4, entityWorld6, entityCluster,
	entityHost, entityRemoteNode, entityInit, entityHealth,
}

func (v *checker) entity(path string, ln *line, e string) {
	egress := ln.direction == flow.Egress
	switch e {
	case entityAll, entityNone, entityWorld, entityWorld4, entityWorld6, entityCluster:
	case entityInit, entityHealth:
		v.Warn(path, fmt.Sprintf("there is no %s endpoint here: the entity matches nothing", e), "remove it")
	case entityHost:
		switch {
		case egress && !slices.Contains(ln.entities, entityRemoteNode):
			v.Error(path, "on egress a pod's own node cannot be told from the others", "write host and remote-node together to mean every node, or name nodes with toNodes")
		case !egress && ln.deny:
			v.Warn(path, "a pod's own node is always let in: the rule does not deny it", "remove the entity host if that is all the rule is for")
		}
	case entityRemoteNode:
		if egress && !slices.Contains(ln.entities, entityHost) {
			v.Error(path, "on egress the other nodes cannot be told from a pod's own", "write host and remote-node together to mean every node, or name nodes with toNodes")
		}
	default:
		if hint, ok := refusedEntities[e]; ok {
			v.Error(path, fmt.Sprintf("entity %s is not enforced", e), hint)
			return
		}
		hint := "entities are " + strings.Join(knownEntities, ", ")
		if lower := strings.ToLower(e); slices.Contains(knownEntities, lower) {
			hint = "write " + lower + ": entities are case-sensitive"
		} else if h := kube.DidYouMean(e, knownEntities); h != "" {
			hint = h
		}
		v.Error(path, fmt.Sprintf("unknown entity %q", e), hint)
	}
}

func (v *checker) cidrSet(path string, c *cilium.CIDRRule) {
	if c.CIDRGroupRef != "" || c.CIDRGroupSelector != nil {
		field := ".cidrGroupRef"
		if c.CIDRGroupRef == "" {
			field = ".cidrGroupSelector"
		}
		v.Error(path+field, "CiliumCIDRGroups are not read", "write the group's prefixes, one item each")
		return
	}
	cidr, ok := v.cidr(path+".cidr", c.CIDR, false)
	for i, s := range c.Except {
		at := kube.At(path+".except", i)
		e, exceptOK := v.cidr(at, s, false)
		switch {
		case !ok || !exceptOK:
		case e.Bits() < cidr.Bits() || !cidr.Contains(e.Addr()):
			v.Error(at, fmt.Sprintf("%s is not inside cidr %s", s, c.CIDR), "a hole must lie inside the block")
		case e == cidr:
			v.Warn(at, fmt.Sprintf("%s leaves nothing of cidr %s: the item matches nothing", s, c.CIDR), "write a smaller prefix in except, or remove the item")
		}
	}
}

// cidr checks a prefix; address allows an address in its place.
func (v *checker) cidr(path, s string, address bool) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(s); address && err == nil && a.Zone() == "" {
		if a.Is4In6() {
			v.Error(path, fmt.Sprintf("%q is IPv4 written as IPv6", s), fmt.Sprintf("write %q", a.Unmap()))
			return netip.Prefix{}, false
		}
		return netip.PrefixFrom(a, a.BitLen()), true
	}
	if s == "" {
		v.Error(path, "the address range is missing", `write one such as "10.0.0.0/8" or "2001:db8::/32"`)
		return netip.Prefix{}, false
	}
	return kube.CheckPrefix(v.Findings, path, s)
}

func (v *checker) service(path string, s *cilium.Service) {
	switch {
	case s.K8sService == nil && s.K8sServiceSelector == nil:
		v.Error(path, "names no Service", "set exactly one of k8sService, k8sServiceSelector")
	case s.K8sService != nil && s.K8sServiceSelector != nil:
		v.Error(path, "sets k8sService and k8sServiceSelector", "set exactly one of k8sService, k8sServiceSelector")
	case s.K8sService != nil && s.K8sService.ServiceName == "":
		v.Error(path+".k8sService.serviceName", "serviceName is missing", "write the Service's name")
	case s.K8sServiceSelector != nil && s.K8sServiceSelector.Selector == nil:
		v.Error(path+".k8sServiceSelector.selector", "selector is missing", "write {} to mean every Service")
	case s.K8sServiceSelector != nil:
		kube.CheckSelector(v.Findings, path+".k8sServiceSelector.selector", nodeSelector(s.K8sServiceSelector.Selector))
	}
}
