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

	"github.com/tierwall/tierwall/dataplane"
)

const (
	// backlog is how many packets wait between the socket's reader and Recv.
	// More wait in the kernel, where they are bounded and counted.
	backlog = 4 * dataplane.BatchSize

	// idle is how long Recv waits before it returns an empty batch.
	idle = 250 * time.Millisecond
)

// driver serves one NFQUEUE.
//
//	kernel queue ─► go-nfqueue's reader goroutine ─► packets (chan) ─► Recv
//	                                     one sendto per batch ◄─────── Apply
type driver struct {
	queue uint16
	marks Marks
	log   *slog.Logger

	nf      *nfq.Nfqueue
	raw     syscall.RawConn
	cancel  context.CancelFunc
	packets chan queued
	done    chan struct{} // closed by Close
	close   sync.Once
	closed  error // result of the one Close

	upcalls atomic.Uint64 // packets received
	errors  atomic.Uint64 // messages about failed verdicts

	// The rest belongs to the goroutine that calls Recv and Apply.
	timer     *time.Timer
	origMarks [dataplane.BatchSize]uint32 // packet marks of the batch in flight
	out       []byte                      // verdict messages of one batch
	kernel    unix.SockaddrNetlink        // where they go; Sendto writes to it, so not shared
	send      func(fd uintptr) bool       // sends out; made once, so that Apply allocates nothing
	sendErr   error
}

// queued is a packet on its way to Recv. go-nfqueue copies the payload into
// memory of its own, which lives until the batch is reused.
type queued struct {
	payload []byte
	id      uint32
	mark    uint32
	length  uint32
	device  int32
}

func openDriver(c Config, num uint16, nsFD int) (*driver, error) {
	nf, err := nfq.Open(&nfq.Config{
		NetNS:        nsFD,
		NfQueue:      num,
		MaxQueueLen:  c.QueueLen,
		MaxPacketLen: c.MaxPacketLen,
		Copymode:     nfq.NfQnlCopyPacket,
		// Without the GSO flag the kernel cuts large packets into wire size ones
		// before queueing: many upcalls for one connection.
		Flags:    nfq.NfQaCfgFlagGSO,
		AfFamily: unix.AF_UNSPEC,
	})
	if err != nil {
		return nil, fmt.Errorf("open queue %d: %w", num, err)
	}
	d := &driver{
		queue: num, marks: c.Marks, log: c.Logger, nf: nf,
		packets: make(chan queued, backlog), done: make(chan struct{}),
		timer:  time.NewTimer(idle),
		out:    make([]byte, 0, dataplane.BatchSize*verdictMarkLen),
		kernel: unix.SockaddrNetlink{Family: unix.AF_NETLINK},
	}
	d.send = d.sendto
	if d.raw, err = nf.Con.SyscallConn(); err != nil {
		nf.Con.Close()
		return nil, fmt.Errorf("open queue %d: %w", num, err)
	}
	// Best effort: a small buffer loses packets earlier, and the loss is counted.
	if err := nf.Con.SetReadBuffer(c.ReadBuffer); err != nil {
		c.Logger.Warn("receive buffer of the queue stays at its default", "queue", num, "error", err)
	}
	// An overrun is no news on the socket: the kernel counts it per queue, and
	// Stats reads that.
	if err := nf.SetOption(netlink.NoENOBUFS, true); err != nil {
		nf.Con.Close()
		return nil, fmt.Errorf("open queue %d: %w", num, err)
	}
	var ctx context.Context
	ctx, d.cancel = context.WithCancel(context.Background())
	if err := nf.RegisterWithErrorFunc(ctx, d.receive, d.failed); err != nil {
		d.cancel()
		nf.Con.Close()
		// The kernel's answer for a queue with another owner. For missing
		// privilege too, but then nf_tables has refused us before.
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("queue %d is taken by another program (or another tierwall): %w", num, err)
		}
		return nil, fmt.Errorf("bind queue %d: %w", num, err)
	}
	return d, nil
}

// receive runs on the reader goroutine for every packet. It blocks when Recv
// falls behind: then packets pile up in the kernel, within QueueLen.
func (d *driver) receive(a nfq.Attribute) int {
	if a.PacketID == nil {
		return 0 // not a packet
	}
	p := queued{id: *a.PacketID}
	if a.Payload != nil {
		p.payload = *a.Payload
	}
	if a.Mark != nil {
		p.mark = *a.Mark
	}
	if a.CapLen != nil {
		p.length = *a.CapLen
	}
	if a.InDev != nil {
		p.device = int32(*a.InDev)
	} else if a.OutDev != nil {
		p.device = int32(*a.OutDev)
	}
	select {
	case d.packets <- p:
		d.upcalls.Add(1)
		return 0
	case <-d.done:
		return 1 // closing the socket drops what was not judged
	}
}

// failed runs on the reader goroutine for every error of the socket. Nonzero
// ends the reader.
func (d *driver) failed(err error) int {
	select {
	case <-d.done:
		return 1
	default:
	}
	if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
		return 1
	}
	// ENOENT answers a verdict for a packet the kernel has dropped meanwhile,
	// because its device or our table went away. The queue goes on.
	if d.errors.Add(1) == 1 {
		d.log.Debug("queue reports errors, counting them from now on", "queue", d.queue, "error", err)
	}
	return 0
}

// Recv implements dataplane.Driver.
func (d *driver) Recv(b *dataplane.Batch) error {
	b.N = 0
	select {
	case <-d.done:
		return dataplane.ErrClosed
	default:
	}
	select {
	case p := <-d.packets:
		d.fill(b, p)
	default:
		d.timer.Reset(idle)
		select {
		case p := <-d.packets:
			d.timer.Stop()
			d.fill(b, p)
		case <-d.timer.C:
			return nil
		case <-d.done:
			return dataplane.ErrClosed
		}
	}
	for b.N < dataplane.BatchSize {
		select {
		case p := <-d.packets:
			d.fill(b, p)
		default:
			return nil
		}
	}
	return nil
}

func (d *driver) fill(b *dataplane.Batch, p queued) {
	d.origMarks[b.N] = p.mark &^ (d.marks.Accept | d.marks.Reply)
	b.Packets[b.N] = dataplane.Packet{
		Frame: p.payload, Length: p.length, ID: p.id, Device: p.device,
		Reply: p.mark&d.marks.Reply != 0,
		Final: true,
	}
	b.N++
}

// Apply implements dataplane.Driver: one system call for the whole batch, no
// allocation.
func (d *driver) Apply(b *dataplane.Batch) error {
	d.out = appendBatch(d.out[:0], d.queue, b, &d.origMarks, d.marks)
	if len(d.out) == 0 {
		return nil
	}
	if err := d.raw.Write(d.send); err != nil {
		if errors.Is(err, os.ErrClosed) || d.isClosed() {
			return dataplane.ErrClosed
		}
		return fmt.Errorf("send verdicts of queue %d: %w", d.queue, err)
	}
	if d.sendErr != nil {
		return fmt.Errorf("send verdicts of queue %d: %w", d.queue, d.sendErr)
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

func (d *driver) sendto(fd uintptr) bool {
	d.sendErr = unix.Sendto(int(fd), d.out, 0, &d.kernel)
	return !errors.Is(d.sendErr, unix.EAGAIN)
}

// Close implements dataplane.Driver. The kernel drops packets that wait for a
// verdict when the socket closes.
func (d *driver) Close() error {
	d.close.Do(func() {
		close(d.done)
		// In this order: the library's Close waits for its reader, which only the
		// context ends.
		d.cancel()
		if err := d.nf.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			d.closed = fmt.Errorf("close queue %d: %w", d.queue, err)
		}
		if n := d.errors.Load(); n != 0 {
			d.log.Info("queue closed, some verdicts came too late", "queue", d.queue, "errors", n)
		}
	})
	return d.closed
}
