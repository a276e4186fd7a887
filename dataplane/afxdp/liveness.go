package afxdp

import (
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// liveness publishes to the kernel side when the worker that has been silent for longest
// last gave a sign of life: one worker that hangs makes the process count as dead,
// because packets sent up to it would be lost.
type liveness struct {
	beats []atomic.Uint64 // by queue: ns of CLOCK_MONOTONIC_COARSE

	mu    sync.Mutex // held while publishing; a worker that finds it held skips
	alive *ebpf.Variable
	still bool
}

// start declares this many workers alive.
func (l *liveness) start(alive *ebpf.Variable, queues int) error {
	now := kern.Now()
	l.alive, l.beats = alive, make([]atomic.Uint64, queues)
	for i := range l.beats {
		l.beats[i].Store(now)
	}
	return alive.Set(now)
}

// beat is called by the worker of a queue.
func (l *liveness) beat(queue int, now uint64) {
	l.beats[queue].Store(now)
	if !l.mu.TryLock() {
		return
	}
	defer l.mu.Unlock()
	for i := range l.beats {
		now = min(now, l.beats[i].Load())
	}
	if !l.still {
		_ = l.alive.Set(now) // a store to mapped memory
	}
}

// stop declares the process dead, whatever the workers do.
func (l *liveness) stop() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.still = true; l.alive == nil {
		return nil
	}
	return l.alive.Set(uint64(0))
}
