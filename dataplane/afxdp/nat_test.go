package afxdp

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

const servicePort, nodePort = 80, 30080

// vip is a Service's address, which nobody has.
func vip(family int) netip.Addr {
	if family == 6 {
		return netip.MustParseAddr("fd00:96::10")
	}
	return netip.MustParseAddr("10.96.0.10")
}

// twoOutside are two addresses of the host outside.
func twoOutside(t *testing.T, r *rig, family int) (first, second netip.Addr) {
	t.Helper()
	first, second = r.Outside4, netip.MustParseAddr("192.0.2.99")
	if family == 6 {
		first, second = r.Outside6, netip.MustParseAddr("2001:db8:1::99")
	}
	if err := r.Outside.Addr(netlab.PodDevice, netip.PrefixFrom(second, second.BitLen())); err != nil {
		t.Fatal(err)
	}
	if err := r.NS.AddRoute(netlab.Route{Dst: netip.PrefixFrom(second, second.BitLen()), Via: first, Dev: netlab.Uplink}); err != nil {
		t.Fatal(err)
	}
	return first, second
}

// connections returns the upcalls since the last time, without what bridges have to
// say (IGMP).
func (r *rig) connections() []seen {
	return slices.DeleteFunc(r.upcalls(), func(s seen) bool { return s.key.Proto == flow.IGMP })
}

// about returns what of connections is about a client's: a server that has been closed
// may still have something to say about one before.
func (r *rig) about(c net.Conn) []seen {
	port := netip.MustParseAddrPort(c.LocalAddr().String()).Port()
	return slices.DeleteFunc(r.connections(), func(s seen) bool { return s.key.SrcPort != port && s.key.DstPort != port })
}

func nodeAddr(r *rig, family int) netip.Addr {
	if family == 6 {
		return r.Addr6
	}
	return r.Addr4
}

// judges is a policy about real ends: pass says which connections to pass; what goes
// to a Service's address is left to where it leaves.
func judges(pass func(k flow.Key) bool) func(flow.Key, *dataplane.Packet) dataplane.Disposition {
	return func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		dst := k.Dst.Netip()
		switch {
		case p.FromHost && !p.Reply:
			return dataplane.PassPacket
		case p.Onward && !p.Real.Valid() && (dst == vip(4) || dst == vip(6)):
			return dataplane.DeferPacket
		case p.Masked || !pass(k):
			return dataplane.DropPacket
		}
		return dataplane.PassPacket
	}
}

func from(a netip.Addr) func(flow.Key) bool {
	return func(k flow.Key) bool { return k.Src == flow.AddrFrom(a) }
}

// The client of a masqueraded connection is judged, not the node whose address it
// bears: with pods on devices of their own and on a bridge.
func TestMasqueradedClientIsJudged(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, bridged := range []bool{false, true} {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("bridge %v, IPv%d", bridged, family), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, Config{Strict: true})
				var b *netlab.Pod
				if bridged {
					addBridge(t, r.Node)
					b = addBridged(t, r.Node, "b")
				} else {
					b = r.AddPod(t, "b")
				}
				r.know(t, b)
				friend, stranger := twoOutside(t, r, family)
				at := netip.AddrPortFrom(nodeAddr(r, family), nodePort)
				service(t, r.NS, at, netip.AddrPortFrom(b.Addr(family), openPort), true)
				r.policy(judges(from(friend)))
				for _, network := range []string{"tcp", "udp"} {
					s := nstest.Echo(t, b.NS, network, b.Addr(family), openPort)
					r.upcalls()
					c, err := r.Outside.Dial(t.Context(), network, netip.AddrPortFrom(friend, 0), at)
					if err != nil {
						t.Fatal(err)
					}
					defer c.Close()
					for range 5 {
						exchange(t, c)
					}
					up := r.about(c)
					if len(up) != 1 || up[0].key.Src != flow.AddrFrom(friend) || up[0].key.Dst != flow.AddrFrom(b.Addr(family)) || up[0].key.DstPort != openPort {
						t.Errorf("%s: came up %v, want one packet from %s to the pod", network, up, friend)
					}
					seen := s.Seen()
					if err := r.Outside.ProbeFrom(network, netip.AddrPortFrom(stranger, 0), at, nstest.Blocked); err == nil {
						t.Errorf("%s: a client that is denied got through by the node port", network)
					}
					if n := s.Seen() - seen; n != 0 {
						t.Errorf("%s: %d denied connections arrived", network, n)
					}
					// The node's own needs no policy.
					nstest.Reach(t, r.NS, network, s.Addr)
					exchange(t, c)
				}
			})
		}
	}
}

// A name that masquerading gives to one client after the other is two connections.
// What was accepted for the first is not the second's, and what the node accepted for
// itself is neither's.
func TestMasqueradedNameIsUsedAgain(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	for _, blind := range []bool{false, true} {
		if !blind && !readsConnections() { // TestConnectionsAreRead says whether it should
			continue
		}
		r := newRig(t, Config{Strict: true, noNAT: blind})
		b := r.AddPod(t, "b")
		r.know(t, b)
		friend, stranger := twoOutside(t, r, 4)
		at := netip.AddrPortFrom(r.Addr4, nodePort)
		service(t, r.NS, at, netip.AddrPortFrom(b.Addr4, openPort), true)
		r.policy(judges(from(friend)))
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		const port = 5555
		if !blind {
			exchange(t, dialFrom(t, r.Outside, netip.AddrPortFrom(friend, port), at))
			forgetConnections(t, r.NS)
		}
		seen, other := s.Seen(), dialFrom(t, r.Outside, netip.AddrPortFrom(stranger, port), at)
		if err := echoes(other, nstest.Blocked); err == nil || s.Seen() != seen {
			t.Errorf("blind %v: another client got through by the first one's entry", blind)
		}
		// Nor does the pod itself answer somebody who is not there any more.
		if !blind {
			forgetConnections(t, r.NS)
			s.Close()
			mine := nstest.Echo(t, r.NS, "udp", r.Addr4, port)
			c := dialFrom(t, b.NS, s.Addr, mine.Addr)
			if err := echoes(c, nstest.Blocked); err == nil || mine.Seen() != 0 {
				t.Error("the pod reached the node by the name of an answer")
			}
			c.Close()
			mine.Close()
			s = nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
			forgetConnections(t, r.NS)
		}
		forgetConnections(t, r.NS)
		exchange(t, dialFrom(t, r.NS, netip.AddrPortFrom(r.Addr4, port), s.Addr))
		forgetConnections(t, r.NS)
		seen = s.Seen()
		if err := echoes(other, nstest.Blocked); err == nil || s.Seen() != seen {
			t.Errorf("blind %v: another client got through by the node's entry", blind)
		}
	}
}

// Masqueraded clients share an address, and not a rate limit.
func TestMasqueradedFlooder(t *testing.T) {
	needReads(t)
	r := newRig(t, Config{Strict: true, UpcallRate: 100, UpcallBurst: 10})
	b := r.AddPod(t, "b")
	r.know(t, b)
	friend, stranger := twoOutside(t, r, 4)
	at := netip.AddrPortFrom(r.Addr4, nodePort)
	service(t, r.NS, at, netip.AddrPortFrom(b.Addr4, openPort), true)
	r.policy(judges(from(friend)))
	nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	for range 200 {
		c := dialFrom(t, r.Outside, netip.AddrPortFrom(stranger, 0), at)
		if _, err := c.Write([]byte("flood")); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Eventually(t, "the flood is limited", func() bool { return r.counter(t, kern.CountLimited) > 100 })
	if err := echoes(dialFrom(t, r.Outside, netip.AddrPortFrom(friend, 0), at), nstest.Blocked); err != nil {
		t.Errorf("beside a flood from somebody else: %v", err)
	}
}

// On a kernel that does not describe itself the programs ask for no description.
func TestProgramsWithoutKernelTypes(t *testing.T) {
	nstest.Need(t, canRun)
	spec, err := kern.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	asking := 0
	wants := func() (n int) {
		for _, p := range spec.Programs {
			for i := range p.Instructions {
				if btf.CORERelocationMetadata(&p.Instructions[i]) != nil {
					n++
				}
			}
		}
		return n
	}
	if asking = wants(); asking == 0 {
		t.Fatal("none of the programs asks: the test is broken")
	}
	for _, p := range spec.Programs {
		kern.ForgetKernel(p.Instructions)
	}
	if n := wants(); n != 0 {
		t.Errorf("%d of %d instructions still ask", n, asking)
	}
}

// Where connections cannot be read, a masqueraded packet is nobody's: neither the
// node's nor a client's.
func TestMaskedClientIsNotTheNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true, noNAT: true})
	b := r.AddPod(t, "b")
	r.know(t, b)
	at := netip.AddrPortFrom(r.Addr4, nodePort)
	service(t, r.NS, at, netip.AddrPortFrom(b.Addr4, openPort), true)
	masked := 0
	r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		if p.Masked {
			masked++
		}
		return judges(func(flow.Key) bool { return true })(k, p)
	})
	for _, network := range []string{"tcp", "udp"} {
		s := nstest.Echo(t, b.NS, network, b.Addr4, openPort)
		nstest.Unreachable(t, r.Outside, network, at)
		if s.Seen() != 0 {
			t.Errorf("%s: %d connections arrived", network, s.Seen())
		}
		nstest.Reach(t, r.Outside, network, s.Addr)
		nstest.Reach(t, r.NS, network, s.Addr)
	}
	r.policy(allowAll) // waits for the policy before
	if masked == 0 {
		t.Error("no packet was said to be masked")
	}
}

// Whatever its size: the origin of a packet travels in front of it, GSO packets
// included, and leaves no trace in what arrives.
func TestMasqueradedBulk(t *testing.T) {
	needReads(t)
	r := newRig(t, Config{Strict: true})
	r.forget = true // every packet makes the way
	r.policy(judges(func(flow.Key) bool { return true }))
	b := r.AddPod(t, "b")
	r.know(t, b)
	for _, family := range []int{4, 6} {
		at := netip.AddrPortFrom(nodeAddr(r, family), nodePort)
		service(t, r.NS, at, netip.AddrPortFrom(b.Addr(family), openPort), true)
		nstest.Echo(t, b.NS, "tcp", b.Addr(family), openPort)
		c := dial(t, r.Outside, "tcp", at)
		if err := netlab.Exchange(c, make([]byte, 300_000), 20*time.Second); err != nil {
			t.Errorf("IPv%d: %v", family, err)
		}
		nstest.Echo(t, b.NS, "udp", b.Addr(family), openPort)
		u := dial(t, r.Outside, "udp", at)
		for _, size := range []int{0, 1, 1000, 1452 - 20*(family/6)} {
			if err := netlab.Exchange(u, make([]byte, max(size, 1)), nstest.Timeout); err != nil {
				t.Errorf("IPv%d: datagram of %d bytes: %v", family, size, err)
			}
		}
	}
}

// bridgeFilter makes the stack's hooks see what stays on a bridge.
func bridgeFilter(t *testing.T, ns *netlab.NS) {
	t.Helper()
	for _, f := range []string{"iptables", "ip6tables"} {
		nstest.Need(t, func() error { return ns.Sysctl("net/bridge/bridge-nf-call-"+f, "1") })
	}
}

// Translated flows go on while no daemon runs, through its restart, and nothing new
// gets in by their way.
func TestTranslatedFlowsOutliveTheBackend(t *testing.T) {
	t.Parallel()
	needReads(t)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	path := nstest.BPFFS(t)
	c := Config{Strict: true, PinPath: path, FlowEntries: 4096, LaterEntries: 4096}
	r := startRig(t, node, c)
	policy := judges(func(k flow.Key) bool { return k.DstPort == openPort })
	r.policy(policy)
	r.know(t, a, b)
	for _, family := range []int{4, 6} {
		service(t, r.NS, netip.AddrPortFrom(nodeAddr(r, family), nodePort), netip.AddrPortFrom(b.Addr(family), openPort), true)
		service(t, r.NS, netip.AddrPortFrom(vip(family), servicePort), netip.AddrPortFrom(b.Addr(family), openPort), false)
		service(t, r.NS, netip.AddrPortFrom(vip(family), servicePort+1), netip.AddrPortFrom(nodeAddr(r, family), closedPort), false)
	}
	var conns []net.Conn
	for _, family := range []int{4, 6} {
		for _, network := range []string{"tcp", "udp"} {
			nstest.Echo(t, b.NS, network, b.Addr(family), openPort)
			conns = append(conns,
				dial(t, r.Outside, network, netip.AddrPortFrom(nodeAddr(r, family), nodePort)),
				dial(t, a.NS, network, netip.AddrPortFrom(vip(family), servicePort)))
		}
	}
	denied := nstest.Echo(t, r.NS, "udp", r.Addr4, closedPort)
	all := func(when string) {
		t.Helper()
		for _, c := range conns {
			if err := echoes(c, nstest.Timeout); err != nil {
				t.Fatalf("%s: %s to %s: %v", when, c.LocalAddr().Network(), c.RemoteAddr(), err)
			}
		}
		for range 2 { // gate sees the first
			nstest.Unreachable(t, a.NS, "udp", netip.AddrPortFrom(vip(4), servicePort+1))
		}
		if denied.Seen() != 0 {
			t.Fatalf("%s: %d denied packets arrived", when, denied.Seen())
		}
	}
	all("before")
	for range 2 {
		r.stop(t)
		all("without a daemon")
		nstest.Unreachable(t, r.Outside, "tcp", netip.AddrPortFrom(r.Addr4, nodePort))
		r = startRig(t, node, c)
		r.policy(policy)
		all("between New and Update")
		r.know(t, a, b)
		all("after Update")
		nstest.Reach(t, r.Outside, "tcp", netip.AddrPortFrom(r.Addr4, nodePort))
	}
	r.stop(t)
	if err := node.NS.Do(func() error { return Cleanup(path) }); err != nil {
		t.Fatal(err)
	}
	nstest.Reach(t, a.NS, "udp", netip.AddrPortFrom(vip(4), servicePort+1)) // nothing is in force
}
