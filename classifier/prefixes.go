package classifier

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"

	"github.com/tierwall/tierwall/classifier/flow"
)

// prefixUse counts what refers to a prefix. Writer only.
type prefixUse struct {
	blocks int      // blocks and holes of rules
	sets   []uint32 // address sets in use that list it, sorted
}

func (u *prefixUse) idle() bool { return u.blocks == 0 && len(u.sets) == 0 }

// addrSet is a named address set. Its prefixes count only while some rule uses it.
type addrSet struct {
	id       uint32
	prefixes []netip.Prefix // as given
	index    []netip.Prefix // masked, sorted, unique
	uses     int            // by rules
	present  bool           // in the world
}

// namedSet is how a table keeps a set, for World.
type namedSet struct {
	name     string
	prefixes []netip.Prefix
	present  bool
}

func (l *Live) useBlock(p netip.Prefix, n int) { l.prefixUse(p).blocks += n }

// prefixUse returns the use counts of a prefix, to be changed: flushPrefixes
// will look at it.
func (l *Live) prefixUse(p netip.Prefix) *prefixUse {
	p = p.Masked()
	u := l.uses[p]
	if u == nil {
		u = &prefixUse{}
		l.uses[p] = u
	}
	if _, ok := l.touched[p]; !ok {
		l.touched[p] = false
	}
	return u
}

func (l *Live) setUse(p netip.Prefix, id uint32, add bool) {
	u := l.prefixUse(p)
	i, has := slices.BinarySearch(u.sets, id)
	switch {
	case add && !has:
		u.sets = slices.Insert(u.sets, i, id)
	case !add && has:
		u.sets = slices.Delete(u.sets, i, i+1)
	default:
		return
	}
	l.touched[p.Masked()] = true
}

// setOf returns a set by name, numbering it if it is new.
func (l *Live) setOf(name string) *addrSet {
	s := l.sets[name]
	if s == nil {
		s = &addrSet{id: uint32(l.setIDs.take())}
		l.sets[name] = s
		l.s.sets.set(int(s.id), namedSet{name: name}, l.epoch)
	}
	return s
}

func (l *Live) useSet(name string) uint32 {
	s := l.setOf(name)
	if s.uses++; s.uses == 1 {
		for _, p := range s.index {
			l.setUse(p, s.id, true)
		}
	}
	return s.id
}

func (l *Live) releaseSet(name string) {
	s := l.setOf(name)
	if s.uses--; s.uses == 0 {
		for _, p := range s.index {
			l.setUse(p, s.id, false)
		}
	}
	l.freeSet(name, s)
}

// freeSet forgets a set that neither rules nor the world know. Its number may be
// another's at once: subjects with rules about either set are new.
func (l *Live) freeSet(name string, s *addrSet) {
	if s.uses == 0 && !s.present {
		delete(l.sets, name)
		l.s.sets.set(int(s.id), namedSet{}, l.epoch)
		l.setIDs.give(int(s.id))
	}
}

// changeSet gives a set new prefixes; present is false for one that is gone.
func (l *Live) changeSet(name string, prefixes []netip.Prefix, present bool) {
	s := l.setOf(name)
	index := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		index[i] = p.Masked()
	}
	slices.SortFunc(index, netip.Prefix.Compare)
	index = slices.Compact(index)
	if s.uses > 0 {
		for _, p := range s.index {
			if _, still := slices.BinarySearchFunc(index, p, netip.Prefix.Compare); !still {
				l.setUse(p, s.id, false)
			}
		}
		for _, p := range index {
			if _, had := slices.BinarySearchFunc(s.index, p, netip.Prefix.Compare); !had {
				l.setUse(p, s.id, true)
			}
		}
	}
	s.prefixes, s.index, s.present = prefixes, index, present
	l.s.sets.set(int(s.id), namedSet{name, prefixes, present}, l.epoch)
	l.freeSet(name, s)
}

// batchPrefixes is how many changed prefixes make a copy of the whole prefix
// table cheaper than one persistent change each (15 µs and 6-13 KB).
const batchPrefixes = 32

// maxIdle bounds prefixes that are kept although no policy mentions them.
const maxIdle = 1024

// wellKnown prefixes always have a leaf. They cover many pods: giving them one
// later means visiting these.
var wellKnown = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("::/0"), netip.MustParsePrefix("fc00::/7"), netip.MustParsePrefix("fd00::/8"),
}

// flushPrefixes brings the leaves up to date with the use counts and moves the
// known addresses that now belong to another leaf.
func (l *Live) flushPrefixes() {
	if len(l.touched) == 0 {
		return
	}
	order := slices.SortedFunc(maps.Keys(l.touched), netip.Prefix.Compare) // shorter before longer
	if len(order) > batchPrefixes {
		l.ownPrefixes()
	}
	var moved []netip.Prefix // known addresses in here may have another leaf
	var stale []netip.Prefix // sets changed: this leaf and all below
	for _, p := range order {
		u := l.uses[p]
		old, have := l.s.prefixes.Get(p)
		switch {
		case u.idle() && have:
			if l.touched[p] {
				stale = append(stale, p)
			}
			if l.keepIdle(p) {
				continue
			}
			l.deleteLeaf(p)
			delete(l.uses, p)
			moved = append(moved, p)
		case u.idle():
			delete(l.uses, p)
		case !have:
			l.putLeaf(l.newLeaf(p))
			moved = append(moved, p)
			if len(u.sets) > 0 {
				stale = append(stale, p)
			}
		default:
			if l.touched[p] {
				stale = append(stale, p)
			}
			_ = old
		}
	}
	clear(l.touched)
	for _, p := range stale {
		var below []netip.Prefix
		for q := range l.s.prefixes.Subnets(p) {
			below = append(below, q)
		}
		for _, q := range below {
			old, _ := l.s.prefixes.Get(q)
			if fresh := l.newLeaf(q); !slices.Equal(fresh.sets, old.sets) {
				l.putLeaf(fresh)
				moved = append(moved, q)
			}
		}
	}
	for _, p := range moved {
		l.eachKnown(p, func(a flow.Addr, rec *record) {
			if rec.peer.leaf != l.leafOf(a) {
				l.place(a, rec.pod)
			}
		})
	}
}

// keepIdle reports whether an unused prefix stays as it is: taking it out would
// visit every known address. When too many have gathered they all go.
func (l *Live) keepIdle(p netip.Prefix) bool {
	if slices.Contains(wellKnown, p) {
		return true
	}
	if hostBits(p) <= 8 || !l.anyKnown(p) {
		return false
	}
	if len(l.idle) < maxIdle {
		l.idle[p] = struct{}{}
		return true
	}
	for q := range l.idle {
		if u := l.uses[q]; u != nil && u.idle() && q != p {
			l.touched[q] = false // next time
		}
	}
	clear(l.idle)
	return false
}

// newLeaf makes the leaf of a prefix for the sets that are in use now.
func (l *Live) newLeaf(p netip.Prefix) *leaf {
	f := &leaf{prefix: p}
	if p.IsValid() {
		if u := l.uses[p]; u != nil {
			f.sets = append(f.sets, u.sets...)
		}
		for q := range l.s.prefixes.Supernets(p) {
			if u := l.uses[q]; u != nil && q != p {
				f.sets = append(f.sets, u.sets...)
			}
		}
		slices.Sort(f.sets)
		f.sets = slices.Clip(slices.Compact(f.sets))
	}
	f.party = newParty(&record{peer: &peerClass{serial: l.newPeerSerial(), kind: peerOutside, leaf: f}}, false)
	f.nobody = newParty(&record{peer: &peerClass{serial: l.newPeerSerial(), kind: peerUnknown, leaf: f}}, false)
	return f
}

func (l *Live) ownPrefixes() {
	if l.prefixEpoch != l.epoch {
		l.s.prefixes = l.s.prefixes.Clone()
		l.prefixEpoch = l.epoch
	}
}

func (l *Live) putLeaf(f *leaf) {
	if l.prefixEpoch == l.epoch {
		l.s.prefixes.Insert(f.prefix, f)
	} else {
		l.s.prefixes = l.s.prefixes.InsertPersist(f.prefix, f)
	}
}

func (l *Live) deleteLeaf(p netip.Prefix) {
	if l.prefixEpoch == l.epoch {
		l.s.prefixes.Delete(p)
	} else {
		l.s.prefixes = l.s.prefixes.DeletePersist(p)
	}
}

func (l *Live) leafOf(a flow.Addr) *leaf {
	if f, ok := l.s.prefixes.Lookup(a.Netip()); ok {
		return f
	}
	return l.s.none
}

func hostBits(p netip.Prefix) int { return p.Addr().BitLen() - p.Bits() }

// region is the neighbourhood an address is counted in.
func region(a netip.Addr) netip.Prefix {
	bits := 16
	if a.Is6() {
		bits = 48
	}
	p, _ := a.Prefix(bits)
	return p
}

// anyKnown reports whether p may contain an address of a pod or node.
func (l *Live) anyKnown(p netip.Prefix) bool {
	if r := region(p.Addr()); p.Bits() >= r.Bits() {
		return l.regions[r] > 0
	}
	for r := range l.regions {
		if p.Contains(r.Addr()) {
			return true
		}
	}
	return false
}

// eachKnown calls f for every known address in p: one by one in a small prefix,
// else by visiting all there are. f may write.
func (l *Live) eachKnown(p netip.Prefix, f func(flow.Addr, *record)) {
	if !l.anyKnown(p) {
		return
	}
	if n := hostBits(p); n < 24 && 1<<n < l.s.addrs.count() {
		for a, i := p.Addr(), 0; i < 1<<n; a, i = a.Next(), i+1 {
			key := flow.AddrFrom(a)
			if rec := l.s.addrs.get(&key).rec; rec != nil {
				f(key, rec)
			}
		}
		return
	}
	var found []flow.Addr
	l.s.addrs.each(func(a flow.Addr, _ *record) {
		if p.Contains(a.Netip()) {
			found = append(found, a)
		}
	})
	for _, a := range found {
		f(a, l.s.addrs.get(&a).rec)
	}
}

// newPrefixes returns an empty prefix table.
func newPrefixes() *bart.Table[*leaf] { return new(bart.Table[*leaf]) }
