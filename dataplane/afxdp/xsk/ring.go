package xsk

import "sync/atomic"

// ring is the side of one ring that is ours. We write own, the kernel other.
type ring[T any] struct {
	own, other *uint32
	entries    []T // a power of two
	next       uint32
}

// mask turns an index into a place.
func (r *ring[T]) mask() uint32 { return uint32(len(r.entries) - 1) }

// room is how many entries may be put, for a ring we produce.
func (r *ring[T]) room() int {
	return len(r.entries) - int(r.next-atomic.LoadUint32(r.other))
}

// put writes an entry that the kernel does not see before publish. There is room.
func (r *ring[T]) put(e T) {
	r.entries[r.next&r.mask()] = e
	r.next++
}

// ready is how many entries wait, for a ring we consume.
func (r *ring[T]) ready() int { return int(atomic.LoadUint32(r.other) - r.next) }

// take reads an entry, which is ours until publish. There is one.
func (r *ring[T]) take() T {
	e := r.entries[r.next&r.mask()]
	r.next++
	return e
}

// publish shows the kernel how far we are.
func (r *ring[T]) publish() { atomic.StoreUint32(r.own, r.next) }
