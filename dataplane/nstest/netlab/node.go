package netlab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"
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
	// Gateway4 and Gateway6 are addresses of the node's own inside the pods'
	// networks, with the length of these: what the pods' gateway is with the
	// common CNI plugins. The zero value is a gateway that nobody has (see
	// AddPod).
	Gateway4, Gateway6 netip.Prefix
	// Bridge names a bridge whose ports the pods are and which has the gateway
	// addresses; both are needed. "" = pods are routed, each over a veth of its
	// own that has the gateway addresses.
	Bridge string
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

	// Addresses inside the pods' networks; zero without.
	Gateway4, Gateway6 netip.Prefix

	pods   map[string]*Pod
	bridge string
	mtu    int
	seq    int
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
		Gateway4: c.Gateway4, Gateway6: c.Gateway6,
		pods: map[string]*Pod{}, bridge: c.Bridge, mtu: c.MTU,
	}
	if c.Bridge != "" && (!c.Gateway4.IsValid() || !c.Gateway6.IsValid()) {
		return nil, fmt.Errorf("bridge %s: no gateway addresses", c.Bridge)
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
		{"net/ipv4/conf/all/rp_filter", reversePathFilter()},
		{"net/ipv4/conf/default/rp_filter", reversePathFilter()},
	} {
		if err := n.NS.Sysctl(s[0], s[1]); err != nil {
			return nil, err
		}
	}
	if err := Pair(n.NS, Uplink, n.Outside, PodDevice); err != nil {
		return nil, err
	}
	if err := n.addBridge(); err != nil {
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
	if n.bridge != "" {
		errs = append(errs, n.plug(p))
	}
	for _, f := range []struct {
		addr, gateway, src netip.Addr
		own                netip.Prefix
	}{{v4, gateway4, n.Addr4, n.Gateway4}, {v6, gateway6, n.Addr6, n.Gateway6}} {
		switch {
		case !f.addr.IsValid() || n.bridge != "":
			continue
		case f.own.IsValid():
			f.gateway, f.src = f.own.Addr(), f.own.Addr()
			errs = append(errs, n.NS.Addr(p.HostDevice, netip.PrefixFrom(f.gateway, f.gateway.BitLen())))
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

// addBridge makes the pods' bridge, as CNI's bridge plugin does; none without a
// name.
func (n *Node) addBridge() error {
	if n.bridge == "" {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = n.bridge
	// Or the address would change with every new port.
	attrs.HardwareAddr = net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 1}
	if err := n.NS.nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		return fmt.Errorf("create bridge %s in %s: %w", n.bridge, n.NS.name, err)
	}
	return errors.Join(
		n.NS.Sysctl("net/ipv6/conf/"+n.bridge+"/addr_gen_mode", "1"), // see Pair
		n.NS.Up(n.bridge), n.setMTU(n.NS, n.bridge),
		// Without it the kernel solicits no neighbour for a packet it forwards.
		n.NS.Addr(n.bridge, netip.PrefixFrom(gateway6, 64)),
		n.NS.Addr(n.bridge, n.Gateway4), n.NS.Addr(n.bridge, n.Gateway6))
}

// plug makes a pod's device a port of the bridge, which is the pod's gateway and
// may send a packet back to where it came from: a pod reaches its own Service.
// Neighbours are found by ARP and neighbour discovery, as in life.
func (n *Node) plug(p *Pod) error {
	port, err := n.NS.Link(p.HostDevice)
	if err != nil {
		return err
	}
	bridge, err := n.NS.Link(n.bridge)
	if err != nil {
		return err
	}
	errs := []error{
		n.NS.nl.LinkSetMaster(port, bridge), n.NS.nl.LinkSetHairpin(port, true),
		n.NS.own(gateway6), n.NS.own(n.Gateway6.Addr()), // with a port it is ready
	}
	for _, f := range []struct {
		addr netip.Addr
		own  netip.Prefix
	}{{p.Addr4, n.Gateway4}, {p.Addr6, n.Gateway6}} {
		if f.addr.IsValid() {
			errs = append(errs,
				p.NS.Addr(PodDevice, netip.PrefixFrom(f.addr, f.own.Bits())),
				p.NS.AddRoute(Route{Via: f.own.Addr(), Dev: PodDevice}))
		}
	}
	return errors.Join(errs...)
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

// RPFilterEnv names the environment variable with the nodes' reverse path filtering
// (net.ipv4.conf.all.rp_filter): 0, 1 or 2. Without it nodes have 1, as distributions do.
const RPFilterEnv = "TIERWALL_LAB_RP_FILTER"

func reversePathFilter() string {
	if v := os.Getenv(RPFilterEnv); v != "" {
		return v
	}
	return "1"
}
