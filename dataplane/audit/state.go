package audit

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// state is a small file beside the log, mapped into memory, that says how many
// events the rings were offered. The log's own lines say how many of them are
// accounted for (Record.Events). A daemon that dies without a word leaves both,
// and the next one writes the difference into the log, exactly.
//
//	                   packet path                     writer
//	state file:  offered = base + Σ mirrors    log: "events":N in every line
//	                        └────── lost in a crash = offered − N ──────┘
//
// The kernel keeps a shared mapping when a process dies, however it dies. When
// the machine dies (power), both files may be older than they were: the count is
// then a lower bound.
//
// There are two sets of counters, so that starting anew is one store: fill the
// idle set, then make it the active one. Layout, host byte order, one cache line
// (128 bytes) each:
//
//	line 0: magic, active set, offset (wall − engine clock, ns), settled, oldest
//	set 0:  base, mirror × stateRings      set 1: likewise
type state struct {
	file *os.File
	mem  []byte
	head *stateHead
	sets [2]*stateSet
}

const (
	stateMagic = 0x3157_4154_5357_4c54 // "TLWSTAW1"
	// stateRings is how many rings a state file has room for: see attach.
	stateRings = 255
)

type stateHead struct {
	magic   uint64
	active  atomic.Uint64
	offset  atomic.Int64  // added to engine time gives Unix nanoseconds
	settled atomic.Uint64 // events accounted for by lines handed to the kernel; for formats without Record.Events
	oldest  atomic.Int64  // everything before this engine time is in the log
	_       [128 - 40]byte
}

type stateSet struct {
	base    atomic.Uint64
	_       [120]byte
	mirrors [stateRings]dataplane.RingMirror
}

const stateSize = 128 + 2*(128+128*stateRings)

var errLocked = errors.New("audit: another process writes this log")

func statePath(log string) string {
	return filepath.Join(filepath.Dir(log), "."+filepath.Base(log)+".state")
}

// openState opens or creates the state file of a log and locks it: two writers
// would interleave sequence numbers and rotate each other's files. fresh is set
// when there was none to go on from.
func openState(path string) (s *state, fresh bool, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, false, fmt.Errorf("audit: state: %w", err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errLocked
		}
		return nil, false, fmt.Errorf("%w: %s", err, path)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, false, fmt.Errorf("audit: state: %w", err)
	}
	if st.Size() != stateSize {
		// Written, not extended: a page that has its block on disk can be
		// dirtied when the disk is full, a hole raises SIGBUS.
		if err := f.Truncate(0); err != nil {
			return nil, false, fmt.Errorf("audit: state: %w", err)
		}
		if _, err := f.WriteAt(make([]byte, stateSize), 0); err != nil {
			return nil, false, fmt.Errorf("audit: state: %w", err)
		}
		fresh = true
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, stateSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, false, fmt.Errorf("audit: map state: %w", err)
	}
	s = &state{file: f, mem: mem}
	s.head, s.sets[0], s.sets[1] = overlay(mem)
	if s.head.magic != stateMagic {
		clear(mem)
		s.head.magic = stateMagic
		fresh = true
	}
	return s, fresh, nil
}

// offered returns how many events all rings were ever offered, and the engine
// time of the last one. The process that counted must be dead.
func (s *state) offered() (n uint64, last int64) {
	set := s.sets[s.head.active.Load()&1]
	n = set.base.Load()
	for i := range set.mirrors {
		n += set.mirrors[i].Offered
		last = max(last, set.mirrors[i].Last)
	}
	return n, last
}

// wall converts an engine time of the process that wrote the state.
func (s *state) wall(ns int64) time.Time { return time.Unix(0, ns+s.head.offset.Load()).UTC() }

// restart begins a new count at base, in one step. settled of those events are
// in the log; all of them, if the disk is not full.
func (s *state) restart(base, settled uint64) {
	idle := (s.head.active.Load() + 1) & 1
	set := s.sets[idle]
	set.base.Store(base)
	for i := range set.mirrors {
		set.mirrors[i] = dataplane.RingMirror{}
	}
	s.head.settled.Store(settled)
	s.head.active.Store(idle)
}

// attach makes the rings count in the state. Rings beyond stateRings do not, and
// their losses in a crash are not told.
func (s *state) attach(rings []*dataplane.Ring) {
	set := s.sets[s.head.active.Load()&1]
	for i, r := range rings {
		if i < stateRings {
			r.Mirror(&set.mirrors[i])
		}
	}
}

// close unlocks the file. The mapping stays: a worker may still count in it. It
// would keep the lock, too, which belongs to what was opened and not to the
// descriptor.
func (s *state) close() error {
	return errors.Join(unix.Flock(int(s.file.Fd()), unix.LOCK_UN), s.file.Close())
}
