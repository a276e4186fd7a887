package nfqueue

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

// Decider is what Update needs of a table. *classifier.Table is one.
type Decider interface {
	// Lookup decides a connection; the key is in the direction it was opened.
	Lookup(flow.Key) classifier.Decision
	// Selected returns the local pods whose traffic needs judging.
	Selected() []netip.Addr
}

// Backend implements dataplane.Backend.
type Backend struct {
	config  Config
	ns      netns.NsHandle
	routes  *netlink.Handle
	table   *kernelTable
	drivers []*driver

	mu     sync.Mutex // Stats may be asked for while Update or Close runs
	fw     *firewall
	stats  dataplane.BackendStats
	losses *queueLosses
	closed bool
}

var (
	_ dataplane.Backend = (*Backend)(nil)
	_ dataplane.Driver  = (*driver)(nil)
	_ Decider           = (*classifier.Table)(nil)
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
	b := &Backend{config: c, ns: netns.None()}
	if err := b.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("nfqueue: %w", err), b.release())
	}
	c.Logger.Info("nfqueue backend ready", "queues", c.Queues, "first_queue", c.QueueNum,
		"queue_expression", b.fw.features.queueExpr, "fib_expression", b.fw.features.fib, "fail_open", c.FailOpen)
	return b, nil
}

// open runs on a locked thread. The ruleset comes last: it must not send packets
// to queues nobody serves.
func (b *Backend) open() (err error) {
	if b.ns, err = netns.Get(); err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	if b.losses, err = openLosses(b.config); err != nil {
		return err
	}
	if b.routes, err = netlink.NewHandleAt(b.ns, unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open route netlink: %w", err)
	}
	if b.table, err = openKernelTable(int(b.ns), b.config.Marks.Accept); err != nil {
		return err
	}
	if b.fw, err = openFirewall(b.config, int(b.ns)); err != nil {
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
	if err == nil || b.fw.features.gate {
		err = errors.Join(err, b.fw.open())
	}
	return err
}

func (b *Backend) bind() error {
	for i := range b.config.Queues {
		d, err := openDriver(b.config, b.config.QueueNum+uint16(i), int(b.ns))
		if err != nil {
			return err
		}
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
	if b.fw != nil {
		errs = append(errs, b.fw.close())
	}
	if b.table != nil {
		errs = append(errs, b.table.close())
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

// Marks returns the mark bits in use, for whoever re-injects or sends packets.
func (b *Backend) Marks() Marks { return b.config.Marks }

// Drivers implements dataplane.Backend.
func (b *Backend) Drivers() []dataplane.Driver {
	ds := make([]dataplane.Driver, len(b.drivers))
	for i, d := range b.drivers {
		ds[i] = d
	}
	return ds
}

// Update implements dataplane.Backend.
func (b *Backend) Update(t *classifier.Table) (cut int, err error) { return b.update(t) }

// update first selects the pods, then cuts: a connection that becomes subject to
// policy in between has no accept bit and is judged by the new table.
func (b *Backend) update(t Decider) (cut int, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return 0, dataplane.ErrClosed
	}
	if err := b.fw.selectAddrs(t.Selected()); err != nil {
		return 0, fmt.Errorf("nfqueue: %w", err)
	}
	own, err := b.ownAddrs()
	if err != nil {
		return 0, fmt.Errorf("nfqueue: %w", err)
	}
	cut, err = b.table.clear(func(k flow.Key) bool {
		// what the node itself opened stays, also from an address the
		// table does not know.
		if _, ok := own[k.Src]; ok {
			return false
		}
		return t.Lookup(k).Verdict != classifier.Allow
	})
	if err != nil {
		return cut, fmt.Errorf("nfqueue: %w", err)
	}
	return cut, nil
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

// Stats implements dataplane.Backend. Packets that meet a queue without listener
// are counted nowhere by the kernel. Any goroutine may call it; after Close it
// returns the last totals.
func (b *Backend) Stats() dataplane.BackendStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed {
		b.refresh()
	}
	return b.stats
}

// refresh reads the kernel's counters; what cannot be read keeps its last value.
func (b *Backend) refresh() {
	if c, err := b.fw.counters(); err == nil {
		b.stats.Bypassed = max(b.stats.Bypassed, c[counterBypassed])
	} else {
		b.config.Logger.Debug("counters not readable", "error", err)
	}
	b.stats.Upcalls = 0
	for _, d := range b.drivers {
		b.stats.Upcalls += d.upcalls.Load()
	}
	if n, err := b.losses.read(); err == nil {
		b.stats.Overflow = max(b.stats.Overflow, n)
	} else {
		b.config.Logger.Debug("queue losses not readable", "error", err)
	}
}

// Close implements dataplane.Backend. Packets that wait for a verdict are
// dropped. With FailOpen the table is removed; otherwise it stays, drops new
// connections of the selected pods and passes accepted ones until the next New.
// Further calls do nothing.
func (b *Backend) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	b.refresh()
	b.closed = true
	var err error
	if b.config.FailOpen {
		err = b.fw.remove()
	}
	return errors.Join(err, b.release())
}

// Cleanup removes our table from the network namespace of the calling thread, and
// the accept bit from its connections: the node is as if there had been no
// tierwall, and open. The zero Marks means DefaultMarks. It may be called with a
// Backend closed or open; where nothing is left to remove it does nothing.
func Cleanup(m Marks) error {
	if m == (Marks{}) {
		m = DefaultMarks
	}
	if err := m.validate(); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ns, err := netns.Get()
	if err != nil {
		return fmt.Errorf("nfqueue: open network namespace: %w", err)
	}
	defer ns.Close()
	fw, err := connectFirewall(Config{Marks: m}, int(ns))
	if err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	defer fw.close()
	table, err := openKernelTable(int(ns), m.Accept)
	if err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	defer table.close()
	if err := fw.remove(); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	if _, err := table.clear(func(flow.Key) bool { return true }); err != nil {
		return fmt.Errorf("nfqueue: %w", err)
	}
	return nil
}
