package workload

import (
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// ports that rules of the cluster name, and some they do not.
var ports = []uint16{53, 80, 443, 2005, 3868, 5432, 6004, 8080, 8443, 9090, 9091, 22, 31000, 12345}

// Keys draws n connections between a pod of the cluster's own node and anybody:
// eight in ten pods, the others outside, nodes, and addresses of pods that nobody
// knows; either side may have opened them. The same seed gives the same
// connections.
func (c *Cluster) Keys(n int, seed uint64) []flow.Key {
	r := rand.New(rand.NewPCG(c.Spec.Seed, seed))
	local := c.Locals()
	keys := make([]flow.Key, n)
	for i := range keys {
		near := local[r.IntN(len(local))]
		a, _ := near.Addr(true)
		b := c.peer(r)
		proto := flow.TCP
		switch r.IntN(10) {
		case 0, 1:
			proto = flow.UDP
		case 2:
			proto = flow.SCTP
		}
		if c.Spec.DualStack && r.IntN(2) == 0 {
			a, _ = near.Addr(false)
			b, _ = c.World.Endpoints[r.IntN(len(c.World.Endpoints))].Addr(false)
		}
		src, dst := netip.AddrPortFrom(a, uint16(32768+r.IntN(28000))), netip.AddrPortFrom(b, ports[r.IntN(len(ports))])
		keys[i] = flow.MakeKey(proto, src, dst)
		if r.IntN(2) == 0 {
			keys[i].Src, keys[i].Dst = keys[i].Dst, keys[i].Src
		}
	}
	return keys
}

func (c *Cluster) peer(r *rand.Rand) netip.Addr {
	switch n := r.IntN(40); {
	case n < 32:
		a, _ := c.World.Endpoints[r.IntN(len(c.World.Endpoints))].Addr(true)
		return a
	case n < 34:
		return netip.AddrFrom4([4]byte{203, byte(r.IntN(200)), byte(r.IntN(256)), byte(r.IntN(256))})
	case n < 36:
		return netip.AddrFrom4([4]byte{151, 101, 0, byte(r.IntN(256))})
	case n < 38:
		return netip.AddrFrom4([4]byte{byte(11 + r.IntN(90)), byte(r.IntN(256)), byte(r.IntN(256)), byte(r.IntN(256))})
	case n < 39:
		return c.World.Nodes[r.IntN(len(c.World.Nodes))].Addrs[0]
	}
	return netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(min(256, len(c.World.Nodes)))), 1}) // in a pod CIDR, nobody's
}

// Locals returns the pods of the cluster's own node.
func (c *Cluster) Locals() []*rule.Endpoint {
	var out []*rule.Endpoint
	for i := range c.World.Endpoints {
		if c.World.Local(&c.World.Endpoints[i]) {
			out = append(out, &c.World.Endpoints[i])
		}
	}
	return slices.Clip(out)
}
