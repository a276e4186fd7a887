package simulate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/inventory"
)

// The universe of API objects: a few namespaces and pods with hardly any labels,
// so that random policies meet each other everywhere. Every object is one that
// admission would accept.
var (
	nsNames  = []string{"x", "y", "z"}
	podKeys  = []string{"app", "tier"}
	nsKeys   = []string{"team", "env"}
	values   = []string{"a", "b"}
	names    = []string{"p1", "p2", "p3", "p4"}
	ports    = []int32{80, 81, 8080}
	named    = []string{"http", "dns"}
	l4Protos = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	outside  = addrs("192.0.2.1", "192.0.2.9", "2001:db8::1", "2001:db8::9")
	cidrs    = [][]string{ // a block and what may be left out of it
		{"0.0.0.0/0", "10.0.0.0/24", "192.0.2.8/29", "172.16.0.0/30"},
		{"192.0.2.0/24", "192.0.2.8/29", "192.0.2.1/32"},
		{"10.0.0.0/24", "10.0.0.2/32", "10.0.0.4/30"},
		{"172.16.0.2/32"},
		{"::/0", "fd00::/120", "2001:db8::8/125", "fd01::/126"},
		{"2001:db8::/64", "2001:db8::1/128"},
		{"fd00::/120", "fd00::2/128", "fd00::4/126"},
	}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func ptr[T any](v T) *T { return &v }

func randomLabels(r *rand.Rand, keys []string) map[string]string {
	m := map[string]string{}
	for _, k := range keys {
		if !chance(r, 4) {
			m[k] = pick(r, values)
		}
	}
	return m
}

func randomInventory(r *rand.Rand) *inventory.Snapshot {
	inv := &inventory.Snapshot{Nodes: []inventory.Node{
		{Name: "n1", Addrs: addrs("172.16.0.1", "fd01::1")},
		{Name: "n2", Addrs: addrs("172.16.0.2", "fd01::2")},
	}}
	if chance(r, 2) {
		inv.Nodes[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/120")}
	}
	for _, ns := range nsNames[:2+r.IntN(2)] {
		l := randomLabels(r, nsKeys)
		l["kubernetes.io/metadata.name"] = ns
		inv.Namespaces = append(inv.Namespaces, inventory.Namespace{Name: ns, Labels: l})
	}
	for i := range 3 + r.IntN(6) {
		p := inventory.Pod{
			Namespace: pick(r, inv.Namespaces).Name, Name: fmt.Sprint("pod", i), Labels: randomLabels(r, podKeys),
			ServiceAccount: "default", Node: pick(r, []string{"n1", "n2"}), HostNetwork: chance(r, 10),
			IPs: addrs(fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("fd00::%x", i+1)),
		}
		if chance(r, 12) { // not scheduled, as hand-written manifests have it
			p.Node = ""
		}
		if p.HostNetwork && p.Node == "" {
			p.IPs = addrs("172.16.0.3", "fd01::3")
		} else if p.HostNetwork {
			p.IPs = addrs("172.16.0."+p.Node[1:], "fd01::"+p.Node[1:])
		} else if chance(r, 8) {
			p.IPs = p.IPs[:1]
		}
		for _, n := range named {
			if !chance(r, 3) {
				p.Ports = append(p.Ports, rule.NamedPort{Name: n, Proto: pick(r, []flow.Proto{flow.TCP, flow.UDP}), Port: uint16(pick(r, ports))})
			}
		}
		inv.Pods = append(inv.Pods, p)
	}
	slices.SortFunc(inv.Pods, func(a, b inventory.Pod) int {
		if a.Namespace != b.Namespace {
			return int(a.Namespace[0]) - int(b.Namespace[0])
		}
		return int(a.Name[3]) - int(b.Name[3])
	})
	return inv
}

// randomObjects draws the policies, in no particular order.
func randomObjects(t testing.TB, r *rand.Rand, inv *inventory.Snapshot) []*api.Object {
	var objs []*api.Object
	add := func(k api.Kind, ns, name string, v any) {
		for _, o := range objs {
			if o.Kind.Kind == k.Kind && o.Namespace == ns && o.Name == name {
				return // an API server has one of a name
			}
		}
		o := &api.Object{Kind: k, Namespace: ns, Name: name, Generation: 1, Value: v, Raw: map[string]any{}}
		b, err := json.Marshal(v)
		if err == nil {
			err = json.Unmarshal(b, &o.Raw)
		}
		if err != nil {
			t.Fatal(err)
		}
		o.Annotations = map[string]string{}
		if chance(r, 12) {
			o.Annotations[stageAnnotation] = pick(r, []string{"audit", "enforce"})
		}
		if chance(r, 3) { // makes a Pass visible in the oracle's audit list
			o.Annotations["tierwall.io/audit"] = "true"
		}
		objs = append(objs, o)
	}
	for range r.IntN(7) {
		ns, name := pick(r, inv.Namespaces).Name, pick(r, names)
		p := &networkingv1.NetworkPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
			ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: randomNP(r),
		}
		add(npKind, ns, name, p)
	}
	for range r.IntN(6) {
		name := pick(r, names)
		p := &kepanp.AdminNetworkPolicy{
			TypeMeta:   metav1.TypeMeta{APIVersion: "policy.networking.k8s.io/v1alpha1", Kind: "AdminNetworkPolicy"},
			ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: randomANP(r),
		}
		add(anpKind, "", name, p)
	}
	r.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
	return objs
}

func randomSelector(r *rand.Rand, keys []string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	for range r.IntN(5) / 2 {
		k := pick(r, keys)
		switch r.IntN(6) {
		case 0, 1, 2:
			s.MatchLabels = map[string]string{k: pick(r, values)}
		case 3:
			op := pick(r, []metav1.LabelSelectorOperator{metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist})
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op})
		default:
			op := pick(r, []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn})
			vs := []string{pick(r, values)}
			if chance(r, 3) {
				vs = []string{"b", "a"} // any order
			}
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: k, Operator: op, Values: vs})
		}
	}
	return s
}

func randomNsSelector(r *rand.Rand) *metav1.LabelSelector {
	if chance(r, 6) {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": pick(r, nsNames)}}
	}
	return randomSelector(r, nsKeys)
}

func randomNP(r *rand.Rand) networkingv1.NetworkPolicySpec {
	s := networkingv1.NetworkPolicySpec{PodSelector: *randomSelector(r, podKeys)}
	if chance(r, 2) { // else the default
		s.PolicyTypes = [][]networkingv1.PolicyType{
			{networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress},
			{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress},
		}[r.IntN(3)]
	}
	for range r.IntN(3) {
		s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{From: randomNPPeers(r), Ports: randomNPPorts(r)})
	}
	for range r.IntN(3) {
		s.Egress = append(s.Egress, networkingv1.NetworkPolicyEgressRule{To: randomNPPeers(r), Ports: randomNPPorts(r)})
	}
	return s
}

func randomNPPeers(r *rand.Rand) []networkingv1.NetworkPolicyPeer {
	ps := []networkingv1.NetworkPolicyPeer{} // empty and absent alike
	for range r.IntN(3) {
		var p networkingv1.NetworkPolicyPeer
		switch r.IntN(5) {
		case 0, 1:
			c := pick(r, cidrs)
			p.IPBlock = &networkingv1.IPBlock{CIDR: c[0]}
			for _, e := range c[1:] {
				if chance(r, 3) {
					p.IPBlock.Except = append(p.IPBlock.Except, e)
				}
			}
		case 2:
			p.PodSelector = randomSelector(r, podKeys)
		case 3:
			p.NamespaceSelector = randomNsSelector(r)
		default:
			p.NamespaceSelector, p.PodSelector = randomNsSelector(r), randomSelector(r, podKeys)
		}
		ps = append(ps, p)
	}
	return ps
}

// randomPort draws the part NetworkPolicyPort and the KEP's port have in common.
func randomPort(r *rand.Rand) (proto *corev1.Protocol, port *intstr.IntOrString, end *int32) {
	if !chance(r, 3) {
		proto = ptr(pick(r, l4Protos))
	}
	switch r.IntN(4) {
	case 0:
		port = ptr(intstr.FromString(pick(r, named)))
	case 1:
		port = ptr(intstr.FromInt32(ports[r.IntN(2)]))
		end = ptr(pick(r, []int32{81, 100, 8080, 65535}))
	default:
		port = ptr(intstr.FromInt32(pick(r, ports)))
	}
	return proto, port, end
}

func randomNPPorts(r *rand.Rand) []networkingv1.NetworkPolicyPort {
	ps := []networkingv1.NetworkPolicyPort{}
	for range max(0, r.IntN(4)-1) {
		proto, port, end := randomPort(r)
		if chance(r, 4) {
			port, end = nil, nil // the whole protocol
		}
		ps = append(ps, networkingv1.NetworkPolicyPort{Protocol: proto, Port: port, EndPort: end})
	}
	return ps
}

func randomANP(r *rand.Rand) kepanp.Spec {
	s := kepanp.Spec{Priority: ptr(pick(r, []int32{0, 0, 1, 10, 10, 1000}))}
	if chance(r, 2) {
		s.Subject.NamespaceSelector = randomNsSelector(r)
	} else {
		s.Subject.NamespaceAndPodSelector = &kepanp.NamespaceAndPodSelector{
			NamespaceSelector: randomNsSelector(r), PodSelector: randomSelector(r, podKeys),
		}
	}
	rule := func() (name, action string, l4 kepanp.L4Selector, peers []kepanp.Peer) {
		for range (1 + r.IntN(5)) / 2 {
			peers = append(peers, randomKEPPeer(r))
		}
		return pick(r, []string{"", "", "first", "second"}), pick(r, []string{"Allow", "Deny", "Pass"}), randomKEPL4(r), peers
	}
	for range r.IntN(4) {
		n, a, l4, p := rule()
		s.Ingress = append(s.Ingress, kepanp.IngressRule{Name: n, Action: a, L4Selector: l4, From: p})
	}
	for range r.IntN(4) {
		n, a, l4, p := rule()
		s.Egress = append(s.Egress, kepanp.EgressRule{Name: n, Action: a, L4Selector: l4, To: p})
	}
	return s
}

func randomKEPL4(r *rand.Rand) kepanp.L4Selector {
	if chance(r, 2) {
		return kepanp.L4Selector{AllPorts: ptr(true)}
	}
	var ps []kepanp.Port
	for range 1 + r.IntN(2) {
		proto, port, end := randomPort(r)
		ps = append(ps, kepanp.Port{Protocol: proto, Port: port, EndPort: end})
	}
	return kepanp.L4Selector{Ports: ps}
}

func randomKEPPeer(r *rand.Rand) kepanp.Peer {
	n := &kepanp.NamespaceSet{}
	switch r.IntN(6) {
	case 0:
		n.Self = ptr(true)
	case 1:
		n.NotSelf = ptr(true)
	case 2:
		n.SameLabels = randomKeys(r, nsKeys)
	case 3:
		n.NotSameLabels = randomKeys(r, nsKeys)
	default:
		n.NamespaceSelector = randomNsSelector(r)
	}
	if chance(r, 2) {
		return kepanp.Peer{Namespaces: n}
	}
	p := &kepanp.PodSet{}
	switch r.IntN(4) {
	case 0:
		p.SameLabels = randomKeys(r, podKeys)
	case 1:
		p.NotSameLabels = randomKeys(r, podKeys)
	default:
		p.PodSelector = randomSelector(r, podKeys)
	}
	return kepanp.Peer{NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: n, Pods: p}}
}

// randomKeys lists one or both keys, rarely one that nobody has, rarely none.
func randomKeys(r *rand.Rand, keys []string) []string {
	switch r.IntN(8) {
	case 0:
		return []string{}
	case 1:
		return []string{keys[0], "absent"}
	case 2, 3:
		return slices.Clone(keys)
	}
	return []string{pick(r, keys)}
}

// randomKey draws a connection between known addresses: pods mostly, nodes, and
// outside.
func randomKey(r *rand.Rand, inv *inventory.Snapshot) flow.Key {
	is4 := chance(r, 2)
	end := func() flow.Addr {
		var from []netip.Addr
		switch r.IntN(12) {
		case 0:
			from = outside
		case 1:
			from = addrs("172.16.0.1", "172.16.0.2", "172.16.0.3", "fd01::1", "fd01::2", "fd01::3")
		default:
			for i := range inv.Pods {
				from = append(from, inv.Pods[i].IPs...)
			}
		}
		of := func(as []netip.Addr) (out []netip.Addr) {
			for _, a := range as {
				if a.Is4() == is4 {
					out = append(out, a)
				}
			}
			return out
		}
		if of(from) == nil {
			from = outside
		}
		return flow.AddrFrom(pick(r, of(from)))
	}
	k := flow.Key{Src: end(), Dst: end()}
	if k.Src == k.Dst && !chance(r, 8) {
		k.Dst = end()
	}
	k.Proto = pick(r, []flow.Proto{flow.TCP, flow.TCP, flow.TCP, flow.UDP, flow.UDP, flow.SCTP, flow.ICMP, 47})
	switch {
	case k.Proto.HasPorts():
		k.SrcPort, k.DstPort = 40000, uint16(pick(r, ports))
		if chance(r, 8) {
			k.DstPort = uint16(1 + r.IntN(65535))
		}
	case k.Proto == flow.ICMP:
		if !is4 {
			k.Proto = flow.ICMPv6
		}
		k.DstPort = flow.ICMPPort(uint8(128*r.IntN(2)), 0)
	}
	return k
}
