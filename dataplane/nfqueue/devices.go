package nfqueue

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	rtnl "github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/tunnel"
)

// podDevices finds the devices by which pods' packets come in: those that a host route to
// a pod, or into the pods' networks, leads to without a gateway, and bridges that the pods'
// networks are on. One that was a pod's before stays one until it is gone: policy may have
// forgotten a pod that still runs. uplinks are devices that a route to a gateway uses, or
// one to a network without pods.
func podDevices(nl *rtnl.Handle, links []rtnl.Link, locals []netip.Addr, prefixes []netip.Prefix, before map[uint32]struct{}) (found, uplinks map[uint32]struct{}, err error) {
	known := map[netip.Addr]bool{}
	for _, a := range locals {
		known[a.Unmap()] = true
	}
	found, uplinks = map[uint32]struct{}{}, map[uint32]struct{}{}
	bridges := map[int]bool{}
	for _, l := range links {
		index := l.Attrs().Index
		if _, was := before[uint32(index)]; was {
			found[uint32(index)] = struct{}{}
		}
		bridges[index] = l.Type() == "bridge"
	}
	for _, family := range []int{rtnl.FAMILY_V4, rtnl.FAMILY_V6} {
		// Every table: policy routing puts pods' routes elsewhere, too.
		routes, err := nl.RouteListFiltered(family, &rtnl.Route{Table: unix.RT_TABLE_UNSPEC}, rtnl.RT_FILTER_TABLE)
		if err != nil {
			return nil, nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			r := &routes[i]
			if r.Type != unix.RTN_UNICAST {
				continue
			}
			for _, hop := range r.MultiPath {
				uplinks[uint32(hop.LinkIndex)] = struct{}{}
			}
			if r.Gw != nil || r.Via != nil {
				uplinks[uint32(r.LinkIndex)] = struct{}{}
				continue
			}
			if r.Dst == nil {
				continue
			}
			a, ok := netip.AddrFromSlice(r.Dst.IP)
			ones, size := r.Dst.Mask.Size()
			if !ok || size == 0 || ones == 0 || a.IsLinkLocalUnicast() || a.IsMulticast() {
				continue
			}
			to := netip.PrefixFrom(a.Unmap(), ones)
			if !to.IsSingleIP() && !slices.ContainsFunc(prefixes, to.Overlaps) && !slices.ContainsFunc(locals, func(a netip.Addr) bool { return to.Contains(a.Unmap()) }) {
				uplinks[uint32(r.LinkIndex)] = struct{}{}
				continue
			}
			switch {
			case to.IsSingleIP() && (known[to.Addr()] || slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(to.Addr()) })):
			case bridges[r.LinkIndex] && (slices.ContainsFunc(prefixes, to.Overlaps) || slices.ContainsFunc(locals, func(a netip.Addr) bool { return to.Contains(a.Unmap()) })):
			default:
				continue
			}
			found[uint32(r.LinkIndex)] = struct{}{}
		}
	}
	return found, uplinks, nil
}

// routeWatch hears of changes of devices and routes in a namespace.
type routeWatch struct {
	conn *netlink.Conn
	done chan struct{} // closed when the goroutine has ended
}

// lookPause bounds how often a stream of changes makes us look at everything.
const lookPause = 20 * time.Millisecond

func openRouteWatch(nsFD int) (*routeWatch, error) {
	group := func(g uint) uint32 { return 1 << (g - 1) }
	conn, err := netlink.Dial(unix.NETLINK_ROUTE, &netlink.Config{
		NetNS: nsFD, Groups: group(unix.RTNLGRP_LINK) | group(unix.RTNLGRP_IPV4_ROUTE) | group(unix.RTNLGRP_IPV6_ROUTE),
	})
	if err != nil {
		return nil, fmt.Errorf("listen to changes of devices and routes: %w", err)
	}
	_ = conn.SetReadBuffer(1 << 20) // an overrun counts as a change
	return &routeWatch{conn: conn, done: make(chan struct{})}, nil
}

// run calls changed after changes, at most once per lookPause. It ends with close.
func (w *routeWatch) run(changed func()) {
	defer close(w.done)
	var last time.Time
	for {
		_, err := w.conn.Receive()
		if errors.Is(err, os.ErrClosed) || errors.Is(err, unix.EBADF) {
			return
		}
		time.Sleep(lookPause - time.Since(last))
		last = time.Now()
		changed()
	}
}

// close ends run and waits for it.
func (w *routeWatch) close() error {
	err := w.conn.Close()
	<-w.done
	return err
}

// lookForDevices finds the pods' devices and the ends of tunnels.
func (b *Backend) lookForDevices(p *pods) error {
	links, err := b.routes.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	if !b.config.AllowTunnels {
		p.tunnels = tunnel.Find(links, tunnel.FOU(b.routes))
		b.ends.Store(p.tunnels)
	}
	if p.devices, p.uplinks, err = podDevices(b.routes, links, b.locals, slices.Concat(b.prefixes, b.config.PodCIDRs), p.devices); err != nil {
		return err
	}
	b.looked = true
	b.wantBridges(links, p)
	return nil
}

// followDevices brings the set of the pods' devices up to date.
func (b *Backend) followDevices() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || !b.looked || len(b.locals)+len(b.prefixes)+len(b.config.PodCIDRs) == 0 {
		return
	}
	p := b.fw.pods
	err := b.lookForDevices(&p)
	if err == nil {
		err = b.fw.apply(p)
	}
	if err == nil {
		b.switchBridges()
	}
	if err != nil {
		b.config.Logger.Error("the pods' devices are not known to the rules", "error", err)
	}
}
