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
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// Backend implements dataplane.Backend. See the package comment.
type Backend struct {
	config  Config
	log     *slog.Logger
	drivers []*driver // by queue; none with AttachXDPGeneric

	epoch epoch // which flows the kernel side remembers still count
	heir  heir  // of what an earlier process accepted
	heart heart // that we are alive

	host hostSet
	ends tunnel.Set
	// unattached are devices that judge nothing and should, see Unjudged.
	unattached atomic.Pointer[[]string]
	// Everything below is used on the namespace thread only.
	thread   *nsThread
	nl       *netlink.Handle
	lock     int // file descriptor, see lockNamespace
	pins     pins
	spec     *ebpf.CollectionSpec
	objects  objects
	adopted  []int // devices with pinned links of an earlier process
	released bool  // what an earlier process pinned has been removed
	begun    bool  // there was an Update: who the pods are is known
	restored uint64
	pair     *upcallPair
	devices  map[int]*device
	natState
	locals   map[netip.Addr]bool
	base     [numCounters]uint64 // counted before our time
	reported drops
	final    dataplane.BackendStats // set by Close
	closed   bool

	attachState

	watch    *watch
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
		devices: map[int]*device{}, natState: natState{exits: map[int]*device{}}, locals: map[netip.Addr]bool{},
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
	if b.config.Attach == AttachXDPGeneric {
		return b.openGuard()
	}
	maxFrame := b.config.maxFrame()
	if b.pair, err = openUpcallPair(b.nl, b.pins, maxFrame-etherHeader, b.config.Queues); err != nil {
		return err
	}
	if err := b.choose(b.pair.stack); err != nil {
		return err
	}
	if b.mode == AttachXDPGeneric {
		err := b.pair.close(false)
		b.pair = nil
		return errors.Join(err, b.openGuard())
	}
	if err := b.load(maxFrame); err != nil {
		return err
	}
	b.reportAccelerate()
	if err := b.openGate(); err != nil {
		return err
	}
	nonce, err := b.begin()
	if err != nil {
		return err
	}
	if err := b.pair.start(&b.objects.podObjects, b.mode); err != nil {
		return err
	}
	for queue := range b.config.Queues {
		if err := b.openQueue(queue, nonce); err != nil {
			return err
		}
	}
	if b.watch, err = newWatch(b.config.Accelerate); err != nil {
		return err
	}
	return b.startGuard()
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

// objects is what the programs consist of.
type objects struct {
	podObjects
	Shared *ebpf.Map `ebpf:".data.shared"`
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
	b.adopted = b.pins.devices()
	if len(b.adopted) > 0 {
		b.log.Info("taking over from an earlier run", "devices", len(b.adopted), "generation", b.epoch.generation.Load(),
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
func (b *Backend) load(maxFrame int) error {
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
	if err := b.configure(spec); err != nil {
		return err
	}
	b.spec = spec
	old := b.pins.maps(spec)
	taken := old != nil
	if taken && !b.pair.adopted {
		// An earlier process's programs know another pair. While they are at work
		// there is nobody to ask by it.
		old["sockets"].Close()
		delete(old, "sockets")
	}
	defer func() {
		for _, m := range old {
			m.Close()
		}
	}()
	if err := b.loadNAT(spec, old); err != nil {
		return fmt.Errorf("load the programs: %w", missingPrograms(err))
	}
	o := &b.objects
	switch {
	case taken && !b.pair.adopted:
		return b.pins.replaceMap(spec, "sockets", o.Sockets)
	case taken:
		return nil
	}
	return b.pins.keepMaps(spec, map[string]*ebpf.Map{
		"flows": o.Flows, "later": o.Later, "denied": o.Denied, "cells": o.Cells, "devices": o.Devices,
		"counters": o.Counters, "sockets": o.Sockets, ".data.shared": o.Shared, "origins": o.Origins, "exits": o.Exits,
		"rooms": o.Rooms,
	})
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
		b.locals = make(map[netip.Addr]bool, len(locals))
		for _, a := range locals {
			b.locals[a.Unmap()] = true
		}
		b.cidrs = slices.Concat(b.config.PodCIDRs, cidrs)
		b.begun = true
		// What is not ours any more goes whatever keeps a device from being ours.
		err := errors.Join(b.refresh(), b.release())
		b.guardChanged()         // a generation begins anyway
		if len(b.drivers) == 0 { // nothing is remembered
			return err
		}
		return errors.Join(err, b.epoch.advance(c, b.inherit()))
	})
}

// release takes an earlier process's programs off devices that are none of ours,
// once a table has said which are, and off all of them if ours are there in another
// way: two sets of programs would each think that the other's packets are a pod's.
func (b *Backend) release() error {
	if b.mode == AttachXDPGeneric {
		if b.released {
			return nil
		}
		b.released = true
		return errors.Join(b.pins.removeAll(), removeUpcallPair(b.nl))
	}
	var errs []error
	for _, index := range b.adopted {
		if b.devices[index] != nil && b.mode == AttachTCX {
			continue
		}
		errs = append(errs, b.pins.remove(pinName(index, ebpf.AttachTCXIngress)))
		if b.exits[index] != nil {
			continue
		}
		errs = append(errs, b.pins.remove(pinName(index, ebpf.AttachTCXEgress)))
		if b.devices[index] != nil {
			continue
		}
		errs = append(errs, b.dropDevice(index))
	}
	b.adopted = nil
	return errors.Join(append(errs, b.pins.dropOtherMaps(b.spec))...)
}

// attachTCX puts a program onto a device, first in line: programs of others see
// every packet once, and what goes up they see when it has come back. If it is
// pinned, it replaces the program of an earlier process in one step.
func (b *Backend) attachTCX(index int, prog *ebpf.Program, at ebpf.AttachType) (link.Link, error) {
	name := pinName(index, at)
	if ln, ok := b.pins.takeover(name, index, prog); ok {
		return ln, nil
	}
	ln, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: at, Anchor: link.Head()})
	if err != nil {
		return nil, err
	}
	if err := b.pins.keep(name, ln); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// detachTCX takes a program off, pinned or not. The kernel has done so already
// if the device is gone.
func (b *Backend) detachTCX(index int, ln link.Link, at ebpf.AttachType) error {
	return errors.Join(b.pins.drop(pinName(index, at)), ln.Close())
}
