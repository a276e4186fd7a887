package afxdp

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// bridgeName is the bridge that CNI's bridge plugin makes by default.
const bridgeName = "cni0"

var (
	bridge4 = netip.MustParsePrefix("10.244.0.1/24")
	bridge6 = netip.MustParsePrefix("fd00:10:244::1/64")
)

// addBridge makes a node's pods' bridge, which is their gateway.
func addBridge(t *testing.T, node *nstest.Node) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	// As the plugin does: or the address would change with every new port.
	attrs.HardwareAddr = net.HardwareAddr{0x0a, 0x58, 10, 244, 0, 1}
	if err := node.NS.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{node.NS.Up(bridgeName), node.NS.Addr(bridgeName, bridge4), node.NS.Addr(bridgeName, bridge6)} {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// addBridged adds a pod behind the bridge. Neighbours are found by ARP and
// neighbour discovery, as in life.
func addBridged(t *testing.T, node *nstest.Node, name string) *netlab.Pod {
	t.Helper()
	p := &netlab.Pod{Name: name, NS: nstest.New(t).NS, HostDevice: fmt.Sprint("br", node.Next)}
	p.Addr4 = netip.AddrFrom4([4]byte{10, 244, 0, byte(node.Next)})
	p.Addr6 = netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 4: 0x02, 5: 0x44, 15: byte(node.Next)})
	node.Next++
	if err := netlab.Pair(node.NS, p.HostDevice, p.NS, netlab.PodDevice); err != nil {
		t.Fatal(err)
	}
	nl := node.NS.Handle()
	port, err := node.NS.Link(p.HostDevice)
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := node.NS.Link(bridgeName)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		nl.LinkSetMaster(port, bridge), nl.LinkSetHairpin(port, true),
		p.NS.Addr(netlab.PodDevice, netip.PrefixFrom(p.Addr4, 24)),
		p.NS.Addr(netlab.PodDevice, netip.PrefixFrom(p.Addr6, 64)),
		p.NS.AddRoute(netlab.Route{Via: bridge4.Addr(), Dev: netlab.PodDevice}),
		p.NS.AddRoute(netlab.Route{Via: bridge6.Addr(), Dev: netlab.PodDevice}),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// Pods on one bridge meet no hook but ours: every packet between them is judged
// for good here, with and without a later hook. What they exchange with the rest
// of the world is judged as a routed pod's.
func TestBridgedPods(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprintf("strict=%v", strict), func(t *testing.T) {
			r := newRig(t, Config{Strict: strict})
			addBridge(t, r.Node)
			a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
			// A routed one beside them.
			c, err := r.Node.Node.AddPod("c", netip.MustParseAddr("10.245.0.2"), netip.MustParseAddr("fd00:10:245::2"))
			if err != nil {
				t.Fatal(err)
			}
			r.know(t, a, b, c)
			if n := r.attached(); n != 3 {
				t.Fatalf("%d devices attached, want 3", n)
			}
			for _, network := range []string{"tcp", "udp"} {
				for _, family := range []int{4, 6} {
					open := nstest.Echo(t, b.NS, network, b.Addr(family), openPort)
					closed := nstest.Echo(t, b.NS, network, b.Addr(family), closedPort)
					r.upcalls()
					nstest.Reach(t, a.NS, network, open.Addr)
					up := r.upcalls()
					if len(up) == 0 {
						t.Errorf("%s to %s was not judged", network, open.Addr)
					}
					for _, s := range up {
						if !s.final {
							t.Errorf("%v: not final, although no forward hook sees it", s.key)
						}
					}
					nstest.Unreachable(t, a.NS, network, closed.Addr)
					nstest.Reach(t, c.NS, network, open.Addr)
					nstest.Unreachable(t, c.NS, network, closed.Addr)
					if n := closed.Seen(); n != 0 {
						t.Errorf("%s %s: %d denied connections arrived", network, closed.Addr, n)
					}
					if strict {
						nstest.Reach(t, r.Outside, network, open.Addr)
						nstest.Unreachable(t, r.Outside, network, closed.Addr)
						nstest.Reach(t, r.NS, network, open.Addr)
					} else { // the forward hook has judged it
						nstest.Reach(t, r.Outside, network, closed.Addr)
						nstest.Reach(t, r.NS, network, closed.Addr)
					}
					far := nstest.Echo(t, r.Outside, network, map[int]netip.Addr{4: r.Outside4, 6: r.Outside6}[family], openPort)
					r.upcalls()
					nstest.Reach(t, a.NS, network, far.Addr)
					for _, s := range r.upcalls() {
						if s.final != strict {
							t.Errorf("%v: final %v", s.key, s.final)
						}
					}
				}
			}
			if n := r.counter(t, kern.CountStray); n != 0 {
				t.Errorf("%d stray frames on the upcall pair", n)
			}
		})
	}
}

// Flows between bridged pods come up once, and a change of policy ends them.
func TestBridgedFlowStaysInTheKernel(t *testing.T) {
	r := newRig(t, Config{})
	addBridge(t, r.Node)
	a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
	r.know(t, a, b)
	for _, family := range []int{4, 6} {
		c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr(family), openPort).Addr)
		exchange(t, c)
		r.upcalls()
		for range 20 {
			exchange(t, c)
		}
		if up := r.upcalls(); len(up) != 0 {
			t.Errorf("IPv%d: came up %v", family, up)
		}
		r.policy(deferEverything) // there is nobody to defer to
		r.know(t, a, b)
		if err := echoes(c, nstest.Blocked); err == nil {
			t.Errorf("IPv%d: deferred between ports of a bridge and passed", family)
		}
		r.policy(allowOpenPort)
		r.know(t, a, b)
		exchange(t, c)
	}
}

// What cannot be judged does not pass between ports, whoever comes later.
func TestBridgedFragmentsAreDropped(t *testing.T) {
	r := newRig(t, Config{})
	addBridge(t, r.Node)
	a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
	r.know(t, a, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	c := dial(t, a.NS, "udp", s.Addr)
	exchange(t, c)
	before := r.counter(t, kern.CountDrop)
	if err := netlab.Exchange(c, make([]byte, 4000), nstest.Blocked); err == nil {
		t.Error("fragments passed between ports of a bridge")
	}
	if n := r.counter(t, kern.CountDrop) - before; n != 3 {
		t.Errorf("%d packets dropped, want the 3 fragments", n)
	}
}

// A pod on a bridge cannot speak for another, known or not.
func TestBridgedForgedAndUnknown(t *testing.T) {
	r := newRig(t, Config{})
	r.policy(allowAll)
	addBridge(t, r.Node)
	a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
	r.know(t, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	nstest.Unreachable(t, a.NS, "udp", s.Addr)
	if r.counter(t, kern.CountUnknown) == 0 || s.Seen() != 0 {
		t.Errorf("an unknown pod's packets: %d dropped, %d arrived", r.counter(t, kern.CountUnknown), s.Seen())
	}
	r.know(t, a, b)
	nstest.Reach(t, a.NS, "udp", s.Addr)
	victim := addBridged(t, r.Node, "victim")
	r.know(t, a, b, victim)
	if err := a.NS.Addr(netlab.PodDevice, netip.PrefixFrom(victim.Addr4, 32)); err != nil {
		t.Fatal(err)
	}
	r.know(t, a, b, victim) // a's claim is heard, and comes too late
	seen := s.Seen()
	c := dialFrom(t, a.NS, netip.AddrPortFrom(victim.Addr4, 4444), s.Addr)
	if _, err := c.Write([]byte("forged")); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the packet is dropped and counted", func() bool { return r.counter(t, kern.CountForged) == 1 })
	nstest.Reach(t, victim.NS, "udp", s.Addr)
	if n := s.Seen() - seen; n != 1 {
		t.Errorf("%d packets arrived, want the victim's own", n)
	}
}

// Frames keep their addresses on the way through userspace: a bridge sends to a
// pod in its neighbours' names.
func TestBridgedFramesKeepTheirSource(t *testing.T) {
	r := newRig(t, Config{})
	r.forget = true // every packet makes the way
	r.policy(allowAll)
	addBridge(t, r.Node)
	a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
	r.know(t, a, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	mac, err := a.NS.MAC(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	frames := capture(t, b.NS, netlab.PodDevice)
	nstest.Reach(t, a.NS, "udp", s.Addr)
	for {
		f := frames()
		// The bridge sends frames of its own, such as IGMP reports.
		if len(f) > 34 && binary.BigEndian.Uint16(f[12:]) == 0x0800 && [4]byte(f[26:30]) == a.Addr4.As4() {
			if from := net.HardwareAddr(f[6:12]); from.String() != mac.String() {
				t.Errorf("source %s, want %s", from, mac)
			}
			return
		}
	}
}

// Nor can a pod answer for another one when somebody asks who has its address.
func TestBridgedForgedNeighbour(t *testing.T) {
	r := newRig(t, Config{})
	r.policy(allowAll)
	addBridge(t, r.Node)
	a, b, victim := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b"), addBridged(t, r.Node, "victim")
	r.know(t, a, b, victim)
	for _, addr := range []netip.Addr{victim.Addr4, victim.Addr6} {
		before := r.counter(t, kern.CountForged)
		// Taking an address with the plain system call makes Linux tell nobody;
		// asking for a neighbour in its name does.
		if err := a.NS.Addr(netlab.PodDevice, netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			t.Fatal(err)
		}
		to := b.Addr4
		if addr.Is6() {
			to = b.Addr6
		}
		// b asks a for the victim's address, because a has just sent something
		// in its name; a would answer.
		c := dialFrom(t, a.NS, netip.AddrPortFrom(addr, 4444), netip.AddrPortFrom(to, openPort))
		c.Write([]byte("hello"))
		nstest.Eventually(t, "something forged is dropped", func() bool { return r.counter(t, kern.CountForged) > before })
	}
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	nstest.Reach(t, victim.NS, "udp", s.Addr)
}
