package dataplane

import "sync/atomic"

// cacheLine keeps the two ends of a Ring from sharing a cache line. 128 covers
// adjacent-line prefetch on amd64 and the 128-byte lines of some arm64 cores.
const cacheLine = 128

// Ring carries events from one producer to one consumer without blocking either.
//
//	        head (consumer)        tail (producer)
//	          v                      v
//	... | free | event | event | event | free | ...      positions only grow,
//	                                                     slot = position & mask
//
// The producer writes a slot and then advances tail; the consumer reads tail
// before the slots below it, and advances head only when it has copied them.
// Both positions are sync/atomic values, whose operations are sequentially
// consistent in Go's memory model, so this holds on weakly ordered CPUs too.
//
// When the ring is full Put drops the event and remembers how many were dropped
// and when. As soon as there is room again (at the next Put or Flush), one
// CauseLost event goes in front of what follows: the log shows the gap where it
// happened, with the exact count.
//
// A consumer looks by itself, and by the channel of Wake hears of a ring that fills.
// One that would rather sleep says so with Doze and is woken by the next Flush after a
// Put; the producer pays for that once per sleep, when it has nothing more urgent to do.
//
// Put and Flush belong to the producer, Drain and Doze to the consumer; Lost and
// Len may be called by anyone.
type Ring struct {
	slots []Event
	mask  uint64

	_    [cacheLine]byte
	head atomic.Uint64 // next position to read; written by the consumer

	_          [cacheLine]byte
	tail       atomic.Uint64   // next position to write; written by the producer
	cachedHead uint64          // producer's last look at head: saves a shared read per Put
	gap        Event           // the loss not yet reported; Count 0 = none
	lost       atomic.Uint64   // events ever dropped
	mirror     *RingMirror     // where offers are counted as well; nil = nowhere
	told       uint64          // tail at the last Flush
	wake       chan<- struct{} // of the consumer; nil = it looks by itself

	_      [cacheLine]byte
	dozing atomic.Bool // the consumer sleeps; who takes that back wakes it
}

// RingMirror counts what a ring was offered, in memory that outlives the
// process: what was in flight when it died can be told exactly. One mirror fills
// a cache line. The zero value is one of a ring that was offered nothing.
//
// The fields belong to the producer; others read them when it is dead. They are
// plain, which saves the packet path two locked instructions: all they need is to
// be stored before the ring's tail is, and the tail's atomic store sees to that.
type RingMirror struct {
	Offered uint64 // calls of Put, kept or lost
	Last    int64  // Event.Time of the last one, engine clock
	_       [cacheLine - 16]byte
}

// Mirror makes the ring count in m from now on. Call it before the producer
// starts: it is not synchronised with Put.
func (r *Ring) Mirror(m *RingMirror) { r.mirror = m }

// Wake makes the producer send to c, without waiting, each time it has put another
// quarter of the ring: whoever has c need not look often to lose nothing. Call it
// before the producer starts: it is not synchronised with Put.
func (r *Ring) Wake(c chan<- struct{}) { r.wake = c }

// MinRing is the smallest ring: one slot for a gap marker, one for an event.
const MinRing = 2

// NewRing returns a ring for at least size events, rounded up to a power of two.
func NewRing(size int) *Ring {
	n := MinRing
	for n < size {
		n <<= 1
	}
	return &Ring{slots: make([]Event, n), mask: uint64(n - 1)}
}

// Cap returns the number of slots.
func (r *Ring) Cap() int { return len(r.slots) }

// Len returns how many events wait; a snapshot when called by a third party.
func (r *Ring) Len() int {
	head := r.head.Load() // before tail: tail never falls behind an older head
	return int(r.tail.Load() - head)
}

// Lost returns how many events were dropped since the ring was made, whether or
// not the marker has been delivered.
func (r *Ring) Lost() uint64 { return r.lost.Load() }

// free returns the number of writable slots, looking at head only if it must.
func (r *Ring) free(tail, want uint64) uint64 {
	n := uint64(len(r.slots)) - (tail - r.cachedHead)
	if n < want {
		r.cachedHead = r.head.Load()
		n = uint64(len(r.slots)) - (tail - r.cachedHead)
	}
	return n
}

// Put appends *e, or counts it as lost when there is no room. It copies *e and
// never blocks. It reports whether the event was kept.
func (r *Ring) Put(e *Event) bool {
	if m := r.mirror; m != nil {
		// Before the event can be seen: whoever dies in between leaves an event
		// counted that was never written, which is what happened to it.
		m.Last = e.Time
		m.Offered++
	}
	tail := r.tail.Load()
	need := uint64(1)
	if r.gap.Count > 0 {
		need = 2
	}
	if r.free(tail, need) < need {
		r.lose(e)
		return false
	}
	if r.gap.Count > 0 {
		r.slots[tail&r.mask] = r.gap
		r.gap = Event{}
		tail++
	}
	r.slots[tail&r.mask] = *e
	r.tail.Store(tail + 1)
	if tail&(r.mask>>2) == 0 && r.wake != nil {
		r.ring()
	}
	return true
}

func (r *Ring) lose(e *Event) {
	if r.gap.Count == 0 {
		r.gap = Event{Cause: CauseLost, Time: e.Time, Backend: e.Backend}
	}
	r.gap.Count++
	r.gap.Last = e.Time
	// Only the producer writes lost: a load and a store, no read-modify-write.
	r.lost.Store(r.lost.Load() + 1)
}

// Flush delivers a pending gap marker if there is room, and wakes a consumer that
// dozes if there is something new. It reports whether no marker is pending any
// more. The producer calls it after its Puts, and when it is idle, so that a loss is
// reported even if no further event follows. It never blocks.
func (r *Ring) Flush() bool {
	told := r.gap.Count == 0 || r.tellGap()
	if tail := r.tail.Load(); tail != r.told {
		r.told = tail
		// Dozing is rare: look before writing to what the consumer reads.
		if r.dozing.Load() && r.dozing.CompareAndSwap(true, false) {
			r.ring()
		}
	}
	return told
}

// ring wakes the consumer, if it has not been already.
func (r *Ring) ring() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Ring) tellGap() bool {
	tail := r.tail.Load()
	if r.free(tail, 1) < 1 {
		return false
	}
	r.slots[tail&r.mask] = r.gap
	r.gap = Event{}
	r.tail.Store(tail + 1)
	return true
}

// Doze asks for a value on the channel of Wake, which must have been set, as soon as
// the producer has flushed something, once; and reports whether the ring is empty: if
// not, look first. A consumer that wakes up by itself may go on without taking the
// request back.
//
// No wake-up can be lost: the producer moves tail before it looks whether the consumer
// dozes, the consumer says so before it looks at tail.
func (r *Ring) Doze() (empty bool) {
	r.dozing.Store(true)
	return r.Len() == 0
}

// Drain copies up to len(dst) events into dst and frees their slots.
func (r *Ring) Drain(dst []Event) int {
	head := r.head.Load()
	n := r.tail.Load() - head
	if n > uint64(len(dst)) {
		n = uint64(len(dst))
	}
	for i := uint64(0); i < n; i++ {
		dst[i] = r.slots[(head+i)&r.mask]
	}
	if n > 0 {
		r.head.Store(head + n)
	}
	return int(n)
}
