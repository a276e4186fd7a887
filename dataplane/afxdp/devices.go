package afxdp

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
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

// look reads the state of the namespace.
func (b *Backend) look() (*scene, error) {
	links, err := b.nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	s := &scene{links: map[int]netlink.Link{}, hosts: map[int][]netip.Addr{}, nets: map[int][]netip.Prefix{}}
	for _, l := range links {
		s.links[l.Attrs().Index] = l
	}
	if b.config.Accelerate {
		if s.shaped, err = shapedDevices(b.nl); err != nil {
			return nil, err
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		// Every table: policy routing puts pod routes elsewhere too.
		routes, err := b.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
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

// refresh makes the devices we are on, and what the guard knows, what they should
// be. It runs on the namespace thread. A device that fails does not keep the
// others from service.
func (b *Backend) refresh() error {
	errs := []error{b.hear()}
	if b.stale || b.scene == nil {
		s, err := b.look()
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		b.scene, b.stale = s, false
	}
	p := b.config.makePlan(b.scene, known{b.locals, b.cidrs, b.podDevices()}, b.askPeer, func(a flow.Addr) uint32 { return b.pods.known[a].Ifindex })
	b.reportTwice(p.twice)
	if !b.config.AllowTunnels {
		b.ends.Store(tunnel.Find(slices.Collect(maps.Values(b.scene.links)), tunnel.FOU(b.nl)))
	}
	errs = append(errs, b.setNodeAddresses(b.scene.own), b.ranges.set(p.cidrs), b.ports.set(p.ports), b.pods.set(p.pods))
	for index, d := range b.devices {
		if _, ok := p.places[index]; !ok {
			if b.scene.links[index] != nil { // until it has another program
				errs = append(errs, b.gateOutput(true))
			}
			errs = append(errs, b.detach(index))
			b.log.Info("device released", "device", d.name, "ifindex", index)
		}
	}
	var failed []string
	for index, pl := range p.places {
		if err := b.attach(index, pl); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", pl.link.Attrs().Name, err))
			// Elsewhere the later hook judges what no program has seen.
			if b.config.Strict || pl.guard.Bridge != 0 {
				failed = append(failed, pl.link.Attrs().Name)
			}
		}
	}
	slices.Sort(failed)
	b.unattached.Store(&failed)
	for index := range b.behind {
		if b.scene.links[index] == nil {
			delete(b.behind, index)
		}
	}
	if !b.swept {
		errs = append(errs, b.sweepFilters(p.places))
		b.swept = true
	}
	errs = append(errs, b.refreshExits(b.scene), b.refreshUplinks(b.scene))
	return errors.Join(errs...)
}

// Unjudged lists devices of pods that our programs could not be put on, where nobody
// else judges their packets: all of them without a later hook, and ports of a bridge. Any
// goroutine may call it.
func (b *Backend) Unjudged() (devices []string, why error) {
	if p := b.unattached.Load(); p != nil && len(*p) > 0 {
		return *p, fmt.Errorf("packets of pods are not judged: no program could be put on %s; the log says why", strings.Join(*p, ", "))
	}
	return nil, nil
}

// podDevices are those that the guard has as pods'.
func (b *Backend) podDevices() map[int]bool {
	pods := map[int]bool{}
	for index, g := range b.guards.known {
		if g.Flags&guardPod != 0 {
			pods[int(index)] = true
		}
	}
	return pods
}

// askPeer returns the addresses at the other end of a port of a bridge. Once a
// known pod is among them the answer is kept; pods do not change addresses.
func (b *Backend) askPeer(l netlink.Link) []netip.Addr {
	attrs := l.Attrs()
	if slices.ContainsFunc(b.behind[attrs.Index], func(a netip.Addr) bool { return b.locals[a] }) {
		return b.behind[attrs.Index]
	}
	if attrs.NetNsID < 0 || attrs.ParentIndex == 0 {
		return nil
	}
	addrs, err := b.peers.addresses(attrs.NetNsID, attrs.ParentIndex)
	if err != nil { // the pod ends at this moment, or its namespace is out of reach
		b.log.Debug("addresses of the pod are not known", "device", attrs.Name, "error", err)
		return nil
	}
	b.behind[attrs.Index] = addrs
	return addrs
}

// reportTwice logs when the number of contested addresses changes.
func (b *Backend) reportTwice(addrs []netip.Addr) {
	if len(addrs) != b.twice && len(addrs) > 0 {
		b.log.Warn("two devices claim a pod's address; the first one keeps it", "addresses", addrs)
	}
	b.twice = len(addrs)
}

// attachEarly puts the programs on a device that has just appeared, if it may be
// a pod's. What it is in the end the next refresh tells.
func (b *Backend) attachEarly(l netlink.Link) error {
	if b.devices[l.Attrs().Index] != nil || !b.config.eligible(l) || !b.config.candidate(l, &known{cidrs: b.cidrs}, nil) {
		return nil
	}
	return b.attach(l.Attrs().Index, place{link: l})
}

// attach puts our programs on a device, or follows what has changed about it. The
// guard knows the device before the programs see its first packet.
func (b *Backend) attach(index int, pl place) error {
	if err := b.guards.put(uint32(index), pl.guard); err != nil {
		return err
	}
	if b.exits[index] != nil { // it was no pod's; gate keeps watch meanwhile
		if err := errors.Join(b.gateOutput(true), b.detachExit(index)); err != nil {
			return err
		}
	}
	attrs := pl.link.Attrs()
	own := [6]byte(slices.Concat([]byte(attrs.HardwareAddr), make([]byte, 6))[:6])
	if d := b.devices[index]; d != nil {
		if d.flags == pl.flags || b.mode == AttachXDPGeneric {
			return nil
		}
		d.flags = pl.flags
		return b.putDevice(index, own, pl.flags)
	}
	d := &device{name: attrs.Name, flags: pl.flags}
	if b.mode == AttachXDPGeneric {
		a, err := putXDP(index, b.xdp.PodXdp, UplinkGeneric)
		if err != nil {
			return errors.Join(err, b.guards.drop(uint32(index)))
		}
		d.put = []attachment{a}
	} else {
		b.report(index, pl.link)
		if mtu := b.config.maxFrame() - etherHeader; attrs.MTU > mtu {
			b.log.Warn("device has a larger MTU than an upcall can carry; larger packets of unknown flows are left to the later hook, or dropped if there is none",
				"device", attrs.Name, "mtu", attrs.MTU, "limit", mtu, "strict", b.config.Strict)
		}
		if err := b.putDevice(index, own, pl.flags); err != nil {
			return err
		}
		for _, side := range []struct {
			prog    *ebpf.Program
			ingress bool
		}{{b.objects.PodIngress, true}, {b.objects.PodEgress, false}} {
			a, err := b.put(index, side.prog, side.ingress)
			if err != nil {
				for _, a := range d.put {
					err = errors.Join(err, a.remove())
				}
				return errors.Join(err, b.guards.drop(uint32(index)), b.dropDevice(index))
			}
			d.put = append(d.put, a)
		}
	}
	b.devices[index] = d
	if err := b.setExit(index, true); err != nil {
		return err
	}
	b.log.Info("device attached", "device", attrs.Name, "ifindex", index, "attach", b.mode,
		"pod", pl.guard.Flags&guardPod != 0, "bridge", pl.guard.Bridge)
	return nil
}

// keepUp brings an end of the upcall pair up again that other software has taken
// down: what is sent to it vanishes without a trace.
func (b *Backend) keepUp(l netlink.Link) error {
	a := l.Attrs()
	if b.pair == nil || a.Index != b.pair.stack.Attrs().Index && a.Index != b.pair.socket.Attrs().Index || a.Flags&net.FlagUp != 0 {
		return nil
	}
	if err := b.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring it up again: %w", err)
	}
	b.restored++
	b.log.Warn("other software took our device down, it is up again", "device", a.Name, "restored", b.restored)
	return nil
}

// mend puts back a device's filters if other software has removed them. A link does
// not come off like that, a filter does.
func (b *Backend) mend(index int, ingress, egress *ebpf.Program) error {
	l, err := b.nl.LinkByIndex(index)
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
		if filters, err := b.nl.FilterList(l, clsactParent(side.ingress)); err == nil && slices.ContainsFunc(filters, ourFilter) {
			continue
		}
		if _, err := putClsact(b.nl, index, side.prog, side.ingress); err != nil {
			return fmt.Errorf("device %s: put back the filters that other software removed: %w", l.Attrs().Name, err)
		}
		b.restored++
		b.log.Warn("other software removed our filter, it is restored", "device", l.Attrs().Name, "ingress", side.ingress, "restored", b.restored)
	}
	return nil
}

// putDevice writes the kernel side's entry and keeps what that side wrote in it.
func (b *Backend) putDevice(index int, own [6]byte, flags uint32) error {
	var s deviceState
	if err := b.objects.Devices.Lookup(uint32(index), &s); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the device map: %w", err)
	}
	s.Own, s.Flags = own, flags
	if err := b.objects.Devices.Put(uint32(index), &s); err != nil {
		return fmt.Errorf("write the device map: %w", err)
	}
	return nil
}

// dropDevice removes the kernel side's entry, if there is one.
func (b *Backend) dropDevice(index int) error {
	if b.objects.Devices == nil { // the programs that ask are not there
		return nil
	}
	if err := b.objects.Devices.Delete(uint32(index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("write the device map: %w", err)
	}
	return nil
}

// detach takes our programs off. The kernel has done so already if the device is
// gone.
func (b *Backend) detach(index int) error {
	d := b.devices[index]
	delete(b.devices, index)
	errs := []error{b.setExit(index, false)}
	for _, a := range d.put {
		errs = append(errs, a.remove())
	}
	errs = append(errs, b.guards.drop(uint32(index)), b.dropDevice(index))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("release device %s: %w", d.name, err)
	}
	return nil
}

// report says who else is on a device. They stay.
func (b *Backend) report(index int, l netlink.Link) {
	for _, q := range []struct {
		direction string
		at        ebpf.AttachType
	}{{"ingress", ebpf.AttachTCXIngress}, {"egress", ebpf.AttachTCXEgress}} {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: q.at})
		if err == nil && len(r.Programs) > 0 {
			b.log.Info("other tcx programs on pod device run behind ours", "device", l.Attrs().Name, "direction", q.direction, "programs", len(r.Programs))
		}
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		b.log.Info("another XDP program on pod device runs before ours", "device", l.Attrs().Name, "program", x.ProgId)
	}
	qdiscs, err := b.nl.QdiscList(l)
	if err != nil {
		return
	}
	for _, q := range qdiscs {
		if q.Type() == "clsact" || q.Type() == "ingress" {
			b.log.Info("traffic control filters on pod device run behind our programs", "device", l.Attrs().Name, "qdisc", q.Type())
		}
	}
}

// setNodeAddresses tells the workers and the kernel side which addresses are the
// node's own.
func (b *Backend) setNodeAddresses(own []netip.Addr) error {
	b.host.set(own)
	if b.nodes == nil { // the programs that ask are not there
		return nil
	}
	want, fresh := map[flow.Addr]uint8{}, addresses{}
	for _, a := range own {
		key := flow.AddrFrom(a)
		want[key] = 1
		if _, known := b.nodes.known[key]; !known {
			fresh[key] = true
		}
	}
	errs := []error{b.nodes.set(want)}
	// Flows of that name were accepted for whoever had the address before.
	if len(fresh) > 0 {
		errs = append(errs, b.epoch.advance(dataplane.ChangeWithin(fresh), nil))
	}
	return errors.Join(errs...)
}

// addresses is a change that is about some addresses.
type addresses map[flow.Addr]bool

func (s addresses) Affects(k flow.Key) bool  { return s[k.Src] || s[k.Dst] }
func (s addresses) Touches(a flow.Addr) bool { return s[a] }
