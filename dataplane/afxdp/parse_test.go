package afxdp

import (
	"math/rand/v2"
	"net"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// kernel runs the pod programs on made-up packets (BPF_PROG_TEST_RUN).
type kernel struct {
	t   testing.TB
	c   *ebpf.Collection
	cfg Config
}

// skbContext is the start of struct __sk_buff.
type skbContext struct {
	Len, PktType, Mark, QueueMapping, Protocol     uint32
	VlanPresent, VlanTci, VlanProto, Priority      uint32
	IngressIfindex, Ifindex, TcIndex               uint32
	Cb                                             [5]uint32
	Hash, TcClassid, Data, DataEnd, NapiID, Family uint32
	Remote                                         [13]uint32 // addresses and ports, data_meta
	FlowKeys, Tstamp                               uint64
	WireLen, GsoSegs                               uint32
	Sk                                             uint64
	GsoSize, TstampType                            uint32
	Hwtstamp                                       uint64
}

const loopback = 1 // ifindex in every namespace

// newKernel loads the programs; change is for what the test wants different. What a
// CPU notes holds for minutes, for whoever is not let run meanwhile: see frontEnds.
func newKernel(t testing.TB, strict bool, change ...func(*ebpf.CollectionSpec)) *kernel {
	t.Helper()
	k := &kernel{t: t}
	if err := k.cfg.fill(); err != nil {
		t.Fatal(err)
	}
	spec, err := kern.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	set := func(name string, v any) {
		if err := spec.Variables[name].Set(v); err != nil {
			t.Fatal(name, err)
		}
	}
	set("upcall_ifindex", uint32(loopback))
	set("max_frame", uint32(1792))
	set("mark_accept", DefaultMarks.Accept)
	set("mark_fast", DefaultMarks.Fast)
	set("mark_return", DefaultMarks.Return)
	set("alive_time", uint64(1<<62))
	set("deny_time", uint64(1e9))
	for _, name := range []string{"idle_tcp", "idle_closing", "idle_udp", "idle_sctp", "idle_icmp", "idle_other"} {
		set(name, uint64(1e9))
	}
	if strict {
		set("strict", uint8(1))
	}
	k.cfg.Timeouts = Timeouts{TCP: time.Second, Closing: time.Second, UDP: time.Second, SCTP: time.Second, ICMP: time.Second, Other: time.Second}
	if err := k.cfg.sizeFront(spec); err != nil {
		t.Fatal(err)
	}
	tick := coarseTick(t)
	set("front_ticks", uint64(time.Hour/tick))
	set("way_ticks", uint64(time.Hour/tick))
	for _, f := range change {
		f(spec)
	}
	if !readsConnections() { // as loadNAT has it on such a kernel
		set("nat", uint8(0))
		if spec, err = kern.WithNAT(spec, false, strict); err != nil {
			t.Fatal(err)
		}
	}
	if k.c, err = ebpf.NewCollection(spec); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.c.Close)
	// Somebody to ask, who never reads.
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_RX_RING, 64); err != nil {
		t.Fatal(err)
	}
	if err := k.c.Maps["sockets"].Put(uint32(0), uint32(fd)); err != nil {
		t.Fatal(err)
	}
	if err := k.c.Maps["devices"].Put(uint32(loopback), &kern.DeviceState{}); err != nil {
		t.Fatal(err)
	}
	return k
}

// soon is how long what a CPU notes of a flow holds in a kernel with frontEnds.
const soon = 250 * time.Millisecond

func frontEnds(t testing.TB) func(*ebpf.CollectionSpec) {
	return func(spec *ebpf.CollectionSpec) {
		if err := spec.Variables["front_ticks"].Set(uint64(soon / coarseTick(t))); err != nil {
			t.Fatal(err)
		}
	}
}

// What became of a packet.
const (
	passed   = "passed"   // by its flow
	exempt   = "exempt"   // not subject to policy
	unparsed = "unparsed" // left to the later hook
	asked    = "asked"    // sent up
	deferred = "deferred" // left to the later hook by its flow
	dropped  = "dropped"
	denied   = "denied"  // dropped: userspace said so a moment ago
	limited  = "limited" // dropped: too many upcalls
	alone    = "alone"   // dropped: no daemon
	left     = "left"    // passed: no daemon
	forged   = "forged"  // dropped: another pod's address
	across   = "across"  // passed by its flow, straight to the other pod
)

// run sends a packet through a program and returns what became of it, the mark
// it left with and the frame.
func (k *kernel) run(program string, frame []byte, mark uint32) (fate string, markOut uint32, out []byte) {
	k.t.Helper()
	return k.runIn(skbContext{Mark: mark}, program, frame)
}

// runOn is run on a device of the thread's namespace.
func (k *kernel) runOn(ifindex uint32, program string, frame []byte, mark uint32) (fate string, markOut uint32, out []byte) {
	k.t.Helper()
	return k.runIn(skbContext{Mark: mark, Ifindex: ifindex}, program, frame)
}

// runIn is run for a packet about which the kernel knows ctx.
func (k *kernel) runIn(ctx skbContext, program string, frame []byte) (fate string, markOut uint32, out []byte) {
	k.t.Helper()
	before := k.counters()
	var ctxOut skbContext
	opt := &ebpf.RunOptions{Data: frame, DataOut: make([]byte, len(frame)+256), Context: ctx, ContextOut: &ctxOut}
	ret, err := k.c.Programs[program].Run(opt)
	if err != nil {
		k.t.Fatalf("run %s: %v", program, err)
	}
	after := k.counters()
	fates := map[int]string{
		kern.CountHit: passed, kern.CountUpcall: asked, kern.CountLater: deferred, kern.CountUnparsed: unparsed,
		kern.CountDrop: dropped, kern.CountExempt: exempt,
		kern.CountDenied: denied, kern.CountLimited: limited, kern.CountAloneDrop: alone, kern.CountAlonePass: left, kern.CountForged: forged, kern.CountAcross: across,
	}
	n := 0
	for i := range after {
		if after[i] != before[i] {
			n++
			fate = fates[i]
		}
	}
	if n != 1 {
		k.t.Errorf("%d counters changed, want one: every packet has one fate", n)
	}
	const next, drop, redirect = 0xffffffff, 2, 7
	want := map[string]uint32{passed: next, exempt: next, unparsed: next, deferred: next, asked: redirect, dropped: drop, denied: drop, limited: drop, alone: drop, left: next, forged: drop, across: redirect}[fate]
	if ret != want {
		k.t.Errorf("packet that was %s: program returned %d", fate, int32(ret))
	}
	return fate, ctxOut.Mark, opt.DataOut
}

func (k *kernel) counters() (n [kern.NumCounters]uint64) {
	for i := range n {
		var perCPU []uint64
		if err := k.c.Maps["counters"].Lookup(uint32(i), &perCPU); err != nil {
			k.t.Fatal(err)
		}
		for _, c := range perCPU {
			n[i] += c
		}
	}
	return n
}

func (k *kernel) put(m string, key kern.FlowKey, s kern.FlowState) {
	k.t.Helper()
	if err := k.c.Maps[m].Put(&key, &s); err != nil {
		k.t.Fatal(err)
	}
}

var (
	ether4 = &layers.Ethernet{SrcMAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, DstMAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, EthernetType: layers.EthernetTypeIPv4}
	ether6 = &layers.Ethernet{SrcMAC: ether4.SrcMAC, DstMAC: ether4.DstMAC, EthernetType: layers.EthernetTypeIPv6}
	src4   = net.IP{10, 0, 0, 1}
	dst4   = net.IP{10, 0, 0, 2}
	src6   = net.ParseIP("fd00::1")
	dst6   = net.ParseIP("fd00::2")
)

func ipv4(proto layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: src4, DstIP: dst4}
}

func ipv6(next layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: next, SrcIP: src6, DstIP: dst6}
}

func build(t testing.TB, l ...gopacket.SerializableLayer) []byte {
	t.Helper()
	buf := gopacket.NewSerializeBuffer()
	for _, x := range l {
		switch x := x.(type) {
		case *layers.TCP:
			x.SetNetworkLayerForChecksum(ipv4(6))
		case *layers.UDP:
			x.SetNetworkLayerForChecksum(ipv4(17))
		}
	}
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, l...); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// What the kernel side can name it names as the Go parser does: an entry under
// the Go key makes the packet pass. What it cannot name never passes by a flow.
func TestKernelKeys(t *testing.T) {
	nstest.Need(t, canRun)
	strict, loose := newKernel(t, true), newKernel(t, false)
	pay := gopacket.Payload("tierwall")
	tcp := &layers.TCP{SrcPort: 40000, DstPort: 80, ACK: true}
	udp := &layers.UDP{SrcPort: 40000, DstPort: 53}
	raw := func(b ...byte) gopacket.Payload { return append(b, make([]byte, 40)...) }
	ether := func(typ layers.EthernetType) *layers.Ethernet {
		return &layers.Ethernet{SrcMAC: ether4.SrcMAC, DstMAC: ether4.DstMAC, EthernetType: typ}
	}
	fragment := func(flags layers.IPv4Flag, offset uint16) *layers.IPv4 {
		ip := ipv4(17)
		ip.Flags, ip.FragOffset = flags, offset
		return ip
	}
	options := ipv4(17)
	options.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 1}}
	mapped := ipv6(17)
	mapped.SrcIP, mapped.DstIP = make(net.IP, 16), dst6
	copy(mapped.SrcIP[10:], []byte{0xff, 0xff, 10, 0, 0, 1})
	toMapped := ipv6(17)
	toMapped.DstIP = mapped.SrcIP
	toGroup := ipv6(0)
	toGroup.DstIP = net.ParseIP("ff02::16")
	sameVersion := build(t, ether4, ipv4(17), udp, pay)
	sameVersion[14] = 0x65 // version 6 in an IPv4 frame

	for _, c := range []struct {
		name          string
		frame         []byte
		key           bool   // passes by its flow
		strict, loose string // without one
	}{
		{"TCP", build(t, ether4, ipv4(6), tcp, pay), true, asked, asked},
		{"TCP6", build(t, ether6, ipv6(6), tcp, pay), true, asked, asked},
		{"UDP", build(t, ether4, ipv4(17), udp, pay), true, asked, asked},
		{"UDP6", build(t, ether6, ipv6(17), udp, pay), true, asked, asked},
		{"SCTP", build(t, ether4, ipv4(132), raw(0x9c, 0x40, 0x13, 0x88)), true, asked, asked},
		{"SCTP6", build(t, ether6, ipv6(132), raw(0x9c, 0x40, 0x13, 0x88)), true, asked, asked},
		{"echo request", build(t, ether4, ipv4(1), raw(8, 0, 0, 0, 0x12, 0x34)), true, asked, asked},
		{"echo reply", build(t, ether4, ipv4(1), raw(0, 0, 0, 0, 0x12, 0x34)), true, asked, asked},
		{"echo request 6", build(t, ether6, ipv6(58), raw(128, 0, 0, 0, 0x12, 0x34)), true, asked, asked},
		{"echo reply 6", build(t, ether6, ipv6(58), raw(129, 0, 0, 0, 0x12, 0x34)), true, asked, asked},
		{"GRE", build(t, ether4, ipv4(47), raw(0, 0, 8, 0)), true, asked, asked},
		{"ESP6", build(t, ether6, ipv6(50), raw(1, 2, 3, 4)), true, asked, asked},

		{"SYN", build(t, ether4, ipv4(6), &layers.TCP{SrcPort: 40000, DstPort: 80, SYN: true}, pay), false, asked, asked},
		{"ICMP error", build(t, ether4, ipv4(1), raw(3, 1)), false, asked, unparsed},
		{"ICMP timestamp", build(t, ether4, ipv4(1), raw(13, 0)), false, asked, unparsed},
		{"ICMP error 6", build(t, ether6, ipv6(58), raw(1, 4)), false, asked, unparsed},
		{"IGMP", build(t, ether4, ipv4(2), raw(0x16)), false, asked, unparsed},
		{"IP options", build(t, ether4, options, udp, pay), false, asked, unparsed},
		{"extension header", build(t, ether6, ipv6(60), raw(17, 0)), false, asked, unparsed},
		{"wrong version", sameVersion, false, asked, unparsed},
		{"ports in the padding", build(t, ether4, ipv4(6), raw()[:8]), false, asked, unparsed},
		{"cut short", build(t, ether6, ipv6(6), raw()[:8]), false, asked, unparsed},
		{"ICMPv6 in IPv4", build(t, ether4, ipv4(58), raw(128, 0)), false, asked, unparsed},
		{"mapped source", build(t, ether6, mapped, udp, pay), false, asked, unparsed},
		{"mapped destination", build(t, ether6, toMapped, udp, pay), false, asked, unparsed},
		{"ICMP in IPv6", build(t, ether6, ipv6(1), raw(8, 0)), false, asked, unparsed},

		{"first fragment", build(t, ether4, fragment(layers.IPv4MoreFragments, 0), udp, pay), false, dropped, unparsed},
		{"last fragment", build(t, ether4, fragment(0, 100), pay), false, dropped, unparsed},
		{"fragment 6", build(t, ether6, ipv6(44), raw(17, 0, 0, 1)), false, dropped, unparsed},
		{"tag in a tag", build(t, ether(0x8100), raw(0, 0, 8, 0)), false, dropped, unparsed},
		{"service tag", build(t, ether(0x88a8), raw(0, 0, 8, 0)), false, dropped, unparsed},
		{"MPLS", build(t, ether(0x8847), raw()), false, dropped, unparsed},
		{"PPPoE", build(t, ether(0x8864), raw()), false, dropped, unparsed},

		{"ARP", build(t, ether(0x0806), raw()), false, exempt, exempt},
		{"LLDP", build(t, ether(0x88cc), raw()), false, exempt, exempt},
		{"listener report", build(t, ether6, toGroup, raw(58, 0, 5, 2, 0, 0, 1, 0, 143)), false, exempt, exempt},
		{"UDP dressed as listener report", build(t, ether6, toGroup, raw(17, 0, 5, 2, 0, 0, 1, 0, 143)), false, asked, unparsed},
		{"another ICMPv6 message dressed so", build(t, ether6, toGroup, raw(58, 0, 5, 2, 0, 0, 1, 0, 128)), false, asked, unparsed},
		{"listener report to somebody", build(t, ether6, ipv6(0), raw(58, 0, 5, 2, 0, 0, 1, 0, 143)), false, asked, unparsed},
	} {
		t.Run(c.name, func(t *testing.T) {
			onOneCPU(t)
			for _, k := range []*kernel{strict, loose} {
				k.t = t
				want := c.loose
				if k == strict {
					want = c.strict
				}
				forged := DefaultMarks.Accept | DefaultMarks.Fast
				fate, mark, out := k.run("pod_ingress", c.frame, forged|0x8000)
				if fate != want {
					t.Errorf("strict %v: %s, want %s", k == strict, fate, want)
				}
				if mark != 0x8000 {
					t.Errorf("mark %#x: want our bits cleared and the others kept", mark)
				}
				if m, ok := upcall.ReadMeta(out, 0); fate == asked && (!ok || m != upcall.Meta{Ifindex: loopback}) {
					t.Errorf("metadata %+v, %v", m, ok)
				}
				var h packet.Headers
				problem := packet.ParseEthernet(c.frame, &h)
				if !c.key {
					if problem == packet.OK && h.Key.Valid() {
						name, _ := kern.MakeFlowKey(&h.Key)
						k.put("flows", name, kern.FlowState{Generation: 1, Last: kern.Now()})
						if fate, _, _ := k.run("pod_ingress", c.frame, 0); fate == passed {
							t.Error("passed by a flow that it may not be part of")
						}
					}
					continue
				}
				if problem != packet.OK {
					t.Fatalf("the Go parser says %v", problem)
				}
				reverse := h.Key.Reverse()
				name, back := kern.MakeFlowKey(&h.Key)
				opened := map[bool]uint32{back: 0, !back: kern.FlowBack}[true] // against this packet
				if r, _ := kern.MakeFlowKey(&reverse); r != name {
					t.Fatalf("the reverse has another name: %+v, %+v", r, name)
				}
				k.put("flows", name, kern.FlowState{Generation: 1, Last: kern.Now()})
				marks := 0x8000 | DefaultMarks.Fast
				if k == strict {
					marks |= DefaultMarks.Accept
				}
				if fate, mark, _ := k.run("pod_ingress", c.frame, 0x8000); fate != passed || mark != marks {
					t.Errorf("with its flow: %s with mark %#x, want it passed and marked", fate, mark)
				}
				// Not by what was noted of it: TestFront has that.
				k.c.Maps["flows"].Delete(&name)
				k.forgetFront()
				for _, mark := range []uint32{0, DefaultMarks.Fast, DefaultMarks.Accept | DefaultMarks.Fast} {
					if fate, _, _ := k.run("pod_egress", c.frame, mark); fate == passed {
						t.Errorf("passed towards the pod without a flow, with mark %#x", mark)
					}
				}
				k.c.Maps["later"].Delete(&name)
				// A change was about everything, or about one end; expired.
				stale := kern.FlowState{Generation: 1, Last: kern.Now(), Cell: [2]uint16{7, 8}, Flags: opened}
				k.put("flows", name, stale)
				for _, about := range []struct {
					name     string
					do, undo func()
				}{
					{"everything", func() { k.set("valid_from", 2) }, func() { k.set("valid_from", 1) }},
					{"one end", func() { k.change(7, 2) }, func() { k.change(7, 0) }},
					{"the other end", func() { k.change(8, 2) }, func() { k.change(8, 0) }},
				} {
					k.set("generation", 2)
					k.put("flows", name, stale)
					about.do()
					fate, _, out = k.run("pod_ingress", c.frame, 0)
					if m, _ := upcall.ReadMeta(out, 0); fate != asked || !m.Reply {
						t.Errorf("after a change about %s: %s with %+v, want it asked as a reply", about.name, fate, m)
					}
					about.undo()
				}
				k.put("flows", name, stale)
				k.change(9, 2)
				if fate, _, _ = k.run("pod_ingress", c.frame, 0); fate != passed {
					t.Errorf("after a change about somebody else: %s", fate)
				}
				var now kern.FlowState
				if err := k.c.Maps["flows"].Lookup(&name, &now); err != nil || now.Generation != 2 {
					t.Errorf("the flow is known to be judged by generation %d, %v, want 2", now.Generation, err)
				}
				k.set("generation", 1)
				k.forgetFront()
				stale.Last -= 2e9
				k.put("flows", name, stale)
				fate, _, out = k.run("pod_ingress", c.frame, 0)
				if m, _ := upcall.ReadMeta(out, 0); fate != asked || m.Reply {
					t.Errorf("with an expired flow: %s with %+v, want it asked as a new one", fate, m)
				}
				k.c.Maps["flows"].Delete(&name)
				// Denied: in this direction, by this policy, for a moment.
				no := name
				no.Back = map[bool]uint8{true: 1}[back]
				k.put("denied", no, kern.FlowState{Generation: 1, Last: kern.Now()})
				if fate, _, _ := k.run("pod_ingress", c.frame, 0); fate != denied {
					t.Errorf("denied a moment ago: %s", fate)
				}
				for _, s := range []kern.FlowState{{Generation: 0, Last: kern.Now()}, {Generation: 1, Last: kern.Now() - 2e9}} {
					k.put("denied", no, s)
					if fate, _, _ := k.run("pod_ingress", c.frame, 0); fate != asked {
						t.Errorf("denied long ago or by another policy, %+v: %s", s, fate)
					}
				}
				no.Back ^= 1
				k.put("denied", no, kern.FlowState{Generation: 1, Last: kern.Now()})
				if fate, _, _ := k.run("pod_ingress", c.frame, 0); fate != asked {
					t.Errorf("denied in the other direction: %s", fate)
				}
				k.c.Maps["denied"].Delete(&no)
				if k == strict {
					continue
				}
				if fate, _, _ := k.run("pod_egress", c.frame, 0); fate != deferred {
					t.Errorf("towards the pod, judged by the later hook: %s", fate)
				}
				if err := k.c.Maps["later"].Lookup(&name, &kern.FlowState{}); err != nil {
					t.Errorf("its answer is not known to be the later hook's: %v", err)
				}
				k.c.Maps["later"].Delete(&name)
				if fate, _, out := k.run("pod_egress", c.frame, DefaultMarks.Fast); fate != asked {
					t.Errorf("towards the pod, accepted under another name: %s", fate)
				} else if m, ok := upcall.ReadMeta(out, 0); !ok || !m.Egress {
					t.Errorf("metadata %+v, %v", m, ok)
				}
			}
		})
	}
}

func (k *kernel) set(name string, v uint64) {
	if err := k.c.Variables[name].Set(v); err != nil {
		k.t.Fatal(name, err)
	}
}

func (k *kernel) change(cell uint32, generation uint64) {
	if err := k.c.Maps["cells"].Put(cell, generation); err != nil {
		k.t.Fatal(err)
	}
}

// forgetFront empties the front cache.
func (k *kernel) forgetFront() {
	k.t.Helper()
	m, err := k.c.Maps["front"].Memory()
	if err != nil {
		k.t.Fatal(err)
	}
	if _, err := m.WriteAt(make([]byte, m.Size()), 0); err != nil {
		k.t.Fatal(err)
	}
}

// Random changes to packets: whatever passes by a flow is a packet the Go parser
// gives the same key, so that no two readings of one packet disagree.
func TestKernelAgreesWithParser(t *testing.T) {
	nstest.Need(t, canRun)
	k := newKernel(t, true)
	r := rand.New(rand.NewPCG(1, 2))
	seeds := [][]byte{
		build(t, ether4, ipv4(6), &layers.TCP{SrcPort: 40000, DstPort: 80, ACK: true}, gopacket.Payload("x")),
		build(t, ether6, ipv6(17), &layers.UDP{SrcPort: 40000, DstPort: 53}, gopacket.Payload("x")),
		build(t, ether4, ipv4(1), gopacket.Payload(append([]byte{8, 0, 0, 0, 1, 2}, make([]byte, 20)...))),
	}
	hits := 0
	for range 20000 {
		frame := append([]byte(nil), seeds[r.IntN(len(seeds))]...)
		for range r.IntN(4) {
			frame[12+r.IntN(min(len(frame)-12, 46))] = byte(r.IntN(256))
		}
		var h packet.Headers
		problem := packet.ParseEthernet(frame, &h)
		key, _ := kern.MakeFlowKey(&h.Key)
		k.put("flows", key, kern.FlowState{Generation: 1, Last: kern.Now()})
		fate, _, _ := k.run("pod_ingress", frame, 0)
		k.c.Maps["flows"].Delete(&key)
		if fate != passed {
			continue
		}
		hits++
		// The kernel does not look at lengths and flags of a flow it knows: the
		// stack and the receiver do. It must never take one flow for another.
		switch problem {
		case packet.OK, packet.BadTotalLength, packet.BadTCPFlags, packet.BadPort, packet.BadHeaderLength, packet.Truncated:
		default:
			t.Fatalf("% x passed, the Go parser says %v", frame, problem)
		}
	}
	if hits < 1000 {
		t.Errorf("only %d hits: the test tests nothing", hits)
	}
}
