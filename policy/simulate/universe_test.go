package simulate

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

// The universe of API objects: a few namespaces and pods with hardly any labels,
// so that random policies meet each other everywhere. Every object is one that
// admission would accept.
var (
	nsNames   = []string{"x", "y", "z"}
	podKeys   = []string{"app", "tier"}
	nsKeys    = []string{"team", "env"}
	nodeKeys  = []string{"zone", "role"}
	accounts  = []string{"default", "sa"}
	values    = []string{"a", "b"}
	names     = []string{"p1", "p2", "p3", "p4"}
	ports     = []int32{80, 81, 8080}
	portNames = []string{"http", "dns"}
	l4Protos  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
	sources   = []int32{40000, 40001, 50000}
	icmpTypes = []int32{0, 8, 128, 129}
	igmpTypes = []int32{17, 18, 22, 34}
	multicast = addrs("224.0.0.1", "225.1.2.3")
	outside   = addrs("192.0.2.1", "192.0.2.9", "2001:db8::1", "2001:db8::9")
	nobodys   = addrs("10.0.0.0", "10.0.0.12", "10.0.0.200", "fd00::", "fd00::c", "fd00::c8") // in the pod network
	cidrs     = [][]string{                                                                   // a block and what may be left out of it
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

func randomInventory(r *rand.Rand, m mix) *inventory.Snapshot {
	inv := &inventory.Snapshot{Nodes: []inventory.Node{
		{Name: "n1", Labels: randomLabels(r, nodeKeys), Addrs: addrs("172.16.0.1", "fd01::1")},
		{Name: "n2", Labels: randomLabels(r, nodeKeys), Addrs: addrs("172.16.0.2", "fd01::2")},
	}}
	if chance(r, 3) { // a bridge's foot in the pod network that the node lists
		inv.Nodes[0].Addrs = append(inv.Nodes[0].Addrs, addrs("10.0.0.200", "fd00::c8")...)
	}
	if chance(r, 3) { // flannel's device
		inv.Nodes[0].DeviceAddrs = addrs("10.0.0.0", "fd00::")
	}
	if chance(r, 2) {
		inv.Nodes[0].PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/120")}
	}
	for _, ns := range nsNames[:2+r.IntN(2)] {
		l := randomLabels(r, nsKeys)
		l["kubernetes.io/metadata.name"] = ns
		inv.Namespaces = append(inv.Namespaces, inventory.Namespace{Name: ns, Labels: l})
	}
	for i, ns := range inv.Namespaces {
		svc := inventory.Service{
			Namespace: ns.Name, Name: "svc", ClusterIPs: addrs(fmt.Sprintf("10.96.0.%d", i+1), fmt.Sprintf("fd02::%x", i+1)),
			Selector: randomLabels(r, podKeys), // rarely none
			Labels:   randomLabels(r, podKeys),
		}
		for _, p := range ports[:1+r.IntN(2)] {
			svc.Ports = append(svc.Ports, inventory.ServicePort{Name: fmt.Sprint("p", p), Proto: string(pick(r, l4Protos)), Port: uint16(p), TargetPort: 8080})
		}
		inv.Services = append(inv.Services, svc)
	}
	for i := range 3 + r.IntN(6) {
		p := inventory.Pod{
			Namespace: pick(r, inv.Namespaces).Name, Name: fmt.Sprint("pod", i), Labels: randomLabels(r, podKeys),
			ServiceAccount: pick(r, accounts), Node: pick(r, []string{"n1", "n2"}), HostNetwork: chance(r, 10),
			IPs: addrs(fmt.Sprintf("10.0.0.%d", i+1), fmt.Sprintf("fd00::%x", i+1)),
		}
		// Not scheduled, as hand-written manifests have it.
		if chance(r, 12) {
			p.Node = ""
		}
		if p.HostNetwork && p.Node == "" {
			p.IPs = addrs("172.16.0.3", "fd01::3")
		} else if p.HostNetwork {
			p.IPs = addrs("172.16.0."+p.Node[1:], "fd01::"+p.Node[1:])
		} else if chance(r, 8) {
			p.IPs = p.IPs[:1]
		}
		for _, n := range portNames {
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

// mix says which languages a universe speaks.
type mix struct {
	np, kepANP, released, cnp, kepCNP, antrea, cilium bool
	release                                           string // of released: v0.1.1 or v0.1.7
}

// languages is the mix a name stands for, a random one for "".
func languages(r *rand.Rand, only string) mix {
	release := pick(r, []string{"v0.1.1", "v0.1.7"})
	switch only {
	case "":
		return randomMix(r)
	case "np":
		return mix{np: true}
	case "kep":
		return mix{kepANP: true}
	case "released":
		return mix{released: true, release: release}
	case "cnp":
		return mix{cnp: true}
	case "kepcnp":
		return mix{kepCNP: true}
	case "antrea":
		return mix{antrea: true}
	case "cilium":
		return mix{cilium: true}
	}
	panic("unknown language " + only)
}

// randomMix is one language alone as often as several together. The KEP's
// AdminNetworkPolicy and the released ones exclude each other, or nearly: who
// insists may have both.
func randomMix(r *rand.Rand) (m mix) {
	all := []*bool{&m.np, &m.kepANP, &m.released, &m.cnp, &m.kepCNP, &m.antrea, &m.cilium}
	if chance(r, 2) {
		*pick(r, all) = true
	} else {
		for _, l := range all {
			*l = chance(r, 2)
		}
		if m.kepANP && m.released && !chance(r, 4) {
			*pick(r, []*bool{&m.kepANP, &m.released}) = false
		}
	}
	m.release = pick(r, []string{"v0.1.1", "v0.1.7"})
	return m
}

// draft collects objects as an API server would hold them.
type draft struct {
	t    testing.TB
	r    *rand.Rand
	inv  *inventory.Snapshot
	objs []*api.Object
	// notes are annotations for the next object.
	notes map[string]string
	// specs are the further specs of the next object, as Cilium has them.
	specs []any
}

// add makes an object of a document. Like the decoder it fills in the kind's own
// Go type from the generic form, which edit may still change: what a document
// says with an empty list or null, a Go value loses.
func (u *draft) add(apiVersion, kind, ns, name string, spec any, edit func(spec map[string]any)) {
	u.t.Helper()
	if !slices.Contains([]string{"Tier", "Group", "ClusterGroup"}, kind) && u.has(kind, apiVersion, ns, name) {
		return // an API server has one of a name
	}
	doc := map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}
	meta := doc["metadata"].(map[string]any)
	if ns != "" {
		meta["namespace"] = ns
	}
	notes := map[string]string{}
	maps.Copy(notes, u.notes)
	if !slices.Contains([]string{"Tier", "Group", "ClusterGroup"}, kind) {
		if chance(u.r, 12) {
			notes[stageAnnotation] = pick(u.r, []string{"audit", "enforce"})
		}
		if chance(u.r, 3) && !strings.HasPrefix(apiVersion, "crd.antrea.io/") { // makes a Pass visible in the oracle's audit list
			notes["tierwall.io/audit"] = "true"
		}
	}
	meta["annotations"] = notes
	if len(u.specs) > 0 {
		doc["specs"] = u.specs
	}
	raw := generic(u.t, doc)
	emptied(raw)
	if edit != nil {
		edit(raw["spec"].(map[string]any))
	}
	k := kindOf(u.t, apiVersion, kind, raw)
	o := &api.Object{Kind: k, Namespace: ns, Name: name, Annotations: notes, Generation: 1, Raw: raw, Value: k.New()}
	b, err := json.Marshal(raw)
	if err == nil {
		err = json.Unmarshal(b, o.Value)
	}
	if err != nil {
		u.t.Fatal(err)
	}
	u.objs = append(u.objs, o)
}

func (u *draft) has(kind, apiVersion, ns, name string) bool {
	group, _, _ := strings.Cut(apiVersion, "/")
	return slices.ContainsFunc(u.objs, func(o *api.Object) bool {
		return o.Kind.Kind == kind && o.Kind.Group == group && o.Namespace == ns && o.Name == name
	})
}

// noKeys, alone in a list, stands for the empty list, which Go types here leave
// out when they are written.
const noKeys = "no keys"

func emptied(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = emptied(v[k])
		}
	case []any:
		if len(v) == 1 && v[0] == noKeys {
			return []any{}
		}
		for i := range v {
			v[i] = emptied(v[i])
		}
	}
	return v
}

// generic turns a value into the form documents have before they are typed.
func generic(t testing.TB, v any) map[string]any {
	b, err := json.Marshal(v)
	var m map[string]any
	if err == nil {
		err = utiljson.Unmarshal(b, &m) // whole numbers become int64
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// randomObjects draws the policies, in no particular order.
func randomObjects(t testing.TB, r *rand.Rand, inv *inventory.Snapshot, m mix) []*api.Object {
	u := &draft{t: t, r: r, inv: inv}
	for range some(r, m.np, 7) {
		u.add("networking.k8s.io/v1", "NetworkPolicy", pick(r, inv.Namespaces).Name, pick(r, names), randomNP(r), nil)
	}
	for range some(r, m.kepANP, 6) {
		u.add("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", "", pick(r, names), randomANP(r), nil)
	}
	if m.released {
		u.released(m.release)
	}
	for range some(r, m.cnp, 6) {
		u.add("policy.networking.k8s.io/v1alpha2", "ClusterNetworkPolicy", "", pick(r, names), randomCNP(r), nil)
	}
	if m.kepCNP {
		u.kepCluster()
	}
	if m.antrea {
		u.antrea()
	}
	if m.cilium {
		u.cilium()
	}
	r.Shuffle(len(u.objs), func(i, j int) { u.objs[i], u.objs[j] = u.objs[j], u.objs[i] })
	return u.objs
}

// some is how many policies of a language to draw: none, or fewer than n.
func some(r *rand.Rand, spoken bool, n int) int {
	if !spoken {
		return 0
	}
	return r.IntN(n)
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
			{networkingv1.PolicyTypeIngress},
			{networkingv1.PolicyTypeEgress},
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
		port = ptr(intstr.FromString(pick(r, portNames)))
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

// randomNames is what DNS has answered so far.
func randomNames(r *rand.Rand, inv *inventory.Snapshot) map[string][]netip.Addr {
	out := map[string][]netip.Addr{}
	for _, name := range resolvable {
		if chance(r, 2) {
			out[name] = append(out[name], pick(r, outside), pick(r, outside))
		}
		if chance(r, 6) {
			out[name] = append(out[name], pick(r, nobodys), pick(r, nobodys))
		}
		if chance(r, 4) { // as a headless Service has it
			out[name] = append(out[name], pick(r, inv.Pods).IPs...)
		}
	}
	return out
}

// randomKey draws a connection: between pods mostly, nodes, outside, and addresses
// of the pod network that are nobody's.
func randomKey(r *rand.Rand, inv *inventory.Snapshot) flow.Key {
	is4 := chance(r, 2)
	end := func() flow.Addr {
		var from []netip.Addr
		switch r.IntN(15) {
		case 14:
			from = nobodys
		case 0:
			from = outside
		case 1:
			for i := range inv.Services { // as a packet has it that no proxy has touched
				from = append(from, inv.Services[i].ClusterIPs...)
			}
		case 2:
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
	k.Proto = pick(r, []flow.Proto{flow.TCP, flow.TCP, flow.TCP, flow.UDP, flow.UDP, flow.SCTP, flow.ICMP, flow.ICMP, flow.IGMP, flow.IGMP, 47})
	switch {
	case k.Proto.HasPorts():
		k.SrcPort, k.DstPort = uint16(pick(r, sources)), uint16(pick(r, ports))
		if chance(r, 8) {
			k.DstPort = uint16(1 + r.IntN(65535))
		}
	case k.Proto == flow.ICMP:
		if !is4 {
			k.Proto = flow.ICMPv6
		}
		k.DstPort = flow.ICMPPort(uint8(pick(r, icmpTypes)), uint8(r.IntN(2)))
	case k.Proto == flow.IGMP && !is4:
		k.Proto = 47 // there is no IGMP
	case k.Proto == flow.IGMP:
		k.Dst = flow.AddrFrom(pick(r, multicast))
		k.DstPort = flow.ICMPPort(uint8(pick(r, igmpTypes)), 0)
	}
	if is4 && k.Proto == flow.UDP && chance(r, 8) {
		k.Dst = flow.AddrFrom(pick(r, multicast))
	}
	return k
}
