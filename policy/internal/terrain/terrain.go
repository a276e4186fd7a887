// Package terrain is the ends that connections can have in a cluster, as few of them as
// rules can tell apart: to search all connections by trying those between them.
package terrain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// Place is an address that can be the other end of a connection: a pod's, a node's,
// or one outside the cluster that stands for all that no rule tells from it.
type Place struct {
	Addr  netip.Addr
	Pod   *rule.Endpoint // nil: no pod
	Nodes []string       // the nodes that have the address
}

// String names the place as "tierwall explain --from" takes it.
func (p *Place) String() string {
	if p.Pod != nil {
		return p.Pod.Namespace + "/" + p.Pod.Name
	}
	return p.Addr.String()
}

// Kind is the pods that no rule tells apart, by at most three of them: one is not
// enough where the other end is the pod itself or the pod's own node.
type Kind struct {
	Members []int // in Terrain.Pods
	Pods    int   // how many pods are of the kind
}

// Terrain is the ends that connections can have, for the rules of a set.
type Terrain struct {
	Pods    []*rule.Endpoint
	Kinds   []Kind
	Places  []Place        // those of pods first, by namespace
	OfPod   [][]int        // pod → its places
	Spaces  map[string]int // namespace → its first place
	borders []netip.Addr   // where an address prefix of a rule begins or has ended
}

// mostBorders bounds the addresses outside that are told apart.
const mostBorders = 4000

// New finds the ends in a world that a set of rules can tell apart.
func New(set *rule.Set, world *rule.World) *Terrain {
	t := &Terrain{Spaces: map[string]int{}}
	t.findBorders(set, world)
	taken := map[netip.Addr]bool{}
	t.addPods(world, taken)
	at := map[netip.Addr]int{}
	node := func(a netip.Addr, name string) {
		if taken[a] {
			return // a pod's first
		}
		i, ok := at[a]
		if !ok {
			i = len(t.Places)
			at[a] = i
			t.Places = append(t.Places, Place{Addr: a})
		}
		if name != "" {
			t.Places[i].Nodes = append(t.Places[i].Nodes, name)
		}
	}
	for i := range world.Nodes {
		for _, a := range world.Nodes[i].Addrs {
			node(a, world.Nodes[i].Name)
		}
	}
	for i := range world.Endpoints {
		if e := &world.Endpoints[i]; e.HostNetwork {
			for _, a := range e.Addrs {
				node(a, e.Node)
			}
		}
	}
	for a := range at {
		taken[a] = true
	}
	for _, a := range world.VIPs {
		taken[a] = true // no peer: the Service proxy puts a backend in its place
	}
	t.addOutside(world, taken)
	return t
}

// addPods adds the pods of each kind that has an address of its own.
func (t *Terrain) addPods(world *rule.World, taken map[netip.Addr]bool) {
	order := make([]*rule.Endpoint, 0, len(world.Endpoints))
	for i := range world.Endpoints {
		if e := &world.Endpoints[i]; !e.HostNetwork && len(e.Addrs) > 0 {
			order = append(order, e)
		}
	}
	slices.SortStableFunc(order, func(a, b *rule.Endpoint) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	numbers := map[string]int{}
	for _, e := range order {
		var own []netip.Addr // of pods that claim one address the first by name has it
		var key strings.Builder
		fmt.Fprint(&key, e.Namespace, "\x00", e.ServiceAccount, e.Labels, e.Ports)
		for _, a := range e.Addrs {
			if !taken[a] {
				taken[a] = true
				own = append(own, a)
				fmt.Fprint(&key, " ", t.between(a))
			}
		}
		if len(own) == 0 {
			continue
		}
		n, ok := numbers[key.String()]
		if !ok {
			n = len(t.Kinds)
			numbers[key.String()] = n
			t.Kinds = append(t.Kinds, Kind{})
		}
		t.Kinds[n].Pods++
		members := t.Kinds[n].Members
		switch {
		case len(members) > 2, len(members) == 2 && (t.Pods[members[0]].Node != t.Pods[members[1]].Node || t.Pods[members[0]].Node == e.Node):
			continue // nothing new
		}
		t.Kinds[n].Members = append(members, len(t.Pods))
		t.Pods = append(t.Pods, e)
		if _, ok := t.Spaces[e.Namespace]; !ok {
			t.Spaces[e.Namespace] = len(t.Places)
		}
		var places []int
		for _, a := range own {
			places = append(places, len(t.Places))
			t.Places = append(t.Places, Place{Addr: a, Pod: e})
		}
		t.OfPod = append(t.OfPod, places)
	}
}

// findBorders collects the ends of the prefixes that rules and sets have.
func (t *Terrain) findBorders(set *rule.Set, world *rule.World) {
	known := map[netip.Addr]bool{}
	for i := range world.Nodes {
		for _, a := range world.Nodes[i].Addrs {
			known[a] = true
		}
	}
	for _, a := range world.VIPs {
		known[a] = true
	}
	seen := map[netip.Prefix]bool{}
	add := func(p netip.Prefix) {
		if seen[p] || len(t.borders) > mostBorders {
			return
		}
		seen[p] = true
		t.borders = append(t.borders, p.Masked().Addr())
		if a := lastOf(p).Next(); a.IsValid() {
			t.borders = append(t.borders, a)
		}
	}
	add(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	add(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
	for i := range set.Rules {
		if r := &set.Rules[i]; r.Stage == rule.Enforce {
			for j := range r.Peers {
				p := &r.Peers[j]
				switch p.Kind {
				case rule.PeerBlock:
					add(p.Block.Prefix)
					for _, e := range p.Block.Except {
						add(e)
					}
				case rule.PeerSet, rule.PeerService:
					for _, e := range world.Sets[p.Set] {
						if !e.IsSingleIP() || !known[e.Addr()] {
							add(e)
						}
					}
				}
			}
		}
	}
	slices.SortFunc(t.borders, netip.Addr.Compare)
	t.borders = slices.Compact(t.borders)
}

// between returns the number of the interval between borders that an address is in.
func (t *Terrain) between(a netip.Addr) int {
	return sort.Search(len(t.borders), func(i int) bool { return t.borders[i].Compare(a) > 0 })
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

// outsiders are addresses of documentation, which read well in examples.
var outsiders = []netip.Addr{
	netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("203.0.113.7"),
	netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7"),
}

// addOutside adds one address of every interval between borders that is nobody's
// in the cluster.
func (t *Terrain) addOutside(world *rule.World, taken map[netip.Addr]bool) {
	var inside []netip.Prefix // of pods: nobody there is a pod nobody knows
	for i := range world.Nodes {
		inside = append(inside, world.Nodes[i].PodCIDRs...)
	}
	slices.SortFunc(inside, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for i, first := range t.borders {
		in := func(a netip.Addr) bool {
			return a.IsValid() && a.BitLen() == first.BitLen() && first.Compare(a) <= 0 && (i+1 == len(t.borders) || a.Less(t.borders[i+1]))
		}
		pick := func(a netip.Addr) (netip.Addr, bool) {
			for range len(inside) + 8 {
				// Prefixes of pods do not overlap, other than equal ones.
				at := sort.Search(len(inside), func(i int) bool { return inside[i].Addr().Compare(a) > 0 })
				switch {
				case !in(a):
					return a, false
				case at > 0 && inside[at-1].Contains(a):
					a = lastOf(inside[at-1]).Next()
				case taken[a]:
					a = a.Next()
				default:
					return a, true
				}
			}
			return a, false
		}
		for _, from := range append(slices.Clone(outsiders), first.Next(), first) {
			if a, ok := pick(from); ok {
				t.Places = append(t.Places, Place{Addr: a})
				break
			}
		}
	}
}
