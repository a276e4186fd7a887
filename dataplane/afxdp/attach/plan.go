package attach

import (
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// scene is what netlink says about the namespace, no opinion yet.
type scene struct {
	links map[int]netlink.Link
	hosts map[int][]netip.Addr   // host routes by device
	nets  map[int][]netip.Prefix // other routes by device, link-local and multicast left out
	own   []netip.Addr           // the node's own addresses, loopback left out
	// shaped are the devices whose traffic somebody limits, if that matters.
	shaped map[int]bool
}

// known is what the policy says about the node's pods.
type known struct {
	locals map[netip.Addr]bool
	cidrs  []netip.Prefix
	// pods are devices that were pods' before. They stay pods' until they are gone:
	// a pod that policy forgets may still run.
	pods map[int]bool
}

// leadsToPod reports whether a device is a pod's for sure, known or not: it was one, or
// a host route into the pods' networks leads to it.
func (k *known) leadsToPod(index int, hosts []netip.Addr) bool {
	return k.pods[index] || slices.ContainsFunc(hosts, func(a netip.Addr) bool {
		return slices.ContainsFunc(k.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
	})
}

// near reports whether a network holds pods of this node.
func (k *known) near(p netip.Prefix) bool {
	if p.Bits() == 0 {
		return false
	}
	if slices.ContainsFunc(k.cidrs, p.Overlaps) {
		return true
	}
	for a := range k.locals {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// place is a device that gets our programs.
type place struct {
	link  netlink.Link
	pods  []netip.Addr // addresses of known pods behind it
	flags uint32       // of deviceState
	guard kern.GuardState
}

// plan is which devices get our programs and what the guard must know.
type plan struct {
	places map[int]place
	ports  map[uint32]uint32           // bridge ports, see bpf/guard.h
	pods   map[flow.Addr]kern.LocalPod // every local pod
	cidrs  map[kern.PrefixKey]uint8
	twice  []netip.Addr // pods whose address two devices claim
}

// makePlan decides from the state alone. A device is
//
//   - a pod's if a host route to a local pod, or into the pod CIDRs, leads to it, if it is
//     a port of a bridge that holds pods, or if it was a pod's before. Where unknown
//     pods pass (fail mode open) only known pods and bridges count;
//   - perhaps a pod's if its other end is in another namespace, the pod CIDRs are
//     known, and no route to a network elsewhere leads to it (an uplink's does).
//
// behind returns the addresses at the other end of a veth pair, and previous
// where a pod's address was before: of two devices that claim one, the first
// keeps it.
func (c *Options) makePlan(s *scene, k known, behind func(netlink.Link) []netip.Addr, previous func(flow.Addr) uint32) plan {
	p := plan{places: map[int]place{}, ports: map[uint32]uint32{}, pods: map[flow.Addr]kern.LocalPod{}, cidrs: map[kern.PrefixKey]uint8{}}
	for _, cidr := range k.cidrs {
		p.cidrs[kern.MakePrefixKey(cidr)] = 1
	}
	for a := range k.locals {
		p.pods[flow.AddrFrom(a)] = kern.LocalPod{}
	}
	bridges := map[int]netlink.Link{}
	for index, l := range s.links {
		if l.Type() == "bridge" && c.holdsPods(s, &k, index, behind) {
			bridges[index] = l
		}
	}
	// In the order of their numbers, so that the result does not depend on a
	// map's whim.
	indexes := make([]int, 0, len(s.links))
	for index := range s.links {
		indexes = append(indexes, index)
	}
	slices.Sort(indexes)
	for _, index := range indexes {
		l := s.links[index]
		bridge := bridges[l.Attrs().MasterIndex]
		if bridge != nil {
			p.ports[uint32(index)] = uint32(bridge.Attrs().Index)
		}
		if pl, ok := c.place(s, &k, l, bridge, behind); ok {
			p.places[index] = pl
		}
	}
	p.bind(indexes, previous, !c.AllowSpoofing)
	return p
}

// holdsPods reports whether a bridge has pods: by the networks routed to it or,
// where the node takes no part in its network, by what is behind its ports.
func (c *Options) holdsPods(s *scene, k *known, index int, behind func(netlink.Link) []netip.Addr) bool {
	if nets := s.nets[index]; len(nets) > 0 {
		return slices.ContainsFunc(nets, k.near)
	}
	for _, l := range s.links {
		if l.Attrs().MasterIndex == index && c.eligible(l) &&
			slices.ContainsFunc(behind(l), func(a netip.Addr) bool { return k.locals[a] }) {
			return true
		}
	}
	return false
}

// place says what one device is to us.
func (c *Options) place(s *scene, k *known, l netlink.Link, bridge netlink.Link, behind func(netlink.Link) []netip.Addr) (place, bool) {
	attrs := l.Attrs()
	if !c.eligible(l) {
		return place{}, false
	}
	pl := place{link: l, flags: FlagsOf(l, s.shaped[attrs.Index])}
	for _, a := range s.hosts[attrs.Index] {
		if k.locals[a] {
			pl.pods = append(pl.pods, a)
		}
	}
	if bridge != nil {
		pl.guard.Bridge = uint32(bridge.Attrs().Index)
		copy(pl.guard.BridgeMAC[:], bridge.Attrs().HardwareAddr)
		for _, a := range behind(l) {
			if k.locals[a] && !slices.Contains(pl.pods, a) {
				pl.pods = append(pl.pods, a)
			}
		}
	}
	switch {
	case len(pl.pods) > 0 || bridge != nil || !c.PassUnknown && k.leadsToPod(attrs.Index, s.hosts[attrs.Index]):
		pl.guard.Flags = kern.GuardPod
	case !c.candidate(l, k, s.nets[attrs.Index]):
		return place{}, false
	}
	return pl, true
}

// eligible reports whether the programs could go onto a device at all.
func (c *Options) eligible(l netlink.Link) bool {
	name := l.Attrs().Name
	return l.Type() == "veth" && name != kern.UpcallStack && name != kern.UpcallSocket && c.wants(name) && !c.excluded(name) &&
		!(c.UplinkMode != UplinkOff && slices.Contains(c.Uplinks, name))
}

// candidate reports whether an eligible device may become a pod's.
func (c *Options) candidate(l netlink.Link, k *known, nets []netip.Prefix) bool {
	return l.Attrs().NetNsID >= 0 && len(k.cidrs) > 0 &&
		!slices.ContainsFunc(nets, func(p netip.Prefix) bool { return !k.near(p) })
}

// bind gives every pod's address to one device.
func (p *plan) bind(indexes []int, previous func(flow.Addr) uint32, antiSpoofing bool) {
	claims := map[netip.Addr][]uint32{}
	for _, index := range indexes {
		for _, a := range p.places[index].pods {
			claims[a] = append(claims[a], uint32(index))
		}
	}
	for a, by := range claims {
		key := flow.AddrFrom(a)
		owner := by[0]
		if len(by) > 1 {
			p.twice = append(p.twice, a)
			if before := previous(key); slices.Contains(by, before) {
				owner = before
			}
		}
		p.pods[key] = kern.LocalPod{Ifindex: owner}
	}
	slices.SortFunc(p.twice, netip.Addr.Compare)
	if !antiSpoofing {
		return
	}
	for index, pl := range p.places {
		var addrs []flow.Addr
		for _, a := range pl.pods {
			if key := flow.AddrFrom(a); p.pods[key].Ifindex == uint32(index) {
				addrs = append(addrs, key)
			}
		}
		if len(addrs) == 0 {
			continue
		}
		pl.guard.Flags |= kern.GuardBound
		for i := range pl.guard.Addrs { // the last one is repeated
			pl.guard.Addrs[i] = addrs[min(i, len(addrs)-1)]
		}
		p.places[index] = pl
	}
}

// prefixOf converts what the route library returns. nil, a default route of
// older versions, is not ok.
func prefixOf(n *net.IPNet) (netip.Prefix, bool) {
	if n == nil {
		return netip.Prefix{}, false
	}
	a, ok := netip.AddrFromSlice(n.IP)
	ones, size := n.Mask.Size()
	if !ok || size == 0 {
		return netip.Prefix{}, false
	}
	a = a.Unmap()
	if a.Is4() && size == 128 {
		ones -= 96
	}
	p := netip.PrefixFrom(a, ones)
	return p, p.IsValid()
}
