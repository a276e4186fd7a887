package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// NS is a network namespace held by a file descriptor.
type NS struct {
	name string
	fd   netns.NsHandle
	nl   *netlink.Handle
	pin  string
}

// Missing says which piece of the machine a namespace cannot be built without,
// or returns nil. It changes nothing that outlives the call.
func Missing() error {
	if os.Geteuid() != 0 {
		return errors.New("root is needed to create network namespaces")
	}
	ns, err := New("probe")
	if err != nil {
		return err
	}
	defer ns.Close()
	link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe0"}, PeerName: "probe1"}
	if err := ns.nl.LinkAdd(link); err != nil {
		return fmt.Errorf("the kernel cannot create veth devices: %w", err)
	}
	return nil
}

// New makes an empty namespace with loopback up and IPv6 duplicate address
// detection off. name is for messages only.
func New(name string) (*NS, error) {
	type result struct {
		fd  netns.NsHandle
		err error
	}
	done := make(chan result)
	go func() {
		// After an error the thread may be anywhere: it stays locked, so that
		// the runtime ends it with the goroutine.
		runtime.LockOSThread()
		fd, err := create()
		if err == nil {
			runtime.UnlockOSThread()
		}
		done <- result{fd, err}
	}()
	r := <-done
	if r.err != nil {
		return nil, fmt.Errorf("create namespace %s: %w", name, r.err)
	}
	nl, err := netlink.NewHandleAt(r.fd, unix.NETLINK_ROUTE)
	if err != nil {
		r.fd.Close()
		return nil, fmt.Errorf("open netlink in namespace %s: %w", name, err)
	}
	ns := &NS{name: name, fd: r.fd, nl: nl}
	if err := ns.Up("lo"); err != nil {
		ns.Close()
		return nil, err
	}
	return ns, nil
}

// create unshares, prepares the new namespace and returns to the old one.
func create() (fd netns.NsHandle, err error) {
	old, err := netns.Get()
	if err != nil {
		return -1, err
	}
	defer old.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return -1, fmt.Errorf("unshare network namespace: %w", err)
	}
	defer func() {
		if serr := netns.Set(old); serr != nil && err == nil {
			fd.Close()
			fd, err = -1, fmt.Errorf("return to the original namespace: %w", serr)
		}
	}()
	for _, key := range []string{"accept_dad", "dad_transmits", "accept_ra", "router_solicitations"} {
		for _, dev := range []string{"all", "default"} {
			if err := setSysctl("net/ipv6/conf/"+dev+"/"+key, "0"); err != nil {
				return -1, err
			}
		}
	}
	for _, dev := range []string{"all", "default"} {
		if err := setSysctl("net/ipv6/conf/"+dev+"/disable_ipv6", "0"); err != nil {
			return -1, err
		}
	}
	return netns.Get()
}

// setSysctl writes a sysctl of the calling thread's namespace. The kernel picks
// the namespace of the task that opens the file, so the thread must be locked.
func setSysctl(key, value string) error {
	path := filepath.Join("/proc/sys", key)
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("set sysctl: %w", err)
	}
	return nil
}

// Name returns the name given to New.
func (n *NS) Name() string { return n.name }

// FD returns the descriptor of the namespace. It stays the NS's own.
func (n *NS) FD() int { return int(n.fd) }

// Path names the namespace for other programs while this process lives:
// nsenter --net=PATH.
func (n *NS) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.fd)) }

// Handle returns a route netlink handle whose sockets are inside the namespace,
// usable from any goroutine. It stays the NS's own.
func (n *NS) Handle() *netlink.Handle { return n.nl }

// Pin bind-mounts the namespace at path, so that it outlives the process.
// Remove it with "umount PATH; rm PATH", or with Unpin.
func (n *NS) Pin(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("pin namespace %s: %w", n.name, err)
	}
	f.Close()
	if err := unix.Mount(n.Path(), path, "none", unix.MS_BIND, ""); err != nil {
		os.Remove(path)
		return fmt.Errorf("pin namespace %s at %s: %w", n.name, path, err)
	}
	n.pin = path
	return nil
}

// Unpin undoes Pin; without a Pin it does nothing.
func (n *NS) Unpin() error {
	if n.pin == "" {
		return nil
	}
	path := n.pin
	n.pin = ""
	return errors.Join(unix.Unmount(path, unix.MNT_DETACH), os.Remove(path))
}

// Close lets go of the namespace. It ends, with its devices, when the last
// socket opened in it is closed too. Close may be called more than once.
func (n *NS) Close() error {
	if n.fd < 0 {
		return nil
	}
	n.nl.Close()
	return n.fd.Close() // sets the handle to -1
}

// Do runs f on an OS thread inside the namespace. Sockets and files f opens stay
// inside after it returned. Goroutines f starts are not inside.
func (n *NS) Do(f func() error) error {
	errs := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		old, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			errs <- err
			return
		}
		defer old.Close()
		if err := netns.Set(n.fd); err != nil {
			runtime.UnlockOSThread()
			errs <- fmt.Errorf("enter namespace %s: %w", n.name, err)
			return
		}
		finished := false
		defer func() {
			// A thread that cannot go back stays locked and ends with this
			// goroutine.
			if netns.Set(old) == nil {
				runtime.UnlockOSThread()
			}
			if !finished { // f called runtime.Goexit, as t.Fatal does
				errs <- fmt.Errorf("function run in namespace %s did not return", n.name)
			}
		}()
		err = f()
		finished = true
		errs <- err
	}()
	return <-errs
}

// Sysctl sets a sysctl inside the namespace; key uses slashes
// ("net/ipv4/ip_forward"), so that it can name a device with a dot.
func (n *NS) Sysctl(key, value string) error {
	if strings.HasPrefix(key, "/") || strings.Contains(key, "..") {
		return fmt.Errorf("sysctl key %q: want a path below /proc/sys", key)
	}
	return n.Do(func() error { return setSysctl(key, value) })
}

// Link returns a device by name.
func (n *NS) Link(dev string) (netlink.Link, error) {
	l, err := n.nl.LinkByName(dev)
	if err != nil {
		return nil, fmt.Errorf("device %s in %s: %w", dev, n.name, err)
	}
	return l, nil
}

// Up brings a device up.
func (n *NS) Up(dev string) error {
	l, err := n.Link(dev)
	if err != nil {
		return err
	}
	if err := n.nl.LinkSetUp(l); err != nil {
		return fmt.Errorf("bring up %s in %s: %w", dev, n.name, err)
	}
	return nil
}

// Addr adds an address to a device, usable at once.
func (n *NS) Addr(dev string, p netip.Prefix) error {
	l, err := n.Link(dev)
	if err != nil {
		return err
	}
	a := &netlink.Addr{IPNet: ipNet(p)}
	if p.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD
	}
	if err := n.nl.AddrAdd(l, a); err != nil {
		return fmt.Errorf("add address %s to %s in %s: %w", p, dev, n.name, err)
	}
	if p.Addr().Is4() || l.Type() == "bridge" { // which is not ready before it has a port
		return nil
	}
	return n.own(p.Addr())
}

// own waits until an IPv6 address is the namespace's. The kernel makes it that in the
// background (addrconf_dad_work), on a busy machine a second later, and until then
// nobody is there.
func (n *NS) own(a netip.Addr) error {
	local := &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: ipNet(netip.PrefixFrom(a, a.BitLen()))}
	for end := time.Now().Add(addrPatience); ; time.Sleep(time.Millisecond) {
		routes, err := n.nl.RouteListFiltered(unix.AF_INET6, local, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
		if len(routes) > 0 {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("address %s in %s: no route to it after %v: %w", a, n.name, addrPatience, errors.Join(err, os.ErrDeadlineExceeded))
		}
	}
}

// addrPatience bounds the wait for an address: only what fails spends it.
const addrPatience = 30 * time.Second

// Route describes one route for [NS.AddRoute]. Zero fields are left out.
type Route struct {
	Dst netip.Prefix // the zero Prefix is the default route of Via's family
	Via netip.Addr   // on-link gateway
	Src netip.Addr   // preferred source
	Dev string
}

// AddRoute adds a route.
func (n *NS) AddRoute(r Route) error {
	l, err := n.Link(r.Dev)
	if err != nil {
		return err
	}
	nr := &netlink.Route{LinkIndex: l.Attrs().Index}
	if r.Dst.IsValid() {
		nr.Dst = ipNet(r.Dst)
	}
	if r.Via.IsValid() {
		nr.Gw = r.Via.AsSlice()
		nr.Flags = int(netlink.FLAG_ONLINK)
	} else {
		nr.Scope = netlink.SCOPE_LINK
	}
	if r.Src.IsValid() {
		nr.Src = r.Src.AsSlice()
	}
	if err := n.nl.RouteAdd(nr); err != nil {
		return fmt.Errorf("add route to %s via %s dev %s in %s: %w", r.Dst, r.Via, r.Dev, n.name, err)
	}
	return nil
}

// Neigh adds a permanent neighbour entry.
func (n *NS) Neigh(dev string, ip netip.Addr, mac net.HardwareAddr) error {
	l, err := n.Link(dev)
	if err != nil {
		return err
	}
	family := unix.AF_INET
	if ip.Is6() {
		family = unix.AF_INET6
	}
	err = n.nl.NeighSet(&netlink.Neigh{
		LinkIndex: l.Attrs().Index, Family: family, State: netlink.NUD_PERMANENT,
		IP: ip.AsSlice(), HardwareAddr: mac,
	})
	if err != nil {
		return fmt.Errorf("add neighbour %s on %s in %s: %w", ip, dev, n.name, err)
	}
	return nil
}

// MAC returns a device's hardware address.
func (n *NS) MAC(dev string) (net.HardwareAddr, error) {
	l, err := n.Link(dev)
	if err != nil {
		return nil, err
	}
	return l.Attrs().HardwareAddr, nil
}

// Pair connects two namespaces with a veth pair, both ends up and without
// addresses (no IPv6 link-local address either).
func Pair(a *NS, nameA string, b *NS, nameB string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = nameA
	v := &netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(int(b.fd))}
	if err := a.nl.LinkAdd(v); err != nil {
		return fmt.Errorf("create veth %s in %s to %s in %s: %w", nameA, a.name, nameB, b.name, err)
	}
	for _, end := range []struct {
		ns  *NS
		dev string
	}{{a, nameA}, {b, nameB}} {
		// 1 = generate no link-local address: unpredictable addresses have no
		// place in a lab.
		if err := end.ns.Sysctl("net/ipv6/conf/"+end.dev+"/addr_gen_mode", "1"); err != nil {
			return err
		}
		if err := end.ns.Up(end.dev); err != nil {
			return err
		}
	}
	return nil
}

// RemoveLink deletes a device (both ends of a veth pair).
func (n *NS) RemoveLink(dev string) error {
	l, err := n.Link(dev)
	if err != nil {
		return err
	}
	if err := n.nl.LinkDel(l); err != nil {
		return fmt.Errorf("delete %s in %s: %w", dev, n.name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
