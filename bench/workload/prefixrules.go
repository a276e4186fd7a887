package workload

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// PrefixSpec says how many prefix rules to make.
type PrefixSpec struct {
	Rules int
	Seed  uint64
}

// PrefixRules is a list of rules about prefixes and ports, first match decides,
// and one pod they are about.
type PrefixRules struct {
	Set   rule.Set
	World *rule.World
	spec  PrefixSpec
	inner []netip.Prefix // prefixes of rules, to draw connections from
}

// Prefixes makes rules in the manner of ClassBench's access lists: source
// prefixes nested in a small number of large networks, lengths peaking at /32,
// /24 and /16, ports mostly exact or any, few ranges, several rules a prefix. The
// generator itself is our own; only the shape is ClassBench's. The destination is
// one pod: in this model that side is a set of endpoints, never a prefix.
func Prefixes(s PrefixSpec) *PrefixRules {
	r := rand.New(rand.NewPCG(s.Seed, 7))
	p := &PrefixRules{spec: s, World: &rule.World{Endpoints: []rule.Endpoint{{
		Namespace: "x", Name: "target", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")},
	}}}}
	lengths := []int{32, 32, 32, 32, 28, 27, 24, 24, 24, 20, 16, 16, 12, 8}
	for i := range s.Rules {
		var prefix netip.Prefix
		switch {
		case i >= s.Rules-s.Rules/50: // catch-alls come last
			prefix = netip.MustParsePrefix("0.0.0.0/0")
		case len(p.inner) > 0 && r.IntN(3) == 0:
			prefix = p.inner[r.IntN(len(p.inner))]
		default:
			a := netip.AddrFrom4([4]byte{byte(20 + r.IntN(12)), byte(r.IntN(16)), byte(r.IntN(256)), byte(r.IntN(256))})
			prefix = netip.PrefixFrom(a, lengths[r.IntN(len(lengths))]).Masked()
		}
		p.inner = append(p.inner, prefix)
		l4 := rule.AnyL4
		proto := []flow.Proto{flow.TCP, flow.TCP, flow.UDP}[r.IntN(3)]
		switch r.IntN(8) {
		case 0:
		case 1:
			l4 = rule.L4{Proto: proto, Ports: rule.AllPorts, SrcPorts: rule.AllPorts}
		case 2:
			first := uint16(r.IntN(60_000))
			l4 = port(proto, first, first+uint16(r.IntN(5000)))
		case 3:
			l4 = port(proto, 1024, 65535)
		default:
			n := ports[r.IntN(len(ports))]
			l4 = port(proto, n, n)
		}
		action := rule.Allow
		if r.IntN(3) == 0 {
			action = rule.Deny
		}
		p.Set.Rules = append(p.Set.Rules, rule.Rule{
			Direction: flow.Ingress, Action: action, L4: []rule.L4{l4},
			Order:  rule.Order{Band: rule.BandAdmin, Priority: float64(i)},
			Peers:  []rule.Peer{{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: prefix}}},
			Origin: rule.Origin{Kind: "Prefix", Name: fmt.Sprint(i)},
		})
	}
	return p
}

// Keys draws n connections from inside the rules' prefixes to the pod.
func (p *PrefixRules) Keys(n int, seed uint64) []flow.Key {
	r := rand.New(rand.NewPCG(p.spec.Seed, seed))
	dst := p.World.Endpoints[0].Addrs[0]
	keys := make([]flow.Key, n)
	for i := range keys {
		q := p.inner[r.IntN(len(p.inner))]
		b := q.Addr().As4()
		for bit := q.Bits(); bit < 32; bit++ {
			b[bit/8] |= byte(r.IntN(2)) << (7 - bit%8)
		}
		proto := []flow.Proto{flow.TCP, flow.UDP}[r.IntN(2)]
		dport := ports[r.IntN(len(ports))]
		if r.IntN(3) == 0 {
			dport = uint16(r.IntN(1 << 16))
		}
		keys[i] = flow.MakeKey(proto, netip.AddrPortFrom(netip.AddrFrom4(b), 40000), netip.AddrPortFrom(dst, dport))
	}
	return keys
}
