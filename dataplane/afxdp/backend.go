package afxdp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
)

// Backend implements dataplane.Backend. See the package comment.
type Backend struct {
	config Config
	log    *slog.Logger
	driver *driver

	generation atomic.Uint32 // what the kernel side compares flows with

	// Everything below is used on the namespace thread only.
	thread        *nsThread
	nl            *netlink.Handle
	objects       podObjects
	pair          *upcallPair
	devices       map[int]*device
	nodeAddresses map[[16]byte]bool
	locals        map[netip.Addr]bool
	final         dataplane.BackendStats // set by Close
	closed        bool

	watch    *watch
	watching sync.WaitGroup
}

var _ dataplane.Backend = (*Backend)(nil)

// New loads the programs, creates the upcall pair and binds the socket, in the
// network namespace of the calling thread. No device is judged before the first
// Update. On error nothing is left behind.
func New(c Config) (*Backend, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	if err := supportedMachine(); err != nil {
		return nil, err
	}
	// Kernels before 5.11 charge maps to this limit; later ones ignore it.
	if err := rlimit.RemoveMemlock(); err != nil {
		return nil, fmt.Errorf("raise the locked memory limit: %w", err)
	}
	thread, err := newNSThread()
	if err != nil {
		return nil, err
	}
	b := &Backend{
		config: c, log: c.Logger, thread: thread,
		devices: map[int]*device{}, nodeAddresses: map[[16]byte]bool{}, locals: map[netip.Addr]bool{},
	}
	if err := thread.do(b.open); err != nil {
		err = errors.Join(err, thread.do(b.shut))
		thread.stop()
		return nil, fmt.Errorf("start the AF_XDP backend: %w", err)
	}
	b.watching.Add(1)
	go b.follow()
	return b, nil
}

// supportedMachine: see socket.
func supportedMachine() error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("the AF_XDP backend needs amd64: on %s the socket library's rings lack memory barriers", runtime.GOARCH)
	}
	return nil
}

func (b *Backend) open() (err error) {
	if b.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	maxFrame := b.config.maxFrame()
	if b.pair, err = newUpcallPair(b.nl, maxFrame-etherHeader); err != nil {
		return err
	}
	var nonce [1]byte
	rand.Read(nonce[:]) // never fails (crypto/rand)
	if err := b.load(nonce[0], maxFrame); err != nil {
		return err
	}
	if err := b.pair.start(&b.objects); err != nil {
		return err
	}
	sock, err := openSocket(b.pair.socket.Attrs().Index, b.config.FrameSize, b.config.Ring)
	if err != nil {
		return err
	}
	b.generation.Store(1) // as in bpf/pod.c
	if b.driver, err = newDriver(sock, b.objects.Flows, b.objects.Later, &b.generation, nonce[0], b.config.Strict); err != nil {
		sock.close()
		return err
	}
	if err := b.objects.Sockets.Put(uint32(0), uint32(sock.xsk.FD())); err != nil {
		return fmt.Errorf("give the socket to the upcall pair: %w", err)
	}
	b.watch, err = newWatch()
	return err
}

// load puts the programs into the kernel with the configuration as constants.
func (b *Backend) load(nonce uint8, maxFrame int) error {
	spec, err := loadPod()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	spec.Maps["flows"].MaxEntries = uint32(b.config.FlowEntries)
	spec.Maps["later"].MaxEntries = uint32(b.config.LaterEntries)
	strict := uint8(0)
	if b.config.Strict {
		strict = 1
	}
	t := b.config.Timeouts
	for name, value := range map[string]any{
		"upcall_ifindex": uint32(b.pair.stack.Attrs().Index),
		"max_frame":      uint32(maxFrame),
		"mark_accept":    b.config.Marks.Accept,
		"mark_fast":      b.config.Marks.Fast,
		"mark_return":    b.config.Marks.Return,
		"strict":         strict,
		"nonce":          nonce,
		"idle_tcp":       uint64(t.TCP),
		"idle_closing":   uint64(t.Closing),
		"idle_udp":       uint64(t.UDP),
		"idle_sctp":      uint64(t.SCTP),
		"idle_icmp":      uint64(t.ICMP),
		"idle_other":     uint64(t.Other),
	} {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("set %s in the programs: %w", name, err)
		}
	}
	if err := spec.LoadAndAssign(&b.objects, nil); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("load the programs: CAP_BPF and CAP_NET_ADMIN (or root) are needed: %w", err)
		}
		return fmt.Errorf("load the programs: %w", err)
	}
	return nil
}

// Name implements dataplane.Backend.
func (b *Backend) Name() string { return "afxdp" }

// Drivers implements dataplane.Backend. There is one: a connection's two
// directions must meet in one worker, and the upcall pair's queues would be
// chosen by a hash that does not know they belong together.
func (b *Backend) Drivers() []dataplane.Driver { return []dataplane.Driver{b.driver} }

// Update implements dataplane.Backend. Every remembered flow counts as unknown
// from here on: its next packet is judged by userspace. That is done by moving
// the generation on, so it takes the same time whatever the number of flows; how
// many of them t denies nobody has counted, and cut is 0. Programs go onto the
// devices of t's local pods first.
func (b *Backend) Update(t *classifier.Table) (cut int, err error) {
	return 0, b.update(t.Locals())
}

func (b *Backend) update(locals []netip.Addr) error {
	return b.thread.do(func() error {
		if b.closed {
			return errThreadGone
		}
		b.locals = make(map[netip.Addr]bool, len(locals))
		for _, a := range locals {
			b.locals[a.Unmap()] = true
		}
		err := b.refresh()
		return errors.Join(err, b.forget())
	})
}

// forget makes the kernel side forget every flow. Entries the driver writes
// meanwhile carry the new number first and the kernel learns it second; until
// then they merely do not count yet.
func (b *Backend) forget() error {
	g := b.generation.Add(1)
	if err := b.objects.Generation.Set(g); err != nil {
		return fmt.Errorf("start generation %d: %w", g, err)
	}
	return nil
}

// settleTime bounds how often a stream of link and route changes makes us look.
const settleTime = 10 * time.Millisecond

// follow attaches to devices that appear between updates and releases those that
// go. Failures are logged: there is nobody to return them to, and the next
// change or Update tries again.
func (b *Backend) follow() {
	defer b.watching.Done()
	for range b.watch.changed {
		err := b.thread.do(func() error {
			if b.closed {
				return nil
			}
			return b.refresh()
		})
		if err != nil {
			b.log.Error("pod devices could not all be attached", "error", err)
		}
		time.Sleep(settleTime)
	}
}

// Stats implements dataplane.Backend.
func (b *Backend) Stats() dataplane.BackendStats {
	var s dataplane.BackendStats
	err := b.thread.do(func() error {
		if s = b.final; !b.closed {
			s = b.stats()
		}
		return nil
	})
	if err != nil { // the thread ended with Close, which set final before
		return b.final
	}
	return s
}

func (b *Backend) stats() dataplane.BackendStats {
	return dataplane.BackendStats{
		Bypassed: b.count(countHit),
		Dropped:  b.count(countDrop) + b.count(countStray),
		Upcalls:  b.count(countUpcall),
		Overflow: b.driver.lostPackets() + b.pair.lost(),
	}
}

// count sums a counter over the CPUs.
func (b *Backend) count(which uint32) (total uint64) {
	var perCPU []uint64
	if err := b.objects.Counters.Lookup(which, &perCPU); err != nil {
		return 0
	}
	for _, n := range perCPU {
		total += n
	}
	return total
}

// releaseWait bounds the wait for a worker that holds a batch while the backend
// closes.
const releaseWait = 2 * time.Second

// Close implements dataplane.Backend. It takes the programs off the devices,
// after which the stack passes everything (a later hook permitting), closes the
// driver and removes the upcall pair.
func (b *Backend) Close() error {
	err := b.thread.do(b.shut)
	if errors.Is(err, errThreadGone) {
		return nil
	}
	b.watching.Wait()
	b.thread.stop()
	return err
}

// shut undoes whatever part of open was done.
func (b *Backend) shut() error {
	if b.closed {
		return nil
	}
	b.closed = true
	var errs []error
	for index := range b.devices {
		errs = append(errs, b.detach(index))
	}
	if b.watch != nil {
		errs = append(errs, b.watch.close())
	}
	if b.driver != nil {
		b.final = b.stats()
		errs = append(errs, b.driver.Close())
		select {
		case <-b.driver.released:
		case <-time.After(releaseWait):
			errs = append(errs, errors.New("the worker still holds packets; the socket is released when it lets go"))
		}
	}
	if b.pair != nil {
		errs = append(errs, b.pair.close())
	}
	if b.objects.PodIngress != nil {
		errs = append(errs, b.objects.Close())
	}
	if b.nl != nil {
		b.nl.Close()
	}
	return errors.Join(errs...)
}

// Cleanup removes what a run that was killed left in the network namespace of
// the calling thread: the upcall pair. Programs, maps and sockets ended with
// their process. It fails if another process uses the pair.
func Cleanup() error {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	return removeUpcallPair(nl)
}
