package netlab

import (
	"errors"
	"fmt"
	"net/netip"
)

// NodeConfig says what a Node looks like. The zero value is complete.
type NodeConfig struct {
	Name string // default "node"
	// Addresses of the node and of the host outside, on the uplink. Defaults:
	// 192.0.2.1, 2001:db8:1::1 and 192.0.2.10, 2001:db8:1::10 (RFC 5737,
	// RFC 3849).
	Node4, Node6, Outside4, Outside6 netip.Addr
	// MTU of every device; 0 = the kernel's default.
	MTU int
}

// Uplink is the node's device towards the outside host, PodDevice the device
// every pod sees.
const (
	Uplink    = "uplink0"
	PodDevice = "eth0"
)

// Gateway addresses a pod sends to. No interface has them: permanent neighbour
// entries make them reachable, so that nothing has to answer ARP.
var (
	gateway4 = netip.MustParseAddr("169.254.1.1")
	gateway6 = netip.MustParseAddr("fe80::1")
)

// Node is a node namespace with an outside host and any number of pods. IPv4
// and IPv6 forwarding are on, strict reverse path filtering (RFC 3704) too.
type Node struct {
	NS      *NS
	Outside *NS
	// Addresses on the uplink.
	Addr4, Addr6, Outside4, Outside6 netip.Addr

	pods map[string]*Pod
	mtu  int
	seq  int
}

// Pod is a namespace routed through the node.
type Pod struct {
	Name       string
	NS         *NS
	Addr4      netip.Addr // zero if the pod has none
	Addr6      netip.Addr // zero if the pod has none
	HostDevice string     // the veth end in the node's namespace
}

// Addr returns the pod's address of family 4 or 6.
func (p *Pod) Addr(family int) netip.Addr {
	if family == 6 {
		return p.Addr6
	}
	return p.Addr4
}

// NewNode builds a node and its outside host. On error nothing is left.
func NewNode(c NodeConfig) (node *Node, err error) {
	def := func(a *netip.Addr, s string) {
		if !a.IsValid() {
			*a = netip.MustParseAddr(s)
		}
	}
	if c.Name == "" {
		c.Name = "node"
	}
	def(&c.Node4, "192.0.2.1")
	def(&c.Node6, "2001:db8:1::1")
	def(&c.Outside4, "192.0.2.10")
	def(&c.Outside6, "2001:db8:1::10")
	n := &Node{
		Addr4: c.Node4, Addr6: c.Node6, Outside4: c.Outside4, Outside6: c.Outside6,
		pods: map[string]*Pod{}, mtu: c.MTU,
	}
	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.NS, err = New(c.Name); err != nil {
		return nil, err
	}
	if n.Outside, err = New(c.Name + "-outside"); err != nil {
		return nil, err
	}
	for _, s := range [][2]string{
		{"net/ipv4/ip_forward", "1"},
		{"net/ipv6/conf/all/forwarding", "1"},
		{"net/ipv4/conf/all/rp_filter", "1"},
		{"net/ipv4/conf/default/rp_filter", "1"},
	} {
		if err := n.NS.Sysctl(s[0], s[1]); err != nil {
			return nil, err
		}
	}
	if err := Pair(n.NS, Uplink, n.Outside, PodDevice); err != nil {
		return nil, err
	}
	return n, errors.Join(
		n.setMTU(n.NS, Uplink), n.setMTU(n.Outside, PodDevice),
		n.NS.Addr(Uplink, netip.PrefixFrom(n.Addr4, 24)),
		n.NS.Addr(Uplink, netip.PrefixFrom(n.Addr6, 64)),
		n.Outside.Addr(PodDevice, netip.PrefixFrom(n.Outside4, 24)),
		n.Outside.Addr(PodDevice, netip.PrefixFrom(n.Outside6, 64)),
		neighbours(n.NS, Uplink, []netip.Addr{n.Addr4, n.Addr6}, n.Outside, PodDevice, []netip.Addr{n.Outside4, n.Outside6}),
		n.Outside.AddRoute(Route{Via: n.Addr4, Dev: PodDevice}),
		n.Outside.AddRoute(Route{Via: n.Addr6, Dev: PodDevice}),
	)
}

// AddPod adds a pod. v4 or v6 may be the zero Addr, but not both.
func (n *Node) AddPod(name string, v4, v6 netip.Addr) (pod *Pod, err error) {
	if n.pods[name] != nil {
		return nil, fmt.Errorf("add pod %s: it exists", name)
	}
	if !v4.IsValid() && !v6.IsValid() {
		return nil, fmt.Errorf("add pod %s: no address", name)
	}
	n.seq++
	p := &Pod{Name: name, Addr4: v4, Addr6: v6, HostDevice: fmt.Sprintf("tw%d", n.seq)}
	if p.NS, err = New(name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			p.NS.Close() // takes the veth pair with it
		}
	}()
	if err := Pair(n.NS, p.HostDevice, p.NS, PodDevice); err != nil {
		return nil, err
	}
	errs := []error{n.setMTU(n.NS, p.HostDevice), n.setMTU(p.NS, PodDevice)}
	for _, f := range []struct{ addr, gateway, src netip.Addr }{{v4, gateway4, n.Addr4}, {v6, gateway6, n.Addr6}} {
		if !f.addr.IsValid() {
			continue
		}
		host := netip.PrefixFrom(f.addr, f.addr.BitLen())
		errs = append(errs,
			p.NS.Addr(PodDevice, host),
			n.NS.AddRoute(Route{Dst: host, Dev: p.HostDevice, Src: f.src}),
			neighbours(n.NS, p.HostDevice, []netip.Addr{f.gateway}, p.NS, PodDevice, []netip.Addr{f.addr}),
			p.NS.AddRoute(Route{Via: f.gateway, Dev: PodDevice}),
		)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("add pod %s: %w", name, err)
	}
	n.pods[name] = p
	return p, nil
}

// Pod returns a pod by name, or nil.
func (n *Node) Pod(name string) *Pod { return n.pods[name] }

// RemovePod removes a pod and its device, as a CNI plugin does on pod deletion.
func (n *Node) RemovePod(name string) error {
	p := n.pods[name]
	if p == nil {
		return fmt.Errorf("remove pod %s: no such pod", name)
	}
	delete(n.pods, name)
	return errors.Join(n.NS.RemoveLink(p.HostDevice), p.NS.Close())
}

// Close lets go of every namespace. It may be called more than once.
func (n *Node) Close() error {
	var errs []error
	for _, p := range n.pods {
		errs = append(errs, p.NS.Close())
	}
	for _, ns := range []*NS{n.Outside, n.NS} {
		if ns != nil {
			errs = append(errs, ns.Close())
		}
	}
	return errors.Join(errs...)
}

func (n *Node) setMTU(ns *NS, dev string) error {
	if n.mtu == 0 {
		return nil
	}
	l, err := ns.Link(dev)
	if err != nil {
		return err
	}
	if err := ns.nl.LinkSetMTU(l, n.mtu); err != nil {
		return fmt.Errorf("set MTU of %s in %s: %w", dev, ns.name, err)
	}
	return nil
}

// neighbours tells each end of a veth pair who is at the other.
func neighbours(a *NS, devA string, addrsA []netip.Addr, b *NS, devB string, addrsB []netip.Addr) error {
	macA, err := a.MAC(devA)
	if err != nil {
		return err
	}
	macB, err := b.MAC(devB)
	if err != nil {
		return err
	}
	var errs []error
	for _, ip := range addrsB {
		errs = append(errs, a.Neigh(devA, ip, macB))
	}
	for _, ip := range addrsA {
		errs = append(errs, b.Neigh(devB, ip, macA))
	}
	return errors.Join(errs...)
}
