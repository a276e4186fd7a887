package afxdp

import (
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// heart gives the kernel side signs of life. What it tells is when the worker that
// has been silent for longest was last heard of: one that hangs makes the process
// count as dead, because what came up to it would be lost.
type heart struct {
	beats []atomic.Uint64 // by queue: ns of CLOCK_MONOTONIC_COARSE

	mu    sync.Mutex // of those who tell; who finds it taken leaves it to the other
	alive *ebpf.Variable
	still bool
}

// start says that there are so many workers, all of them alive.
func (h *heart) start(alive *ebpf.Variable, queues int) error {
	now := kern.Now()
	h.alive, h.beats = alive, make([]atomic.Uint64, queues)
	for i := range h.beats {
		h.beats[i].Store(now)
	}
	return alive.Set(now)
}

// beat is called by the worker of a queue.
func (h *heart) beat(queue int, now uint64) {
	h.beats[queue].Store(now)
	if !h.mu.TryLock() {
		return
	}
	defer h.mu.Unlock()
	for i := range h.beats {
		now = min(now, h.beats[i].Load())
	}
	if !h.still {
		_ = h.alive.Set(now) // a store to mapped memory
	}
}

// stop says that nobody is there any more, whatever the workers do.
func (h *heart) stop() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.still = true; h.alive == nil {
		return nil
	}
	return h.alive.Set(uint64(0))
}
