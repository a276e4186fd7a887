package simulate

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/anpv1"
	"github.com/tierwall/tierwall/policy/api/cnpv1alpha2"
	"github.com/tierwall/tierwall/policy/inventory"
)

// The upstream admin family: AdminNetworkPolicy in its KEP and released shapes,
// BaselineAdminNetworkPolicy, ClusterNetworkPolicy v1alpha2. They have one idea
// of order in common and differ in what a rule can name, so here a policy is a
// rank, a subject and rules that can be asked.

// level is when a policy of the family has its say.
type level uint8

const (
	adminLevel    level = iota // before NetworkPolicy
	baselineLevel              // after it
	levels
)

// upstreamPolicy is one policy of the family.
type upstreamPolicy struct {
	obj     *api.Object // identity: the envelope is authoritative
	level   level
	rank    int64 // lower is stronger
	subject func(*inventory.Pod) bool
	rules   [2][]upstreamRule // by flow.Direction, in the order they are written
}

// upstreamRule is an ingress or egress rule. matches answers for the connection
// as the subject sees it; that the subject is one is known.
type upstreamRule struct {
	name, action string // action is the API's own word
	matches      func(c *connection, d flow.Direction, subject *inventory.Pod) bool
}

// strictness orders contradicting rules of one rank, name and index: deny, pass,
// allow. Only objects of two kinds can come that close.
func (r *upstreamRule) strictness() int {
	switch r.action {
	case "Deny":
		return 0
	case "Pass":
		return 1
	}
	return 2
}

func (r *upstreamRule) allows() bool { return r.action == "Allow" || r.action == "Accept" }

// numberedRule is a rule in the one order of its level.
type numberedRule struct {
	policy *upstreamPolicy
	index  int
	*upstreamRule
}

// upstreamOrder puts the rules of a level and direction into the order they are
// asked: rank, then policy name, then rule index (S0-14, S0-19, X-02, X-40).
func upstreamOrder(ps []upstreamPolicy, l level, d flow.Direction) []numberedRule {
	var out []numberedRule
	for i := range ps {
		if ps[i].level != l {
			continue
		}
		for j := range ps[i].rules[d] {
			out = append(out, numberedRule{&ps[i], j, &ps[i].rules[d][j]})
		}
	}
	slices.SortStableFunc(out, func(a, b numberedRule) int {
		return cmp.Or(cmp.Compare(a.policy.rank, b.policy.rank), strings.Compare(a.policy.obj.Name, b.policy.obj.Name),
			cmp.Compare(a.index, b.index), cmp.Compare(a.strictness(), b.strictness()),
			strings.Compare(a.policy.obj.Kind.Group, b.policy.obj.Kind.Group), strings.Compare(a.policy.obj.Kind.Kind, b.policy.obj.Kind.Kind))
	})
	return out
}

// upstream answers for one level. done is false when evaluation goes on behind
// it: nothing matched, or a Pass, which leaves the rest of the level out.
func (s *Simulator) upstream(c *connection, d flow.Direction, subject *inventory.Pod, l level) (o Outcome, done bool) {
	rules := slices.DeleteFunc(slices.Clone(s.upstreamRules[l][d]), func(r numberedRule) bool { return !r.policy.subject(subject) })
	i, a := first(len(rules), func(i int) answer {
		return c.ask(func(c *connection) bool { return rules[i].matches(c, d, subject) })
	}, func(i int) bool { return rules[i].allows() })
	switch {
	case a == no:
		return Outcome{}, false
	case a == inDoubt:
		return doubted(), true
	case rules[i].allows():
		return decided(classifier.Allow, rules[i].policy.obj, d, rules[i].name, rules[i].index), true
	case rules[i].action == "Deny":
		return decided(classifier.Drop, rules[i].policy.obj, d, rules[i].name, rules[i].index), true
	}
	return Outcome{}, false // Pass
}

// A KEP priority p has rank 1001-p. A policy without a priority stands
// behind every policy that has one, 0 of the KEP included.
const (
	kepWeakest = 1001
	noPriority = kepWeakest + 1
)

// released converts AdminNetworkPolicy and BaselineAdminNetworkPolicy of either
// release. subject and peers are already questions.
func released[In, Out any](o *api.Object, priority *int32, subject func(*inventory.Pod) bool,
	ingress []anpv1.IngressRule[In], in func(*In, *connection, *party, *inventory.Pod) bool,
	egress []anpv1.EgressRule[Out], out func(*Out, *connection, *party, *inventory.Pod) bool,
) upstreamPolicy {
	p := upstreamPolicy{obj: o, level: baselineLevel, rank: noPriority, subject: subject}
	if priority != nil {
		p.level, p.rank = adminLevel, int64(*priority)
	}
	for i := range ingress {
		r := &ingress[i]
		p.rules[flow.Ingress] = append(p.rules[flow.Ingress], upstreamRule{r.Name, r.Action, func(c *connection, d flow.Direction, sub *inventory.Pod) bool {
			return releasedPorts(c, r.Ports) && slices.ContainsFunc(r.From, func(peer In) bool { return in(&peer, c, c.peer(d), sub) })
		}})
	}
	for i := range egress {
		r := &egress[i]
		p.rules[flow.Egress] = append(p.rules[flow.Egress], upstreamRule{r.Name, r.Action, func(c *connection, d flow.Direction, sub *inventory.Pod) bool {
			return releasedPorts(c, r.Ports) && slices.ContainsFunc(r.To, func(peer Out) bool { return out(&peer, c, c.peer(d), sub) })
		}})
	}
	return p
}

// newReleased takes the four released kinds; ok is false for any other.
func (s *Simulator) newReleased(o *api.Object) (p upstreamPolicy, ok bool) {
	subject := func(sub *anpv1.Subject) func(*inventory.Pod) bool {
		return func(pod *inventory.Pod) bool { return s.namespacesOrPods(sub.Namespaces, sub.Pods, pod) }
	}
	in := func(p *anpv1.IngressPeer, _ *connection, peer *party, _ *inventory.Pod) bool {
		return peer.is(func(pod *inventory.Pod) bool { return s.namespacesOrPods(p.Namespaces, p.Pods, pod) })
	}
	out := func(p *anpv1.EgressPeer, _ *connection, peer *party, _ *inventory.Pod) bool {
		return s.releasedEgress(p, peer)
	}
	baseOut := func(p *anpv1.BaselineEgressPeer, _ *connection, peer *party, _ *inventory.Pod) bool {
		return s.releasedEgress(&anpv1.EgressPeer{Namespaces: p.Namespaces, Pods: p.Pods, Nodes: p.Nodes, Networks: p.Networks}, peer)
	}
	first := func(p *anpv1.Peer011, _ *connection, peer *party, sub *inventory.Pod) bool {
		return peer.is(func(pod *inventory.Pod) bool { return s.peer011(p, sub, pod) })
	}
	switch v := o.Value.(type) {
	case *anpv1.AdminNetworkPolicy:
		return released(o, v.Spec.Priority, subject(&v.Spec.Subject), v.Spec.Ingress, in, v.Spec.Egress, out), true
	case *anpv1.BaselineAdminNetworkPolicy:
		return released(o, nil, subject(&v.Spec.Subject), v.Spec.Ingress, in, v.Spec.Egress, baseOut), true
	case *anpv1.AdminNetworkPolicy011:
		return released(o, v.Spec.Priority, subject(&v.Spec.Subject), v.Spec.Ingress, first, v.Spec.Egress, first), true
	case *anpv1.BaselineAdminNetworkPolicy011:
		return released(o, nil, subject(&v.Spec.Subject), v.Spec.Ingress, first, v.Spec.Egress, first), true
	}
	return p, false
}

// namespacesOrPods is the subject of every released kind, and its plain peers:
// a namespace selector, or one for namespaces and one for pods.
func (s *Simulator) namespacesOrPods(namespaces *metav1.LabelSelector, pods *anpv1.NamespacedPod, pod *inventory.Pod) bool {
	if pods != nil {
		return s.selects(pods.NamespaceSelector, s.nsLabels[pod.Namespace]) && s.selects(pods.PodSelector, pod.Labels)
	}
	return s.selects(namespaces, s.nsLabels[pod.Namespace])
}

// releasedEgress adds the destinations outside the pod network.
func (s *Simulator) releasedEgress(p *anpv1.EgressPeer, peer *party) bool {
	switch {
	case p.Nodes != nil:
		return s.nodeSelected(p.Nodes, peer)
	case len(p.Networks) > 0: // pod addresses too
		return slices.ContainsFunc(p.Networks, func(n string) bool { return contains(n, peer.addr) })
	case len(p.DomainNames) > 0:
		return slices.ContainsFunc(p.DomainNames, func(n string) bool { return s.resolved(upstreamName(n), peer.addr) })
	}
	return peer.is(func(pod *inventory.Pod) bool { return s.namespacesOrPods(p.Namespaces, p.Pods, pod) })
}

// nodeSelected reports whether the address is that of a node with such labels, by its
// status or one of its devices (S2-95). Pods are never nodes.
func (s *Simulator) nodeSelected(sel *metav1.LabelSelector, peer *party) bool {
	if peer.pod != nil {
		return false
	}
	for _, n := range s.inv.Nodes {
		if (slices.Contains(n.Addrs, peer.addr) || slices.Contains(n.DeviceAddrs, peer.addr)) && s.selects(sel, n.Labels) {
			return true
		}
	}
	return false
}

// peer011 is a peer of release v0.1.1: its lists compare namespaces of which
// both sides carry every key.
func (s *Simulator) peer011(p *anpv1.Peer011, subject, peer *inventory.Pod) bool {
	n := p.Namespaces
	if p.Pods != nil {
		n = p.Pods.Namespaces
		if !s.selects(p.Pods.PodSelector, peer.Labels) {
			return false
		}
	}
	if n == nil {
		return false
	}
	ours, theirs := s.nsLabels[subject.Namespace], s.nsLabels[peer.Namespace]
	switch {
	case n.NamespaceSelector != nil:
		return s.selects(n.NamespaceSelector, theirs)
	case n.SameLabels != nil:
		return sameLabels(n.SameLabels, ours, theirs)
	case n.NotSameLabels != nil:
		return notSameLabelsReleased(n.NotSameLabels, ours, theirs)
	}
	return false
}

// notSameLabelsReleased: both have every key and at least one value differs; no
// keys select nothing.
func notSameLabelsReleased(keys []string, ours, theirs labels.Set) bool {
	differ := false
	for _, k := range keys {
		if !ours.Has(k) || !theirs.Has(k) {
			return false
		}
		differ = differ || theirs.Get(k) != ours.Get(k)
	}
	return differ
}

// releasedPorts: no list is every port and protocol.
func releasedPorts(c *connection, ports []anpv1.Port) bool {
	return ports == nil || slices.ContainsFunc(ports, func(p anpv1.Port) bool {
		switch {
		case p.PortNumber != nil:
			return portIn(c, p.PortNumber.Protocol, p.PortNumber.Port, p.PortNumber.Port)
		case p.PortRange != nil:
			return portIn(c, p.PortRange.Protocol, p.PortRange.Start, p.PortRange.End)
		case p.NamedPort != nil:
			return namedPort(c, *p.NamedPort, flow.AnyProto)
		}
		return false
	})
}

// portIn reports whether the destination port is in first…last; "" is TCP.
func portIn(c *connection, protocol corev1.Protocol, first, last int32) bool {
	if protocol == "" {
		protocol = corev1.ProtocolTCP
	}
	n := int32(c.key.DstPort)
	return c.key.Proto.String() == string(protocol) && first <= n && n <= last
}

// namedPort reports whether the destination is a pod with a container port of
// the name and protocol at the destination port.
func namedPort(c *connection, name string, protocol flow.Proto) bool {
	return c.key.Proto.HasPorts() && (protocol == flow.AnyProto || protocol == c.key.Proto) && c.dst.is(func(pod *inventory.Pod) bool {
		return slices.Contains(pod.Ports, rule.NamedPort{Name: name, Proto: c.key.Proto, Port: c.key.DstPort})
	})
}

// newCNP converts a ClusterNetworkPolicy v1alpha2.
func (s *Simulator) newCNP(o *api.Object, spec *cnpv1alpha2.Spec) upstreamPolicy {
	pods := func(n *metav1.LabelSelector, p *cnpv1alpha2.NamespacedPod, pod *inventory.Pod) bool {
		if p != nil {
			return s.selects(&p.NamespaceSelector, s.nsLabels[pod.Namespace]) && s.selects(&p.PodSelector, pod.Labels)
		}
		return s.selects(n, s.nsLabels[pod.Namespace])
	}
	p := upstreamPolicy{obj: o, rank: int64(spec.Priority), subject: func(pod *inventory.Pod) bool {
		return pods(spec.Subject.Namespaces, spec.Subject.Pods, pod)
	}}
	if spec.Tier == cnpv1alpha2.Baseline {
		p.level = baselineLevel
	}
	for i := range spec.Ingress {
		r := &spec.Ingress[i]
		p.rules[flow.Ingress] = append(p.rules[flow.Ingress], upstreamRule{r.Name, string(r.Action), func(c *connection, d flow.Direction, _ *inventory.Pod) bool {
			peer := c.peer(d)
			return cnpProtocols(c, r.Protocols) && slices.ContainsFunc(r.From, func(f cnpv1alpha2.IngressPeer) bool {
				return peer.is(func(pod *inventory.Pod) bool { return pods(f.Namespaces, f.Pods, pod) })
			})
		}})
	}
	for i := range spec.Egress {
		r := &spec.Egress[i]
		p.rules[flow.Egress] = append(p.rules[flow.Egress], upstreamRule{r.Name, string(r.Action), func(c *connection, d flow.Direction, _ *inventory.Pod) bool {
			peer := c.peer(d)
			return cnpProtocols(c, r.Protocols) && slices.ContainsFunc(r.To, func(t cnpv1alpha2.EgressPeer) bool {
				switch {
				case t.Nodes != nil:
					return s.nodeSelected(t.Nodes, peer)
				case len(t.Networks) > 0:
					return slices.ContainsFunc(t.Networks, func(n cnpv1alpha2.CIDR) bool { return contains(string(n), peer.addr) })
				case len(t.DomainNames) > 0:
					return slices.ContainsFunc(t.DomainNames, func(n cnpv1alpha2.DomainName) bool { return s.resolved(upstreamName(string(n)), peer.addr) })
				}
				return peer.is(func(pod *inventory.Pod) bool { return pods(t.Namespaces, t.Pods, pod) })
			})
		}})
	}
	return p
}

// cnpProtocols: no list does not restrict.
func cnpProtocols(c *connection, ps []cnpv1alpha2.Protocol) bool {
	return len(ps) == 0 || slices.ContainsFunc(ps, func(p cnpv1alpha2.Protocol) bool {
		port := func(proto flow.Proto, dst *cnpv1alpha2.Port) bool {
			n := int32(c.key.DstPort)
			switch {
			case c.key.Proto != proto:
				return false
			case dst == nil:
				return true
			case dst.Range != nil:
				return dst.Range.Start <= n && n <= dst.Range.End
			}
			return n == dst.Number
		}
		switch {
		case p.TCP != nil:
			return port(flow.TCP, p.TCP.DestinationPort)
		case p.UDP != nil:
			return port(flow.UDP, p.UDP.DestinationPort)
		case p.SCTP != nil:
			return port(flow.SCTP, p.SCTP.DestinationPort)
		}
		return namedPort(c, p.DestinationNamedPort, flow.AnyProto)
	})
}
