package afxdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// device is a pod's device that our programs are on.
type device struct {
	name  string
	own   [6]byte
	links []link.Link
}

// podDevices returns the veth devices of the namespace that a host route to one
// of the local pods leads to, by ifindex, and the node's own IPv6 addresses.
func (b *Backend) podDevices() (map[int]netlink.Link, []netip.Addr, error) {
	links, err := b.nl.LinkList()
	if err != nil {
		return nil, nil, fmt.Errorf("list devices: %w", err)
	}
	veths := map[int]netlink.Link{}
	for _, l := range links {
		name := l.Attrs().Name
		if l.Type() == "veth" && name != UpcallStack && name != UpcallSocket && b.config.wants(name) {
			veths[l.Attrs().Index] = l
		}
	}
	found := map[int]netlink.Link{}
	var own []netip.Addr
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		// Every table: policy routing puts pod routes elsewhere too.
		routes, err := b.nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			a, ok := hostAddress(routes[i].Dst)
			if !ok {
				continue
			}
			switch routes[i].Type {
			case unix.RTN_LOCAL:
				if family == netlink.FAMILY_V6 {
					own = append(own, a)
				}
			case unix.RTN_UNICAST:
				if l := veths[routes[i].LinkIndex]; l != nil && b.locals[a] {
					found[routes[i].LinkIndex] = l
				}
			}
		}
	}
	return found, own, nil
}

// hostAddress returns the address of a /32 or /128.
func hostAddress(n *net.IPNet) (netip.Addr, bool) {
	if n == nil {
		return netip.Addr{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, size := n.Mask.Size()
	return a.Unmap(), ok && ones == size
}

// refresh makes the set of devices we are on what it should be. It runs on the
// namespace thread. A device that fails does not keep the others from service.
func (b *Backend) refresh() error {
	found, own, err := b.podDevices()
	if err != nil {
		return err
	}
	var errs []error
	errs = append(errs, b.setNodeAddresses(own))
	for index, d := range b.devices {
		if found[index] == nil {
			errs = append(errs, b.detach(index))
			b.log.Info("pod device released", "device", d.name, "ifindex", index)
		}
	}
	for index, l := range found {
		if err := b.attach(index, l); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// attach puts our programs on a device, or follows a change of its address.
func (b *Backend) attach(index int, l netlink.Link) error {
	attrs := l.Attrs()
	own := [6]byte(slices.Concat([]byte(attrs.HardwareAddr), make([]byte, 6))[:6])
	if d := b.devices[index]; d != nil {
		if d.own == own {
			return nil
		}
		d.own = own
		return b.putDevice(index, own)
	}
	b.report(index, l)
	if mtu := b.config.maxFrame() - etherHeader; attrs.MTU > mtu {
		b.log.Warn("pod device has a larger MTU than an upcall can carry; larger packets of unknown flows are left to the later hook, or dropped if there is none",
			"device", attrs.Name, "mtu", attrs.MTU, "limit", mtu, "strict", b.config.Strict)
	}
	if err := b.putDevice(index, own); err != nil {
		return err
	}
	d := &device{name: attrs.Name, own: own}
	for _, side := range []struct {
		prog *ebpf.Program
		at   ebpf.AttachType
	}{{b.objects.PodIngress, ebpf.AttachTCXIngress}, {b.objects.PodEgress, ebpf.AttachTCXEgress}} {
		// First in line, so that the programs of others see every packet once:
		// what goes up they see when it has come back.
		ln, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: side.prog, Attach: side.at, Anchor: link.Head()})
		if err != nil {
			for _, ln := range d.links {
				ln.Close()
			}
			return errors.Join(err, b.objects.Devices.Delete(uint32(index)))
		}
		d.links = append(d.links, ln)
	}
	b.devices[index] = d
	b.log.Info("pod device attached", "device", attrs.Name, "ifindex", index)
	return nil
}

// putDevice writes the kernel side's entry and keeps the pod's address in it.
func (b *Backend) putDevice(index int, own [6]byte) error {
	var s deviceState
	if err := b.objects.Devices.Lookup(uint32(index), &s); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the device map: %w", err)
	}
	s.Own = own
	if err := b.objects.Devices.Put(uint32(index), &s); err != nil {
		return fmt.Errorf("write the device map: %w", err)
	}
	return nil
}

// detach takes our programs off. The kernel has done so already if the device is
// gone.
func (b *Backend) detach(index int) error {
	d := b.devices[index]
	delete(b.devices, index)
	var errs []error
	for _, ln := range d.links {
		errs = append(errs, ln.Close())
	}
	if err := b.objects.Devices.Delete(uint32(index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		errs = append(errs, err)
	}
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

// setNodeAddresses tells the kernel side which addresses neighbour discovery may
// go to.
func (b *Backend) setNodeAddresses(own []netip.Addr) error {
	want := map[[16]byte]bool{}
	for _, a := range own {
		want[a.As16()] = true
	}
	var errs []error
	for a := range b.nodeAddresses {
		if !want[a] {
			if err := b.objects.NodeAddresses.Delete(a); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, fmt.Errorf("write the node address map: %w", err))
				continue
			}
			delete(b.nodeAddresses, a)
		}
	}
	for a := range want {
		if !b.nodeAddresses[a] {
			if err := b.objects.NodeAddresses.Put(a, uint8(1)); err != nil {
				errs = append(errs, fmt.Errorf("write the node address map: %w", err))
				continue
			}
			b.nodeAddresses[a] = true
		}
	}
	return errors.Join(errs...)
}
