package conntrack

import (
	"math/bits"
	"sync"

	"github.com/tierwall/tierwall/classifier/flow"
)

// ends knows which addresses the records of a table have. Each distinct address
// has a number, and each slot the numbers of its record's two ends, close
// together: what concerns a few addresses is found without looking at the
// records. A record's addresses never change while it has its slot.
//
// It belongs to the control side. The packet path only notes which slots got
// another record (Table.fresh); slots whose record is gone keep the numbers they
// had until then.
type ends struct {
	mu      sync.Mutex
	numbers map[flow.Addr]uint32
	addrs   []flow.Addr // by number
	uses    []uint32    // by number: ends that have the address; 0 = number is free
	free    []uint32    // numbers
	slots   [][2]uint32 // by slot
}

// noAddr is the number in slots that never had a record.
const noAddr = ^uint32(0)

// set notes the addresses of slot s.
func (e *ends) set(s slot, k *flow.Key) {
	for len(e.slots) <= int(s) {
		e.slots = append(e.slots, [2]uint32{noAddr, noAddr})
	}
	old := e.slots[s]
	e.slots[s] = [2]uint32{e.take(k.Src), e.take(k.Dst)} // before drop: it may be the same
	if old[0] != noAddr {
		e.drop(old[0])
		e.drop(old[1])
	}
}

func (e *ends) take(a flow.Addr) uint32 {
	n, ok := e.numbers[a]
	if !ok {
		if last := len(e.free) - 1; last >= 0 {
			n = e.free[last]
			e.free = e.free[:last]
			e.addrs[n] = a
		} else {
			n = uint32(len(e.addrs))
			e.addrs, e.uses = append(e.addrs, a), append(e.uses, 0)
		}
		if e.numbers == nil {
			e.numbers = map[flow.Addr]uint32{}
		}
		e.numbers[a] = n
	}
	e.uses[n]++
	return n
}

func (e *ends) drop(n uint32) {
	if e.uses[n]--; e.uses[n] == 0 {
		delete(e.numbers, e.addrs[n])
		e.free = append(e.free, n)
	}
}

// marks is a set of address numbers.
type marks []uint64

func (m marks) has(n uint32) bool { return n != noAddr && m[n/64]&(1<<(n%64)) != 0 }

// mark asks touched about every address there is; nil if it says yes to none.
func (e *ends) mark(touched func(flow.Addr) bool) (m marks) {
	for n := range e.addrs {
		if e.uses[n] == 0 || !touched(e.addrs[n]) {
			continue
		}
		if m == nil {
			m = make(marks, len(e.addrs)/64+1)
		}
		m[n/64] |= 1 << (n % 64)
	}
	return m
}

// marked puts slots with a marked end into out, from slot at on, until that is
// full. It returns how many, and the slot to go on with.
func (e *ends) marked(m marks, at int, out *[blockSize]slot) (next, n int) {
	for ; at < len(e.slots) && n < len(out); at++ {
		if s := e.slots[at]; m.has(s[0]) || m.has(s[1]) {
			out[n] = slot(at)
			n++
		}
	}
	return at, n
}

// catchUp makes ends know every record. It takes t.mu for a block at a time.
func (t *Table) catchUp() {
	var keys [blockSize]flow.Key
	for block := 0; ; block++ {
		t.mu.Lock()
		for block < len(t.fresh) && t.fresh[block] == 0 {
			block++
		}
		if block >= len(t.fresh) {
			t.mu.Unlock()
			return
		}
		fresh := t.fresh[block]
		t.fresh[block] = 0
		for w := fresh; w != 0; w &= w - 1 {
			i := bits.TrailingZeros64(w)
			keys[i] = t.blocks[block].records[i].Key
		}
		t.mu.Unlock()
		for w := fresh; w != 0; w &= w - 1 {
			i := bits.TrailingZeros64(w)
			t.ends.set(slot(block*blockSize+i), &keys[i])
		}
	}
}
