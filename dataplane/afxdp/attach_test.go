package afxdp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// podCIDRs are what nstest.Node gives its pods addresses from.
var podCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24"), netip.MustParsePrefix("fd00:10:244::/64")}

// know is update with the node's pod CIDRs known.
func (r *rig) know(t testing.TB, pods ...*netlab.Pod) {
	t.Helper()
	var locals []netip.Addr
	for _, p := range pods {
		locals = append(locals, p.Addr4, p.Addr6)
	}
	if err := r.backend.update(locals, dataplane.Change{}, podCIDRs...); err != nil {
		t.Fatal(err)
	}
}

// dialFrom opens a UDP socket in a namespace with a source of its choice.
func dialFrom(t testing.TB, ns *netlab.NS, from, to netip.AddrPort) net.Conn {
	t.Helper()
	c, err := ns.Dial(context.Background(), "udp", from, to)
	if err != nil {
		t.Fatalf("from %s to %s: %v", from, to, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// allowAll is a policy that would open everything that gets as far as userspace.
func allowAll(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.PassPacket }

// A pod that speaks before anybody has heard of it is not heard, whatever the
// policy; known, it is judged. Without a later hook and in front of one, which
// would let it pass because it has not heard of the pod either.
func TestUnknownPodsAreHeld(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		t.Run(fmt.Sprintf("strict=%v", strict), func(t *testing.T) {
			r := newRig(t, Config{Strict: strict})
			r.policy(allowAll)
			r.know(t)
			servers := map[bool]*netlab.Server{
				true:  nstest.Echo(t, r.Outside, "udp", r.Outside4, openPort),
				false: nstest.Echo(t, r.Outside, "udp", r.Outside6, openPort),
			}
			const pods, packets = 10, 20
			var last *netlab.Pod
			for i := range pods {
				// A CNI plugin takes longer to make a pod than its first step takes to be
				// noticed; the lab does not.
				last = r.AddPod(t, fmt.Sprint("p", i))
				nstest.Eventually(t, "the device is attached", func() bool { return r.attached() == i+1 })
				for _, s := range servers {
					c := dial(t, last.NS, "udp", s.Addr)
					for range packets { // no time for anybody to notice
						if _, err := c.Write([]byte("early")); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			held := uint64(0)
			for deadline := time.Now().Add(nstest.Timeout); held < pods*packets*2 && time.Now().Before(deadline); {
				held = r.counter(t, kern.CountUnknown)
			}
			if held != pods*packets*2 {
				t.Errorf("%d packets dropped as unknown, want %d", held, pods*packets*2)
			}
			for _, s := range servers {
				if n := s.Seen(); n != 0 {
					t.Errorf("%d packets of unknown pods arrived at %s", n, s.Addr)
				}
			}
			// Towards the pod, too.
			in := nstest.Echo(t, last.NS, "udp", last.Addr4, openPort)
			nstest.Unreachable(t, r.Outside, "udp", in.Addr)
			nstest.Unreachable(t, r.NS, "udp", in.Addr)
			if n := in.Seen(); n != 0 {
				t.Errorf("%d packets arrived at an unknown pod", n)
			}
			r.know(t, last)
			for _, s := range servers {
				nstest.Reach(t, last.NS, "udp", s.Addr)
			}
			nstest.Reach(t, r.Outside, "udp", in.Addr)
		})
	}
}

// Fail mode open lets unknown pods talk.
func TestUnknownPodsPassInOpenMode(t *testing.T) {
	r := newRig(t, Config{AttachConfig: AttachConfig{PassUnknown: true, PodCIDRs: podCIDRs}})
	r.update(t)
	a := r.AddPod(t, "a")
	nstest.Eventually(t, "the device is attached", func() bool { return r.attached() == 1 })
	nstest.Reach(t, a.NS, "udp", nstest.Echo(t, r.Outside, "udp", r.Outside4, closedPort).Addr)
	if r.counter(t, kern.CountForeign) == 0 || r.counter(t, kern.CountUnknown) != 0 {
		t.Error("the packets are not counted as somebody else's business")
	}
}

// Containers of somebody else are not cut off, fragments included, although their
// devices look like pods'. The uplink does not even get programs.
func TestForeignContainers(t *testing.T) {
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict})
		r.policy(func(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.DropPacket })
		r.know(t)
		p, err := r.Node.Node.AddPod("foreign", netip.MustParseAddr("172.17.0.2"), netip.MustParseAddr("fd00:17::2"))
		if err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, "the device is attached", func() bool { return r.attached() == 1 })
		for _, addr := range []netip.Addr{r.Outside4, r.Outside6} {
			for _, network := range []string{"tcp", "udp"} {
				nstest.Reach(t, p.NS, network, nstest.Echo(t, r.Outside, network, addr, closedPort).Addr)
			}
			c := dial(t, p.NS, "udp", netip.AddrPortFrom(addr, closedPort))
			if err := netlab.Exchange(c, make([]byte, 4000), nstest.Timeout); err != nil {
				t.Errorf("strict %v: datagram in fragments to %s: %v", strict, addr, err)
			}
			in := nstest.Echo(t, p.NS, "tcp", p.Addr(map[bool]int{true: 4, false: 6}[addr.Is4()]), closedPort)
			nstest.Reach(t, r.Outside, "tcp", in.Addr)
		}
		if up := r.upcalls(); len(up) != 0 {
			t.Errorf("strict %v: came up: %v", strict, up)
		}
		if n := programs(t, r.NS, netlab.Uplink); n != r.exits() {
			t.Errorf("%d programs on the uplink", n)
		}
	}
}

// A single address of the pods' networks behind a gateway is that of a pod on another node:
// the device towards the gateway is no pod's.
func TestHostRouteByGateway(t *testing.T) {
	r := newRig(t, Config{})
	r.know(t)
	before := r.attached()
	if err := r.NS.AddRoute(netlab.Route{Dst: netip.MustParsePrefix("10.244.0.77/32"), Via: r.Outside4, Dev: netlab.Uplink}); err != nil {
		t.Fatal(err)
	}
	r.know(t)
	if n := programs(t, r.NS, netlab.Uplink); n != r.exits() || r.attached() != before {
		t.Errorf("%d programs on the uplink, want %d; %d devices attached, want %d", n, r.exits(), r.attached(), before)
	}
}

// A pod's packets bear its own address. Without the check they would be judged,
// and remembered, as the other pod's.
func TestForgedSource(t *testing.T) {
	t.Parallel()
	for _, allow := range []bool{false, true} {
		r := newRig(t, Config{Strict: true, AttachConfig: AttachConfig{AllowSpoofing: allow}})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.know(t, a, b)
		s4, s6 := nstest.Echo(t, r.Outside, "udp", r.Outside4, openPort), nstest.Echo(t, r.Outside, "udp", r.Outside6, openPort)
		for _, c := range []struct {
			own, forged netip.Addr
			to          *netlab.Server
		}{
			{a.Addr4, b.Addr4, s4},
			{a.Addr6, b.Addr6, s6},
			{a.Addr4, netip.MustParseAddr("10.244.0.77"), s4}, // nobody's
			{a.Addr4, netip.MustParseAddr("198.51.100.7"), s4},
		} {
			s := c.to
			// b has an accepted flow, which must not be a's to use.
			if c.forged == b.Addr4 {
				flow := dialFrom(t, b.NS, netip.AddrPortFrom(c.forged, 4444), s.Addr)
				exchange(t, flow)
				flow.Close()
			}
			if err := a.NS.Addr(netlab.PodDevice, netip.PrefixFrom(c.forged, c.forged.BitLen())); err != nil {
				t.Fatal(err)
			}
			before, seen := r.counter(t, kern.CountForged), r.counter(t, kern.CountUpcall)+r.counter(t, kern.CountHit)+r.counter(t, kern.CountUnknown)
			conn := dialFrom(t, a.NS, netip.AddrPortFrom(c.forged, 4444), s.Addr)
			if _, err := conn.Write([]byte("forged")); err != nil {
				t.Fatal(err)
			}
			if allow {
				nstest.Eventually(t, "the packet is judged", func() bool {
					return r.counter(t, kern.CountUpcall)+r.counter(t, kern.CountHit)+r.counter(t, kern.CountUnknown) > seen
				})
				if n := r.counter(t, kern.CountForged); n != 0 {
					t.Errorf("%d packets dropped as forged, although that is allowed", n)
				}
				continue
			}
			nstest.Eventually(t, fmt.Sprint("the packet from ", c.forged, " is dropped and counted"), func() bool {
				return r.counter(t, kern.CountForged) == before+1
			})
			exchange(t, dialFrom(t, a.NS, netip.AddrPortFrom(c.own, 0), s.Addr)) // the pod itself is well
		}
	}
}

// The programs are there before the pod's address is.
func TestAttachedWhenTheLinkAppears(t *testing.T) {
	r := newRig(t, Config{})
	r.know(t)
	ns := nstest.New(t)
	nstest.Pair(t, &nstest.NS{NS: r.NS}, "tw9", ns, "eth0") // no address, no route
	made := time.Now()
	nstest.Eventually(t, "the device is attached", func() bool { return r.attached() == 1 })
	t.Logf("attached %v after the device was there", time.Since(made))
	if n := programs(t, r.NS, "tw9"); n != 2 {
		t.Errorf("%d programs, want 2", n)
	}
	// Both ends in the node's own namespace: no pod.
	l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "local0"}, PeerName: "local1"}
	if err := r.NS.Handle().LinkAdd(l); err != nil {
		t.Fatal(err)
	}
	if err := r.NS.RemoveLink("tw9"); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the device is released", func() bool { return r.attached() == 0 })
	if n := programs(t, r.NS, "local0"); n != 0 {
		t.Errorf("%d programs on a device of the node's own", n)
	}
}

// Devices that the configuration excludes are not touched.
func TestExcludedDevices(t *testing.T) {
	r := newRig(t, Config{AttachConfig: AttachConfig{Exclude: []string{"tw1"}}})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.know(t, a, b)
	if n, m := programs(t, r.NS, a.HostDevice), programs(t, r.NS, b.HostDevice); n != 0 || m != 2 {
		t.Errorf("%d and %d programs, want 0 and 2", n, m)
	}
}
