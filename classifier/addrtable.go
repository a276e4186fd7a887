package classifier

import (
	"encoding/binary"
	"math/bits"

	"github.com/tierwall/tierwall/classifier/flow"
)

// slot is what an address resolves to: 32 bytes, two to a cache line, so that
// the far end of a connection costs one load. What only the near end needs is
// behind rec.
type slot struct {
	addr  flow.Addr // zero value: empty (:: is never an endpoint)
	peer  uint32    // rec.peer.serial
	local bool      // a pod policed here: rec.subject is set
	rec   *record
}

// addrTable maps exact addresses to slots. It is persistent: a hash directory
// of pages, each a small open-addressing table; a version shares with its
// predecessor every page that was not written. An update therefore copies the
// directory (8 B per 24 addresses or so) and one page, whatever the table's size.
type addrTable struct {
	dir   []*addrPage
	shift uint
	count int
	epoch uint64 // of dir; see chunks
}

const (
	pageSlots = 64
	pageFull  = 60 // a page that gets this full doubles the directory
	pageFill  = 32 // most addresses per page, on average, after a build
)

type addrPage struct {
	slots [pageSlots]slot
	n     int
	epoch uint64
}

// newAddrTable makes a table with room for n addresses.
func newAddrTable(n int, epoch uint64) addrTable {
	size := 1
	for size*pageFill < n {
		size *= 2
	}
	return addrTable{dir: make([]*addrPage, size), shift: uint(64 - bits.TrailingZeros(uint(size))), epoch: epoch}
}

// hashAddr mixes by multiplication; the last bytes of addresses differ most.
// Pages are chosen by the top bits, places in a page by bits further down.
func hashAddr(a *flow.Addr) uint64 {
	hi, lo := binary.LittleEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	h := (hi*0x9e3779b97f4a7c15 ^ lo) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// get returns the slot of an address, or nil.
func (t *addrTable) get(a *flow.Addr) *slot {
	h := hashAddr(a)
	p := t.dir[h>>(t.shift&63)&uint64(len(t.dir)-1)]
	if p == nil {
		return nil
	}
	for i := h; ; i++ {
		s := &p.slots[i%pageSlots]
		if s.rec == nil {
			return nil // also what :: finds
		}
		if s.addr == *a {
			return s
		}
	}
}

// put adds or replaces an address.
func (t *addrTable) put(s slot, epoch uint64) {
	for {
		p := t.page(&s.addr, epoch)
		if p.n < pageFull || t.get(&s.addr) != nil {
			if p.put(s) {
				t.count++
			}
			return
		}
		t.grow(epoch)
	}
}

// delete removes an address if it is there.
func (t *addrTable) delete(a *flow.Addr, epoch uint64) {
	if t.get(a) == nil {
		return
	}
	t.count--
	// Probing must not meet holes: lay the page out anew.
	old := t.dir[t.index(a)]
	fresh := &addrPage{epoch: epoch}
	for i := range old.slots {
		if s := &old.slots[i]; s.rec != nil && s.addr != *a {
			fresh.put(*s)
		}
	}
	t.ownDir(epoch)
	t.dir[t.index(a)] = fresh
}

// each calls f for every address, in no order.
func (t *addrTable) each(f func(*slot)) {
	for _, p := range t.dir {
		if p == nil {
			continue
		}
		for i := range p.slots {
			if p.slots[i].rec != nil {
				f(&p.slots[i])
			}
		}
	}
}

func (t *addrTable) index(a *flow.Addr) uint64 {
	return hashAddr(a) >> (t.shift & 63) & uint64(len(t.dir)-1)
}

func (t *addrTable) ownDir(epoch uint64) {
	if t.epoch != epoch {
		t.dir = append([]*addrPage(nil), t.dir...)
		t.epoch = epoch
	}
}

// page returns the address's page, ready to be written.
func (t *addrTable) page(a *flow.Addr, epoch uint64) *addrPage {
	t.ownDir(epoch)
	i := t.index(a)
	switch old := t.dir[i]; {
	case old == nil:
		t.dir[i] = &addrPage{epoch: epoch}
	case old.epoch != epoch:
		fresh := *old
		fresh.epoch = epoch
		t.dir[i] = &fresh
	}
	return t.dir[i]
}

// grow doubles the directory. It visits every address; that it is needed at all
// takes as many additions as the table had addresses.
func (t *addrTable) grow(epoch uint64) {
	bigger := newAddrTable(2*len(t.dir)*pageFill, epoch)
	t.each(func(s *slot) { bigger.put(*s, epoch) })
	*t = bigger
}

// put reports whether the address is new to the page.
func (p *addrPage) put(s slot) bool {
	for i := hashAddr(&s.addr); ; i++ {
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
