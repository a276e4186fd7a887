package afxdp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
)

// Backend implements dataplane.Backend. See the package comment.
type Backend struct {
	config  Config
	log     *slog.Logger
	drivers []*driver // by queue; none with AttachXDPGeneric

	epoch epoch // which flows the kernel side remembers still count
	heir  heir  // of what an earlier process accepted
	heart heart // that we are alive

	// Everything below is used on the namespace thread only.
	thread   *nsThread
	nl       *netlink.Handle
	lock     int // file descriptor, see lockNamespace
	pins     pins
	objects  loaded
	released bool // what an earlier process pinned has been removed
	begun    bool // there was an Update: who the pods are is known
	pair     *upcallPair
	devices  devices             // with the methods that any goroutine may call
	base     [numCounters]uint64 // counted before our time
	reported drops
	final    dataplane.BackendStats // set by Close
	closed   bool
	watching sync.WaitGroup
}

var (
	_ dataplane.Drainer = (*Backend)(nil)
	_ dataplane.Heir    = (*Backend)(nil)
)

// New loads the programs, creates the upcall pair and binds the sockets, in the
// network namespace of the calling thread. No device is judged before the first
// Update. On error nothing is left behind.
func New(c Config) (*Backend, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	if err := supportedMachine(); err != nil && c.Attach != AttachXDPGeneric {
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
		config: c, log: c.Logger, thread: thread, lock: -1,
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

// supportedMachine refuses machines that nobody has tried it on. The programs are
// compiled for little-endian ones.
func supportedMachine() error {
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		return fmt.Errorf("the AF_XDP backend needs amd64 or arm64: on %s it was never tried", runtime.GOARCH)
	}
	return nil
}

func (b *Backend) open() (err error) {
	if b.lock, err = waitForNamespace(); err != nil {
		return err
	}
	if b.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	if b.pins, err = openPins(b.config.PinPath); err != nil {
		return err
	}
	at := hooks{nl: b.nl, pins: b.pins, mode: b.config.Attach}
	if at.mode == AttachXDPGeneric {
		return b.openGuard(at)
	}
	maxFrame := b.config.maxFrame()
	if b.pair, err = openUpcallPair(b.nl, b.pins, maxFrame-etherHeader, b.config.Queues); err != nil {
		return err
	}
	if err := at.choose(b.pair.stack, &b.config); err != nil {
		return err
	}
	if at.mode == AttachXDPGeneric {
		err := b.pair.close(false)
		b.pair = nil
		return errors.Join(err, b.openGuard(at))
	}
	if err := b.load(maxFrame, at.mode); err != nil {
		return err
	}
	b.config.reportAccelerate()
	if err := b.devices.gate.open(&b.objects, b.pins); err != nil {
		return err
	}
	nonce, err := b.begin()
	if err != nil {
		return err
	}
	if err := b.pair.start(&b.objects.podObjects, at.mode); err != nil {
		return err
	}
	for queue := range b.config.Queues {
		if err := b.openQueue(queue, nonce); err != nil {
			return err
		}
	}
	b.devices.pair = pairEnds{b.pair.stack.Attrs().Index, b.pair.socket.Attrs().Index}
	return b.startDevices(at)
}

// openGuard starts what there is without upcalls.
func (b *Backend) openGuard(at hooks) error {
	at.mode = AttachXDPGeneric
	if b.config.Accelerate {
		b.log.Warn("accelerate is ignored: these programs judge nothing", "attach", at.mode)
	}
	spec, err := b.config.guardSpec(at.mode)
	if err != nil {
		return err
	}
	if b.objects, b.devices.podXDP, err = loadAlone(spec); err != nil {
		return err
	}
	return b.startDevices(at)
}

func (b *Backend) startDevices(at hooks) error {
	ds := &b.devices
	ds.site = &site{config: &b.config, log: b.log, nl: b.nl, hooks: at, entries: deviceMap{b.objects.Devices}}
	ds.programs = &b.objects
	ds.renamed = func(fresh addresses) error { return b.epoch.advance(dataplane.ChangeWithin(fresh), nil) }
	return ds.start()
}

// openQueue makes the driver of a queue of the upcall pair.
func (b *Backend) openQueue(queue int, nonce uint8) error {
	sock, err := openSocket(b.pair.socket.Attrs().Index, queue, b.config.FrameSize, b.config.Ring)
	if err != nil {
		return err
	}
	d, err := newDriver(sock, b, queue, nonce)
	if err != nil {
		return errors.Join(err, sock.close())
	}
	b.drivers = append(b.drivers, d)
	if err := b.objects.Sockets.Put(uint32(queue), uint32(sock.xsk.FD())); err != nil {
		return fmt.Errorf("give a socket to the upcall pair: %w", err)
	}
	return nil
}

// waitForNamespace takes the lock, with patience for a daemon that is stopping.
func waitForNamespace() (fd int, err error) {
	deadline := time.Now().Add(bindPatience)
	for {
		if fd, err = lockNamespace(); !errors.Is(err, errRunning) || time.Now().After(deadline) {
			return fd, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// begin takes over what an earlier process left in the maps.
func (b *Backend) begin() (nonce uint8, err error) {
	b.epoch.cells = b.objects.Cells
	b.epoch.shared = sharedVars{
		generation: b.objects.Generation, floor: b.objects.ValidFrom, translated: b.objects.Translated,
	}
	if err := b.epoch.adopt(); err != nil {
		return 0, err
	}
	for i := range b.base {
		b.base[i] = b.count(uint32(i))
	}
	b.devices.adopted = b.pins.devices()
	if len(b.devices.adopted) > 0 {
		b.log.Info("taking over from an earlier run", "devices", len(b.devices.adopted), "generation", b.epoch.generation.Load(),
			"droppedWithoutDaemon", b.base[countAloneDrop]+b.base[countUnheard])
	}
	var n uint32
	if err := b.objects.Nonce.Get(&n); err != nil {
		return 0, fmt.Errorf("read the nonce: %w", err)
	}
	for n == 0 {
		var random [1]byte
		rand.Read(random[:]) // never fails (crypto/rand)
		n = uint32(random[0])
	}
	// From here on there is somebody to ask, if not yet a worker to answer.
	return uint8(n), errors.Join(b.objects.Nonce.Set(n), b.heart.start(b.objects.Alive, b.config.Queues))
}

// load puts the programs into the kernel with the configuration as constants.
func (b *Backend) load(maxFrame int, mode Attach) error {
	spec, err := loadPod()
	if err != nil {
		return fmt.Errorf("read the programs: %w", err)
	}
	spec.Maps["flows"].MaxEntries = uint32(b.config.FlowEntries)
	spec.Maps["later"].MaxEntries = uint32(b.config.LaterEntries)
	spec.Maps["denied"].MaxEntries = uint32(b.config.LaterEntries)
	if err := b.config.sizeFront(spec); err != nil {
		return err
	}
	spec.Maps["origins"].MaxEntries = uint32(b.config.LaterEntries)
	bit := map[bool]uint8{true: 1}
	t := b.config.Timeouts
	cost, credit := b.config.upcallLimit()
	for name, value := range map[string]any{
		"upcall_ifindex": uint32(b.pair.stack.Attrs().Index),
		"queues":         uint32(b.config.Queues),
		"max_frame":      uint32(maxFrame),
		"mark_accept":    b.config.Marks.Accept,
		"mark_fast":      b.config.Marks.Fast,
		"mark_return":    b.config.Marks.Return,
		"strict":         bit[b.config.Strict],
		"open":           bit[b.config.FailOpen],
		"alive_time":     uint64(b.config.AliveTime),
		"deny_time":      uint64(b.config.DenyTime),
		"upcall_cost":    cost,
		"upcall_credit":  credit,
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
	if err := b.config.configure(spec, mode); err != nil {
		return err
	}
	b.objects, err = loadPrograms(spec, b.pins, loadOptions{strict: b.config.Strict, noNAT: b.config.noNAT, adopted: b.pair.adopted})
	if err == nil && b.objects.blind != nil {
		b.log.Warn("translated connections cannot be read: who is masqueraded counts as unknown, and Services are judged by their addresses where there is no later hook",
			"reason", b.objects.blind)
	}
	return err
}

// Name implements dataplane.Backend.
func (b *Backend) Name() string { return "afxdp" }

// Drivers implements dataplane.Backend: one for each queue of the upcall pair, each
// of which may get packets of any connection (dataplane.Scattered). With
// AttachXDPGeneric there is none.
func (b *Backend) Drivers() []dataplane.Driver {
	all := make([]dataplane.Driver, len(b.drivers))
	for i, d := range b.drivers {
		all[i] = d
	}
	return all
}

// Update implements dataplane.Backend. What c may be about counts as unknown from
// here on: its next packet is judged by userspace, whatever the number of flows.
// How many of them t denies nobody has counted, and cut is 0. Programs go onto
// the devices of t's local pods first.
//
// The first Update brings up what was taken over and did not inherit the new policy's
// consent (heir). It waits for the workers to judge what waited for them, half a second
// at most: into a full ring they would come to be lost.
func (b *Backend) Update(t *classifier.Table, c dataplane.Change) (cut int, err error) {
	end := time.Now().Add(catchUpPatience)
	for _, d := range b.drivers {
		d.catchUp(end)
	}
	return 0, b.update(t.Locals(), c, t.LocalPodCIDRs()...)
}

func (b *Backend) update(locals []netip.Addr, c dataplane.Change, cidrs ...netip.Prefix) error {
	return b.thread.do(func() error {
		if b.closed {
			return errThreadGone
		}
		ds := &b.devices
		ds.locals = make(map[netip.Addr]bool, len(locals))
		for _, a := range locals {
			ds.locals[a.Unmap()] = true
		}
		ds.cidrs = slices.Concat(b.config.PodCIDRs, cidrs)
		b.begun = true
		// What is not ours any more goes whatever keeps a device from being ours.
		err := errors.Join(ds.refresh(), b.release())
		ds.guard.tookChanges()   // a generation begins anyway
		if len(b.drivers) == 0 { // nothing is remembered
			return err
		}
		return errors.Join(err, b.epoch.advance(c, b.inherit()))
	})
}

// release takes off what an earlier process left on devices that are none of ours.
func (b *Backend) release() error {
	if b.devices.hooks.mode != AttachXDPGeneric {
		return b.devices.release()
	}
	if b.released {
		return nil
	}
	b.released = true
	return errors.Join(b.pins.removeAll(), removeUpcallPair(b.nl))
}

// follow attaches to devices that appear between updates and releases those that
// go. Failures are logged: there is nobody to return them to, and the next
// change or Update tries again.
func (b *Backend) follow() {
	defer b.watching.Done()
	pending := false
	var last time.Time
	for {
		patience := time.Duration(-1)
		if pending {
			patience = max(0, settleTime-time.Since(last))
		}
		if !b.devices.watch.wait(patience) {
			return
		}
		err := b.thread.do(func() error {
			if b.closed {
				return nil
			}
			err := b.devices.hear()
			// Before the first Update no device is known to be a pod's: those that an
			// earlier run's programs guard would lose them.
			pending = b.devices.stale && b.begun
			if pending && time.Since(last) >= settleTime {
				err = errors.Join(err, b.devices.refresh())
				pending, last = false, time.Now()
			}
			if b.devices.guard.tookChanges() && len(b.drivers) > 0 {
				err = errors.Join(err, b.epoch.renew())
			}
			return err
		})
		if err != nil {
			b.log.Error("pod devices could not all be attached", "error", err)
		}
	}
}

// Unjudged lists devices of pods that our programs could not be put on, where nobody
// else judges their packets: all of them without a later hook, and ports of a bridge. Any
// goroutine may call it.
func (b *Backend) Unjudged() (devices []string, why error) { return b.devices.unjudged() }
