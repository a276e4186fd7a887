package afxdp

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/flows"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
)

// Backend implements dataplane.Backend. See the package comment.
type Backend struct {
	dataplane.BackendDefaults
	config  Config
	log     *slog.Logger
	drivers []*driver // by queue; none with AttachXDPGeneric

	epoch    flows.Epoch    // which flows the kernel side remembers still count
	takeover flows.Takeover // of what an earlier process accepted
	liveness liveness       // that we are alive

	// Everything below is used on the namespace thread only.
	thread   *nsThread
	nl       *netlink.Handle
	lock     int // file descriptor, see lockNamespace
	pins     kern.Pins
	objects  kern.Loaded
	released bool // what an earlier process pinned has been removed
	begun    bool // there was an Update: who the pods are is known
	pair     *upcall.Pair
	devices  *attach.Devices
	base     [kern.NumCounters]uint64 // counted before our time
	reported drops
	final    dataplane.BackendStats // set by Close
	closed   bool
	watching sync.WaitGroup
}

// New loads the programs, creates the upcall pair and binds the sockets, in the
// network namespace of the calling thread. No device is judged before the first
// Update. On error nothing is left behind.
func New(c Config) (*Backend, error) {
	if err := c.fill(); err != nil {
		return nil, err
	}
	if err := supportedMachine(); err != nil && c.Attach != attach.XDPGeneric {
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
	if b.pins, err = kern.OpenPins(b.config.PinPath); err != nil {
		return err
	}
	b.devices = attach.NewDevices(b.config.options(), b.nl, b.pins)
	if b.config.Attach == attach.XDPGeneric {
		return b.openGuard()
	}
	maxFrame := b.config.maxFrame()
	if b.pair, err = upcall.OpenPair(b.nl, b.pins, maxFrame-kern.EtherHeader, b.config.Queues); err != nil {
		return err
	}
	if err := b.devices.Choose(b.pair.Stack); err != nil {
		return err
	}
	if b.devices.Mode() == attach.XDPGeneric {
		err := b.pair.Close(false)
		b.pair = nil
		return errors.Join(err, b.openGuard())
	}
	if err := b.load(maxFrame); err != nil {
		return err
	}
	b.config.reportAccelerate()
	if err := b.devices.OpenGate(&b.objects); err != nil {
		return err
	}
	nonce, err := b.begin()
	if err != nil {
		return err
	}
	if err := b.pair.Start(&b.objects.PodObjects, b.devices.Mode()); err != nil {
		return err
	}
	for queue := range b.config.Queues {
		if err := b.openQueue(queue, nonce); err != nil {
			return err
		}
	}
	return b.startDevices(attach.PairEnds{Stack: b.pair.Stack.Attrs().Index, Socket: b.pair.Socket.Attrs().Index})
}

// openGuard starts what there is without upcalls.
func (b *Backend) openGuard() (err error) {
	if b.config.Accelerate {
		b.log.Warn("accelerate is ignored: these programs judge nothing", "attach", attach.XDPGeneric)
	}
	if b.objects, err = b.devices.LoadAlone(); err != nil {
		return err
	}
	return b.startDevices(attach.PairEnds{})
}

func (b *Backend) startDevices(pair attach.PairEnds) error {
	b.takeover = flows.Takeover{
		Objects: &b.objects, Epoch: &b.epoch, Idle: b.config.Timeouts.of, Strict: b.config.Strict,
		IsHost: b.devices.Host.IsHost, Log: b.log,
	}
	return b.devices.Start(&b.objects, pair, func(c dataplane.Change) error { return b.epoch.Advance(c, nil) })
}

// openQueue makes the driver of a queue of the upcall pair.
func (b *Backend) openQueue(queue int, nonce uint8) error {
	sock, err := upcall.OpenSocket(b.pair.Socket.Attrs().Index, queue, b.config.FrameSize, b.config.Ring)
	if err != nil {
		return err
	}
	d, err := newDriver(sock, b, queue, nonce)
	if err != nil {
		return errors.Join(err, sock.Close())
	}
	b.drivers = append(b.drivers, d)
	if err := b.objects.Sockets.Put(uint32(queue), uint32(sock.XSK.FD())); err != nil {
		return fmt.Errorf("give a socket to the upcall pair: %w", err)
	}
	return nil
}

// waitForNamespace takes the lock, with patience for a daemon that is stopping.
func waitForNamespace() (fd int, err error) {
	deadline := time.Now().Add(upcall.BindPatience)
	for {
		if fd, err = kern.LockNamespace(); !errors.Is(err, kern.ErrRunning) || time.Now().After(deadline) {
			return fd, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// begin takes over what an earlier process left in the maps.
func (b *Backend) begin() (nonce uint8, err error) {
	if err := b.epoch.Adopt(b.objects.FlowMarks()); err != nil {
		return 0, err
	}
	for i := range b.base {
		b.base[i] = b.count(uint32(i))
	}
	b.devices.Adopted = b.pins.Devices()
	if len(b.devices.Adopted) > 0 {
		b.log.Info("taking over from an earlier run", "devices", len(b.devices.Adopted), "generation", b.epoch.Current(),
			"droppedWithoutDaemon", b.base[kern.CountAloneDrop]+b.base[kern.CountUnheard])
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
	return uint8(n), errors.Join(b.objects.Nonce.Set(n), b.liveness.start(b.objects.Alive, b.config.Queues))
}

// load puts the programs into the kernel with the configuration as constants.
func (b *Backend) load(maxFrame int) error {
	spec, err := kern.LoadPod()
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
		"upcall_ifindex": uint32(b.pair.Stack.Attrs().Index),
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
	if err := b.devices.Configure(spec); err != nil {
		return err
	}
	b.objects, err = kern.Load(spec, b.pins, kern.LoadOptions{Strict: b.config.Strict, NoNAT: b.config.noNAT, Adopted: b.pair.Adopted, ProbeGate: attach.ProbeGate})
	if err == nil && b.objects.Blind != nil {
		level := slog.LevelWarn
		if b.config.Strict { // nobody behind judges them by their real ends
			level = slog.LevelError
		}
		b.log.Log(context.Background(), level, "translated connections cannot be read: who is masqueraded counts as unknown, and Services are judged by their addresses where there is no later hook",
			"reason", b.objects.Blind)
	}
	return err
}

// Name implements dataplane.Backend.
func (b *Backend) Name() string { return "afxdp" }

// Drivers implements dataplane.Backend: one for each queue of the upcall pair, each
// of which may get packets of any connection (Driver.Scattered). With
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
		b.begun = true
		// What is not ours any more goes whatever keeps a device from being ours.
		err := errors.Join(b.devices.Update(locals, cidrs), b.release())
		b.devices.TookChanges()  // a generation begins anyway
		if len(b.drivers) == 0 { // nothing is remembered
			return err
		}
		return errors.Join(err, b.epoch.Advance(c, b.takeover.Renewal()))
	})
}

// release takes off what an earlier process left on devices that are none of ours.
func (b *Backend) release() error {
	if b.devices.Mode() != attach.XDPGeneric {
		return b.devices.Release()
	}
	if b.released {
		return nil
	}
	b.released = true
	return errors.Join(b.pins.RemoveAll(), upcall.RemovePair(b.nl))
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
			patience = max(0, attach.SettleTime-time.Since(last))
		}
		if !b.devices.Wait(patience) {
			return
		}
		err := b.thread.do(func() error {
			if b.closed {
				return nil
			}
			stale, err := b.devices.Follow()
			// Before the first Update no device is known to be a pod's: those that an
			// earlier run's programs guard would lose them.
			pending = stale && b.begun
			if pending && time.Since(last) >= attach.SettleTime {
				err = errors.Join(err, b.devices.Refresh())
				pending, last = false, time.Now()
			}
			if b.devices.TookChanges() && len(b.drivers) > 0 {
				err = errors.Join(err, b.epoch.Renew())
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
func (b *Backend) Unjudged() (devices []string, why error) { return b.devices.Unjudged() }

// Facts says in a line how the backend works on this kernel, for operators.
func (b *Backend) Facts() string {
	way := "programs are attached by " + string(b.devices.Mode())
	switch limits := b.Limits(); {
	case b.devices.Mode() == attach.XDPGeneric:
		return way + ", which judges nothing"
	case len(limits) > 0:
		return way + "; " + limits[0]
	}
	return way + "; translated connections can be read"
}

// Limits says what the backend does not do on this kernel and does on others.
func (b *Backend) Limits() []string {
	if b.devices.Mode() == attach.XDPGeneric || b.objects.Reads {
		return nil
	}
	return []string{fmt.Sprintf("translated connections cannot be read: %v", b.objects.Blind)}
}

// Inherit implements dataplane.Backend.
func (b *Backend) Inherit(judge func(*dataplane.Inherited) bool) { b.takeover.Judge = judge }
