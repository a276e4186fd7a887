package classifier

import (
	"encoding/binary"
	"math/bits"
	"reflect"

	"github.com/tierwall/tierwall/classifier/flow"
)

// party is what an address resolves to.
type party struct {
	// peer is the serial of rec.peer, and localBit for a pod policed here: all
	// that the far end of a connection is asked for comes with its address.
	peer uint32
	rec  *record
}

// localBit marks addresses whose record has a subject. Serials stay below it.
const localBit = 1 << 31

func (p party) local() bool    { return p.peer&localBit != 0 }
func (p party) serial() uint32 { return p.peer &^ localBit }

func newParty(rec *record, local bool) party {
	p := party{rec.peer.serial, rec}
	if local {
		p.peer |= localBit
	}
	return p
}

// slot is one entry of a page: 16 bytes for an IPv4 address, 32 for an IPv6 one.
type slot[K hashable] struct {
	addr K
	peer uint32
	rec  *record // nil: empty
}

const (
	pageSlots = 64
	pageFull  = 60 // a page that gets this full makes the table grow
	pageFill  = 30 // addresses per page, on average, after a build
)

type page[K hashable] struct {
	epoch uint64
	n     int
	slots [pageSlots]slot[K]
}

// pages is a persistent hash table: an array of pages, each a small
// open-addressing table. A version shares with its predecessor every page that
// was not written; an update copies a page and the way to it, a few kilobytes,
// whatever the table's size.
type pages[K hashable] struct {
	dir   chunks[*page[K]]
	size  uint64 // pages
	count int    // addresses
}

// hashable lets the code of both families be shared off the packet path.
type hashable interface {
	comparable
	hash() uint64
}

// addr4 is an IPv4 address in host byte order.
type addr4 uint32

// addr6 is any other address.
type addr6 flow.Addr

// Pages are chosen by the upper half of the hash, places in a page by bits of
// the lower.
func (a addr4) hash() uint64 { return uint64(a) * 0x9e3779b97f4a7c15 }

func (a addr6) hash() uint64 {
	hi, lo := binary.LittleEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	h := (hi*0x9e3779b97f4a7c15 ^ lo) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

const placeShift = 16

// pageOf maps a hash to a page without needing a power of two of them.
func pageOf(h, size uint64) uint64 { return (h >> 32) * size >> 32 }

// addrTable maps the exact addresses of pods and nodes to parties.
type addrTable struct {
	v4 pages[addr4]
	v6 pages[addr6]
}

// to4 returns the IPv4 address; ok is false for any other.
func to4(a *flow.Addr) (v addr4, ok bool) {
	hi, lo := binary.LittleEndian.Uint64(a[:8]), binary.LittleEndian.Uint64(a[8:])
	return addr4(bits.ReverseBytes32(uint32(lo >> 32))), hi == 0 && uint32(lo) == 0xffff0000
}

// get returns the party of an address; rec is nil if the address is not there.
func (t *addrTable) get(a *flow.Addr) party {
	v4, ok := to4(a)
	if !ok {
		return t.v6.find(addr6(*a), addr6(*a).hash())
	}
	h := uint64(v4) * 0x9e3779b97f4a7c15
	n := pageOf(h, t.v4.size)
	p := t.v4.dir.dir[n/chunkSize].v[n%chunkSize]
	if p == nil {
		return party{}
	}
	for i := h >> placeShift; ; i++ {
		s := &p.slots[i%pageSlots]
		if s.addr == v4 || s.rec == nil { // 0.0.0.0 is nobody's: its slot is empty
			return party{s.peer, s.rec}
		}
	}
}

func (t *addrTable) count() int { return t.v4.count + t.v6.count }

func (t *addrTable) put(a flow.Addr, p party, epoch uint64) {
	if v4, ok := to4(&a); ok {
		t.v4.put(slot[addr4]{v4, p.peer, p.rec}, epoch)
	} else {
		t.v6.put(slot[addr6]{addr6(a), p.peer, p.rec}, epoch)
	}
}

func (t *addrTable) delete(a flow.Addr, epoch uint64) {
	if v4, ok := to4(&a); ok {
		t.v4.delete(v4, epoch)
	} else {
		t.v6.delete(addr6(a), epoch)
	}
}

// each calls f for every address, in no order.
func (t *addrTable) each(f func(flow.Addr, *record)) {
	t.v4.each(func(s *slot[addr4]) {
		a := flow.Addr{10: 0xff, 11: 0xff}
		binary.BigEndian.PutUint32(a[12:], uint32(s.addr))
		f(a, s.rec)
	})
	t.v6.each(func(s *slot[addr6]) { f(flow.Addr(s.addr), s.rec) })
}

// newAddrTable makes a table with room for so many addresses of either family.
func newAddrTable(v4, v6 int, epoch uint64) addrTable {
	return addrTable{v4: newPages[addr4](v4, epoch), v6: newPages[addr6](v6, epoch)}
}

func newPages[K hashable](n int, epoch uint64) pages[K] {
	t := pages[K]{size: uint64(n/pageFill) + 1}
	t.dir.set(int(t.size)-1, nil, epoch) // no chunk of the directory is ever missing
	for i := 0; i < int(t.size); i += chunkSize {
		t.dir.set(i, nil, epoch)
	}
	return t
}

// find returns the party of an address with hash h.
func (t *pages[K]) find(a K, h uint64) party {
	p := *t.dir.at(int(pageOf(h, t.size)))
	if p == nil {
		return party{}
	}
	for i := h >> placeShift; ; i++ {
		s := &p.slots[i%pageSlots]
		if s.addr == a || s.rec == nil { // :: is nobody's: its slot is empty
			return party{s.peer, s.rec}
		}
	}
}

// put adds or replaces an address.
func (t *pages[K]) put(s slot[K], epoch uint64) {
	for {
		h := s.addr.hash()
		p := t.own(pageOf(h, t.size), epoch)
		if p.n < pageFull || t.find(s.addr, h).rec != nil {
			if p.put(s, h) {
				t.count++
			}
			return
		}
		t.grow(epoch)
	}
}

// delete removes an address if it is there.
func (t *pages[K]) delete(a K, epoch uint64) {
	h := a.hash()
	if t.find(a, h).rec == nil {
		return
	}
	t.count--
	// Probing must not meet holes: lay the page out anew.
	n := int(pageOf(h, t.size))
	old := *t.dir.at(n)
	fresh := &page[K]{epoch: epoch}
	for i := range old.slots {
		if s := &old.slots[i]; s.rec != nil && s.addr != a {
			fresh.put(*s, s.addr.hash())
		}
	}
	t.dir.set(n, fresh, epoch)
}

func (t *pages[K]) each(f func(*slot[K])) {
	t.dir.each(func(p **page[K]) {
		if *p == nil {
			return
		}
		for i := range (*p).slots {
			if (*p).slots[i].rec != nil {
				f(&(*p).slots[i])
			}
		}
	})
}

// own returns page n, ready to be written.
func (t *pages[K]) own(n, epoch uint64) *page[K] {
	old := *t.dir.at(int(n))
	if old != nil && old.epoch == epoch {
		return old
	}
	fresh := &page[K]{}
	if old != nil {
		*fresh = *old
	}
	fresh.epoch = epoch
	t.dir.set(int(n), fresh, epoch)
	return fresh
}

// grow makes the table half as large again. It visits every address; that it is
// needed takes about half as many additions as the table had addresses.
func (t *pages[K]) grow(epoch uint64) {
	bigger := newPages[K](int(t.size)*pageFill*3/2+pageFill, epoch)
	t.each(func(s *slot[K]) { bigger.put(*s, epoch) })
	*t = bigger
}

// put reports whether the address is new to the page.
func (p *page[K]) put(s slot[K], h uint64) bool {
	for i := h >> placeShift; ; i++ {
		at := &p.slots[i%pageSlots]
		if at.rec == nil || at.addr == s.addr {
			fresh := at.rec == nil
			*at = s
			if fresh {
				p.n++
			}
			return fresh
		}
	}
}

// bytes returns what the pages occupy, without records.
func (t *pages[K]) bytes() int {
	n := 8 * len(t.dir.dir) * (chunkSize + 2)
	t.dir.each(func(p **page[K]) {
		if *p != nil {
			n += int(reflect.TypeFor[page[K]]().Size())
		}
	})
	return n
}
