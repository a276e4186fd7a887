package afxdp

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/flows"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
	"github.com/tierwall/tierwall/dataplane/afxdp/xsk"
	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// yields is how often Recv looks again after a batch before it sleeps.
const yields = 8

// errGone means the upcall pair was removed under us. It does not heal.
var errGone = errors.New("afxdp: the upcall pair is gone; restart the backend")

// driver is one queue of the backend. Recv and Apply run on the worker's
// goroutine and own every field up to mu; a packet's Frame points into the
// socket's buffers from Recv to the end of Apply.
type driver struct {
	sock  *upcall.Socket
	queue int
	wait  int // how long an idle Recv sleeps, ms
	nonce uint8
	final bool // nothing judges after us (Config.Strict)

	held [dataplane.BatchSize]xsk.Desc // the batch between Recv and Apply
	n    int                           // of them
	meta [dataplane.BatchSize]upcall.Meta
	// answered is a bit per ID: the buffer holds the answer to a dropped packet.
	answered        uint32
	devices         *ebpf.Map
	*attach.HostSet                // the backend's
	*tunnel.Set                    // the backend's
	podNetworks     []netip.Prefix // configured
	tx              [dataplane.BatchSize]xsk.Desc
	free            [dataplane.BatchSize]xsk.Desc
	poll            [2]unix.PollFd
	gone            bool // the upcall pair was removed

	entries flows.Entries
	// Of packets whose addresses are translated: see origin.go.
	origins [dataplane.BatchSize]kern.Origin
	names   [dataplane.BatchSize]flow.Key
	onward  bool // what is deferred is seen again where it leaves
	reads   bool // the connection of a packet to a pod can be read

	epoch     *flows.Epoch
	liveness  *liveness
	affinity  affinity      // where the worker runs
	patience  int           // how often Recv yields the CPU before it sleeps
	beaten    uint64        // when the last sign of life was given
	caughtUp  atomic.Bool   // what waited for the worker at the start is in its hands
	inHand    atomic.Int64  // frames between Recv and the end of Apply
	room      upcall.Credit // tells the kernel side what the ring has room for
	waiting   int           // packets left in the ring when the batch was taken
	forgotten atomic.Uint64 // accepted packets whose flow could not be written
	overflow  atomic.Uint64 // accepted packets the transmit ring or an upcall had no room for

	mu       sync.Mutex // held for moments, twice per batch; Close is the only other user
	wake     int        // eventfd
	busy     bool       // the worker is inside Recv, or holds a batch
	closed   bool
	released chan struct{} // closed when the socket is
	lost     uint64        // socket.lost at release
}

// IsPodNetwork implements dataplane.Driver. There are a few networks.
func (d *driver) IsPodNetwork(a flow.Addr) bool {
	if len(d.podNetworks) == 0 {
		return false
	}
	ip := a.Netip()
	for _, p := range d.podNetworks {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}

func newDriver(sock *upcall.Socket, b *Backend, queue int, nonce uint8) (*driver, error) {
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	d := &driver{
		sock: sock, queue: queue, wait: b.config.recvWait(), nonce: nonce, final: b.config.Strict,
		devices: b.objects.Devices, HostSet: &b.devices.Host, Set: &b.devices.Tunnels, podNetworks: b.config.PodCIDRs, epoch: &b.epoch, liveness: &b.liveness,
		affinity: newAffinity(queue, b.config.Queues, b.config.Ring), onward: b.objects.Onward, reads: b.objects.Reads,
		wake: wake, released: make(chan struct{}),
	}
	if b.config.FailOpen {
		memory, err := b.objects.Rooms.Memory()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("map the queues' room: %w", err), unix.Close(wake))
		}
		d.room = upcall.NewCredit(memory, queue, b.config.Ring)
		d.room.Grant(0)
	}
	d.entries.Init(&b.epoch, &b.objects.Objects)
	d.poll = [2]unix.PollFd{{Fd: int32(sock.XSK.FD()), Events: unix.POLLIN}, {Fd: int32(wake), Events: unix.POLLIN}}
	return d, nil
}

// Scattered implements dataplane.Driver: a packet comes up on the queue of the
// CPU it is on.
func (d *driver) Scattered() bool { return true }

// Bind implements dataplane.Driver.
func (d *driver) Bind() { d.affinity.bind() }

// Recv implements dataplane.Driver.
func (d *driver) Recv(b *dataplane.Batch) error {
	b.N = 0
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return dataplane.ErrClosed
	}
	d.busy = true
	d.mu.Unlock()

	// A worker that did not apply its last batch dropped it.
	d.refill(d.held[:d.n])
	d.n, d.answered = 0, 0
	err := d.receive(b)
	if !d.caughtUp.Load() && d.sock.XSK.Received() < dataplane.BatchSize {
		d.caughtUp.Store(true)
	}

	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		b.N, d.n = 0, 0
		return errors.Join(dataplane.ErrClosed, d.release())
	}
	d.busy = d.n > 0
	return err
}

func (d *driver) receive(b *dataplane.Batch) error {
	if err := d.sock.Reclaim(); err != nil {
		return err
	}
	sock := d.sock.XSK
	// Packets come in bursts: after one that was there, wait a moment for the
	// next before going to sleep, which costs a wake-up and two switches. Whoever
	// else wants the CPU has it meanwhile.
	for range d.patience {
		if sock.Received() > 0 {
			break
		}
		_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	d.patience = 0
	if sock.Received() == 0 {
		d.poll[0].Revents, d.poll[1].Revents = 0, 0
		if _, err := unix.Poll(d.poll[:], d.wait); err != nil && err != unix.EINTR {
			return fmt.Errorf("poll the upcall pair: %w", err)
		}
	}
	there := sock.Received()
	n := min(there, dataplane.BatchSize)
	d.waiting = there - n
	d.room.Grant(there)
	if n == 0 {
		d.beat(kern.Now())
		d.affinity.leave()
		return d.alive()
	}
	stray := d.free[:0]
	for _, desc := range sock.Receive(n) {
		frame := sock.Frame(desc)
		m, ok := upcall.ReadMeta(frame, d.nonce)
		if !ok { // the XDP program lets none through; a bug must not become a verdict
			stray = append(stray, desc)
			continue
		}
		p := &b.Packets[b.N]
		if o := &d.origins[b.N]; m.Origin {
			if frame, ok = upcall.TakeOrigin(frame, o); !ok {
				stray = append(stray, desc)
				continue
			}
			desc.Len = uint32(len(frame))
		}
		*p = dataplane.Packet{
			Frame: frame, L2: true, ID: uint32(b.N), Device: m.Ifindex, Reply: m.Reply,
			Final: d.final || m.Final, Onward: d.onward && !m.Final,
			// From a pod nobody has translated it yet, to a pod nobody will. The
			// forward hook accepts nothing of ours in another zone.
			Plain: true,
		}
		if m.Cut {
			p.Length = upcall.TrueLength(frame)
		}
		if m.Origin {
			upcall.DescribeOrigin(&d.origins[b.N], p)
			d.names[b.N] = upcall.OwnName(frame, p.Length)
		}
		d.held[b.N], d.meta[b.N] = desc, m
		b.N++
	}
	d.n = b.N
	d.inHand.Store(int64(b.N))
	d.patience = yields
	d.refill(stray)
	return nil
}

// alive notices that the device is gone, which poll does not report: the kernel
// leaves ENETDOWN in the socket, once.
func (d *driver) alive() error {
	if errno, err := unix.GetsockoptInt(d.sock.XSK.FD(), unix.SOL_SOCKET, unix.SO_ERROR); err != nil || errno != 0 {
		d.gone = true
	}
	if d.gone {
		return errGone
	}
	return nil
}

// beatEvery is the time between two signs of life, in ns.
const beatEvery = 50e6

// beat gives the kernel side a sign of life.
func (d *driver) beat(now uint64) {
	if now-d.beaten >= beatEvery {
		d.beaten = now
		d.liveness.beat(d.queue, now)
	}
}

// Apply implements dataplane.Driver. A packet's Reply is read again: a worker
// that knows the connection better than the kernel did may have set it.
func (d *driver) Apply(b *dataplane.Batch) error {
	d.mu.Lock()
	if d.n == 0 {
		d.mu.Unlock()
		return nil
	}
	// The batch keeps Close away from the socket until it is settled.
	d.mu.Unlock()

	err := d.settle(b)
	d.inHand.Store(0)

	d.mu.Lock()
	defer d.mu.Unlock()
	d.n, d.answered, d.busy = 0, 0, false
	if d.closed {
		err = errors.Join(err, d.release())
	}
	return err
}

// settle writes what is remembered first and sends the packets after: a packet
// that overtook its entry would bring every packet behind it up again.
func (d *driver) settle(b *dataplane.Batch) error {
	tx, free := d.tx[:0], d.free[:0]
	now := kern.Now()
	d.beat(now)
	d.affinity.account(now, d.n, d.waiting)
	e := d.epoch
	var err error
	if e.Crowded() {
		err = e.Restart()
	}
	// Read before addresses are added: see restart.
	s := kern.FlowState{Generation: e.Current(), Last: now}
	d.entries.Reset()
	sent := uint32(0) // bit per ID, so that a batch that lost packets leaks no buffer
	for i := range b.Packets[:min(b.N, d.n)] {
		p := &b.Packets[i]
		if p.ID >= uint32(d.n) || sent&(1<<p.ID) != 0 {
			continue
		}
		if !d.carry(p, s) {
			continue
		}
		sent |= 1 << p.ID
		tx = append(tx, d.held[p.ID])
	}
	for id := range d.n {
		if sent&(1<<id) == 0 {
			free = append(free, d.held[id])
		}
	}
	if lost := d.entries.Write(); lost > 0 {
		d.forgotten.Add(uint64(lost))
	}
	d.refill(free)
	if len(tx) == 0 {
		return err
	}
	n, terr := d.sock.Transmit(tx)
	if n < len(tx) {
		d.overflow.Add(uint64(len(tx) - n))
		d.refill(tx[n:])
	}
	return errors.Join(err, terr, d.sock.Reclaim())
}

// carry does what a packet's disposition asks for, and notes in the batches of entries
// what is to be remembered. It reports whether the packet, or the answer in its place, is
// to be sent. s is what entries have in common.
func (d *driver) carry(p *dataplane.Packet, s kern.FlowState) (send bool) {
	m := &d.meta[p.ID]
	switch {
	case p.Disposition == dataplane.PassPacket:
		// The kernel takes an ICMP error for a part of the connection it is about, and
		// would have that accepted with it. And what was recalled of a connection from
		// a pod's packet may be over: the program where it leaves sees whether it is.
		accept, fast := !p.Headers.IsError, !p.Headers.IsError
		if p.Real.Valid() && !m.Egress {
			accept, fast = false, d.final
		}
		upcall.SetMarks(d.sock.XSK.Frame(d.held[p.ID]), accept, fast)
		if p.Remember && nameable(p) {
			d.remember(p, s)
		}
	case p.Disposition == dataplane.DeferPacket && (!d.final && !m.Final || p.Onward):
		upcall.SetMarks(d.sock.XSK.Frame(d.held[p.ID]), false, d.final)
		if nameable(p) {
			k, _ := kern.MakeFlowKey(d.name(p))
			d.entries.Later.Add(&k, &s)
		}
	case d.answered&(1<<p.ID) != 0: // dropped, and the answer is in its place
	default: // DropPacket, or deferred with nobody to defer to
		if p.Disposition == dataplane.DropPacket && p.Remember && nameable(p) {
			k, back := kern.MakeFlowKey(d.name(p))
			if back {
				k.Back = 1
			}
			d.entries.Denied.Add(&k, &s)
		}
		return false
	}
	if m.Cut { // judged, and its flow remembered; the rest of it is gone
		d.overflow.Add(1)
		return false
	}
	return true
}

func (d *driver) refill(descs []xsk.Desc) {
	if len(descs) > 0 {
		d.sock.XSK.Fill(descs)
	}
}

// idle reports whether no frame waits in the ring and none is being judged.
func (d *driver) idle() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(d.sock.XSK.FD()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 0 && d.inHand.Load() == 0
}

// catchUpPatience bounds catchUp: a flood is never over.
const catchUpPatience = 500 * time.Millisecond

// catchUp waits until the ring has room again after a start. Nobody reads it before
// there is a policy, and meanwhile it may have filled up with packets of new flows.
// It gives up at end.
func (d *driver) catchUp(end time.Time) {
	for !d.caughtUp.Load() && !d.idle() && time.Now().Before(end) {
		time.Sleep(200 * time.Microsecond)
	}
}

// Close implements dataplane.Driver.
func (d *driver) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	if !d.busy {
		return d.release()
	}
	// The worker is in Recv or holds a batch: it releases the socket when it
	// lets go, because it reads the buffers until then.
	one := [8]byte{1}
	if _, err := unix.Write(d.wake, one[:]); err != nil {
		return fmt.Errorf("wake the worker: %w", err)
	}
	return nil
}

// release needs mu and that nobody uses the socket.
func (d *driver) release() error {
	d.busy = false
	d.lost = d.sock.Lost()
	err := d.sock.Close()
	unix.Close(d.wake)
	close(d.released)
	return err
}

// lostPackets returns what did not fit the rings.
func (d *driver) lostPackets() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.released:
		return d.lost + d.overflow.Load()
	default:
		return d.sock.Lost() + d.overflow.Load()
	}
}
