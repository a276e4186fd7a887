package universe

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

const gre flow.Proto = 47 // stands for every protocol without ports

// The vocabulary. Few values of everything, so that rules meet.
var (
	namespaces = []string{"x", "y", "z"}
	nodes      = []string{"n1", "n2"}
	labelKeys  = []string{"app", "tier"}
	labelVals  = []string{"a", "b"}
	accounts   = []string{"", "sa"}
	portNames  = []string{"http", "dns"}
	portNums   = []uint16{80, 81, 8080}
	srcPorts   = []uint16{1000, 40000}
	setNames   = []string{"nodes", "outside", "devices", "devices", "mixed", "missing"}
	protos     = []flow.Proto{flow.TCP, flow.UDP, flow.SCTP, flow.ICMP, flow.ICMPv6, flow.IGMP, gre}
)

// Address plan, both families alike: pods of node N live in 10.0.N.0/29 and
// fd00:N::/125, nodes are 172.16.0.N and fd01::N, outside is 192.0.2.0/30 and
// 2001:db8::/126. In the pod networks .0 and .1 are no pod's; .1 may be the node's.
var (
	outside = []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"),
	}
	// blocks nest: each is inside one before it of its family and region.
	blocks = prefixes(
		"0.0.0.0/0", "10.0.0.0/16", "10.0.1.0/29", "10.0.1.0/31", "10.0.1.2/31", "10.0.1.2/32", "10.0.2.0/29", "10.0.2.3/32",
		"172.16.0.0/30", "172.16.0.1/32", "192.0.2.0/30", "192.0.2.1/32",
		"::/0", "fd00::/16", "fd00:1::/125", "fd00:1::/127", "fd00:1::2/127", "fd00:1::2/128", "fd00:2::/125", "fd00:2::3/128",
		"fd01::/126", "fd01::1/128", "2001:db8::/126", "2001:db8::1/128",
	)
)

func prefixes(ss ...string) []netip.Prefix {
	var ps []netip.Prefix
	for _, s := range ss {
		ps = append(ps, netip.MustParsePrefix(s))
	}
	return ps
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

// chance is true once in n.
func chance(r *rand.Rand, n int) bool { return r.IntN(n) == 0 }

func podAddrs(node, host int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{10, 0, byte(node), byte(host)}),
		netip.MustParseAddr(fmt.Sprintf("fd00:%d::%d", node, host)),
	}
}

func randomLabels(r *rand.Rand) map[string]string {
	m := map[string]string{}
	for _, k := range labelKeys {
		if !chance(r, 4) {
			m[k] = pick(r, labelVals)
		}
	}
	return m
}

func randomWorld(r *rand.Rand) *rule.World {
	w := &rule.World{Sets: map[string][]netip.Prefix{}}
	if !chance(r, 3) {
		w.Node = nodes[0]
	}
	for i, name := range nodes {
		n := i + 1
		node := rule.Node{Name: name, Addrs: []netip.Addr{
			netip.AddrFrom4([4]byte{172, 16, 0, byte(n)}),
			netip.MustParseAddr(fmt.Sprintf("fd01::%d", n)),
		}}
		if chance(r, 3) { // the node's own foot in the pod network, as bridges have it
			node.Addrs = append(node.Addrs, podAddrs(n, 1)...)
		}
		if !chance(r, 5) { // without pod CIDRs nothing is unknown, only external
			node.PodCIDRs = prefixes(fmt.Sprintf("10.0.%d.0/29", n), fmt.Sprintf("fd00:%d::/125", n))
		}
		w.Nodes = append(w.Nodes, node)
	}

	nsLabels := map[string]map[string]string{}
	for _, ns := range namespaces {
		nsLabels[ns] = randomLabels(r)
		nsLabels[ns]["kubernetes.io/metadata.name"] = ns
	}
	host := map[string]int{nodes[0]: 2, nodes[1]: 2} // .1 may be the node
	for i, count := 0, 1+r.IntN(7); i < count; i++ {
		node := r.IntN(len(nodes))
		ns := pick(r, namespaces)
		e := rule.Endpoint{
			Namespace: ns, Name: fmt.Sprint("p", i),
			Labels: randomLabels(r), NamespaceLabels: nsLabels[ns],
			ServiceAccount: pick(r, accounts),
			Node:           nodes[node],
			HostNetwork:    chance(r, 8),
		}
		if e.HostNetwork {
			e.Addrs = slices.Clone(w.Nodes[node].Addrs[:2])
			if chance(r, 4) { // an address only this pod tells us about
				e.Addrs = append(e.Addrs, netip.AddrFrom4([4]byte{172, 16, 0, byte(node + 1 + 2)}))
			}
		} else if h := host[e.Node]; h < 7 {
			e.Addrs = podAddrs(node+1, h)
			host[e.Node] = h + 1
			switch r.IntN(6) {
			case 0:
				e.Addrs = e.Addrs[:1]
			case 1:
				e.Addrs = e.Addrs[1:]
			}
		} // else: a pod without an address yet
		if chance(r, 16) { // not scheduled, as hand-written manifests have it
			e.Node = ""
		}
		for _, name := range portNames {
			switch r.IntN(4) {
			case 0: // the pod has no such port
			case 1: // one name, two protocols
				e.Ports = append(e.Ports, rule.NamedPort{Name: name, Proto: flow.UDP, Port: pick(r, portNums)})
				fallthrough
			default:
				e.Ports = append(e.Ports, rule.NamedPort{Name: name, Proto: pick(r, protos[:2]), Port: pick(r, portNums)})
			}
		}
		w.Endpoints = append(w.Endpoints, e)
	}

	for _, n := range w.Nodes {
		for _, a := range n.Addrs {
			w.Sets["nodes"] = append(w.Sets["nodes"], netip.PrefixFrom(a, a.BitLen()))
		}
	}
	w.Sets["service"] = prefixes("10.96.0.1/32", "fd96::1/128")
	w.Sets["outside"] = prefixes("192.0.2.1/32", "2001:db8::1/128")
	w.Sets["devices"] = prefixes("10.0.1.0/31", "10.0.2.0/31", "fd00:1::/127", "fd00:2::/127")
	for range 1 + r.IntN(3) {
		w.Sets["mixed"] = append(w.Sets["mixed"], pick(r, blocks))
	}
	return w
}

// RandomKey draws a connection between any two addresses that mean something in
// the world, of one family: pods, nodes, outside, and addresses of a pod network
// that nobody has. Keys are always valid in the sense of [flow.Key.Valid].
func RandomKey(r *rand.Rand, w *rule.World) flow.Key {
	is4 := r.IntN(2) == 0
	k := flow.Key{Src: randomAddr(r, w, is4), Dst: randomAddr(r, w, is4)}
	if chance(r, 16) {
		k.Dst = k.Src
	}
	switch r.IntN(4) {
	case 0, 1:
		k.Proto = flow.TCP
	case 2:
		k.Proto = flow.UDP
	default:
		k.Proto = pick(r, protos[2:]) // ICMP of the other family too
	}
	switch {
	case k.Proto.HasPorts():
		k.SrcPort, k.DstPort = pick(r, srcPorts), pick(r, portNums)
		if chance(r, 12) {
			k.DstPort = uint16(r.IntN(1 << 16))
		}
	case k.Proto == flow.ICMP || k.Proto == flow.ICMPv6 || k.Proto == flow.IGMP:
		k.DstPort = flow.ICMPPort(icmpType(r, k.Proto), uint8(r.IntN(2)))
		k.SrcPort = uint16(r.IntN(2)) // echo identifier
	}
	return k
}

// RandomService draws where k, a random key, was opened to; often nowhere else.
func RandomService(r *rand.Rand, w *rule.World, k flow.Key) flow.Service {
	s := flow.Service{Port: pick(r, portNums)}
	switch {
	case !k.Proto.HasPorts() || chance(r, 4):
		return flow.Service{}
	case chance(r, 3):
		s.Addr = randomAddr(r, w, k.Dst.Is4())
	case k.Dst.Is4():
		s.Addr = flow.AddrFrom(netip.MustParseAddr("10.96.0.1"))
	default:
		s.Addr = flow.AddrFrom(netip.MustParseAddr("fd96::1"))
	}
	return s
}

// icmpType draws echo request or reply of the protocol.
func icmpType(r *rand.Rand, p flow.Proto) uint8 {
	if p == flow.ICMPv6 {
		return flow.ICMPv6EchoRequest + uint8(r.IntN(2))
	}
	return flow.ICMPEchoRequest * uint8(r.IntN(2))
}

func randomAddr(r *rand.Rand, w *rule.World, is4 bool) flow.Addr {
	var from []netip.Addr
	switch n := r.IntN(12); {
	case n < 7:
		for i := range w.Endpoints {
			if a, ok := w.Endpoints[i].Addr(is4); ok {
				from = append(from, a)
			}
		}
	case n < 8:
		for i := range w.Nodes {
			from = append(from, w.Nodes[i].Addrs...)
		}
		for i := range w.Endpoints {
			if w.Endpoints[i].HostNetwork {
				from = append(from, w.Endpoints[i].Addrs...)
			}
		}
	case n < 10:
		from = outside
	default: // anywhere in the pod networks: known, unknown, or the node's foot
		host := r.IntN(8)
		if chance(r, 2) {
			host %= 2 // no pod's
		}
		from = podAddrs(1+r.IntN(len(nodes)), host)
	}
	from = slices.DeleteFunc(slices.Clone(from), func(a netip.Addr) bool { return a.Is4() != is4 })
	if len(from) == 0 {
		from = slices.DeleteFunc(slices.Clone(outside), func(a netip.Addr) bool { return a.Is4() != is4 })
	}
	return flow.AddrFrom(pick(r, from))
}
