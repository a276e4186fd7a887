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
				held = r.counter(t, countUnknown)
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
	if r.counter(t, countForeign) == 0 || r.counter(t, countUnknown) != 0 {
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
			before, seen := r.counter(t, countForged), r.counter(t, countUpcall)+r.counter(t, countHit)+r.counter(t, countUnknown)
			conn := dialFrom(t, a.NS, netip.AddrPortFrom(c.forged, 4444), s.Addr)
			if _, err := conn.Write([]byte("forged")); err != nil {
				t.Fatal(err)
			}
			if allow {
				nstest.Eventually(t, "the packet is judged", func() bool {
					return r.counter(t, countUpcall)+r.counter(t, countHit)+r.counter(t, countUnknown) > seen
				})
				if n := r.counter(t, countForged); n != 0 {
					t.Errorf("%d packets dropped as forged, although that is allowed", n)
				}
				continue
			}
			nstest.Eventually(t, fmt.Sprint("the packet from ", c.forged, " is dropped and counted"), func() bool {
				return r.counter(t, countForged) == before+1
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

// A namespace number tells which pod is at the other end.
func TestPeerAddresses(t *testing.T) {
	nstest.Need(t)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	if err := node.NS.Do(func() error {
		p, err := newPeers()
		if err != nil {
			return err
		}
		defer p.close()
		for _, pod := range []*netlab.Pod{a, b} {
			l, err := node.NS.Link(pod.HostDevice)
			if err != nil {
				return err
			}
			got, err := p.addresses(l.Attrs().NetNsID, l.Attrs().ParentIndex)
			if err != nil {
				return err
			}
			if len(got) != 2 || got[0] != pod.Addr4 || got[1] != pod.Addr6 {
				return fmt.Errorf("behind %s: %v, want %v and %v", pod.HostDevice, got, pod.Addr4, pod.Addr6)
			}
		}
		if got, err := p.addresses(12345, 2); err == nil {
			return fmt.Errorf("of a namespace that is not there: %v", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// makePlan, row by row.
func TestPlan(t *testing.T) {
	addr, pfx := netip.MustParseAddr, netip.MustParsePrefix
	const bridge, other = 50, 51
	veth := func(index int, name string, nsid, master int) netlink.Link {
		return &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: index, Name: name, NetNsID: nsid, MasterIndex: master}}
	}
	k := known{locals: map[netip.Addr]bool{addr("10.244.0.2"): true, addr("fd00::2"): true, addr("10.244.0.9"): true}, cidrs: []netip.Prefix{pfx("10.244.0.0/24")}}
	none := known{locals: k.locals}
	for _, c := range []struct {
		name   string
		link   netlink.Link
		hosts  string // host route
		net    string // other route
		behind string
		known  known
		config Config
		want   string // "", candidate, pod, bridged; + bound
	}{
		{name: "routed pod", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, want: "pod bound"},
		{name: "routed pod, IPv6", link: veth(3, "cali1", 0, 0), hosts: "fd00::2", known: k, want: "pod bound"},
		{name: "routed pod, no pod CIDRs", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: none, want: "pod bound"},
		{name: "routed pod with both ends here", link: veth(3, "cali1", -1, 0), hosts: "10.244.0.2", known: k, want: "pod bound"},
		{name: "spoofing allowed", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, config: Config{AttachConfig: AttachConfig{AllowSpoofing: true}}, want: "pod"},
		{name: "route to an unknown pod", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.3", known: k, want: "pod"},
		{name: "was a pod's", link: veth(3, "cali1", 0, 0), known: known{locals: k.locals, pods: map[int]bool{3: true}}, want: "pod"},
		{name: "nothing known", link: veth(3, "cali1", 0, 0), known: k, want: "candidate"},
		{name: "nothing known, no pod CIDRs", link: veth(3, "cali1", 0, 0), known: none},
		{name: "both ends here", link: veth(3, "v", -1, 0), known: k},
		{name: "an uplink", link: veth(3, "eth0", 0, 0), net: "192.0.2.0/24", known: k},
		{name: "an uplink with the default route", link: veth(3, "eth0", 0, 0), net: "::/0", known: k},
		{name: "a subnet of the pods", link: veth(3, "v", 0, 0), net: "10.244.0.128/25", known: k, want: "candidate"},
		{name: "no veth", link: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Index: 3, Name: "d", NetNsID: -1}}, hosts: "10.244.0.2", known: k},
		{name: "excluded", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, config: Config{AttachConfig: AttachConfig{Exclude: []string{"cali*"}}}},
		{name: "not wanted", link: veth(3, "cali1", 0, 0), hosts: "10.244.0.2", known: k, config: Config{Devices: []string{"veth*"}}},
		{name: "ours", link: veth(3, UpcallStack, 0, 0), known: k},
		{name: "bridge of pods", link: veth(3, "veth1", 0, bridge), behind: "10.244.0.2", known: k, want: "bridged bound"},
		{name: "bridge of pods, pod unknown", link: veth(3, "veth1", 0, bridge), behind: "10.244.0.3", known: k, want: "bridged"},
		{name: "bridge of pods, namespace out of reach", link: veth(3, "veth1", 0, bridge), known: k, want: "bridged"},
		{name: "bridge of others", link: veth(3, "veth1", 0, other), known: k, want: "candidate"},
	} {
		s := &scene{
			links: map[int]netlink.Link{
				3:      c.link,
				bridge: &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: bridge, Name: "cni0", NetNsID: -1}},
				other:  &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Index: other, Name: "docker0", NetNsID: -1}},
			},
			hosts: map[int][]netip.Addr{},
			nets:  map[int][]netip.Prefix{bridge: {pfx("10.244.0.0/24")}, other: {pfx("172.17.0.0/16")}},
		}
		if c.hosts != "" {
			s.hosts[3] = []netip.Addr{addr(c.hosts)}
		}
		if c.net != "" {
			s.nets[3] = []netip.Prefix{pfx(c.net)}
		}
		p := c.config.makePlan(s, c.known, func(netlink.Link) (a []netip.Addr) {
			if c.behind != "" {
				a = append(a, addr(c.behind))
			}
			return a
		}, func(flow.Addr) uint32 { return 0 })
		got := ""
		if pl, ok := p.places[3]; ok {
			switch {
			case pl.guard.Bridge != 0:
				got = "bridged"
			case pl.guard.Flags&guardPod != 0:
				got = "pod"
			default:
				got = "candidate"
			}
			if pl.guard.Flags&guardBound != 0 {
				got += " bound"
			}
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// Of two devices that claim a pod's address the one that had it keeps it, and the
// other one is not bound to it.
func TestContestedAddress(t *testing.T) {
	a, b := netip.MustParseAddr("10.244.0.2"), netip.MustParseAddr("10.244.0.3")
	s := &scene{links: map[int]netlink.Link{}, hosts: map[int][]netip.Addr{3: {a}, 4: {b, a}}}
	for i := 3; i < 5; i++ {
		s.links[i] = &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: i, Name: fmt.Sprint("v", i)}}
	}
	for before, owner := range map[uint32]uint32{0: 3, 3: 3, 4: 4, 9: 3} {
		var c Config
		p := c.makePlan(s, known{locals: map[netip.Addr]bool{a: true, b: true}}, nil, func(flow.Addr) uint32 { return before })
		if got := p.pods[flow.AddrFrom(a)].Ifindex; got != owner || len(p.twice) != 1 || p.twice[0] != a {
			t.Errorf("before on %d: now on %d, contested %v, want %d", before, got, p.twice, owner)
		}
		for i, pl := range p.places {
			want := i == int(owner)
			got := false
			for _, x := range pl.guard.Addrs {
				got = got || x == flow.AddrFrom(a)
			}
			if got != want {
				t.Errorf("before on %d: device %d is bound to the address: %v", before, i, got)
			}
		}
	}
}

// The kernel may keep a default route for IPv6 as nil and writes IPv4 networks in
// 16 bytes at times.
func TestPrefixOf(t *testing.T) {
	if _, ok := prefixOf(nil); ok {
		t.Error("nil is a prefix")
	}
	for _, s := range []string{"10.244.0.2/32", "10.0.0.0/8", "fd00::/64", "fd00::1/128", "0.0.0.0/0"} {
		n, err := netlink.ParseIPNet(s)
		if err != nil {
			t.Fatal(err)
		}
		n.IP = n.IP.Mask(n.Mask)
		if p, ok := prefixOf(n); !ok || p != netip.MustParsePrefix(s) {
			t.Errorf("%s: %v, %v", s, p, ok)
		}
	}
}
