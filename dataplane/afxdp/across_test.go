package afxdp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// went returns how many of the packets sent by f went across.
func (r *rig) went(t testing.TB, f func()) uint64 {
	t.Helper()
	before := r.counter(t, kern.CountAcross)
	f()
	return r.counter(t, kern.CountAcross) - before
}

// learn exchanges packets on an accepted flow until they go across.
func (r *rig) learn(t testing.TB, c net.Conn) {
	t.Helper()
	nstest.Eventually(t, "packets go across", func() bool {
		return r.went(t, func() {
			for range 20 {
				exchange(t, c)
			}
		}) >= 2
	})
}

// Packets of accepted flows between pods go across once their way is known, both
// directions, TCP and UDP; the stack sees the others.
func TestAcross(t *testing.T) {
	needWays(t)
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict, Accelerate: true})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		marked := countMarked(t, r.NS, DefaultMarks.Fast)
		r.update(t, a, b)
		var c net.Conn
		for _, network := range []string{"tcp", "udp"} {
			for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
				c = dial(t, a.NS, network, nstest.Echo(t, b.NS, network, addr, openPort).Addr)
				const rounds = 100
				// A way is learnt anew on every CPU, and every second: a machine that
				// makes this take seconds does not do so every time.
				for try := 1; ; try++ {
					stack, before := marked(), r.backend.Stats()
					across := r.went(t, func() {
						for range rounds {
							exchange(t, c)
						}
					})
					saw := marked() - stack
					if n := r.backend.Stats().Bypassed - before.Bypassed; n < 2*rounds-2 {
						t.Errorf("%d packets counted as passed in the kernel", n)
					}
					if across >= 2*rounds-20 && saw <= 20 {
						break
					}
					if try == timeTries {
						t.Errorf("strict %v, %s to %s: %d of %d packets went across, the stack saw %d", strict, network, addr, across, 2*rounds, saw)
						break
					}
				}
			}
		}
		// One a second, for those who look.
		stack := marked()
		for start := time.Now(); time.Since(start) < 3*wayTime; time.Sleep(5 * time.Millisecond) {
			exchange(t, c)
		}
		// Two directions, and goroutines that may change the CPU.
		if n := marked() - stack; n < 4 || n > max(40, 16*uint64(runtime.NumCPU())) {
			t.Errorf("the stack saw %d packets of a flow in %v", n, 3*wayTime)
		}
		for _, ns := range []*netlab.NS{a.NS, b.NS} {
			for _, protocol := range []string{"Tcp", "Udp"} {
				if n := snmp(t, ns, protocol, "InCsumErrors"); n != "0" {
					t.Errorf("%s %s packets with a bad checksum in %s", n, protocol, ns.Name())
				}
			}
		}
	}
}

// A megabyte each way arrives intact, segmentation offload included, whatever hook
// the programs are on.
func TestLargeTransferAcross(t *testing.T) {
	for _, mode := range []attach.Mode{attach.TCX, attach.Clsact} {
		t.Run(string(mode), func(t *testing.T) { largeTransferAcross(t, mode) })
	}
}

func largeTransferAcross(t *testing.T, mode attach.Mode) {
	needWays(t)
	if mode == attach.TCX {
		needTCX(t)
	}
	r := newRig(t, Config{Strict: true, Accelerate: true, AttachConfig: AttachConfig{Attach: mode}})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		s := nstest.Echo(t, b.NS, "tcp", addr, openPort)
		if n := r.went(t, func() {
			if err := transfer(dial(t, a.NS, "tcp", s.Addr), randomBytes(1<<20)); err != nil {
				t.Errorf("transfer to %s: %v", addr, err)
			}
		}); n < 20 {
			t.Errorf("transfer to %s: %d packets went across", addr, n)
		}
	}
	for _, ns := range []*netlab.NS{a.NS, b.NS} {
		if n := snmp(t, ns, "Tcp", "InCsumErrors"); n != "0" {
			t.Errorf("%s packets with a bad checksum in %s", n, ns.Name())
		}
	}
}

// A packet that went across is, when it arrives, what the stack would have made
// of it.
func TestAcrossLooksRouted(t *testing.T) {
	r := newRig(t, Config{Strict: true, Accelerate: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", addr, openPort).Addr)
		frames := capture(t, b.NS, netlab.PodDevice)
		next := func() []byte {
			for {
				f := frames()
				if n := len(f); n > 42 && bytes.HasSuffix(f, []byte("ping")) {
					f = append([]byte(nil), f...)
					if binary.BigEndian.Uint16(f[12:]) == 0x0800 {
						if sum := checksum(f[14:34]); sum != 0 {
							t.Errorf("header checksum is off by %#x", sum)
						}
						f[18], f[19], f[24], f[25] = 0, 0, 0, 0 // the identifier, and so the checksum
					}
					f[n-6], f[n-5] = 0, 0 // completed on the way through userspace
					return f
				}
			}
		}
		var routed []byte
		if n := r.went(t, func() { exchange(t, c); routed = next() }); n != 0 {
			t.Fatalf("the first packet went across")
		}
		r.learn(t, c)
		frames = capture(t, b.NS, netlab.PodDevice) // from here on
		var across []byte
		nstest.Eventually(t, "a packet goes across", func() bool {
			n := r.went(t, func() { exchange(t, c); across = next() })
			return n == 2
		})
		if !bytes.Equal(routed, across) {
			t.Errorf("to %s\nrouted % x\nacross % x", addr, routed, across)
		}
	}
}

// What the stack has to answer it gets: packets that do not fit the destination's
// device, and those at the end of their way.
func TestStackAnswers(t *testing.T) {
	t.Parallel()
	needWays(t)
	for _, family := range []int{4, 6} {
		r := newRig(t, Config{Strict: true, Accelerate: true})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.policy(allowAll)
		r.update(t, a, b)
		s := nstest.Echo(t, b.NS, "udp", b.Addr(family), openPort)
		c := dial(t, a.NS, "udp", s.Addr)
		r.learn(t, c)
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		set := func(option, value int) {
			t.Helper()
			level := map[int]int{4: unix.IPPROTO_IP, 6: unix.IPPROTO_IPV6}[family]
			if cerr := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }); cerr != nil || err != nil {
				t.Fatal(cerr, err)
			}
		}
		errs, hops := unix.IP_RECVERR, unix.IP_TTL
		if family == 6 {
			errs, hops = unix.IPV6_RECVERR, unix.IPV6_UNICAST_HOPS
		}
		set(errs, 1)
		seen := s.Seen()
		set(hops, 1)
		if n := r.went(t, func() {
			c.Write([]byte("short-lived"))
			nstest.Eventually(t, "the stack says that a hop limit was exceeded", func() bool {
				return errors.Is(echoes(c, 50*time.Millisecond), syscall.EHOSTUNREACH)
			})
		}); n != 0 {
			t.Errorf("IPv%d: %d packets with hop limit 1 went across", family, n)
		}
		if n := s.Seen() - seen; n != 0 {
			t.Errorf("IPv%d: %d packets with hop limit 1 arrived", family, n)
		}
		set(hops, 2)
		set(errs, 0)
		nstest.Eventually(t, "the last error has been read", func() bool { return echoes(c, 50*time.Millisecond) == nil })
		r.learn(t, c)
		// Smaller than the pod knows.
		l, err := r.NS.Link(b.HostDevice)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.NS.Handle().LinkSetMTU(l, 1300); err != nil {
			t.Fatal(err)
		}
		time.Sleep(wayTime + 2*coarseTick(t)) // until it is learnt anew
		r.learn(t, c)
		seen = s.Seen()
		discover, do := unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
		if family == 6 {
			discover, do = unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
		}
		set(discover, do)
		if n := r.went(t, func() {
			nstest.Eventually(t, "the stack says that a packet is too big", func() bool {
				_, err := c.Write(make([]byte, 1350))
				return errors.Is(err, syscall.EMSGSIZE)
			})
		}); n != 0 {
			t.Errorf("IPv%d: %d packets larger than the MTU went across", family, n)
		}
		if n := s.Seen() - seen; n != 0 {
			t.Errorf("IPv%d: %d packets larger than the MTU arrived", family, n)
		}
		// TCP finds out by itself and goes on across. The pods' own devices still
		// have 1500.
		tcp := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr(family), openPort).Addr)
		if n := r.went(t, func() {
			if err := transfer(tcp, randomBytes(1<<20)); err != nil {
				t.Errorf("IPv%d: transfer with a smaller MTU on the way: %v", family, err)
			}
		}); n < 20 {
			t.Errorf("IPv%d: %d packets of the transfer went across", family, n)
		}
	}
}

// A change of policy cuts what it denies with the next packet, and only that.
func TestPolicyChangeAcross(t *testing.T) {
	t.Parallel()
	needWays(t)
	for _, network := range []string{"udp", "tcp"} {
		for _, family := range []int{4, 6} {
			r := newRig(t, Config{Strict: true, Accelerate: true})
			a, b, d := r.AddPod(t, "a"), r.AddPod(t, "b"), r.AddPod(t, "d")
			r.update(t, a, b, d)
			s := nstest.Echo(t, b.NS, network, b.Addr(family), openPort)
			cut := dial(t, a.NS, network, s.Addr)
			kept := dial(t, a.NS, network, nstest.Echo(t, d.NS, network, d.Addr(family), openPort).Addr)
			r.learn(t, cut)
			r.learn(t, kept)
			r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
				if k.Dst == flow.AddrFrom(b.Addr(family)) {
					return dataplane.DropPacket
				}
				return allowOpenPort(k, p)
			})
			if err := r.backend.update(podAddrs(a, b, d), dataplane.ChangeWithin(touching(flow.AddrFrom(b.Addr(family))))); err != nil {
				t.Fatal(err)
			}
			seen := s.Seen()
			if n := r.went(t, func() {
				if err := echoes(cut, nstest.Blocked); err == nil {
					t.Errorf("%s IPv%d: the denied flow goes on", network, family)
				}
			}); n != 0 || network == "udp" && s.Seen() != seen {
				t.Errorf("%s IPv%d: %d packets of the denied flow went across, %d arrived", network, family, n, s.Seen()-seen)
			}
			r.learn(t, kept)
		}
	}
}

// A flow in use does not expire while it goes across, and an idle one does.
func TestIdleAcross(t *testing.T) {
	const idle = time.Second
	r := newRig(t, Config{Strict: true, Accelerate: true, Timeouts: Timeouts{UDP: idle}})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	r.learn(t, c)
	if up := r.inUse(t, c, idle); len(up) != 0 {
		t.Errorf("%d packets of a flow in use came up", len(up))
	}
	if up := r.afterPause(t, c, idle); len(up) != 1 || up[0].reply {
		t.Errorf("after %v: came up %v, want the first packet of a new flow", 3*idle, up)
	}
}

// When a pod is gone, what is sent to it takes the stack again; a pod that gets its
// address is reached on its own device.
func TestDestinationGone(t *testing.T) {
	r := newRig(t, Config{Strict: true, Accelerate: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	r.learn(t, c)
	if err := r.RemovePod("b"); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the device is released", func() bool { return r.attached() == 1 })
	if err := r.backend.thread.do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if n := r.went(t, func() {
		for range 10 {
			c.Write([]byte("hello?")) // may fail: the stack says that there is nobody
		}
	}); n != 0 {
		t.Errorf("%d packets went across to a pod that is gone", n)
	}
	heir, err := r.Node.Node.AddPod("heir", b.Addr4, b.Addr6)
	if err != nil {
		t.Fatal(err)
	}
	r.update(t, a, heir)
	nstest.Echo(t, heir.NS, "udp", b.Addr4, openPort)
	nstest.Eventually(t, "the heir answers", func() bool { return echoes(c, 100*time.Millisecond) == nil })
	r.learn(t, c)
}

// An address that moves to another pod takes its flows along.
func TestDestinationMoves(t *testing.T) {
	r := newRig(t, Config{Strict: true, Accelerate: true})
	a, b, d := r.AddPod(t, "a"), r.AddPod(t, "b"), r.AddPod(t, "d")
	r.update(t, a, b, d)
	old := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	c := dial(t, a.NS, "udp", old.Addr)
	r.learn(t, c)
	if err := d.NS.Addr(netlab.PodDevice, netip.PrefixFrom(b.Addr4, 32)); err != nil {
		t.Fatal(err)
	}
	moved := nstest.Echo(t, d.NS, "udp", b.Addr4, openPort)
	mac, err := d.NS.MAC(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	to, err := r.NS.Link(d.HostDevice)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.NS.Neigh(d.HostDevice, b.Addr4, mac); err != nil {
		t.Fatal(err)
	}
	if err := r.NS.Handle().RouteReplace(&netlink.Route{
		LinkIndex: to.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(b.Addr4.AsSlice()),
	}); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the guard knows", func() bool {
		var owner kern.LocalPod
		err := r.backend.objects.LocalPods.Lookup(flow.AddrFrom(b.Addr4), &owner)
		return err == nil && int(owner.Ifindex) == to.Attrs().Index
	})
	if err := r.backend.thread.do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	seen := old.Seen()
	nstest.Eventually(t, "the address answers at its new place", func() bool { return echoes(c, 100*time.Millisecond) == nil })
	r.learn(t, c)
	if n := old.Seen() - seen; n != 0 || moved.Seen() == 0 {
		t.Errorf("%d packets went to the old place, %d to the new one", n, moved.Seen())
	}
}

// Between ports of a bridge packets go across as they are.
func TestAcrossBridge(t *testing.T) {
	t.Parallel()
	needWays(t)
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict, Accelerate: true})
		addBridge(t, r.Node)
		a, b := addBridged(t, r.Node, "a"), addBridged(t, r.Node, "b")
		r.know(t, a, b)
		for _, network := range []string{"udp", "tcp"} {
			for _, family := range []int{4, 6} {
				s := nstest.Echo(t, b.NS, network, b.Addr(family), openPort)
				c := dial(t, a.NS, network, s.Addr)
				exchange(t, c)
				r.learn(t, c)
				r.policy(func(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.DropPacket })
				r.know(t, a, b)
				if err := echoes(c, nstest.Blocked); err == nil {
					t.Errorf("strict %v, %s IPv%d: the denied flow goes on", strict, network, family)
				}
				r.policy(allowOpenPort)
				r.know(t, a, b)
				c.Close()
			}
		}
		// As they are: with the hop limit they were sent with.
		c := dial(t, a.NS, "udp", netip.AddrPortFrom(b.Addr4, openPort))
		r.learn(t, c)
		frames := capture(t, b.NS, netlab.PodDevice)
		r.learn(t, c)
		mac, err := a.NS.MAC(netlab.PodDevice)
		if err != nil {
			t.Fatal(err)
		}
		for {
			f := frames()
			if bytes.HasSuffix(f, []byte("ping")) {
				if !bytes.Equal(f[6:12], mac) || f[14+8] != 64 {
					t.Errorf("strict %v: frame from % x with hop limit %d, want % x and 64", strict, f[6:12], f[22], []byte(mac))
				}
				break
			}
		}
	}
}

// Without the option nothing goes across; where it cannot work it is ignored.
func TestNotAccelerated(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	if n := r.went(t, func() {
		for range 50 {
			exchange(t, c)
		}
	}); n != 0 {
		t.Errorf("%d packets went across", n)
	}
	for id, want := range map[int]uint32{3: kern.DeviceOpen, 0: kern.DeviceOpen, -1: 0} {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{NetNsID: id}}
		if got := attach.FlagsOf(l, false); got != want {
			t.Errorf("peer in namespace %d: flags %#x, want %#x", id, got, want)
		}
		if got := attach.FlagsOf(l, true); got != 0 {
			t.Errorf("shaped device: flags %#x", got)
		}
	}
}

// Devices whose traffic is limited are left to the stack, which limits it, from
// the moment somebody begins to, and until the end of it.
func TestShapedDevices(t *testing.T) {
	r := newRig(t, Config{Strict: true, Accelerate: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	for what, p := range map[string]*netlab.Pod{"to": b, "from": a} {
		r.learn(t, c)
		l, err := r.NS.Link(p.HostDevice)
		if err != nil {
			t.Fatal(err)
		}
		var q netlink.Qdisc = &netlink.Tbf{
			QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
			Rate:       1 << 20, Limit: 1 << 20, Buffer: 1 << 20,
		}
		if what == "from" {
			q = &netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_INGRESS}}
		}
		if err := r.NS.Handle().QdiscAdd(q); err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, "packets "+what+" a shaped device take the stack", func() bool {
			return r.went(t, func() {
				for range 20 {
					exchange(t, c)
				}
			}) == 0
		})
		if err := r.NS.Handle().QdiscDel(q); err != nil {
			t.Fatal(err)
		}
	}
	r.learn(t, c)
}
