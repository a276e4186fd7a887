package afxdp

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// deferEverything is the policy of a fast path that knows nothing.
func deferEverything(flow.Key, *dataplane.Packet) dataplane.Disposition {
	return dataplane.DeferPacket
}

// In front of a later hook, what is deferred goes on without the accept mark,
// and the kernel leaves the rest of the flow, both ways, to that hook.
func TestDeferredFlows(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{})
	r.policy(deferEverything)
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	marked := countMarked(t, r.NS, DefaultMarks.Accept)
	r.update(t, a, b)
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			s := nstest.Echo(t, b.NS, network, addr, openPort)
			r.upcalls()
			c := dial(t, a.NS, network, s.Addr)
			for range 10 {
				exchange(t, c)
			}
			up := r.upcalls()
			if len(up) != 1 || up[0].final {
				t.Errorf("%s to %s: came up %v, want one packet that is not final", network, s.Addr, up)
			}
		}
	}
	if n := marked(); n != 0 {
		t.Errorf("%d deferred packets carried the accept mark through the forward hook", n)
	}
	if n := r.counter(t, kern.CountHit); n != 0 {
		t.Errorf("%d packets passed as accepted", n)
	}
	if n := r.counter(t, kern.CountLater); n == 0 {
		t.Error("no packet was left to the later hook by its flow")
	}
}

// What is accepted carries the fast mark through the forward hook, and what was judged
// just now the accept mark as well; it is not judged again at its destination's
// device.
func TestAcceptMarkReachesForwardHook(t *testing.T) {
	r := newRig(t, Config{})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	accepted, passed := countMarked(t, r.NS, DefaultMarks.Accept), countMarked(t, r.NS, DefaultMarks.Fast)
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	c := dial(t, a.NS, "udp", s.Addr)
	for range 5 {
		exchange(t, c)
	}
	if n, m := accepted(), passed(); n != 1 || m != 10 {
		t.Errorf("%d packets carried the accept mark and %d the fast mark through the forward hook, want 1 and 10", n, m)
	}
	if up := r.upcalls(); len(up) != 1 {
		t.Errorf("came up: %v, want one packet", up)
	}
}

// Traffic towards a pod that the forward hook has judged is not judged again,
// nor is the answer: it is the later hook's connection.
func TestLaterHookOwnsConnectionsFromOutside(t *testing.T) {
	r := newRig(t, Config{})
	b := r.AddPod(t, "b")
	r.update(t, b)
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			// Closed for us: an upcall would drop it.
			s := nstest.Echo(t, b.NS, network, addr, closedPort)
			c := dial(t, r.Outside, network, s.Addr)
			for range 5 {
				exchange(t, c)
			}
		}
	}
	if up := r.upcalls(); len(up) != 0 {
		t.Errorf("came up: %v", up)
	}
}

// A pod cannot accept its own packets: no bit of a mark survives the way out of
// its namespace.
func TestForgedMark(t *testing.T) {
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, closedPort)
		m := DefaultMarks
		for _, mark := range []uint32{m.Accept, m.Fast, m.Return, m.Accept | m.Fast | m.Return, ^uint32(0)} {
			d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) (err error) {
				cerr := c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, int(int32(mark))) })
				if cerr != nil {
					return cerr
				}
				return err
			}}
			var c net.Conn
			if err := a.NS.Do(func() (err error) { c, err = d.DialContext(context.Background(), "udp", s.Addr.String()); return err }); err != nil {
				t.Fatal(err)
			}
			r.upcalls()
			if err := echoes(c, nstest.Blocked/3); err == nil {
				t.Errorf("strict %v: mark %#x opened a denied port", strict, mark)
			}
			var up []seen
			nstest.Eventually(t, "the packet comes up", func() bool { up = append(up, r.upcalls()...); return len(up) > 0 })
			if len(up) != 1 {
				t.Errorf("strict %v: with mark %#x came up %v, want one packet", strict, mark, up)
			}
			c.Close()
		}
	}
}

// A connection judged and accepted under the node's address is judged again
// under the pod's, when DNAT has led it to one: with and without a later hook
// that was told to trust the mark.
func TestDNATIsJudgedUnderItsRealName(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		const nodePort = 30080
		for _, port := range []uint16{openPort, closedPort} {
			dnat(t, r.NS, netip.AddrPortFrom(r.Addr4, nodePort+port), netip.AddrPortFrom(b.Addr4, port))
		}
		r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
			if k.DstPort == nodePort+openPort || k.DstPort == nodePort+closedPort || k.DstPort == openPort {
				return dataplane.PassPacket
			}
			return dataplane.DropPacket
		})
		r.update(t, a, b)
		for _, network := range []string{"tcp", "udp"} {
			nstest.Echo(t, b.NS, network, b.Addr4, openPort)
			denied := nstest.Echo(t, b.NS, network, b.Addr4, closedPort)
			r.upcalls()
			c := dial(t, a.NS, network, netip.AddrPortFrom(r.Addr4, nodePort+openPort))
			for range 5 {
				exchange(t, c)
			}
			if up := r.upcalls(); len(up) != 2 || up[0].final != strict || !up[1].final {
				t.Errorf("strict %v, %s: came up %v, want the packet under both names", strict, network, up)
			}
			nstest.Unreachable(t, a.NS, network, netip.AddrPortFrom(r.Addr4, nodePort+closedPort))
			if n := denied.Seen(); n != 0 {
				t.Errorf("strict %v, %s: %d denied connections arrived by way of the node's address", strict, network, n)
			}
		}
	}
}

// What the kernel side cannot parse: fragments are dropped where nobody else can
// judge them and left alone elsewhere; a header it does not follow goes up.
func TestUnparsable(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			s := nstest.Echo(t, b.NS, "udp", addr, openPort)
			c := dial(t, a.NS, "udp", s.Addr)
			before := r.counter(t, kern.CountDrop) + r.counter(t, kern.CountUnparsed)
			err := errors.New("not tried")
			if strict {
				err = netlab.Exchange(c, make([]byte, 4000), nstest.Blocked)
			} else {
				for range 3 { // of three fragments a busy machine may lose one
					if err != nil {
						err = netlab.Exchange(c, make([]byte, 4000), nstest.Timeout/3)
					}
				}
			}
			if strict != (err != nil) {
				t.Errorf("strict %v: datagram in fragments to %s: %v", strict, addr, err)
			}
			nstest.Eventually(t, "three unparsable packets are counted", func() bool {
				return r.counter(t, kern.CountDrop)+r.counter(t, kern.CountUnparsed) >= before+3
			})
			if strict && s.Seen() != 0 {
				t.Errorf("a datagram in fragments arrived at %s", addr)
			}
		}
		r.upcalls()
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, closedPort)
		c := dial(t, a.NS, "udp", s.Addr)
		setIPOptions(t, c)
		if strict {
			nstest.Eventually(t, "the packet with IP options comes up", func() bool {
				if _, err := c.Write([]byte("hello")); err != nil {
					t.Fatal(err)
				}
				return slices.ContainsFunc(r.upcalls(), func(up seen) bool { return up.key.DstPort == closedPort })
			})
			if err := echoes(c, nstest.Blocked); err == nil || s.Seen() != 0 {
				t.Errorf("packet with IP options: %v, %d arrived, want it judged", err, s.Seen())
			}
			continue
		}
		nstest.Eventually(t, "the packet with IP options is left to the later hook", func() bool {
			if _, err := c.Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			return s.Seen() > 0
		})
		for _, up := range r.upcalls() {
			if up.key.DstPort == closedPort {
				t.Errorf("came up: %v", up)
			}
		}
	}
}

func setIPOptions(t *testing.T, c net.Conn) {
	t.Helper()
	raw, err := c.(*net.UDPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if cerr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01") // 4 no-ops
	}); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
}

// Echo requests and their replies are one flow, by identifier, and the kernel's
// keys for them are package flow's: a wrong one would make every packet come up.
func TestPing(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	for _, c := range []struct {
		network       string
		from, to      netip.Addr
		request, kind byte
	}{{"ip4:icmp", a.Addr4, b.Addr4, 8, 0}, {"ip6:ipv6-icmp", a.Addr6, b.Addr6, 128, 129}} {
		var conn *net.IPConn
		if err := a.NS.Do(func() (err error) {
			conn, err = net.DialIP(c.network, &net.IPAddr{IP: c.from.AsSlice()}, &net.IPAddr{IP: c.to.AsSlice()})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		r.upcalls()
		for seq := range byte(5) {
			msg := []byte{c.request, 0, 0, 0, 0x12, 0x34, 0, seq, 'p', 'i', 'n', 'g'}
			if c.to.Is4() { // the kernel does it for ICMPv6
				binary.BigEndian.PutUint16(msg[2:], checksum(msg))
			}
			if _, err := conn.Write(msg); err != nil {
				t.Fatal(err)
			}
			if err := awaitReply(conn, c.kind, seq); err != nil {
				t.Fatalf("ping %s: %v", c.to, err)
			}
		}
		up := r.upcalls()
		if len(up) != 1 || up[0].key.SrcPort != 0x1234 || up[0].key.DstPort != uint16(c.request)<<8 {
			t.Errorf("ping %s: came up %v, want the first request", c.to, up)
		}
	}
}

func awaitReply(c *net.IPConn, kind, seq byte) error {
	c.SetReadDeadline(time.Now().Add(nstest.Timeout))
	buf := make([]byte, 1500)
	for {
		n, _, err := c.ReadFromIP(buf) // without the IP header
		if err != nil {
			return err
		}
		if n >= 8 && buf[0] == kind && buf[7] == seq {
			return nil
		}
	}
}

// checksum is RFC 1071's, for an even number of bytes.
func checksum(b []byte) uint16 {
	var sum uint32
	for i := 0; i < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}

// An IPv6 node finds a pod by neighbour discovery whatever the policy says.
func TestNeighbourDiscoveryPasses(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	a := r.AddPod(t, "a")
	s := nstest.Echo(t, a.NS, "udp", a.Addr6, openPort)
	// Without the lab's permanent entry the node has to ask, from a link-local
	// address.
	if err := r.NS.Addr(a.HostDevice, netip.MustParsePrefix("fe80::a/64")); err != nil {
		t.Fatal(err)
	}
	forgetNeighbour(t, r.NS, a.HostDevice, a.Addr6)
	r.update(t, a)
	r.policy(func(k flow.Key, _ *dataplane.Packet) dataplane.Disposition {
		if k.Proto == flow.UDP {
			return dataplane.PassPacket
		}
		return dataplane.DropPacket
	})
	nstest.Reach(t, r.NS, "udp", s.Addr)
	for _, s := range r.upcalls() {
		if s.key.Proto != flow.UDP {
			t.Errorf("came up: %v", s.key)
		}
	}
	if r.counter(t, kern.CountExempt) < 2 {
		t.Error("no solicitation and answer seen")
	}
}

// Neighbour discovery is for the link: what only looks like it, and would be
// forwarded to somebody far away, is judged.
func TestNeighbourDiscoveryIsNoTunnel(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	for _, c := range []struct {
		to     netip.Addr
		hops   int
		exempt bool
	}{
		{r.Outside6, 255, false},
		{b.Addr6, 255, false},
		{r.Addr6, 255, true}, // the node's own address
		{r.Addr6, 64, false}, // could have been forwarded
		{r.Outside6, 64, false},
	} {
		var conn *net.IPConn
		if err := a.NS.Do(func() (err error) {
			conn, err = net.DialIP("ip6:ipv6-icmp", &net.IPAddr{IP: a.Addr6.AsSlice()}, &net.IPAddr{IP: c.to.AsSlice()})
			return err
		}); err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if cerr := raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, c.hops)
		}); cerr != nil || err != nil {
			t.Fatal(cerr, err)
		}
		r.upcalls()
		before := r.counter(t, kern.CountExempt)
		solicitation := append([]byte{135, 0, 0, 0, 0, 0, 0, 0}, c.to.AsSlice()...)
		if _, err := conn.Write(solicitation); err != nil {
			t.Fatal(err)
		}
		var up []seen
		nstest.Eventually(t, "the packet is seen", func() bool {
			up = append(up, r.upcalls()...)
			return len(up) > 0 || r.counter(t, kern.CountExempt) > before
		})
		if c.exempt != (len(up) == 0) {
			t.Errorf("solicitation to %s with hop limit %d: came up %v, want exempt %v", c.to, c.hops, up, c.exempt)
		}
	}
}

func forgetNeighbour(t *testing.T, ns *netlab.NS, dev string, a netip.Addr) {
	t.Helper()
	l, err := ns.Link(dev)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := ns.Handle().NeighList(l.Attrs().Index, unix.AF_INET6)
	if err != nil {
		t.Fatal(err)
	}
	for i := range entries {
		if got, _ := netip.AddrFromSlice(entries[i].IP); got == a {
			if err := ns.Handle().NeighDel(&entries[i]); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no neighbour entry for %s", a)
}

// What does not fit an upcall: dropped if nobody else can judge it, left alone
// otherwise. A flow that is known does not need to fit.
func TestOversizePackets(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{true, false} {
		lab, err := netlab.NewNode(netlab.NodeConfig{MTU: 9000})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { lab.Close() })
		nstest.Need(t, canRun)
		r := startRig(t, &nstest.Node{Node: lab, Next: 2}, Config{Strict: strict})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		known := dial(t, a.NS, "udp", s.Addr)
		exchange(t, known)
		if err := netlab.Exchange(known, make([]byte, 5000), nstest.Timeout); err != nil {
			t.Errorf("strict %v: large packet of a known flow: %v", strict, err)
		}
		large := dial(t, a.NS, "udp", s.Addr)
		if _, err := large.Write(make([]byte, 5000)); err != nil {
			t.Fatal(err)
		}
		if strict {
			// Its beginning is judged, and then the kernel knows the flow.
			nstest.Eventually(t, "the packet is counted", func() bool { return r.backend.Stats().Overflow == 1 })
			if n := s.Seen(); n != 2 {
				t.Errorf("%d datagrams arrived, want 2", n)
			}
			if err := netlab.Exchange(large, make([]byte, 5000), nstest.Timeout); err != nil {
				t.Errorf("large packet, sent again: %v", err)
			}
			// TCP sends again by itself, also after a change of policy.
			stream := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr6, openPort).Addr)
			for range 2 {
				if err := transfer(stream, randomBytes(1<<20)); err != nil {
					t.Errorf("transfer in large segments: %v", err)
				}
				r.update(t, a, b)
			}
			continue
		}
		nstest.Eventually(t, "the packet arrives", func() bool { return s.Seen() == 3 })
		if n := r.counter(t, kern.CountUnparsed); n == 0 {
			t.Error("the packet is not counted")
		}
	}
}
