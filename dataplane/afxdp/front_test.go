package afxdp

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// accept makes the flow of a frame known and has a packet of it seen on the way
// from a pod, or to one. The flow is gone when it returns: what passes then
// passes by what the CPU noted.
func (k *kernel) accept(program string, frame []byte) kern.FlowKey {
	k.t.Helper()
	var h packet.Headers
	if p := packet.ParseEthernet(frame, &h); p != packet.OK {
		k.t.Fatalf("% x: %v", frame, p)
	}
	name, _ := kern.MakeFlowKey(&h.Key)
	k.put("flows", name, kern.FlowState{Generation: 1, Last: kern.Now()})
	if fate, _, _ := k.run(program, frame, 0); fate != passed {
		k.t.Fatalf("%s: %s by its flow", program, fate)
	}
	if err := k.c.Maps["flows"].Delete(&name); err != nil {
		k.t.Fatal(err)
	}
	return name
}

// A packet passes by what its CPU noted of the flow exactly while that is what a
// look into the map would say; everything special about a packet makes it look.
func TestFront(t *testing.T) {
	nstest.Need(t, canRun)
	k, ends := newKernel(t, true), newKernel(t, true, frontEnds(t))
	pay := gopacket.Payload("tierwall")
	tcp := func() *layers.TCP { return &layers.TCP{SrcPort: 40000, DstPort: 80, ACK: true} }
	udp := &layers.UDP{SrcPort: 40000, DstPort: 80}
	sctp := gopacket.Payload(append([]byte{0x9c, 0x40, 0, 80}, make([]byte, 40)...))
	flags := func(set func(*layers.TCP)) *layers.TCP { h := tcp(); set(h); return h }
	for _, family := range []struct {
		name  string
		build func(proto layers.IPProtocol, l ...gopacket.SerializableLayer) []byte
		l4    int
	}{
		{"IPv4", func(p layers.IPProtocol, l ...gopacket.SerializableLayer) []byte {
			return build(t, append([]gopacket.SerializableLayer{ether4, ipv4(p)}, l...)...)
		}, 34},
		{"IPv6", func(p layers.IPProtocol, l ...gopacket.SerializableLayer) []byte {
			return build(t, append([]gopacket.SerializableLayer{ether6, ipv6(p)}, l...)...)
		}, 54},
	} {
		t.Run(family.name, func(t *testing.T) {
			k.t, ends.t = t, t
			onOneCPU(t)
			frames := map[string][]byte{
				"TCP": family.build(6, tcp(), pay), "UDP": family.build(17, udp, pay), "SCTP": family.build(132, sctp),
			}
			for name, frame := range frames {
				fates := func(when, ingress, egress string) {
					t.Helper()
					// One mark alone says that nobody has judged it by where it
					// goes: what is known of its name does not count.
					if fate, _, _ := k.run("pod_egress", frame, DefaultMarks.Fast); fate != asked {
						t.Errorf("%s %s, to a pod with the fast mark alone: %s", name, when, fate)
					}
					for _, mark := range []uint32{0, DefaultMarks.Accept | DefaultMarks.Fast} {
						if fate, _, _ := k.run("pod_egress", frame, mark); fate != egress {
							t.Errorf("%s %s, to a pod with mark %#x: %s, want it %s", name, when, mark, fate, egress)
						}
					}
					fate, mark, _ := k.run("pod_ingress", frame, 0x8000)
					if fate != ingress {
						t.Errorf("%s %s, from a pod: %s, want it %s", name, when, fate, ingress)
					}
					if fate == passed && mark != 0x8000|DefaultMarks.Accept|DefaultMarks.Fast {
						t.Errorf("%s %s: mark %#x", name, when, mark)
					}
				}
				k.forgetFront()
				fates("of nobody", asked, asked)
				k.accept("pod_ingress", frame)
				fates("seen from a pod", passed, passed)
				reverse := append([]byte(nil), frame...)
				copy(reverse[family.l4:], frame[family.l4+2:family.l4+4])
				copy(reverse[family.l4+2:], frame[family.l4:family.l4+2])
				if fate, _, _ := k.run("pod_ingress", reverse, 0); fate != asked {
					t.Errorf("%s with ports exchanged: %s", name, fate)
				}
				for other, frame := range frames {
					if fate, _, _ := k.run("pod_ingress", frame, 0); other != name && fate != asked {
						t.Errorf("%s, after %s with the same ports: %s", other, name, fate)
					}
				}
				// Any change of policy, and any change of the guard's.
				k.set("generation", 2)
				fates("before a change", asked, asked)
				k.set("generation", 1)
				// To a pod nobody asks the guard.
				k.forgetFront()
				k.accept("pod_egress", frame)
				fates("seen to a pod", asked, passed)
				// It ends by itself.
				ends.set("generation", 1)
				ends.forgetFront()
				began := time.Now()
				ends.accept("pod_ingress", frame)
				if fate, _, _ := ends.run("pod_ingress", frame, 0); fate != passed && time.Since(began) < soon {
					t.Errorf("%s, seen %v ago: %s", name, time.Since(began), fate)
				}
				time.Sleep(soon + 2*coarseTick(t))
				if fate, _, _ := ends.run("pod_ingress", frame, 0); fate != asked {
					t.Errorf("%s, seen a while ago: %s", name, fate)
				}
			}
			// What opens or closes a connection is looked at, and so is whatever
			// parse would not call a key.
			k.forgetFront()
			plainTCP, plainUDP := family.build(6, tcp(), pay), family.build(17, udp, pay)
			k.accept("pod_ingress", plainTCP)
			k.accept("pod_ingress", plainUDP)
			patch := func(frame []byte, at int, b ...byte) []byte {
				frame = append([]byte(nil), frame...)
				copy(frame[at:], b)
				return frame
			}
			special := map[string][]byte{
				"SYN":       family.build(6, flags(func(h *layers.TCP) { h.SYN, h.ACK = true, false }), pay),
				"SYN ACK":   family.build(6, flags(func(h *layers.TCP) { h.SYN = true }), pay),
				"FIN":       family.build(6, flags(func(h *layers.TCP) { h.FIN = true }), pay),
				"RST":       family.build(6, flags(func(h *layers.TCP) { h.RST = true }), pay),
				"cut short": plainTCP[:family.l4+12],
			}
			if family.l4 == 34 {
				special["options"] = patch(plainUDP, 14, 0x46)
				special["wrong version"] = patch(plainUDP, 14, 0x65)
				special["more fragments"] = patch(plainUDP, 20, 0x20, 0)
				special["a fragment"] = patch(plainUDP, 20, 0, 1)
				special["no room for UDP"] = patch(plainUDP, 16, 0, 27)
				special["no room for IP"] = patch(plainUDP, 16, 0, 10)
				special["no room for TCP"] = patch(plainTCP, 16, 0, 39)
				special["another protocol"] = patch(plainUDP, 23, 136)
				special["another EtherType"] = patch(plainUDP, 12, 0x86, 0xdd)
			} else {
				special["wrong version"] = patch(plainUDP, 14, 0x45)
				special["no room for UDP"] = patch(plainUDP, 18, 0, 7)
				special["no room for TCP"] = patch(plainTCP, 18, 0, 19)
				special["another protocol"] = patch(plainUDP, 20, 136)
				special["another EtherType"] = patch(plainUDP, 12, 0x08, 0x00)
			}
			for name, frame := range special {
				for _, program := range []string{"pod_ingress", "pod_egress"} {
					if fate, _, _ := k.run(program, frame, 0); fate == passed {
						t.Errorf("%s: %s passed by what was noted of its flow", program, name)
					}
				}
			}
			if fate, _, _ := k.run("pod_ingress", plainTCP, 0); fate != passed {
				t.Errorf("the plain packet itself: %s", fate)
			}
			// FIN and RST still mark the flow, and leave no note themselves.
			for _, name := range []string{"FIN", "RST"} {
				k.forgetFront()
				entry := k.accept("pod_ingress", plainTCP)
				k.put("flows", entry, kern.FlowState{Generation: 1, Last: kern.Now()})
				if fate, _, _ := k.run("pod_ingress", special[name], 0); fate != passed {
					t.Errorf("%s of a known flow: %s", name, fate)
				}
				var s kern.FlowState
				if err := k.c.Maps["flows"].Lookup(&entry, &s); err != nil || s.Flags&kern.FlowClosing == 0 {
					t.Errorf("after %s: %+v, %v, want it closing", name, s, err)
				}
				k.forgetFront()
				k.run("pod_ingress", special[name], 0)
				k.c.Maps["flows"].Delete(&entry)
				if fate, _, _ := k.run("pod_ingress", plainTCP, 0); fate == passed {
					t.Errorf("%s left a note of its flow", name)
				}
			}
		})
	}
}

// The addresses of an IPv4 packet are not those of an IPv6 packet whose first
// bytes are the same.
func TestFrontFamilies(t *testing.T) {
	nstest.Need(t, canRun)
	onOneCPU(t)
	k := newKernel(t, true)
	udp, pay := &layers.UDP{SrcPort: 40000, DstPort: 80}, gopacket.Payload("tierwall")
	k.accept("pod_ingress", build(t, ether4, ipv4(17), udp, pay))
	six := ipv6(17)
	six.SrcIP, six.DstIP = make(net.IP, 16), make(net.IP, 16)
	copy(six.SrcIP, src4)
	copy(six.SrcIP[4:], dst4)
	if fate, _, _ := k.run("pod_ingress", build(t, ether6, six, udp, pay), 0); fate != asked {
		t.Errorf("%s by the IPv4 flow", fate)
	}
}

// More flows than there are slots: each passes by its own flow only, whatever
// they chase each other out of.
func TestFrontCollisions(t *testing.T) {
	nstest.Need(t, canRun)
	for _, slots := range []uint32{1, 2, 64} {
		t.Run(fmt.Sprint(slots), func(t *testing.T) {
			onOneCPU(t)
			k := newKernel(t, true, func(spec *ebpf.CollectionSpec) {
				if err := spec.Variables["front_mask"].Set(slots - 1); err != nil {
					t.Fatal(err)
				}
			})
			k.set("generation", 7)
			r := rand.New(rand.NewPCG(3, uint64(slots)))
			udp := &layers.UDP{SrcPort: 1, DstPort: 2}
			frames := [2][]byte{build(t, ether4, ipv4(17), udp, gopacket.Payload("tierwall")), build(t, ether6, ipv6(17), udp, gopacket.Payload("tierwall"))}
			known := map[kern.FlowKey]bool{}
			passes, fails := 0, 0
			for i := range 4000 {
				// A packet like the one before but for one byte: of the addresses
				// any, of the ports the lower ones.
				family := i / 2 % 2
				frame, from, to := frames[family], 26, 34
				if family == 1 {
					from, to = 22, 54
				}
				at := from + r.IntN(to-from+2)
				if at >= to {
					at = to + 1 + 2*(at-to)
				}
				frame[at] = byte(1 + r.IntN(3))
				var h packet.Headers
				if p := packet.ParseEthernet(frame, &h); p != packet.OK {
					t.Fatal(p)
				}
				name, _ := kern.MakeFlowKey(&h.Key)
				if _, ok := known[name]; !ok {
					known[name] = r.IntN(2) == 0
				}
				if known[name] { // the map forgets: put it again
					k.put("flows", name, kern.FlowState{Generation: 7, Last: kern.Now() + 1e12})
				}
				fate, _, _ := k.run("pod_ingress", frame, 0)
				if (fate == passed) != known[name] {
					t.Fatalf("packet %d, %v: %s, its flow is known: %v", i, h.Key, fate, known[name])
				}
				if known[name] {
					passes++
				} else {
					fails++
				}
			}
			if passes < 1000 || fails < 1000 {
				t.Errorf("%d packets passed, %d did not: the test tests nothing", passes, fails)
			}
		})
	}
}

// What the guard accepted on one device is no excuse on another.
func TestFrontIsOfOneDevice(t *testing.T) {
	nstest.Need(t, canRun)
	ns := nstest.New(t)
	if err := ns.Do(func() error {
		for _, name := range []string{"d1", "d2"} {
			l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
			if err := ns.Handle().LinkAdd(l); err != nil {
				return err
			}
		}
		var index [2]uint32
		for i, name := range []string{"d1", "d2"} {
			l, err := ns.Link(name)
			if err != nil {
				return err
			}
			index[i] = uint32(l.Attrs().Index)
		}
		k := newKernel(t, true)
		frame := build(t, ether4, ipv4(17), &layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload("tierwall"))
		var h packet.Headers
		if p := packet.ParseEthernet(frame, &h); p != packet.OK {
			return fmt.Errorf("%v", p)
		}
		name, _ := kern.MakeFlowKey(&h.Key)
		for _, i := range index {
			if err := k.c.Maps["guards"].Put(i, &kern.GuardState{Flags: kern.GuardPod}); err != nil {
				return err
			}
		}
		if err := k.c.Maps["local_pods"].Put(h.Key.Src, &kern.LocalPod{Ifindex: index[0]}); err != nil {
			return err
		}
		k.put("flows", name, kern.FlowState{Generation: 1, Last: kern.Now() + 1e12})
		for i := range 3 {
			if fate, _, _ := k.runOn(index[0], "pod_ingress", frame, 0); fate != passed {
				t.Errorf("%d: from its own device: %s", i, fate)
			}
			if fate, _, _ := k.runOn(index[1], "pod_ingress", frame, 0); fate != forged {
				t.Errorf("%d: from another device: %s", i, fate)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A device that loses an address cannot go on speaking in its name, not even in
// flows that were accepted when it had it, and without any change of policy.
func TestAddressLeavesDevice(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b, c := r.AddPod(t, "a"), r.AddPod(t, "b"), r.AddPod(t, "c")
	r.update(t, a, b, c)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	conn := dial(t, a.NS, "udp", s.Addr)
	for range 10 {
		exchange(t, conn)
	}
	// The address moves: its route leads to another pod's device now.
	to, err := r.NS.Link(c.HostDevice)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.NS.Handle().RouteReplace(&netlink.Route{
		LinkIndex: to.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(a.Addr4.AsSlice()),
	}); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the guard knows", func() bool {
		var owner kern.LocalPod
		err := r.backend.objects.LocalPods.Lookup(flow.AddrFrom(a.Addr4), &owner)
		return err == nil && int(owner.Ifindex) == to.Attrs().Index
	})
	// The generation follows within the same step of the backend's thread.
	if err := r.backend.thread.do(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	seen := s.Seen()
	for range 5 {
		if _, err := conn.Write([]byte("forged")); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Eventually(t, "the packets are dropped as forged", func() bool { return r.counter(t, kern.CountForged) == 5 })
	if n := s.Seen() - seen; n != 0 {
		t.Errorf("%d packets arrived", n)
	}
}

// A frame of somebody's VLAN is not a packet of the flow that its addresses name,
// nor does what the CPU noted of that flow excuse it.
func TestTaggedFrameOfKnownFlow(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	exchange(t, c)
	exchange(t, c)
	local, remote := c.LocalAddr().(*net.UDPAddr), c.RemoteAddr().(*net.UDPAddr)
	host, err := r.NS.MAC(a.HostDevice)
	if err != nil {
		t.Fatal(err)
	}
	own, err := a.NS.MAC(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	ip := ipv4(17)
	ip.SrcIP, ip.DstIP = local.IP.To4(), remote.IP.To4()
	frame := build(t, &layers.Ethernet{SrcMAC: own, DstMAC: host, EthernetType: layers.EthernetTypeIPv4}, ip,
		&layers.UDP{SrcPort: layers.UDPPort(local.Port), DstPort: layers.UDPPort(remote.Port)}, gopacket.Payload("tierwall"))
	send := inject(t, a.NS, netlab.PodDevice)
	hits, drops := r.counter(t, kern.CountHit), r.counter(t, kern.CountDrop)
	send(append(append(append([]byte(nil), frame[:12]...), 0x81, 0, 0, 5), frame[12:]...))
	nstest.Eventually(t, "the tagged frame is dropped", func() bool { return r.counter(t, kern.CountDrop) == drops+1 })
	if n := r.counter(t, kern.CountHit) - hits; n != 0 {
		t.Errorf("%d packets passed by a flow", n)
	}
	send(frame) // its checksum is wrong: it gets no further than our program
	nstest.Eventually(t, "the same frame without a tag passes", func() bool { return r.counter(t, kern.CountHit) == hits+1 })
}

// A flow in use does not expire, however short its idle time: it is looked up
// often enough to be noted.
func TestFlowInUseStays(t *testing.T) {
	const idle = 400 * time.Millisecond
	r := newRig(t, Config{Strict: true, Timeouts: Timeouts{UDP: idle}})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	if up := r.inUse(t, c, idle); len(up) != 0 {
		t.Errorf("%d packets of a flow in use came up", len(up))
	}
}

// After Update returns, the very next packet of a flow in full swing is judged by
// the new policy, whatever CPUs noted of it.
func TestNextPacketAfterChange(t *testing.T) {
	for _, strict := range []bool{true, false} {
		r := newRig(t, Config{Strict: strict})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			r.policy(allowOpenPort)
			r.update(t, a, b)
			var server net.PacketConn
			if err := b.NS.Do(func() (err error) {
				server, err = net.ListenPacket("udp", netip.AddrPortFrom(addr, openPort).String())
				return err
			}); err != nil {
				t.Fatal(err)
			}
			c := dial(t, a.NS, "udp", netip.AddrPortFrom(addr, openPort))
			buf := make([]byte, 64)
			for range 50 {
				if _, err := c.Write([]byte("before")); err != nil {
					t.Fatal(err)
				}
				server.SetDeadline(time.Now().Add(nstest.Timeout))
				if _, _, err := server.ReadFrom(buf); err != nil {
					t.Fatal(err)
				}
			}
			r.policy(func(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.DropPacket })
			r.upcalls()
			if err := r.backend.update(podAddrs(a, b), dataplane.ChangeWithin(touching(flow.AddrFrom(addr)))); err != nil {
				t.Fatal(err)
			}
			for range 50 {
				if _, err := c.Write([]byte("after")); err != nil {
					t.Fatal(err)
				}
			}
			server.SetDeadline(time.Now().Add(nstest.Blocked))
			if n, _, err := server.ReadFrom(buf); err == nil {
				t.Errorf("strict %v: %q arrived at %s although policy denies it", strict, buf[:n], addr)
			}
			if up := r.upcalls(); len(up) == 0 {
				t.Error("nobody judged the packets")
			}
			server.Close()
		}
	}
}

func podAddrs(pods ...*netlab.Pod) (addrs []netip.Addr) {
	for _, p := range pods {
		addrs = append(addrs, p.Addr4, p.Addr6)
	}
	return addrs
}

func TestFrontSize(t *testing.T) {
	for cpus, want := range map[int]uint32{1: 4096, 2: 4096, 64: 4096, 65: 2048, 128: 2048, 1024: 256, 1 << 20: 1} {
		if got := slotsPerCPU(cpus); got != want {
			t.Errorf("%d CPUs: %d slots each, want %d", cpus, got, want)
		}
	}
	for want, c := range map[time.Duration]Config{
		500 * time.Millisecond: {},
		50 * time.Millisecond:  {Timeouts: Timeouts{SCTP: 200 * time.Millisecond}},
		10 * time.Millisecond:  {Timeouts: Timeouts{Closing: 40 * time.Millisecond}},
	} {
		if err := c.fill(); err != nil {
			t.Fatal(err)
		}
		if got := c.frontTime(); got != want {
			t.Errorf("%+v: %v, want %v", c.Timeouts, got, want)
		}
	}
}
