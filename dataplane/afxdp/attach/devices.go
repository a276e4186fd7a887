package attach

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// device is a device that our programs are on.
type device struct {
	name  string
	flags uint32 // as the kernel side has them
	put   []attachment
}

// close lets go of a device whose programs outlive us.
func (d *device) close() error {
	var errs []error
	for _, a := range d.put {
		errs = append(errs, a.Close())
	}
	return errors.Join(errs...)
}

// site is where programs go: what devices, exits and uplinks share.
type site struct {
	config  *Options
	log     *slog.Logger
	nl      *netlink.Handle
	hooks   hooks
	entries deviceMap
}

// PairEnds are the devices of the upcall pair, 0 where there is none.
type PairEnds struct{ Stack, Socket int }

// Devices keeps our programs on the devices that need them, and tells the guard
// whose they are. Namespace thread only, unjudged excepted.
type Devices struct {
	*site
	programs *kern.Loaded
	podXDP   *ebpf.Program // with AttachXDPGeneric
	pair     PairEnds
	Host     HostSet
	Tunnels  tunnel.Set
	renamed  func(dataplane.Change) error // see start

	guard   guard
	Gate    gate
	exits   exits
	Uplinks uplinks
	watch   *watch
	peers   *peers

	on      map[int]*device
	locals  map[netip.Addr]bool
	cidrs   []netip.Prefix
	Adopted []int // devices with pinned links of an earlier process
	stale   bool  // scene is not what netlink would say now
	scene   *scene
	// behind remembers the answers of peers, by ifindex.
	behind   map[int][]netip.Addr
	twice    int  // pods in conflict when last reported
	swept    bool // filters of an earlier run are gone
	Restored uint64
	// unattached are devices that judge nothing and should, see Backend.Unjudged.
	unattached atomic.Pointer[[]string]
}

// NewDevices has no programs yet.
func NewDevices(c *Options, nl *netlink.Handle, pins kern.Pins) *Devices {
	return &Devices{site: &site{config: c, log: c.Log, nl: nl, hooks: hooks{nl: nl, pins: pins, mode: c.Attach}}}
}

// Choose settles the way of attaching by trying it on a device of our own.
func (ds *Devices) Choose(own netlink.Link) error { return ds.hooks.choose(own, ds.config) }

// Mode is the way of attaching.
func (ds *Devices) Mode() Mode { return ds.hooks.mode }

// Configure sets what the programs know about devices before they are loaded.
func (ds *Devices) Configure(spec *ebpf.CollectionSpec) error {
	return ds.config.configure(spec, ds.hooks.mode)
}

// LoadAlone loads the program for kernels on which nothing else can be attached.
func (ds *Devices) LoadAlone() (p kern.Loaded, err error) {
	ds.hooks.mode = XDPGeneric
	spec, err := ds.config.guardSpec(ds.hooks.mode)
	if err != nil {
		return p, err
	}
	p, ds.podXDP, err = kern.LoadAlone(spec)
	return p, err
}

// OpenGate puts gate in force, before any program leaves something to it.
func (ds *Devices) OpenGate(p *kern.Loaded) error { return ds.Gate.open(p, ds.hooks.pins) }

// Start takes over the guard's maps. pair is the ends of the upcall pair, and renamed
// is told which addresses have become this host's. What start did until it failed,
// close undoes.
func (ds *Devices) Start(p *kern.Loaded, pair PairEnds, renamed func(dataplane.Change) error) (err error) {
	ds.programs, ds.pair, ds.renamed, ds.entries = p, pair, renamed, deviceMap{p.Devices}
	ds.on, ds.behind, ds.stale = map[int]*device{}, map[int][]netip.Addr{}, true
	ds.Uplinks = uplinks{site: ds.site}
	ds.exits = exits{
		site: ds.site, gate: &ds.Gate, prog: p.PodExit, onward: p.Onward,
		pods: ds.on, on: map[int]*device{}, told: map[int]bool{},
	}
	if p.Exits != nil {
		if ds.exits.listed, err = newMirror[uint32, uint8](p.Exits); err != nil {
			return err
		}
	}
	if ds.guard, err = newGuard(&p.Objects); err != nil {
		return err
	}
	if ds.peers, err = newPeers(); err != nil {
		return err
	}
	ds.cidrs = ds.config.PodCIDRs
	ds.log.Info("programs will be attached", "attach", ds.hooks.mode)
	if err := ds.Uplinks.start(&p.Objects); err != nil {
		return err
	}
	ds.watch, err = newWatch(ds.config.Accelerate && ds.hooks.mode != XDPGeneric)
	return err
}

// Update puts programs onto the devices of these pods, and onto those that may have
// pods of these networks beside the configured ones.
func (ds *Devices) Update(locals []netip.Addr, cidrs []netip.Prefix) error {
	ds.locals = make(map[netip.Addr]bool, len(locals))
	for _, a := range locals {
		ds.locals[a.Unmap()] = true
	}
	ds.cidrs = slices.Concat(ds.config.PodCIDRs, cidrs)
	return ds.Refresh()
}

// Wait returns when there is news of the namespace, at the latest after the given time
// (negative: never). open is false once close was called. Any goroutine may wait.
func (ds *Devices) Wait(d time.Duration) (open bool) { return ds.watch.wait(d) }

// Follow attends to devices that appear and vanish. stale reports that a refresh is due.
func (ds *Devices) Follow() (stale bool, err error) {
	err = ds.hear()
	return ds.stale, err
}

// TookChanges is the guard's.
func (ds *Devices) TookChanges() bool { return ds.guard.tookChanges() }

// PodBehind is the guard's.
func (ds *Devices) PodBehind() map[uint32]flow.Addr { return ds.guard.podBehind() }

// Attached is the number of devices with the pods' programs.
func (ds *Devices) Attached() int { return len(ds.on) }

// CloseWatch needs that nobody waits any more.
func (ds *Devices) CloseWatch() error {
	if ds.watch == nil {
		return nil
	}
	return ds.watch.close()
}

// Close takes the programs off, or leaves what is pinned at work.
func (ds *Devices) Close(keep bool) error {
	var errs []error
	if keep {
		for _, d := range ds.on {
			errs = append(errs, d.close())
		}
		for _, d := range ds.exits.on {
			errs = append(errs, d.close())
		}
	} else {
		for index := range ds.on {
			errs = append(errs, ds.detach(index))
		}
		for index := range ds.exits.on {
			errs = append(errs, ds.exits.detach(index))
		}
	}
	errs = append(errs, ds.Gate.close(keep))
	if ds.watch != nil {
		errs = append(errs, ds.watch.stop())
	}
	errs = append(errs, ds.Uplinks.stop())
	if ds.peers != nil {
		errs = append(errs, ds.peers.close())
	}
	return errors.Join(append(errs, ds.podXDP.Close())...)
}

// look reads the state of the namespace.
func look(nl *netlink.Handle, shaping bool) (*scene, error) {
	links, err := nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	s := &scene{links: map[int]netlink.Link{}, hosts: map[int][]netip.Addr{}, nets: map[int][]netip.Prefix{}}
	for _, l := range links {
		s.links[l.Attrs().Index] = l
	}
	if shaping {
		if s.shaped, err = shapedDevices(nl); err != nil {
			return nil, err
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		// Every table: policy routing puts pod routes elsewhere too.
		routes, err := nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			r := &routes[i]
			to, ok := prefixOf(r.Dst)
			if !ok { // a default route, as the library says it for IPv6
				to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			a := to.Addr()
			if r.Type == unix.RTN_UNICAST && (r.Gw != nil || r.Via != nil) {
				// The destination is not behind this device: a single address may be that
				// of a pod on another node.
				to = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			switch {
			case r.Type == unix.RTN_LOCAL:
				if to.IsSingleIP() && !a.IsLoopback() {
					s.own = append(s.own, a)
				}
			case r.Type != unix.RTN_UNICAST || a.IsLinkLocalUnicast() || a.IsMulticast():
			case to.IsSingleIP():
				s.hosts[r.LinkIndex] = append(s.hosts[r.LinkIndex], a)
			default:
				s.nets[r.LinkIndex] = append(s.nets[r.LinkIndex], to)
			}
		}
	}
	return s, nil
}

// Refresh makes the devices we are on, and what the guard knows, what they should
// be. It runs on the namespace thread. A device that fails does not keep the
// others from service.
func (ds *Devices) Refresh() error {
	errs := []error{ds.hear()}
	if ds.stale || ds.scene == nil {
		s, err := look(ds.nl, ds.config.Accelerate)
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		ds.scene, ds.stale = s, false
	}
	p := ds.config.makePlan(ds.scene, known{ds.locals, ds.cidrs, ds.guard.podDevices()}, ds.askPeer, func(a flow.Addr) uint32 { return ds.guard.pods.known[a].Ifindex })
	ds.reportTwice(p.twice)
	if !ds.config.AllowTunnels {
		ds.Tunnels.Store(tunnel.Find(slices.Collect(maps.Values(ds.scene.links)), tunnel.FOU(ds.nl)))
	}
	errs = append(errs, ds.setNodeAddresses(ds.scene.own), ds.guard.ranges.set(p.cidrs), ds.guard.ports.set(p.ports), ds.guard.pods.set(p.pods))
	for index, d := range ds.on {
		if _, ok := p.places[index]; !ok {
			if ds.scene.links[index] != nil { // until it has another program
				errs = append(errs, ds.Gate.output(true))
			}
			errs = append(errs, ds.detach(index))
			ds.log.Info("device released", "device", d.name, "ifindex", index)
		}
	}
	var failed []string
	for index, pl := range p.places {
		if err := ds.attach(index, pl); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", pl.link.Attrs().Name, err))
			// Elsewhere the later hook judges what no program has seen.
			if ds.config.Strict || pl.guard.Bridge != 0 {
				failed = append(failed, pl.link.Attrs().Name)
			}
		}
	}
	slices.Sort(failed)
	ds.unattached.Store(&failed)
	for index := range ds.behind {
		if ds.scene.links[index] == nil {
			delete(ds.behind, index)
		}
	}
	if !ds.swept {
		errs = append(errs, ds.sweepFilters(p.places))
		ds.swept = true
	}
	errs = append(errs, ds.exits.refresh(ds.scene), ds.Uplinks.refresh(ds.scene))
	return errors.Join(errs...)
}

// Unjudged lists devices of pods that our programs could not be put on, where nobody
// else judges their packets: all of them without a later hook, and ports of a bridge. Any
// goroutine may call it.
func (ds *Devices) Unjudged() (devices []string, why error) {
	if p := ds.unattached.Load(); p != nil && len(*p) > 0 {
		return *p, fmt.Errorf("packets of pods are not judged: no program could be put on %s; the log says why", strings.Join(*p, ", "))
	}
	return nil, nil
}

// askPeer returns the addresses at the other end of a port of a bridge. Once a
// known pod is among them the answer is kept; pods do not change addresses.
func (ds *Devices) askPeer(l netlink.Link) []netip.Addr {
	attrs := l.Attrs()
	if slices.ContainsFunc(ds.behind[attrs.Index], func(a netip.Addr) bool { return ds.locals[a] }) {
		return ds.behind[attrs.Index]
	}
	if attrs.NetNsID < 0 || attrs.ParentIndex == 0 {
		return nil
	}
	addrs, err := ds.peers.addresses(attrs.NetNsID, attrs.ParentIndex)
	if err != nil { // the pod ends at this moment, or its namespace is out of reach
		ds.log.Debug("addresses of the pod are not known", "device", attrs.Name, "error", err)
		return nil
	}
	ds.behind[attrs.Index] = addrs
	return addrs
}

// reportTwice logs when the number of contested addresses changes.
func (ds *Devices) reportTwice(addrs []netip.Addr) {
	if len(addrs) != ds.twice && len(addrs) > 0 {
		ds.log.Warn("two devices claim a pod's address; the first one keeps it", "addresses", addrs)
	}
	ds.twice = len(addrs)
}

// attachEarly puts the programs on a device that has just appeared, if it may be
// a pod's. What it is in the end the next refresh tells.
func (ds *Devices) attachEarly(l netlink.Link) error {
	if ds.on[l.Attrs().Index] != nil || !ds.config.eligible(l) || !ds.config.candidate(l, &known{cidrs: ds.cidrs}, nil) {
		return nil
	}
	return ds.attach(l.Attrs().Index, place{link: l})
}

// attach puts our programs on a device, or follows what has changed about it. The
// guard knows the device before the programs see its first packet.
func (ds *Devices) attach(index int, pl place) error {
	if err := ds.guard.guards.put(uint32(index), pl.guard); err != nil {
		return err
	}
	if ds.exits.on[index] != nil { // it was no pod's; gate keeps watch meanwhile
		if err := errors.Join(ds.Gate.output(true), ds.exits.detach(index)); err != nil {
			return err
		}
	}
	attrs := pl.link.Attrs()
	own := [6]byte(slices.Concat([]byte(attrs.HardwareAddr), make([]byte, 6))[:6])
	if d := ds.on[index]; d != nil {
		if d.flags == pl.flags || ds.hooks.mode == XDPGeneric {
			return nil
		}
		d.flags = pl.flags
		return ds.entries.put(index, own, pl.flags)
	}
	d := &device{name: attrs.Name, flags: pl.flags}
	if ds.hooks.mode == XDPGeneric {
		a, err := putXDP(index, ds.podXDP, UplinkGeneric)
		if err != nil {
			return errors.Join(err, ds.guard.guards.drop(uint32(index)))
		}
		d.put = []attachment{a}
	} else {
		ds.reportOthers(index, pl.link)
		if mtu := ds.config.MaxMTU; attrs.MTU > mtu {
			ds.log.Warn("device has a larger MTU than an upcall can carry; larger packets of unknown flows are left to the later hook, or dropped if there is none",
				"device", attrs.Name, "mtu", attrs.MTU, "limit", mtu, "strict", ds.config.Strict)
		}
		if err := ds.entries.put(index, own, pl.flags); err != nil {
			return err
		}
		for _, side := range []struct {
			prog    *ebpf.Program
			ingress bool
		}{{ds.programs.PodIngress, true}, {ds.programs.PodEgress, false}} {
			a, err := ds.hooks.put(index, side.prog, side.ingress)
			if err != nil {
				for _, a := range d.put {
					err = errors.Join(err, a.remove())
				}
				return errors.Join(err, ds.guard.guards.drop(uint32(index)), ds.entries.drop(index))
			}
			d.put = append(d.put, a)
		}
	}
	ds.on[index] = d
	if err := ds.exits.set(index, true); err != nil {
		return err
	}
	ds.log.Info("device attached", "device", attrs.Name, "ifindex", index, "attach", ds.hooks.mode,
		"pod", pl.guard.Flags&kern.GuardPod != 0, "bridge", pl.guard.Bridge)
	return nil
}

// keepUp brings an end of the upcall pair up again that other software has taken
// down: what is sent to it vanishes without a trace.
func (ds *Devices) keepUp(l netlink.Link) error {
	a := l.Attrs()
	if a.Index != ds.pair.Stack && a.Index != ds.pair.Socket || a.Flags&net.FlagUp != 0 {
		return nil
	}
	if err := ds.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring it up again: %w", err)
	}
	ds.Restored++
	ds.log.Warn("other software took our device down, it is up again", "device", a.Name, "restored", ds.Restored)
	return nil
}

// mend puts back a device's filters if other software has removed them. A link does
// not come off like that, a filter does.
func (ds *Devices) mend(index int, ingress, egress *ebpf.Program) error {
	l, err := ds.nl.LinkByIndex(index)
	if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
		return nil // that is why
	} else if err != nil {
		return fmt.Errorf("find the device: %w", err)
	}
	for _, side := range []struct {
		prog    *ebpf.Program
		ingress bool
	}{{ingress, true}, {egress, false}} {
		if side.prog == nil {
			continue
		}
		if filters, err := ds.nl.FilterList(l, ClsactParent(side.ingress)); err == nil && slices.ContainsFunc(filters, ourFilter) {
			continue
		}
		if _, err := PutClsact(ds.nl, index, side.prog, side.ingress); err != nil {
			return fmt.Errorf("device %s: put back the filters that other software removed: %w", l.Attrs().Name, err)
		}
		ds.Restored++
		ds.log.Warn("other software removed our filter, it is restored", "device", l.Attrs().Name, "ingress", side.ingress, "restored", ds.Restored)
	}
	return nil
}

// detach takes our programs off. The kernel has done so already if the device is
// gone.
func (ds *Devices) detach(index int) error {
	d := ds.on[index]
	delete(ds.on, index)
	errs := []error{ds.exits.set(index, false)}
	for _, a := range d.put {
		errs = append(errs, a.remove())
	}
	errs = append(errs, ds.guard.guards.drop(uint32(index)), ds.entries.drop(index))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release device %s: %w", d.name, err)
	}
	return nil
}

// setNodeAddresses tells the workers and the kernel side which addresses are the
// node's own.
func (ds *Devices) setNodeAddresses(own []netip.Addr) error {
	ds.Host.set(own)
	if ds.guard.nodes == nil { // the programs that ask are not there
		return nil
	}
	want, fresh := map[flow.Addr]uint8{}, addresses{}
	for _, a := range own {
		key := flow.AddrFrom(a)
		want[key] = 1
		if _, known := ds.guard.nodes.known[key]; !known {
			fresh[key] = true
		}
	}
	errs := []error{ds.guard.nodes.set(want)}
	// Flows of that name were accepted for whoever had the address before.
	if len(fresh) > 0 {
		errs = append(errs, ds.renamed(dataplane.ChangeWithin(fresh)))
	}
	return errors.Join(errs...)
}

// hear takes in what has happened. A device that appears is seen to at once,
// because its pod may speak as soon as it has an address.
func (ds *Devices) hear() error {
	var errs []error
	anything := ds.watch.drain(func(l netlink.Link) {
		if err := errors.Join(ds.keepUp(l), ds.exits.gateEarly(l), ds.attachEarly(l)); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", l.Attrs().Name, err))
		}
	}, func(index int) {
		if ds.on[index] != nil {
			errs = append(errs, ds.detach(index))
		}
		if ds.exits.on[index] != nil {
			errs = append(errs, ds.exits.detach(index))
		}
	}, func(index int) {
		switch {
		case ds.hooks.mode != Clsact:
		case ds.on[index] != nil:
			errs = append(errs, ds.mend(index, ds.programs.PodIngress, ds.programs.PodEgress))
		case index == ds.pair.Stack:
			errs = append(errs, ds.mend(index, ds.programs.UpcallIngress, nil))
		}
	})
	ds.stale = ds.stale || anything
	return errors.Join(errs...)
}

// Release takes an earlier process's programs off devices that are none of ours,
// once a table has said which are, and off all of them if ours are there in another
// way: two sets of programs would each think that the other's packets are a pod's.
func (ds *Devices) Release() error {
	var errs []error
	for _, index := range ds.Adopted {
		if ds.on[index] != nil && ds.hooks.mode == TCX {
			continue
		}
		errs = append(errs, ds.hooks.pins.Remove(kern.PinName(index, ebpf.AttachTCXIngress)))
		if ds.exits.on[index] != nil {
			continue
		}
		errs = append(errs, ds.hooks.pins.Remove(kern.PinName(index, ebpf.AttachTCXEgress)))
		if ds.on[index] != nil {
			continue
		}
		errs = append(errs, ds.entries.drop(index))
	}
	ds.Adopted = nil
	return errors.Join(append(errs, ds.hooks.pins.DropOtherMaps(ds.programs.Spec))...)
}

// addresses is a change that is about some addresses.
type addresses map[flow.Addr]bool

func (s addresses) Affects(k flow.Key) bool  { return s[k.Src] || s[k.Dst] }
func (s addresses) Touches(a flow.Addr) bool { return s[a] }
