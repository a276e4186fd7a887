package afxdp

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// affinity decides where the worker of a queue runs. It knows three situations:
//
//   - Few packets: anywhere. The scheduler wakes it on a CPU that is idle, which
//     is what the packet wants.
//   - Many: on the CPU that the packets come from. Everything about them is in that
//     CPU's caches, and the process that waits for the answer is woken there.
//   - More than it can keep up with there: anywhere. The sender of a flood needs that
//     CPU itself, and another one may have time.
//
// Moving costs microseconds, so it happens a few times a second at most.
type affinity struct {
	queue, queues int
	crowd         int // packets waiting that are too many
	here, all     unix.CPUSet
	usable        bool // there is a choice
	at            bool // confined to here

	began   uint64 // of the window in which packets are counted, ns
	packets int
	away    uint64 // not confined before, ns
	penalty uint64 // ns, for the next time it gets crowded there
}

const (
	affinityWindow = 20e6 // ns that packets are counted for
	affinityRate   = 5000 // packets per second that are many
	// After a crowd it stays away for a while, and longer if it is crowded again
	// within affinityForgive of coming back, ns.
	affinityAway, affinityMostAway, affinityForgive = 100e6, 3200e6, 5e9
)

func newAffinity(queue, queues, ring int) affinity {
	return affinity{queue: queue, queues: queues, crowd: ring / 4, penalty: affinityAway}
}

// bind is called by the worker, which has its thread to itself from then on if it
// needs one.
func (h *affinity) bind() {
	if h.queues < 2 {
		return
	}
	// Never unlocked: the thread ends with the goroutine, and with what was done to it.
	runtime.LockOSThread()
	if unix.SchedGetaffinity(0, &h.all) != nil {
		return
	}
	for cpu := range 64 * len(h.all) {
		if cpu%h.queues == h.queue && h.all.IsSet(cpu) {
			h.here.Set(cpu)
		}
	}
	h.usable = h.here.Count() > 0 && h.here.Count() < h.all.Count()
}

// account is called with every batch: the time, packets in it, and packets that
// were left in the ring.
func (h *affinity) account(now uint64, n, waiting int) {
	if !h.usable {
		return
	}
	if waiting > h.crowd {
		if h.at {
			if now > h.away+affinityForgive {
				h.penalty = affinityAway
			}
			h.away = now + h.penalty
			h.penalty = min(2*h.penalty, affinityMostAway)
			h.leave()
		}
		h.began, h.packets = now, 0
		return
	}
	h.packets += n
	took := now - h.began
	if took < affinityWindow {
		return
	}
	rate := uint64(h.packets) * 1e9 / took
	h.began, h.packets = now, 0
	switch {
	case rate < affinityRate/2:
		h.leave()
	case rate >= affinityRate && !h.at && now >= h.away:
		h.at = unix.SchedSetaffinity(0, &h.here) == nil
	}
}

// leave lets the worker run anywhere.
func (h *affinity) leave() {
	if h.at {
		h.at = unix.SchedSetaffinity(0, &h.all) != nil
	}
}
