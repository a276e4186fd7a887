package afxdp

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// A pod's connection to a Service is judged once, by its backend, where it leaves:
// the pod's own device (hairpin), another pod's, a device that leaves the node. What
// the policy of the client says about the Service's address does not matter.
func TestServiceIsJudgedByItsBackend(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, bridged := range []bool{false, true} {
		for _, family := range []int{4, 6} {
			t.Run(fmt.Sprintf("bridge %v, IPv%d", bridged, family), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, Config{Strict: true})
				if !r.backend.objects.Onward {
					t.Fatal("no gate")
				}
				add := r.AddPod
				if bridged {
					addBridge(t, r.Node)
					bridgeFilter(t, r.NS)
					add = func(t testing.TB, name string) *netlab.Pod { return addBridged(t.(*testing.T), r.Node, name) }
				}
				a, b := add(t, "a"), add(t, "b")
				r.know(t, a, b)
				outside, _ := twoOutside(t, r, family)
				ends := map[string]struct {
					ns   *netlab.NS
					addr netip.Addr
				}{
					"itself": {a.NS, a.Addr(family)}, "another pod": {b.NS, b.Addr(family)}, "outside": {r.Outside, outside},
				}
				port := uint16(servicePort)
				for name, end := range ends {
					for _, network := range []string{"tcp", "udp"} {
						for _, allowed := range []bool{true, false} {
							port++
							at, backend := netip.AddrPortFrom(vip(family), port), uint16(openPort)
							if !allowed {
								backend = closedPort
							}
							r.policy(judges(func(k flow.Key) bool {
								return k.Src == flow.AddrFrom(a.Addr(family)) && k.Dst == flow.AddrFrom(end.addr) && k.DstPort == openPort
							}))
							service(t, r.NS, at, netip.AddrPortFrom(end.addr, backend), name == "itself")
							s := nstest.Echo(t, end.ns, network, end.addr, backend)
							r.upcalls()
							if !allowed {
								nstest.Unreachable(t, a.NS, network, at)
								if s.Seen() != 0 {
									t.Errorf("%s, %s: %d denied connections arrived", name, network, s.Seen())
								}
							} else {
								c := dial(t, a.NS, network, at)
								for range 5 {
									exchange(t, c)
								}
								up := r.about(c)
								if len(up) != 2 || up[0].key.Dst != flow.AddrFrom(at.Addr()) || up[1].key.Dst != flow.AddrFrom(end.addr) || up[1].key.Src != flow.AddrFrom(a.Addr(family)) {
									t.Errorf("%s, %s: came up %v, want the packet by the Service's name and by the backend's", name, network, up)
								}
								// A change of policy ends it.
								r.policy(judges(func(flow.Key) bool { return false }))
								r.know(t, a, b)
								seen := s.Seen()
								if err := echoes(c, nstest.Blocked); err == nil || network == "udp" && s.Seen() != seen {
									t.Errorf("%s, %s: a connection goes on that the policy denies now", name, network)
								}
							}
							s.Close()
						}
					}
				}
				if n := r.counter(t, kern.CountHeld); n != 0 {
					t.Errorf("gate dropped %d packets", n)
				}
			})
		}
	}
}

// A backend that is the node itself, or behind a device that has no program: gate
// stops the first packet, and the next one is judged by what gate saw.
func TestServiceBehindTheGate(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, family := range []int{4, 6} {
		r := newRig(t, Config{Strict: true, AttachConfig: AttachConfig{Exclude: []string{netlab.Uplink}}})
		a := r.AddPod(t, "a")
		r.know(t, a)
		outside, _ := twoOutside(t, r, family)
		port := uint16(servicePort)
		for name, end := range map[string]struct {
			ns   *netlab.NS
			addr netip.Addr
		}{"the node": {r.NS, nodeAddr(r, family)}, "outside": {r.Outside, outside}} {
			for _, network := range []string{"tcp", "udp"} {
				port += 2
				good, bad := netip.AddrPortFrom(vip(family), port), netip.AddrPortFrom(vip(family), port+1)
				service(t, r.NS, good, netip.AddrPortFrom(end.addr, openPort), false)
				service(t, r.NS, bad, netip.AddrPortFrom(end.addr, closedPort), false)
				open, closed := nstest.Echo(t, end.ns, network, end.addr, openPort), nstest.Echo(t, end.ns, network, end.addr, closedPort)
				var real []flow.Key
				r.policy(judges(func(k flow.Key) bool {
					real = append(real, k)
					return k.DstPort == openPort && k.Dst == flow.AddrFrom(end.addr)
				}))
				before := r.counter(t, kern.CountHeld)
				c := dial(t, a.NS, network, good) // TCP repeats its SYN
				if network == "udp" && echoes(c, nstest.Blocked) == nil {
					t.Errorf("%s, udp: the first packet passed, and nobody knew where it goes", name)
				}
				for range 3 {
					exchange(t, c)
				}
				if n := r.counter(t, kern.CountHeld) - before; n != 1 {
					t.Errorf("%s, %s: gate dropped %d packets, want the first", name, network, n)
				}
				d, err := a.NS.Dial(t.Context(), "udp", netip.AddrPort{}, bad)
				if err != nil {
					t.Fatal(err)
				}
				defer d.Close()
				if network == "tcp" {
					nstest.Unreachable(t, a.NS, network, bad)
				}
				for range 2 {
					if network == "udp" && echoes(d, nstest.Blocked) == nil {
						t.Errorf("%s: a denied datagram passed", name)
					}
				}
				r.policy(allowAll)
				if closed.Seen() != 0 {
					t.Errorf("%s, %s: %d denied connections arrived", name, network, closed.Seen())
				}
				if len(real) == 0 || real[0].Dst != flow.AddrFrom(end.addr) || real[0].Src != flow.AddrFrom(a.Addr(family)) {
					t.Errorf("%s, %s: judged %v", name, network, real)
				}
				open.Close()
				closed.Close()
			}
		}
	}
}

// A SYN opens a connection and is judged, whatever is known of one with the same name
// before it.
func TestServiceIsJudgedAgain(t *testing.T) {
	t.Parallel()
	needReads(t)
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.know(t, a, b)
	r.policy(judges(func(k flow.Key) bool { return k.DstPort == openPort }))
	for i, backend := range []*netlab.Server{
		nstest.Echo(t, r.Outside, "tcp", r.Outside4, openPort), nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort),
	} {
		at := netip.AddrPortFrom(vip(4), servicePort+uint16(i))
		service(t, r.NS, at, backend.Addr, false)
		for range 2 {
			r.upcalls()
			c, err := a.NS.Dial(t.Context(), "tcp", netip.AddrPortFrom(a.Addr4, 4444), at)
			if err != nil {
				t.Fatal(err)
			}
			exchange(t, c)
			if up := r.connections(); len(up) == 0 || up[len(up)-1].key.Dst != flow.AddrFrom(backend.Addr.Addr()) {
				t.Errorf("to %s: came up %v, want the SYN by its backend's name", backend.Addr, up)
			}
			c.(*net.TCPConn).SetLinger(0) // a reset: the port is free at once
			c.Close()
			forgetConnections(t, r.NS)
		}
	}
}

// Who is refused behind a translation hears it from where the connection was opened to.
func TestRejectBehindTranslation(t *testing.T) {
	t.Parallel()
	for _, bridged := range []bool{false, true} {
		r := newRig(t, Config{Strict: true, Queues: 1}) // whose packet it is the rig does not say
		add := r.AddPod
		if bridged {
			addBridge(t, r.Node)
			bridgeFilter(t, r.NS)
			add = func(t testing.TB, name string) *netlab.Pod { return addBridged(t.(*testing.T), r.Node, name) }
		}
		a, b := add(t, "a"), add(t, "b")
		r.know(t, a, b)
		d := r.backend.Drivers()[0]
		var buf [packet.MaxAnswer]byte
		pass := judges(func(flow.Key) bool { return false })
		r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
			disposition := pass(k, p)
			if disposition == dataplane.DropPacket {
				if n := packet.Answer(buf[:], p.Frame, &p.Headers); n > 0 {
					if err := d.Reject(p, buf[:n]); err != nil {
						t.Error(err)
					}
				}
			}
			return disposition
		})
		for i, end := range []netip.Addr{b.Addr4, r.Outside4} {
			at := netip.AddrPortFrom(vip(4), servicePort+uint16(i))
			service(t, r.NS, at, netip.AddrPortFrom(end, closedPort), false)
			for network, want := range map[string]error{"tcp": unix.ECONNREFUSED, "udp": unix.EHOSTUNREACH} {
				began := time.Now()
				if err := attempt(a.NS, network, at); !errors.Is(err, want) || time.Since(began) > time.Second {
					t.Errorf("bridge %v, %s to %s: %v after %v, want %v at once", bridged, network, end, err, time.Since(began), want)
				}
			}
		}
	}
}

// A Service's address that the node has itself leads nowhere else.
func TestServiceOfTheNodeItself(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	a := r.AddPod(t, "a")
	if err := r.NS.Addr("lo", netip.PrefixFrom(vip(4), 32)); err != nil {
		t.Fatal(err)
	}
	r.know(t, a)
	// As the worker does: it is one of the host's.
	d := r.backend.Drivers()[0]
	nstest.Eventually(t, "the address is known", func() bool { return d.IsHost(flow.AddrFrom(vip(4))) })
	r.policy(allowOpenPort)
	for _, network := range []string{"tcp", "udp"} {
		nstest.Reach(t, a.NS, network, nstest.Echo(t, r.NS, network, vip(4), openPort).Addr)
		nstest.Unreachable(t, a.NS, network, nstest.Echo(t, r.NS, network, vip(4), closedPort).Addr)
	}
	if n := r.counter(t, kern.CountHeld); n != 0 {
		t.Errorf("gate dropped %d packets", n)
	}
}

// An ICMP error about a translated connection is that connection's, whichever side of
// the translation it quotes.
func TestErrorsOfTranslatedConnections(t *testing.T) {
	t.Parallel()
	needReads(t)
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.know(t, a, b)
	for _, family := range []int{4, 6} {
		friend, _ := twoOutside(t, r, family)
		node, cluster := netip.AddrPortFrom(nodeAddr(r, family), nodePort), netip.AddrPortFrom(vip(family), servicePort)
		service(t, r.NS, node, netip.AddrPortFrom(b.Addr(family), openPort), true)
		service(t, r.NS, cluster, netip.AddrPortFrom(b.Addr(family), openPort), false)
		for _, c := range []struct {
			from *netlab.NS
			src  netip.Addr
			to   netip.AddrPort
		}{{r.Outside, friend, node}, {a.NS, a.Addr(family), cluster}} {
			var real []flow.Key
			pass := judges(func(k flow.Key) bool { return k.DstPort == openPort })
			r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
				switch {
				case p.Headers.IsError && p.Onward && !p.Real.Valid():
					return dataplane.DeferPacket
				case p.Headers.IsError:
					real = append(real, p.Real)
					return dataplane.PassPacket
				}
				return pass(k, p)
			})
			// Nobody listens.
			conn := dialFrom(t, c.from, netip.AddrPortFrom(c.src, 0), c.to)
			if err := echoes(conn, nstest.Timeout); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: %v, want a refusal", c.to, err)
			}
			r.policy(allowAll)
			// On its way out of the node it passes with its connection.
			if c.to == node && len(real) == 0 {
				continue
			}
			if len(real) != 1 || real[0].Src != flow.AddrFrom(b.Addr(family)) || real[0].Dst != flow.AddrFrom(c.src) || real[0].SrcPort != openPort || real[0].Proto != flow.UDP {
				t.Errorf("%s: errors about %v, want one from the pod to the client", c.to, real)
			}
		}
	}
}

// A Service that leads the same five numbers to another backend later: what was
// accepted for the first is not the second's.
func TestServiceLeadsElsewhere(t *testing.T) {
	t.Parallel()
	needReads(t)
	for _, exclude := range [][]string{nil, {netlab.Uplink}} {
		r := newRig(t, Config{Strict: true, AttachConfig: AttachConfig{Exclude: exclude}})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.know(t, a, b)
		at := netip.AddrPortFrom(vip(4), servicePort)
		good := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		bad := nstest.Echo(t, r.Outside, "udp", r.Outside4, closedPort)
		other := nstest.Echo(t, r.Outside, "udp", r.Outside4, openPort)
		r.policy(judges(func(k flow.Key) bool { return k.DstPort == openPort }))
		client := netip.AddrPortFrom(a.Addr4, 4444)
		for range 2 {
			service(t, r.NS, at, good.Addr, false)
			c := dialFrom(t, a.NS, client, at)
			_ = echoes(c, nstest.Blocked) // gate may have to see where it goes
			exchange(t, c)
			forgetServices(t, r.NS, 4)
			service(t, r.NS, at, bad.Addr, false)
			for range 3 {
				if err := echoes(c, nstest.Blocked/3); err == nil {
					t.Fatalf("exclude %v: an answer from a backend that policy denies", exclude)
				}
			}
			if bad.Seen() != 0 {
				t.Fatalf("exclude %v: %d denied packets arrived", exclude, bad.Seen())
			}
			// Nor is the second's denial the third's.
			forgetServices(t, r.NS, 4)
			service(t, r.NS, at, other.Addr, false)
			for range 2 {
				_ = echoes(c, nstest.Blocked)
			}
			exchange(t, c)
			c.Close()
			forgetServices(t, r.NS, 4)
		}
	}
}

// A pod's connection to its own Service never leaves its bridge, where a later hook
// would see it, and comes back with the bridge's address: it is the pod's own.
func TestBridgedHairpin(t *testing.T) {
	t.Parallel()
	needReads(t)
	r := newRig(t, Config{})
	addBridge(t, r.Node)
	bridgeFilter(t, r.NS)
	a := addBridged(t, r.Node, "a")
	r.know(t, a)
	for _, family := range []int{4, 6} {
		for _, network := range []string{"tcp", "udp"} {
			r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
				switch {
				case !p.Final:
					return dataplane.DeferPacket
				case k.Src == flow.AddrFrom(a.Addr(family)) && k.Dst == k.Src:
					return dataplane.PassPacket
				}
				return dataplane.DropPacket
			})
			at := netip.AddrPortFrom(vip(family), servicePort)
			if network == "tcp" {
				service(t, r.NS, at, netip.AddrPortFrom(a.Addr(family), openPort), true)
			}
			s := nstest.Echo(t, a.NS, network, a.Addr(family), openPort)
			c := dial(t, a.NS, network, at)
			for range 3 {
				exchange(t, c)
			}
			// Somebody else by the bridge's address is not the pod.
			if err := r.Outside.Probe(network, s.Addr, nstest.Blocked); err != nil { // the later hook's
				t.Error(err)
			}
			r.policy(func(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.DropPacket })
			r.know(t, a)
			if err := echoes(c, nstest.Blocked); err == nil {
				t.Errorf("IPv%d %s: goes on, although the policy denies it now", family, network)
			}
		}
	}
}
