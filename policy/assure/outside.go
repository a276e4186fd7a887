package assure

import (
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/tierwall/tierwall/classifier/rule"
)

// region is a part of the address space that no prefix of a policy divides: to a
// policy its addresses are alike, where no pod or node has them.
type region struct {
	prefixes []netip.Prefix
	free     netip.Addr // one that no pod, node or pod network has
}

// regions divides the address space of a family by all prefixes that policies
// mention. Together they cover it, without overlap.
func regions(is4 bool, states ...*State) []region {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if is4 {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	found := map[netip.Prefix]bool{all: true}
	add := func(p netip.Prefix) {
		if p.Addr().Is4() == is4 {
			found[p.Masked()] = true
		}
	}
	for _, s := range states {
		sets := map[string]bool{}
		for i := range s.Set.Rules {
			for j := range s.Set.Rules[i].Peers {
				switch p := &s.Set.Rules[i].Peers[j]; p.Kind {
				case rule.PeerBlock:
					add(p.Block.Prefix)
					for _, e := range p.Block.Except {
						add(e)
					}
				case rule.PeerSet, rule.PeerService:
					sets[p.Set] = true
				}
			}
		}
		for name := range sets {
			for _, p := range s.world.Sets[name] {
				add(p)
			}
		}
	}
	t := takenBy(states)
	list := make([]netip.Prefix, 0, len(found))
	for p := range found {
		list = append(list, p)
	}
	slices.SortFunc(list, netip.Prefix.Compare) // a prefix comes before those inside it
	builders := make([]netipx.IPSetBuilder, len(list))
	var around []int
	for i, p := range list {
		builders[i].AddPrefix(p)
		for len(around) > 0 && !list[around[len(around)-1]].Contains(p.Addr()) {
			around = around[:len(around)-1]
		}
		if n := len(around); n > 0 {
			builders[around[n-1]].RemovePrefix(p)
		}
		around = append(around, i)
	}
	var out []region
	for i := range builders {
		// The builder's error is about invalid prefixes, of which there are none.
		set, err := builders[i].IPSet()
		if err != nil {
			continue
		}
		if free, ok := t.free(set.Prefixes()); ok {
			out = append(out, region{set.Prefixes(), free})
		}
	}
	return out
}

// cover returns the fewest prefixes that cover regions exactly.
func cover(regions []region) []netip.Prefix {
	var b netipx.IPSetBuilder
	for _, r := range regions {
		for _, p := range r.prefixes {
			b.AddPrefix(p)
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return nil
	}
	return set.Prefixes()
}

// taken are the addresses that are not outside.
type taken struct {
	addrs map[netip.Addr]bool
	nets  []netip.Prefix
}

func takenBy(states []*State) *taken {
	t := &taken{addrs: map[netip.Addr]bool{}}
	for _, s := range states {
		for i := range s.world.Endpoints {
			for _, a := range s.world.Endpoints[i].Addrs {
				t.addrs[a] = true
			}
		}
		for i := range s.world.Nodes {
			n := &s.world.Nodes[i]
			for _, a := range n.Addrs {
				t.addrs[a] = true
			}
			t.nets = append(t.nets, n.PodCIDRs...)
		}
	}
	// The widest first: a walk that leaves it has left all inside it.
	slices.SortFunc(t.nets, func(a, b netip.Prefix) int { return a.Bits() - b.Bits() })
	return t
}

// free returns the first address in prefixes that is outside; ok is false if none
// is.
func (t *taken) free(prefixes []netip.Prefix) (a netip.Addr, ok bool) {
	for _, p := range prefixes {
		for a := p.Addr(); a.IsValid() && p.Contains(a); {
			i := slices.IndexFunc(t.nets, func(n netip.Prefix) bool { return n.Contains(a) })
			switch {
			case i >= 0:
				a = netipx.PrefixLastIP(t.nets[i]).Next()
			case t.addrs[a]:
				a = a.Next()
			default:
				return a, true
			}
		}
	}
	return netip.Addr{}, false
}
