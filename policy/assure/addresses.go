package assure

import (
	"fmt"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// addrKind stands for all addresses that rules about prefixes and sets treat alike.
type addrKind struct {
	key      string
	base     string // key without what DNS may add
	prefixes []netip.Prefix
	learnt   []string // sets, of those DNS fills, that have the address
}

// maxLearnt bounds the sets filled by DNS: each may have an address or not.
const maxLearnt = 6

// addresses divides the addresses of one family.
type addresses struct {
	is4    bool
	blocks []rule.IPBlock
	sets   map[string][]netip.Prefix
	names  []string // of sets, but for those DNS fills
	learnt []string
}

func newAddresses(is4 bool, f *facts, sets map[string][]netip.Prefix) (*addresses, error) {
	a := &addresses{is4: is4, sets: sets}
	for _, b := range f.blocks {
		if b.Prefix.Addr().Is4() == is4 {
			a.blocks = append(a.blocks, b)
		}
	}
	for _, name := range f.sets {
		if inventory.LearntSet(name) {
			a.learnt = append(a.learnt, name)
		} else {
			a.names = append(a.names, name)
		}
	}
	if len(a.learnt) > maxLearnt {
		return nil, &errBound{fmt.Sprintf("rules name %d patterns of DNS names, and more than %d are not told apart", len(a.learnt), maxLearnt)}
	}
	return a, nil
}

// key is equal for addresses that rules treat alike, sets filled by DNS left out.
func (a *addresses) key(x netip.Addr) string {
	bits := make([]bool, 0, len(a.blocks)+len(a.names))
	for i := range a.blocks {
		bits = append(bits, a.blocks[i].Contains(x))
	}
	for _, name := range a.names {
		bits = append(bits, slices.ContainsFunc(a.sets[name], func(p netip.Prefix) bool { return p.Contains(x) }))
	}
	return bitKey(bits)
}

// divide returns the kinds of addresses in a set of them.
func (a *addresses) divide(in *netipx.IPSet) ([]addrKind, error) {
	all := netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	if a.is4 {
		all = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	found := map[netip.Prefix]bool{all: true}
	add := func(p netip.Prefix) {
		if p.Addr().Is4() == a.is4 {
			found[p.Masked()] = true
		}
	}
	for i := range a.blocks {
		add(a.blocks[i].Prefix)
		for _, e := range a.blocks[i].Except {
			add(e)
		}
	}
	for _, name := range a.names {
		for _, p := range a.sets[name] {
			add(p)
		}
	}
	list := make([]netip.Prefix, 0, len(found))
	for p := range found {
		list = append(list, p)
	}
	slices.SortFunc(list, netip.Prefix.Compare) // a prefix comes before those inside it
	var out []addrKind
	ids := map[string]int{}
	for i, p := range list {
		var b netipx.IPSetBuilder
		b.AddPrefix(p)
		for _, inner := range list[i+1:] {
			if !p.Contains(inner.Addr()) {
				break
			}
			b.RemovePrefix(inner)
		}
		b.Intersect(in)
		set, err := b.IPSet()
		if err != nil {
			return nil, err
		}
		prefixes := set.Prefixes()
		if len(prefixes) == 0 {
			continue
		}
		key := a.key(prefixes[0].Addr())
		if at, ok := ids[key]; ok {
			out[at].prefixes = append(out[at].prefixes, prefixes...)
			continue
		}
		ids[key] = len(out)
		out = append(out, addrKind{key: key, base: key, prefixes: prefixes})
	}
	return out, nil
}

// learn adds to kinds those of addresses that sets filled by DNS have: nobody knows
// which addresses a name will lead to, so each may have any. pods says that the
// addresses are of pods or nodes, which Cilium's names never lead to.
func (a *addresses) learn(kinds []addrKind, pods bool) []addrKind {
	var sets []string
	for _, name := range a.learnt {
		if !pods || !inventory.LearntOutside(name) {
			sets = append(sets, name)
		}
	}
	n := len(kinds)
	for bits := 1; bits < 1<<len(sets); bits++ {
		for _, k := range kinds[:n] {
			k.learnt = nil
			for i, name := range sets {
				if bits&(1<<i) != 0 {
					k.learnt = append(k.learnt, name)
				}
			}
			k.key += fmt.Sprintf(" %q", k.learnt)
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// networks are the addresses pods may have. sure is false where nobody says so, and
// they are those around the pods there are.
func (p *prover) networks(is4 bool) (set *netipx.IPSet, sure bool, err error) {
	var b netipx.IPSetBuilder
	for _, n := range p.claim.Rights.PodNetworks {
		if n.Addr().Is4() == is4 {
			b.AddPrefix(n)
			sure = true
		}
	}
	world := p.world.Table.World()
	if !sure {
		for i := range world.Nodes {
			for _, c := range world.Nodes[i].PodCIDRs {
				if c.Addr().Is4() == is4 {
					b.AddPrefix(c)
					sure = true
				}
			}
		}
	}
	for i := range world.Endpoints {
		e := &world.Endpoints[i]
		if a, ok := e.Addr(is4); ok && !e.HostNetwork {
			if sure {
				b.Add(a)
				continue
			}
			bits := 16
			switch {
			case inventory.SyntheticIPv4.Contains(a):
				bits = inventory.SyntheticIPv4.Bits()
			case !is4:
				bits = 64
			}
			around, err := a.Prefix(bits)
			if err != nil {
				return nil, false, err
			}
			b.AddPrefix(around)
		}
	}
	p.removeNodes(&b)
	set, err = b.IPSet()
	return set, sure, err
}

// everywhere is every address that is no node's.
func (p *prover) everywhere(is4 bool) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	if is4 {
		b.AddPrefix(netip.PrefixFrom(netip.IPv4Unspecified(), 0))
	} else {
		b.AddPrefix(netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		b.RemovePrefix(netip.MustParsePrefix("::ffff:0:0/96")) // those are IPv4
	}
	p.removeNodes(&b)
	return b.IPSet()
}

func (p *prover) removeNodes(b *netipx.IPSetBuilder) {
	for a := range p.nodeOf {
		b.Remove(a)
	}
	for i := range p.world.Snapshot.Nodes {
		for _, a := range p.world.Snapshot.Nodes[i].DeviceAddrs {
			b.Remove(a)
		}
	}
}

// allocator hands out addresses of kinds, each once a world.
type allocator struct {
	taken map[netip.Addr]bool
	next  map[string]*cursor // by addrKind.base
}

type cursor struct {
	prefixes []netip.Prefix
	at       netip.Addr
	i        int
	world    int
}

// take returns an address of a kind, and the world in which it is still free.
func (a *allocator) take(k *addrKind) (netip.Addr, int, bool) {
	c := a.next[k.base]
	if c == nil {
		c = &cursor{prefixes: k.prefixes, at: k.prefixes[0].Addr()}
		a.next[k.base] = c
	}
	wrapped := false
	for {
		if !c.at.IsValid() || !c.prefixes[c.i].Contains(c.at) {
			if c.i++; c.i == len(c.prefixes) {
				if wrapped {
					return netip.Addr{}, 0, false
				}
				wrapped = true
				c.i = 0
				c.world++
			}
			c.at = c.prefixes[c.i].Addr()
		}
		at := c.at
		c.at = at.Next()
		if !a.taken[at] {
			return at, c.world, true
		}
	}
}
