package simulate

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/inventory"
)

// ciliumRule is one spec of a CiliumNetworkPolicy or
// CiliumClusterwideNetworkPolicy.
type ciliumRule struct {
	obj      *api.Object
	order    int32 // 0 unless given (S3-13)
	spec     *cilium.Rule
	isolates [2]bool
	lines    [2][]ciliumLine
}

// ciliumLine is one entry of ingress, ingressDeny, egress or egressDeny.
type ciliumLine struct {
	deny, auth bool
	index      int
	name       string
	matches    func(c *connection, d flow.Direction, subject *inventory.Pod) bool
}

// ciliumPeers is what the four kinds of entries have in common. A nil list is
// one that is absent.
type ciliumPeers struct {
	endpoints []metav1.LabelSelector
	cidrs     []string
	cidrSets  []cilium.CIDRRule
	entities  []string
	nodes     []metav1.LabelSelector
	services  []cilium.Service
	fqdns     []cilium.FQDN
}

func (p *ciliumPeers) absent() bool {
	return p.endpoints == nil && p.cidrs == nil && p.cidrSets == nil && p.entities == nil &&
		p.nodes == nil && p.services == nil && p.fqdns == nil
}

func ingressPeers(p *cilium.IngressPeers) ciliumPeers {
	return ciliumPeers{endpoints: p.FromEndpoints, cidrs: p.FromCIDR, cidrSets: p.FromCIDRSet, entities: p.FromEntities, nodes: p.FromNodes}
}

func egressPeers(p *cilium.EgressPeers, fqdns []cilium.FQDN) ciliumPeers {
	return ciliumPeers{endpoints: p.ToEndpoints, cidrs: p.ToCIDR, cidrSets: p.ToCIDRSet, entities: p.ToEntities, nodes: p.ToNodes, services: p.ToServices, fqdns: fqdns}
}

// newCilium splits a policy into its specs.
func (s *Simulator) newCilium(o *api.Object, v *cilium.Policy) []ciliumRule {
	var specs []*cilium.Rule
	if v.Spec != nil {
		specs = append(specs, v.Spec)
	}
	for i := range v.Specs {
		specs = append(specs, &v.Specs[i])
	}
	var out []ciliumRule
	var next [2]int
	for at, spec := range specs {
		prefix := ""
		if v.Spec == nil {
			prefix = fmt.Sprintf("specs[%d].", at)
		} else if at > 0 {
			prefix = fmt.Sprintf("specs[%d].", at-1)
		}
		r := ciliumRule{obj: o, spec: spec}
		if n := spec.Order; n != nil {
			r.order = *n
		} else if n := spec.Priority; n != nil {
			r.order = *n
		}
		add := func(d flow.Direction, field string, i int, auth *cilium.Authentication, e ciliumEntry) {
			r.lines[d] = append(r.lines[d], ciliumLine{
				deny: strings.HasSuffix(field, "Deny"), auth: auth != nil && auth.Mode != "" && auth.Mode != "disabled",
				index: next[d], name: fmt.Sprintf("%s%s[%d]", prefix, field, i),
				matches: func(c *connection, d flow.Direction, subject *inventory.Pod) bool {
					return s.ciliumMatch(c, d, subject, o, &e)
				},
			})
			next[d]++
		}
		for i := range spec.Ingress {
			e := &spec.Ingress[i]
			add(flow.Ingress, "ingress", i, e.Authentication, ciliumEntry{ingressPeers(&e.IngressPeers), portsOf(e.ToPorts), e.ICMPs})
		}
		for i := range spec.IngressDeny {
			e := &spec.IngressDeny[i]
			add(flow.Ingress, "ingressDeny", i, nil, ciliumEntry{ingressPeers(&e.IngressPeers), denyPortsOf(e.ToPorts), e.ICMPs})
		}
		for i := range spec.Egress {
			e := &spec.Egress[i]
			add(flow.Egress, "egress", i, e.Authentication, ciliumEntry{egressPeers(&e.EgressPeers, e.ToFQDNs), portsOf(e.ToPorts), e.ICMPs})
		}
		for i := range spec.EgressDeny {
			e := &spec.EgressDeny[i]
			add(flow.Egress, "egressDeny", i, nil, ciliumEntry{egressPeers(&e.EgressPeers, nil), denyPortsOf(e.ToPorts), e.ICMPs})
		}
		// "If not specified, the default is true for each direction that has rules."
		for _, d := range flow.Directions {
			r.isolates[d] = len(r.lines[d]) > 0
		}
		if e := spec.EnableDefaultDeny; e != nil {
			if e.Ingress != nil {
				r.isolates[flow.Ingress] = *e.Ingress
			}
			if e.Egress != nil {
				r.isolates[flow.Egress] = *e.Egress
			}
		}
		out = append(out, r)
	}
	return out
}

// ciliumEntry is what an entry asks of a connection. ports is nil when the entry
// does not have any item of toPorts, and has a list for each item otherwise.
type ciliumEntry struct {
	peers ciliumPeers
	ports [][]cilium.Port
	icmps []cilium.ICMPRule
}

func portsOf(rs []cilium.PortRule) (out [][]cilium.Port) {
	for _, r := range rs {
		out = append(out, r.Ports)
	}
	return out
}

func denyPortsOf(rs []cilium.PortDenyRule) (out [][]cilium.Port) {
	for _, r := range rs {
		out = append(out, r.Ports)
	}
	return out
}

// ciliumSubject: a namespaced policy is about its own namespace.
func (s *Simulator) ciliumSubject(r *ciliumRule, pod *inventory.Pod) bool {
	if r.spec.EndpointSelector == nil || r.obj.Namespace != "" && pod.Namespace != r.obj.Namespace {
		return false
	}
	return s.ciliumSelects(r.spec.EndpointSelector, pod)
}

// ciliumMatch asks one entry. An entry that says nothing at all is how a policy
// isolates without allowing anything: it matches nothing (Cilium documentation,
// Ingress/Egress Default Deny).
func (s *Simulator) ciliumMatch(c *connection, d flow.Direction, subject *inventory.Pod, o *api.Object, e *ciliumEntry) bool {
	l3, l4 := !e.peers.absent(), len(e.ports) > 0 || len(e.icmps) > 0
	if !l3 && !l4 || l3 && !s.ciliumPeer(c.peer(d), subject, o, &e.peers) {
		return false
	}
	return !l4 || slices.ContainsFunc(e.ports, func(item []cilium.Port) bool {
		return slices.ContainsFunc(item, func(p cilium.Port) bool { return ciliumPort(c, &p) })
	}) || slices.ContainsFunc(e.icmps, func(r cilium.ICMPRule) bool {
		return slices.ContainsFunc(r.Fields, func(f cilium.ICMPField) bool { return ciliumICMP(c, &f) })
	})
}

func (s *Simulator) ciliumPeer(peer *party, subject *inventory.Pod, o *api.Object, p *ciliumPeers) bool {
	// What is neither a pod nor a node is outside the cluster: the world. A pod that is
	// about to start is not in it. Names may have any address but a known pod's or
	// node's.
	nameable := peer.pod == nil && peer.node == nil
	outside := nameable && !peer.device
	world := outside && (!peer.unknown || peer.guess)
	return slices.ContainsFunc(p.endpoints, func(sel metav1.LabelSelector) bool {
		if peer.pod == nil {
			return peer.guess
		}
		// A namespaced policy means its own namespace unless the selector names one.
		if o.Namespace != "" && !namesNamespace(&sel) && peer.pod.Namespace != o.Namespace {
			return false
		}
		return s.ciliumSelects(&sel, peer.pod)
	}) || slices.ContainsFunc(p.cidrs, func(text string) bool {
		if a, err := netip.ParseAddr(text); err == nil {
			return world && a == peer.addr
		}
		return world && contains(text, peer.addr)
	}) || slices.ContainsFunc(p.cidrSets, func(r cilium.CIDRRule) bool {
		return world && contains(r.CIDR, peer.addr) && !slices.ContainsFunc(r.Except, func(e string) bool { return contains(e, peer.addr) })
	}) || slices.ContainsFunc(p.entities, func(e string) bool {
		switch e {
		case "all":
			return true
		case "world":
			return world
		case "world-ipv4":
			return world && peer.addr.Is4()
		case "world-ipv6":
			return world && peer.addr.Is6()
		case "cluster":
			return !outside || peer.guess
		case "host":
			return subject.Node != "" && slices.Contains(peer.node, subject.Node)
		case "remote-node":
			return peer.device || peer.node != nil && (subject.Node == "" || !slices.Contains(peer.node, subject.Node))
		}
		return false // none, and what nobody here is: health, init
	}) || slices.ContainsFunc(p.fqdns, func(f cilium.FQDN) bool {
		if f.MatchName != "" {
			return nameable && s.resolved(func(name string) bool { return name == normal(f.MatchName) }, peer.addr)
		}
		return nameable && s.resolved(ciliumName(f.MatchPattern), peer.addr)
	}) || slices.ContainsFunc(p.services, func(svc cilium.Service) bool {
		return s.behindService(&svc, peer)
	}) || slices.ContainsFunc(p.nodes, func(sel metav1.LabelSelector) bool {
		return s.nodeSelected(stripSources(&sel), peer)
	})
}

// behindService: the pods a Service selects, in its namespace. A Service is named
// or selected by its labels; without a namespace it may be in any.
func (s *Simulator) behindService(t *cilium.Service, peer *party) bool {
	return slices.ContainsFunc(s.inv.Services, func(svc inventory.Service) bool {
		namespace, named := "", false
		if t.K8sService != nil {
			namespace, named = t.K8sService.Namespace, t.K8sService.ServiceName == svc.Name
		} else {
			namespace, named = t.K8sServiceSelector.Namespace, s.selects(t.K8sServiceSelector.Selector, svc.Labels)
		}
		return named && (namespace == "" || namespace == svc.Namespace) && len(svc.Selector) > 0 && peer.is(func(pod *inventory.Pod) bool {
			return svc.Namespace == pod.Namespace && labels.SelectorFromSet(svc.Selector).Matches(labels.Set(pod.Labels))
		})
	})
}

// Label keys with a meaning of their own; other labels are the pod's.
const (
	ciliumNamespace       = "io.kubernetes.pod.namespace"
	ciliumNamespaceLabels = "io.cilium.k8s.namespace.labels."
	ciliumServiceAccount  = "io.cilium.k8s.policy.serviceaccount"
)

// ciliumSelects applies a selector to the labels Cilium gives a pod. A key may
// say where the label comes from, k8s: or any:; there is only the one source.
func (s *Simulator) ciliumSelects(sel *metav1.LabelSelector, pod *inventory.Pod) bool {
	set := labels.Set{ciliumNamespace: pod.Namespace, ciliumServiceAccount: pod.ServiceAccount}
	for k, v := range s.nsLabels[pod.Namespace] {
		set[ciliumNamespaceLabels+k] = v
	}
	for k, v := range pod.Labels {
		set[k] = v
	}
	parsed, err := metav1.LabelSelectorAsSelector(stripSources(sel))
	return err == nil && parsed.Matches(set)
}

// stripSources returns the selector with bare keys. Two keys may have become one.
func stripSources(sel *metav1.LabelSelector) *metav1.LabelSelector {
	out := &metav1.LabelSelector{}
	for k, v := range sel.MatchLabels {
		out.MatchExpressions = append(out.MatchExpressions, metav1.LabelSelectorRequirement{
			Key: stripSource(k), Operator: metav1.LabelSelectorOpIn, Values: []string{v},
		})
	}
	for _, e := range sel.MatchExpressions {
		e.Key = stripSource(e.Key)
		out.MatchExpressions = append(out.MatchExpressions, e)
	}
	return out
}

func stripSource(key string) string {
	key = strings.TrimPrefix(key, "any:")
	return strings.TrimPrefix(key, "k8s:")
}

func namesNamespace(sel *metav1.LabelSelector) bool {
	named := func(k string) bool {
		k = stripSource(k)
		return k == ciliumNamespace || strings.HasPrefix(k, ciliumNamespaceLabels)
	}
	for k := range sel.MatchLabels {
		if named(k) {
			return true
		}
	}
	return slices.ContainsFunc(sel.MatchExpressions, func(e metav1.LabelSelectorRequirement) bool { return named(e.Key) })
}

// ciliumPort: ANY, which is also what no protocol means, is the three protocols
// with ports; port 0 is every port.
func ciliumPort(c *connection, p *cilium.Port) bool {
	if !c.key.Proto.HasPorts() {
		return false
	}
	want := strings.ToUpper(p.Protocol)
	if want != "" && want != "ANY" && want != c.key.Proto.String() {
		return false
	}
	n, err := strconv.ParseUint(p.Port, 10, 16)
	if err != nil {
		return namedPort(c, p.Port, flow.AnyProto)
	}
	if n == 0 {
		return true
	}
	return int32(n) <= int32(c.key.DstPort) && int32(c.key.DstPort) <= max(int32(n), p.EndPort)
}

// icmpNames are the two types the universe writes by name.
var icmpNames = map[string][2]int{"EchoRequest": {8, 128}, "EchoReply": {0, 129}}

func ciliumICMP(c *connection, f *cilium.ICMPField) bool {
	proto, family := flow.ICMP, 0
	if f.Family == "IPv6" {
		proto, family = flow.ICMPv6, 1
	}
	if c.key.Proto != proto || f.Type == nil {
		return false
	}
	typ := f.Type.IntValue()
	if f.Type.Type == intstr.String {
		if t, ok := icmpNames[f.Type.StrVal]; ok {
			typ = t[family]
		}
	}
	return int(c.key.DstPort>>8) == typ
}
