package audit

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// Connections of a burst fit the ring twice over, so that none is lost; between
// bursts the writer catches up, and the clock stands.
const (
	burst  = ringSize / 2
	bursts = 20
)

// memory is a backend without a kernel: one driver, which delivers the SYN of a
// new connection after another and forgets what becomes of them. It measures
// the processor time of the worker's thread, so that what else runs on the
// machine counts little; making the packets is a small part of it, the same in
// every case.
type memory struct {
	dataplane.DriverDefaults
	dataplane.BackendDefaults
	s      *scene
	frames [dataplane.BatchSize][]byte
	n      int           // packets delivered
	spent  time.Duration // processor time of the worker's thread, waits excluded
	since  time.Duration // its reading when the burst began
	wait   func()        // between bursts
	done   chan struct{} // closed when all bursts are through
	closed chan struct{}
	passed int
}

func (m *memory) Name() string                                            { return "nfqueue" }
func (m *memory) Drivers() []dataplane.Driver                             { return []dataplane.Driver{m} }
func (m *memory) Update(*classifier.Table, dataplane.Change) (int, error) { return 0, nil }
func (m *memory) Stats() dataplane.BackendStats                           { return dataplane.BackendStats{} }

func (m *memory) Close() error {
	select {
	case <-m.closed:
	default:
		close(m.closed)
	}
	return nil
}

func (m *memory) Recv(b *dataplane.Batch) error {
	if m.n == 0 && m.spent == 0 {
		runtime.LockOSThread() // the worker's goroutine ends with its thread
	}
	if m.n%burst == 0 && m.since != 0 {
		m.spent += threadTime() - m.since
		m.since = 0
	}
	select {
	case <-m.closed:
		return dataplane.ErrClosed
	default:
	}
	if m.n == burst*bursts {
		select {
		case <-m.done:
		default:
			close(m.done)
		}
		time.Sleep(time.Millisecond)
		b.N = 0
		return nil
	}
	if m.n%burst == 0 {
		m.wait()
		m.since = threadTime()
	}
	for i := range m.frames {
		f := m.frames[i]
		m.n++
		src := m.s.clients[m.n%frontPods].As4()
		copy(f[12:16], src[:])
		binary.BigEndian.PutUint16(f[20:], 1024+uint16(m.n/frontPods)) // no port is used twice by an address
		b.Packets[i] = dataplane.Packet{Frame: f, Final: true, Device: 7}
	}
	b.N = len(m.frames)
	return nil
}

// threadTime returns the processor time the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err) // every Linux has it
	}
	return time.Duration(t.Nano())
}

func (m *memory) Apply(b *dataplane.Batch) error {
	for i := range b.Packets[:b.N] {
		if b.Packets[i].Disposition == dataplane.PassPacket {
			m.passed++
		}
	}
	return nil
}

// syn is an IPv4 packet with a TCP SYN to a pod's port 80.
func syn(s *scene) []byte {
	f := make([]byte, 60)
	f[0], f[8], f[9] = 0x45, 64, 6 // version and header length, TTL, TCP
	binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
	dst := s.pods[0].As4()
	copy(f[16:20], dst[:])
	binary.BigEndian.PutUint16(f[22:], webPort)
	f[32], f[33] = 10<<4, 0x02 // data offset with options, SYN
	return f
}

// relay feeds a writer from a ring of its own, into which it moves the engine's
// events when it is told to.
type relay struct {
	source
	engine *dataplane.Ring
	buf    []dataplane.Event
}

func (r *relay) move() {
	for n := r.engine.Drain(r.buf); n > 0; n = r.engine.Drain(r.buf) {
		for i := range r.buf[:n] {
			r.ring.Put(&r.buf[i]) // as big as the engine's, and empty: see wait
		}
		r.ring.Flush()
	}
}

// engineTime returns nanoseconds per new connection. busy lets the writer work
// during the bursts, and not only between them.
func engineTime(ctx context.Context, s *scene, table *classifier.Table, busy bool, path string) (float64, error) {
	m := &memory{s: s, done: make(chan struct{}), closed: make(chan struct{})}
	for i := range m.frames {
		m.frames[i] = syn(s)
	}
	e := dataplane.New(dataplane.Config{
		Backends: []dataplane.Backend{m}, RingSize: ringSize, Conntrack: conntrack.Limits{Records: 65536},
		Hits: hits.New(dataplane.MonotonicClock), // as in the daemon
	})
	r := &relay{source: source{dataplane.NewRing(ringSize), table}, engine: e.Rings()[0], buf: make([]dataplane.Event, 256)}
	from := audit.FromEngine(e)
	if !busy {
		from = r
		r.engine.Mirror(new(dataplane.RingMirror)) // the packet path counts in either case
	}
	w, err := audit.New(audit.Config{Source: from, Path: path, Node: "node-1", State: true})
	if err != nil {
		return 0, err
	}
	m.wait = func() {
		if !busy {
			r.move()
		}
		for r.engine.Len()+r.ring.Len() > 0 {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond) // the rest of its step
	}
	if _, err := e.SetTable(table, dataplane.Change{}); err != nil {
		return 0, err
	}
	ectx, stopEngine := context.WithCancel(ctx)
	defer stopEngine()
	wctx, stopWriter := context.WithCancel(context.Background())
	defer stopWriter()
	engine, writer := make(chan error, 1), make(chan error, 1)
	go func() { writer <- w.Run(wctx) }()
	go func() { engine <- e.Run(ectx) }()
	select {
	case <-m.done:
	case <-ctx.Done():
	}
	stopEngine()
	err = <-engine
	if !busy {
		r.move()
	}
	stopWriter()
	if err := errors.Join(err, <-writer, ctx.Err(), os.Remove(path)); err != nil {
		return 0, err
	}
	st, want := w.Stats(), uint64(0)
	if table == s.audited {
		want = burst * bursts
	}
	if m.passed != burst*bursts || st.Events != want || st.RingLost != 0 {
		return 0, fmt.Errorf("%d of %d connections passed, %d of %d recorded, %d lost", m.passed, burst*bursts, st.Events, want, st.RingLost)
	}
	return float64(m.spent.Nanoseconds()) / (burst * bursts), nil
}
