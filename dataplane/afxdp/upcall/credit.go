package upcall

import (
	"encoding/binary"

	"github.com/cilium/ebpf"
)

// onTheWay is how many frames may be between the program that sends them up and
// the ring: what a veth device queues.
const onTheWay = 256

// Credit is a queue's element of the map rooms, and what is needed to fill it in.
type Credit struct {
	memory *ebpf.Memory // nil: a full ring drops
	queue  int
	ring   uint64 // frames the ring holds
}

func NewCredit(memory *ebpf.Memory, queue, ring int) Credit {
	return Credit{memory: memory, queue: queue, ring: uint64(ring)}
}

// Grant tells the kernel side how many more frames the ring has room for. What
// is more passes unjudged (Config.FailOpen).
func (r *Credit) Grant(waiting int) {
	if r.memory == nil {
		return
	}
	const size = 16 // of struct room
	var word [8]byte
	at := int64(r.queue) * size
	if _, err := r.memory.ReadAt(word[:], at); err != nil {
		return
	}
	free := r.ring - min(uint64(waiting)+min(onTheWay, r.ring/2), r.ring)
	binary.LittleEndian.PutUint64(word[:], binary.LittleEndian.Uint64(word[:])+free)
	_, _ = r.memory.WriteAt(word[:], at+size/2)
}
