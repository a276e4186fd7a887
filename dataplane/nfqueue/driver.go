package nfqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	nfq "github.com/florianl/go-nfqueue/v2"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// idle is how long Recv waits before it returns an empty batch, in ms: every return
// wakes the process.
const idle = 1000

// driver serves one NFQUEUE.
//
//	kernel queue ── recvmmsg, a batch at a time ──► inbox ─► Recv
//	             ◄── one write per batch ────────── out ◄─── Apply
//
// go-nfqueue opens, configures and ends the queue; its way of receiving costs
// more than everything else we do to a packet (docs/adr/0003), so its reader is
// parked and Recv reads the socket itself.
type driver struct {
	dataplane.DriverDefaults
	tunnels *tunnel.Set // the backend's

	queue   uint16
	marks   Marks
	rejects bool // the ruleset has a place for refused packets
	names   bool // the ruleset tells whose name is another one
	log     *slog.Logger

	nf     *nfq.Nfqueue
	raw    syscall.RawConn // keeps the descriptor valid while it is used
	cancel context.CancelFunc
	tags   *tags
	ipvs   *ipvs
	wake   *os.File      // eventfd that ends a waiting Recv
	done   chan struct{} // closed by Close
	close  sync.Once
	closed error // result of the one Close

	upcalls atomic.Uint64 // packets received
	errors  atomic.Uint64 // messages about failed verdicts

	// The rest belongs to the goroutine that calls Recv and Apply.
	in      *inbox
	n, next int                         // messages in the inbox, first not taken
	rest    []byte                      // of the message before next
	held    [dataplane.BatchSize]origin // the batch in flight
	ids     [dataplane.BatchSize]uint32 // its packets' ids
	poll    [2]unix.PollFd
	out     []byte                // verdict messages of one batch
	receive func(fd uintptr) bool // made once, so that Recv allocates nothing
	send    func(fd uintptr) bool // made once, so that Apply allocates nothing
	errno   unix.Errno            // of the last receive or send
}

// origin is what Apply needs to know of a packet beyond the batch.
type origin struct {
	mark    uint32 // the packet mark, our bits cleared
	hook    uint8
	tagged  bool // its priority is ours
	refused bool // Reject was called
}

func openDriver(c Config, num uint16, nsFD int, f features) (*driver, error) {
	// Without the GSO flag the kernel cuts large packets into wire size ones
	// before queueing: many upcalls for one connection.
	flags := uint32(nfq.NfQaCfgFlagGSO)
	if c.FailOpen {
		flags |= nfq.NfQaCfgFlagFailOpen // where the queue is full; without a listener: queue
	}
	nf, err := nfq.Open(&nfq.Config{
		NetNS:        nsFD,
		NfQueue:      num,
		MaxQueueLen:  c.QueueLen,
		MaxPacketLen: c.MaxPacketLen,
		Copymode:     nfq.NfQnlCopyPacket,
		Flags:        flags,
		AfFamily:     unix.AF_UNSPEC,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue %d: %w", num, err)
	}
	d := newDriver(c, num)
	d.nf, d.rejects, d.names = nf, f.reject, f.priority
	if err := d.bind(c); err != nil {
		if d.cancel != nil {
			d.cancel()
		}
		nf.Con.Close()
		if d.wake != nil {
			d.wake.Close()
		}
		// The kernel's answer for a queue with another owner. For missing
		// privilege too, but then nf_tables has refused us before.
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("queue %d is taken by another program (or another tierwall): %w", num, err)
		}
		return nil, fmt.Errorf("open queue %d: %w", num, err)
	}
	return d, nil
}

// newDriver returns a driver without a socket.
func newDriver(c Config, num uint16) *driver {
	d := &driver{
		queue: num, marks: c.Marks, tags: &tags{}, ipvs: &ipvs{}, log: c.Logger, done: make(chan struct{}),
		in:  newInbox(int(c.MaxPacketLen) + messageSlack),
		out: make([]byte, 0, dataplane.BatchSize*verdictMaxLen),
	}
	d.receive, d.send = d.receiveFrom, d.sendTo
	return d
}

func (d *driver) bind(c Config) error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return fmt.Errorf("create an eventfd: %w", err)
	}
	d.wake = os.NewFile(uintptr(fd), "eventfd")
	d.poll[1] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	con := d.nf.Con
	if d.raw, err = con.SyscallConn(); err != nil {
		return err
	}
	// Best effort: a small buffer loses packets earlier, and the loss is counted.
	if err := con.SetReadBuffer(c.ReadBuffer); err != nil {
		c.Logger.Warn("receive buffer of the queue stays at its default", "queue", d.queue, "error", err)
	}
	// An overrun is no news on the socket: the kernel counts it per queue, and
	// Stats reads that.
	if err := d.nf.SetOption(netlink.NoENOBUFS, true); err != nil {
		return err
	}
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(context.Background())
	parked := make(chan struct{})
	var once sync.Once
	// A packet that the library's reader still gets: dropped, as in a full queue.
	// There is none unless a rule of other software points at our queue.
	early := func(a nfq.Attribute) int {
		if a.PacketID != nil {
			_ = d.nf.SetVerdict(*a.PacketID, nfDrop)
		}
		return 0
	}
	// The reader calls this with the deadline below, and stays in it until Close.
	park := func(error) int {
		once.Do(func() { close(parked) })
		<-d.done
		return 1
	}
	if err := d.nf.RegisterWithErrorFunc(ctx, early, park); err != nil {
		return err
	}
	if err := con.SetReadDeadline(time.Unix(1, 0)); err != nil {
		return err
	}
	<-parked
	return con.SetReadDeadline(time.Time{})
}

// Recv implements dataplane.Driver. It allocates nothing; frames are valid until
// the next Recv.
func (d *driver) Recv(b *dataplane.Batch) error {
	b.N = 0
	if d.isClosed() {
		return dataplane.ErrClosed
	}
	if d.next == d.n && len(d.rest) == 0 {
		d.n, d.next = 0, 0
		err := d.raw.Read(d.receive)
		switch {
		case d.isClosed():
			return dataplane.ErrClosed
		case err != nil:
			return fmt.Errorf("receive from queue %d: %w", d.queue, err)
		case d.errno != 0 && d.errno != unix.EAGAIN && d.errno != unix.EINTR:
			return fmt.Errorf("receive from queue %d: %w", d.queue, d.errno)
		}
	}
	var q queued
	for b.N < dataplane.BatchSize {
		if len(d.rest) == 0 {
			if d.next == d.n {
				break
			}
			d.rest = d.in.message(d.next)
			d.next++
		}
		typ, body, rest, ok := nextMessage(d.rest)
		d.rest = rest
		switch {
		case !ok:
		case typ == msgPacket && q.decode(body):
			d.fill(b, &q)
		case typ == unix.NLMSG_ERROR:
			d.failed(errorCode(body))
		}
	}
	if b.N != 0 {
		d.upcalls.Add(uint64(b.N))
	}
	return nil
}

// receiveFrom waits until there are messages and takes as many as there are, up
// to a batch. poll(2) on a thread of its own wakes up faster than the runtime's
// poller: it is not asked while messages keep coming.
func (d *driver) receiveFrom(fd uintptr) bool {
	d.n, d.errno = d.in.receive(int(fd))
	if d.errno != unix.EAGAIN {
		return true
	}
	d.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	d.poll[1].Revents = 0
	if _, err := unix.Poll(d.poll[:], idle); err != nil || d.poll[0].Revents == 0 {
		return true // EINTR, time-out or Close
	}
	d.n, d.errno = d.in.receive(int(fd))
	return true
}

// failed counts an error the kernel reports. ENOENT answers a verdict for a
// packet it has dropped meanwhile, because its device or our table went away. The
// queue goes on.
func (d *driver) failed(errno unix.Errno) {
	if errno == 0 {
		return
	}
	if d.errors.Add(1) == 1 {
		d.log.Debug("queue reports errors, counting them from now on", "queue", d.queue, "error", errno)
	}
}

func (d *driver) fill(b *dataplane.Batch, q *queued) {
	d.held[b.N] = origin{mark: q.mark &^ (d.marks.Accept | d.marks.Reply), hook: q.hook, tagged: isTag(q.prio)}
	d.ids[b.N] = q.id
	b.Packets[b.N] = dataplane.Packet{
		Frame: q.payload, Length: q.length, ID: q.id, Device: q.device,
		Reply:   q.mark&d.marks.Reply != 0,
		Related: q.mark&d.marks.Accept != 0,
		Final:   true,
		ToHost:  q.hook == unix.NF_INET_LOCAL_IN,
	}
	p := &b.Packets[b.N]
	// What IPVS translates passes the output hook, and comes back as an answer.
	p.Plain = d.names && q.hook != unix.NF_INET_LOCAL_OUT && !(p.Reply && d.ipvs.Load())
	if isTag(q.prio) {
		p.Plain, p.Service = false, d.tags.service(q.prio)
	}
	b.N++
}

// IsTunnel implements dataplane.Driver.
func (d *driver) IsTunnel(proto flow.Proto, port uint16) bool { return d.tunnels.IsTunnel(proto, port) }

// Reject implements dataplane.Driver. It makes the kernel tell the sender of a
// packet of the batch in flight that it is refused; Apply then drops the packet,
// whatever its Disposition. answer is not used: the kernel's own belongs to the
// packet's connection, so where a Service address was translated it is translated
// back. errNoReject where there is no rule for that: in the output hook, and on a
// kernel without the expression.
func (d *driver) Reject(p *dataplane.Packet, _ []byte) error {
	if !d.rejects {
		return errNoReject
	}
	for i, id := range d.ids {
		if id == p.ID && d.held[i].hook != unix.NF_INET_LOCAL_OUT {
			d.held[i].refused = true
			return nil
		}
	}
	return errNoReject
}

var errNoReject = errors.New("nfqueue: the packet cannot be refused")

// Apply implements dataplane.Driver: one system call for the whole batch, no
// allocation.
func (d *driver) Apply(b *dataplane.Batch) error {
	d.out = appendBatch(d.out[:0], d.queue, b, &d.held, d.marks)
	if len(d.out) == 0 {
		return nil
	}
	if d.isClosed() {
		return dataplane.ErrClosed
	}
	err := d.raw.Write(d.send)
	if err == nil && d.errno != 0 {
		err = d.errno
	}
	if err != nil {
		if errors.Is(err, os.ErrClosed) || d.isClosed() {
			return dataplane.ErrClosed
		}
		return fmt.Errorf("send verdicts of queue %d: %w", d.queue, err)
	}
	return nil
}

func (d *driver) isClosed() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// sendTo writes the verdicts. The socket is not connected: what is written goes
// to the kernel.
func (d *driver) sendTo(fd uintptr) bool {
	_, err := unix.Write(int(fd), d.out)
	d.errno, _ = err.(unix.Errno) //nolint:errorlint // a bare system call returns nothing else, and errors.As allocates
	return d.errno != unix.EAGAIN
}

// Close implements dataplane.Driver. The kernel drops packets that wait for a
// verdict when the socket closes.
func (d *driver) Close() error {
	d.close.Do(func() {
		close(d.done)
		// Closing the socket waits for a Recv that is inside poll: wake it first.
		_, werr := d.wake.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
		// The library's Close waits for its reader, whose last message (unbind)
		// waits for an answer until the context ends.
		d.cancel()
		err := d.nf.Close()
		if errors.Is(err, os.ErrClosed) {
			err = nil
		}
		if err = errors.Join(werr, err, d.wake.Close()); err != nil {
			d.closed = fmt.Errorf("close queue %d: %w", d.queue, err)
		}
		if n := d.errors.Load(); n != 0 {
			d.log.Info("queue closed, some verdicts came too late", "queue", d.queue, "errors", n)
		}
	})
	return d.closed
}
