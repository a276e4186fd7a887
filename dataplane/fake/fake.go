package fake

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
)

// In is a packet to deliver.
type In struct {
	Frame  []byte
	L2     bool
	Length uint32 // true length when Frame is cut short; 0 = len(Frame)
	Device int32
	Reply  bool
	Final  bool

	FromHost, ToHost bool
}

// Out is what became of a packet.
type Out struct {
	ID          uint32 // 1 for the first packet a driver delivered, then counting up
	Disposition dataplane.Disposition
	Remember    bool
	Verdict     classifier.Verdict
}

// Driver delivers queued packets and records their fate. Send, Results and Close
// may be called from any goroutine; Recv and Apply belong to the worker.
type Driver struct {
	dataplane.DriverDefaults
	// Idle is how long Recv waits before it returns an empty batch; 0 means 5 ms.
	Idle time.Duration
	// RecvErr and ApplyErr, when they return an error, make the call fail with
	// it. Set them before the driver is used.
	RecvErr, ApplyErr, RejectErr func() error

	in     chan In
	closed chan struct{}
	once   sync.Once
	nextID uint32 // worker's goroutine only

	passed, deferred, dropped, overflow atomic.Uint64

	mu      sync.Mutex
	answers map[uint32][]byte
	outs    []Out
	keep    bool
}

// NewDriver returns a driver whose queue holds depth packets; Send blocks when
// it is full. keep makes Results available.
func NewDriver(depth int, keep bool) *Driver {
	return &Driver{in: make(chan In, depth), closed: make(chan struct{}), keep: keep}
}

// Send queues a packet. It reports false once the driver is closed. The frame
// must not change before its result is there.
func (d *Driver) Send(p In) bool {
	select {
	case <-d.closed:
		return false
	default:
	}
	select {
	case d.in <- p:
		return true
	case <-d.closed:
		return false
	}
}

// Offer is Send as a kernel does it: a packet that finds the queue full, or the
// driver closed, is lost and counted. It reports whether it was queued.
func (d *Driver) Offer(p In) bool {
	select {
	case <-d.closed:
	default:
		select {
		case d.in <- p:
			return true
		default:
		}
	}
	d.overflow.Add(1)
	return false
}

// Overflow counts packets that Offer lost.
func (d *Driver) Overflow() uint64 { return d.overflow.Load() }

// Recv implements dataplane.Driver. It waits for one packet and takes whatever
// else is queued, up to a batch.
func (d *Driver) Recv(b *dataplane.Batch) error {
	b.N = 0
	if d.RecvErr != nil {
		if err := d.RecvErr(); err != nil {
			return err
		}
	}
	idle := d.Idle
	if idle == 0 {
		idle = 5 * time.Millisecond
	}
	timer := time.NewTimer(idle)
	defer timer.Stop()
	select {
	case <-d.closed:
		return dataplane.ErrClosed
	case p := <-d.in:
		d.fill(b, p)
	case <-timer.C:
		return nil
	}
	for b.N < dataplane.BatchSize {
		select {
		case p := <-d.in:
			d.fill(b, p)
		default:
			return nil
		}
	}
	return nil
}

func (d *Driver) fill(b *dataplane.Batch, in In) {
	d.nextID++
	p := &b.Packets[b.N]
	p.Frame, p.L2, p.Length = in.Frame, in.L2, in.Length
	p.ID, p.Device, p.Reply, p.Final = d.nextID, in.Device, in.Reply, in.Final
	p.FromHost, p.ToHost = in.FromHost, in.ToHost
	b.N++
}

// Apply implements dataplane.Driver.
func (d *Driver) Apply(b *dataplane.Batch) error {
	if d.ApplyErr != nil {
		if err := d.ApplyErr(); err != nil {
			return err
		}
	}
	var n [3]uint64
	for i := range b.Packets[:b.N] {
		n[b.Packets[i].Disposition]++
	}
	d.dropped.Add(n[dataplane.DropPacket])
	d.passed.Add(n[dataplane.PassPacket])
	d.deferred.Add(n[dataplane.DeferPacket])
	if d.keep {
		d.mu.Lock()
		for i := range b.Packets[:b.N] {
			p := &b.Packets[i]
			d.outs = append(d.outs, Out{ID: p.ID, Disposition: p.Disposition, Remember: p.Remember, Verdict: p.Verdict})
		}
		d.mu.Unlock()
	}
	return nil
}

// Reject implements dataplane.Driver: it keeps the answer for Answer.
func (d *Driver) Reject(p *dataplane.Packet, answer []byte) error {
	if d.RejectErr != nil {
		if err := d.RejectErr(); err != nil {
			return err
		}
	}
	if d.keep {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.answers == nil {
			d.answers = map[uint32][]byte{}
		}
		d.answers[p.ID] = append([]byte(nil), answer...)
	}
	return nil
}

// Answer returns what was sent in answer to the packet of an Out.ID, nil if
// nothing was, or if the driver was made without keep.
func (d *Driver) Answer(id uint32) []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.answers[id]
}

// Close implements dataplane.Driver.
func (d *Driver) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// Passed, Deferred and Dropped count applied dispositions.
func (d *Driver) Passed() uint64 { return d.passed.Load() }

// Deferred counts packets left to a later hook.
func (d *Driver) Deferred() uint64 { return d.deferred.Load() }

// Dropped counts packets dropped.
func (d *Driver) Dropped() uint64 { return d.dropped.Load() }

// Applied counts packets with a result.
func (d *Driver) Applied() uint64 { return d.Passed() + d.Deferred() + d.Dropped() }

// Results returns a copy of the results so far, in order of delivery. Empty if
// the driver was made without keep.
func (d *Driver) Results() []Out {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]Out(nil), d.outs...)
}

// WaitApplied polls until n packets have a result; false on timeout.
func (d *Driver) WaitApplied(n uint64, timeout time.Duration) bool {
	for deadline := time.Now().Add(timeout); d.Applied() < n; time.Sleep(50 * time.Microsecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

// Backend is a set of drivers without a kernel.
type Backend struct {
	dataplane.BackendDefaults
	Label string
	D     []dataplane.Driver
	// OnUpdate, if set, is called by Update.
	OnUpdate func(*classifier.Table, dataplane.Change) (int, error)
	// OnDrain, if set, is called by Drain.
	OnDrain func() error

	updates atomic.Int64
	closed  atomic.Bool
}

// NewBackend returns a backend named label with the given drivers.
func NewBackend(label string, drivers ...*Driver) *Backend {
	b := &Backend{Label: label}
	for _, d := range drivers {
		b.D = append(b.D, d)
	}
	return b
}

// Name implements dataplane.Backend.
func (b *Backend) Name() string { return b.Label }

// Drivers implements dataplane.Backend.
func (b *Backend) Drivers() []dataplane.Driver { return b.D }

// Update implements dataplane.Backend.
func (b *Backend) Update(t *classifier.Table, c dataplane.Change) (int, error) {
	b.updates.Add(1)
	if b.OnUpdate != nil {
		return b.OnUpdate(t, c)
	}
	return 0, nil
}

// Drain implements dataplane.Backend.
func (b *Backend) Drain() error {
	if b.OnDrain != nil {
		return b.OnDrain()
	}
	return nil
}

// Updates returns how often Update was called.
func (b *Backend) Updates() int { return int(b.updates.Load()) }

// Stats implements dataplane.Backend: there is no kernel, so all are zero but
// the packets handed up and those Offer lost.
func (b *Backend) Stats() dataplane.BackendStats {
	var s dataplane.BackendStats
	for _, d := range b.D {
		if f, ok := d.(*Driver); ok {
			s.Upcalls += f.Applied()
			s.Overflow += f.Overflow()
		}
	}
	return s
}

// Close closes every driver.
func (b *Backend) Close() error {
	b.closed.Store(true)
	for _, d := range b.D {
		_ = d.Close() // fake drivers do not fail
	}
	return nil
}

// Closed reports whether Close was called.
func (b *Backend) Closed() bool { return b.closed.Load() }
