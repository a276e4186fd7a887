package nfqueue

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// Decider is what Update needs of a table. *classifier.Table is one.
type Decider interface {
	// Lookup decides a connection; the key is in the direction it was opened.
	Lookup(flow.Key) classifier.Decision
	// LookupVia decides a connection that was opened to a Service.
	LookupVia(flow.Key, flow.Service) classifier.Decision
	// Services returns the Services for which LookupVia may answer otherwise.
	Services() []classifier.ServicePort
	// Selected returns the local pods whose traffic needs judging.
	Selected() []netip.Addr
	// Locals returns all local pods.
	Locals() []netip.Addr
	// LocalPrefixes returns where local pods have their addresses: whoever has
	// one and is not in Locals is judged too.
	LocalPrefixes() []netip.Prefix
	// UnknownLocal reports which ends of a connection are in LocalPrefixes and
	// nobody's.
	UnknownLocal(flow.Key) (src, dst bool)
}

// Backend implements dataplane.Backend.
type Backend struct {
	dataplane.BackendDefaults
	config  Config
	ns      netns.NsHandle
	routes  *netlink.Handle
	watch   *watch
	devices *routeWatch
	drivers []*driver
	tags    *tags
	ipvs    *ipvs
	ends    *tunnel.Set

	background sync.WaitGroup

	mu sync.Mutex // Stats and Learn may be called while Update or Close runs
	cutter
	// Where pods are, by the last table.
	locals   []netip.Addr
	prefixes []netip.Prefix
	looked   bool // for the pods' devices
	// Bridges of pods, if the backend is to judge what passes from port to port there.
	judgeBridges bool
	podBridges   []netlink.Link
	openBridges  []string // that could not be switched on
	openWhy      error

	fw      *firewall
	stats   dataplane.BackendStats
	losses  *queueLosses
	base    map[string]uint64 // the kernel's counters when we began
	unheard uint64            // packets that met a queue without listener
	// unmatched is set while rules name Services and the kernel does not tell them.
	unmatched bool
	closed    bool
}

var (
	_ dataplane.Driver = (*driver)(nil)
	_ Decider          = (*classifier.Table)(nil)
)

// New binds the queues and installs the ruleset in the network namespace of the
// calling thread, which stays the backend's namespace. A table of an earlier run
// is replaced without a moment of no enforcement, with the same pods selected. On
// error that table, or none, is there as before.
//
// Until the first Update the pods of the earlier run are judged, or none.
func New(c Config) (*Backend, error) {
	c, err := c.complete()
	if err != nil {
		return nil, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	b := &Backend{config: c, ns: netns.None(), tags: &tags{}, ipvs: &ipvs{}, ends: &tunnel.Set{}, cutter: cutter{ledger: newLedger()}}
	if err := b.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("nfqueue: %w", err), b.release())
	}
	f := b.fw.features
	c.Logger.Info("nfqueue backend ready", "queues", c.Queues, "firstQueue", c.QueueNum, "queueExpression", f.queueExpr, "fibExpression", f.fib,
		"rejectExpression", f.reject, "antiSpoofing", (f.back || f.backEarly) && !c.AllowSpoofing, "failOpen", c.FailOpen)
	return b, nil
}

// open runs on a locked thread. The ruleset comes last: it must not send packets
// to queues nobody serves.
func (b *Backend) open() (err error) {
	if b.ns, err = homeNamespace(); err != nil {
		return err
	}
	if b.routes, err = netlink.NewHandleAt(b.ns, unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	if b.table, err = openKernelTable(nsFD(b.ns), b.config.Marks.Accept); err != nil {
		return err
	}
	if b.beside, err = openKernelTable(nsFD(b.ns), b.config.Marks.Accept); err != nil {
		return err
	}
	if b.fw, err = openFirewall(b.config, nsFD(b.ns)); err != nil {
		return err
	}
	if b.losses, err = openLosses(b.config); err != nil {
		return err
	}
	// Before touching anything: another tierwall may be at work here.
	if err := b.losses.free(); err != nil {
		return err
	}
	if err := b.fw.gate(); err != nil {
		return err
	}
	err = b.bind()
	if _, cerr := b.fw.counters(); cerr != nil && !errors.Is(cerr, unix.ENOENT) {
		err = errors.Join(err, cerr)
	}
	b.base = maps.Clone(b.fw.counted)
	if err == nil {
		b.watch, err = openWatch(nsFD(b.ns))
	}
	if err == nil {
		b.devices, err = openRouteWatch(nsFD(b.ns))
	}
	if err == nil || b.fw.features.gate {
		err = errors.Join(err, b.fw.open())
	}
	if b.watch != nil {
		go b.watch.run(b.fw.port, b.restore)
	}
	if b.devices != nil {
		go b.devices.run(b.followDevices)
	}
	return err
}

func (b *Backend) bind() error {
	b.ipvs.look()
	for i := range b.config.Queues {
		d, err := openDriver(b.config, b.config.QueueNum+uint16(i), nsFD(b.ns), b.fw.features)
		if err != nil {
			return err
		}
		d.tags, d.ipvs, d.tunnels = b.tags, b.ipvs, b.ends
		b.drivers = append(b.drivers, d)
	}
	return nil
}

// release closes what open opened and leaves the kernel's ruleset alone.
func (b *Backend) release() error {
	var errs []error
	for _, d := range b.drivers {
		errs = append(errs, d.Close())
	}
	if b.watch != nil {
		errs = append(errs, b.watch.close())
	}
	if b.devices != nil {
		errs = append(errs, b.devices.close())
	}
	if b.fw != nil {
		errs = append(errs, b.fw.close())
	}
	for _, table := range []*kernelTable{b.table, b.beside} {
		if table != nil {
			errs = append(errs, table.close())
		}
	}
	if b.routes != nil {
		b.routes.Close()
	}
	if b.losses != nil {
		errs = append(errs, b.losses.close())
	}
	if b.ns.IsOpen() {
		errs = append(errs, b.ns.Close())
	}
	return errors.Join(errs...)
}

// Name implements dataplane.Backend.
func (b *Backend) Name() string { return "nfqueue" }

// Drivers implements dataplane.Backend.
func (b *Backend) Drivers() []dataplane.Driver {
	ds := make([]dataplane.Driver, len(b.drivers))
	for i, d := range b.drivers {
		ds[i] = d
	}
	return ds
}

// Update implements dataplane.Backend.
func (b *Backend) Update(t *classifier.Table, c dataplane.Change) (cut int, err error) {
	return b.update(t, c)
}

// Prepare implements dataplane.Backend.
func (b *Backend) Prepare(t *classifier.Table) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return dataplane.ErrClosed
	}
	return b.ask(t)
}

// update first brings the sets up to date, then cuts: a connection that becomes
// subject to policy in between has no accept bit and is judged by the new table.
func (b *Backend) update(t Decider, c dataplane.Change) (cut int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, dataplane.ErrClosed
	}
	before := b.fw.pods
	if err := b.ask(t); err != nil {
		return 0, err
	}
	if addrs, named := c.Touched(fewAddrs); named && len(addrs) == 0 {
		return 0, nil
	}
	own, err := b.ownAddrs()
	if err != nil {
		return 0, fmt.Errorf("nfqueue: %w", err)
	}
	b.denied = func(k flow.Key, via flow.Service) bool {
		// what the node itself opened stays, also from an address the
		// table does not know.
		if has(own, k.Src) {
			return false
		}
		if src, dst := t.UnknownLocal(k); !b.config.FailOpen && (src || dst && !has(own, k.Dst)) {
			return true
		}
		if b.forgotten(before, k.Src) || b.forgotten(before, k.Dst) && !has(own, k.Dst) {
			return true
		}
		return t.LookupVia(k, via).Verdict != classifier.Allow
	}
	concerned := func(k flow.Key, via flow.Service) bool { return c.Affects(k) && b.denied(k, via) }
	if cut, err = b.cut(c, concerned); err != nil {
		return cut, fmt.Errorf("nfqueue: %w", err)
	}
	return cut, nil
}

// ask brings the sets up to date.
func (b *Backend) ask(t Decider) error {
	locals, prefixes := t.Locals(), t.LocalPrefixes()
	p := podsOf(t.Selected(), locals, prefixes, b.config.PodCIDRs)
	p.devices, p.uplinks, p.bridges, p.tunnels = b.fw.pods.devices, b.fw.pods.uplinks, b.fw.pods.bridges, b.fw.pods.tunnels
	moved := !b.looked || !slices.Equal(locals, b.locals) || !slices.Equal(prefixes, b.prefixes)
	if moved {
		b.locals, b.prefixes = locals, prefixes
		if err := b.lookForDevices(&p); err != nil {
			b.locals, b.prefixes, b.looked = nil, nil, false // look again
			return fmt.Errorf("nfqueue: %w", err)
		}
	}
	services := t.Services()
	if without := len(services) > 0 && !b.fw.features.priority; without != b.unmatched {
		if b.unmatched = without; without { // S2-102: said, not silently ignored
			b.config.Logger.Error("toServices rules match nothing: this kernel does not tell which Service a packet was sent to; Linux 5.18 and later do", "services", len(services))
		}
	}
	var left int
	var more bool
	if p.services, more, left = b.tags.assign(services); left > 0 {
		b.config.Logger.Error("policies name more Service ports than can be told apart: toServices does not match the rest", "limit", maxTags, "rest", left)
	}
	if err := b.fw.apply(p); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	if moved {
		b.switchBridges()
	}
	if more {
		b.name()
	}
	return nil
}

func has(set map[flow.Addr]struct{}, a flow.Addr) bool {
	_, ok := set[a]
	return ok
}

// ownAddrs returns the addresses of this host.
func (b *Backend) ownAddrs() (map[flow.Addr]struct{}, error) {
	list, err := b.routes.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the node's own addresses: %w", err)
	}
	own := make(map[flow.Addr]struct{}, len(list))
	for _, a := range list {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			own[flow.AddrFrom(ip)] = struct{}{}
		}
	}
	return own, nil
}

// Stats implements dataplane.Backend. Every packet the rules put into a queue is in
// exactly one of Upcalls, Overflow and, for those that met a queue without
// listener, Dropped. With FailOpen these, and those that found a queue full, are in
// Bypassed. Forged packets, and those of pods that are not known
// (Config.PodCIDRs), are Dropped, and were never queued. Any goroutine may
// call it; after Close it returns the last totals.
func (b *Backend) Stats() dataplane.BackendStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.refresh()
	}
	return b.stats
}

// refresh reads the kernel's counters; what cannot be read keeps its last value.
//
// A packet without listener leaves no trace but that it was queued. The order of
// reading makes sure that none of the others is taken for one: a packet counted
// as queued either still waits for its verdict a moment later, or has been lost in
// front of us, or was received before that.
func (b *Backend) refresh() {
	c, cerr := b.fw.counters()
	if cerr != nil {
		b.config.Logger.Debug("counters not readable", "error", cerr)
		c = b.fw.counted
	}
	queued := c[counterQueued] - b.base[counterQueued]
	waiting, lost, lerr := b.losses.read()
	if lerr == nil {
		b.stats.Overflow = max(b.stats.Overflow, lost)
	} else {
		b.config.Logger.Debug("queue losses not readable", "error", lerr)
	}
	b.stats.Upcalls = 0
	for _, d := range b.drivers {
		b.stats.Upcalls += d.upcalls.Load()
	}
	if known := b.stats.Upcalls + b.stats.Overflow + waiting; cerr == nil && lerr == nil && queued > known {
		b.unheard = max(b.unheard, queued-known)
	}
	b.stats.Bypassed = c[counterBypassed] - b.base[counterBypassed]
	fates := &b.stats.Fates
	fates[dataplane.PassAccepted] = b.stats.Bypassed
	fates[dataplane.FateUpcall] = b.stats.Upcalls + b.stats.Overflow // what waits for a verdict counts when it is read
	fates[dataplane.DropForged] = c[counterForged] - b.base[counterForged]
	fates[dataplane.DropUnknownPod] = c[counterUnknown] - b.base[counterUnknown]
	b.stats.Dropped = fates[dataplane.DropForged] + fates[dataplane.DropUnknownPod]
	if b.config.FailOpen {
		b.stats.Bypassed += b.unheard
		fates[dataplane.PassUnheard] = b.unheard
	} else {
		b.stats.Dropped += b.unheard
		fates[dataplane.DropUnheard] = b.unheard
	}
}

// drainPatience bounds Drain.
const drainPatience = time.Second

// Drain implements dataplane.Backend: nothing is queued any more. What would be is
// dropped or, with FailOpen, accepted, and counted as met by no listener.
func (b *Backend) Drain() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if err := b.fw.stopQueueing(); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	// A packet that met the rules as they were may still be on its way into the
	// queue: only the second look counts.
	var waiting uint64
	for empty, deadline := 0, time.Now().Add(drainPatience); empty < 2; time.Sleep(time.Millisecond) {
		var err error
		if waiting, _, err = b.losses.read(); err != nil {
			return fmt.Errorf("nfqueue: %w", err)
		}
		empty++
		if waiting > 0 {
			empty = 0
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nfqueue: %d packets still wait for a verdict after %v", waiting, drainPatience)
		}
	}
	b.refresh() // the kernel forgets what a queue has lost when it is closed
	return nil
}

// Close implements dataplane.Backend. Packets that wait for a verdict are
// dropped: see Drain. With FailOpen the table is removed; otherwise it stays, drops new
// connections of the selected pods and passes accepted ones until the next New.
// Further calls do nothing.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.refresh()
	b.closed = true
	var err error
	if b.config.FailOpen {
		err = b.fw.remove()
	}
	b.mu.Unlock() // the watch and the background may be waiting for it, to see that we are closed
	b.background.Wait()
	return errors.Join(err, b.release())
}

// Cleanup removes our table from the network namespace of the calling thread, and
// the accept bit from its connections: the node is as if there had been no
// tierwall, and open. The zero Marks means DefaultMarks. A Backend that is open in
// the namespace puts its table back: stop it first. Where nothing is left to remove
// it does nothing.
func Cleanup(m Marks) error {
	if m == (Marks{}) {
		m = DefaultMarks
	}
	if err := m.validate(); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, err := homeNamespace()
	if err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	if ns.IsOpen() {
		defer ns.Close()
	}
	fw, err := connectFirewall(Config{Marks: m}, nsFD(ns))
	if err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	defer fw.close()
	table, err := openKernelTable(nsFD(ns), m.Accept)
	if err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	defer table.close()
	if err := fw.remove(); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	if _, err := table.clear(nil, func(*entry, flow.Key, bool) bool { return true }); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	return nil
}
