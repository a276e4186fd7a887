package afxdp

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// wayRig is two devices between which a flow's way can be learnt, in the namespace
// of the thread.
type wayRig struct {
	*kernel
	from, to uint32 // ifindexes
	own, pod net.HardwareAddr
}

func newWayRig(t *testing.T, ns *netlab.NS, change ...func(*ebpf.CollectionSpec)) *wayRig {
	t.Helper()
	w := &wayRig{pod: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	for _, d := range []struct {
		name  string
		index *uint32
	}{{"d1", &w.from}, {"d2", &w.to}} {
		if err := ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: d.name, MTU: 1400}, PeerName: d.name + "p"}); err != nil {
			t.Fatal(err)
		}
		l, err := ns.Link(d.name)
		if err != nil {
			t.Fatal(err)
		}
		*d.index, w.own = uint32(l.Attrs().Index), l.Attrs().HardwareAddr
	}
	w.kernel = newKernel(t, false, append(change, func(spec *ebpf.CollectionSpec) {
		spec.Maps["ways"].MaxEntries = spec.Maps["front"].MaxEntries
		for _, name := range []string{"accelerate", "tcp_liberal"} {
			if err := spec.Variables[name].Set(true); err != nil {
				t.Fatal(err)
			}
		}
	})...)
	for _, i := range []uint32{w.from, w.to} {
		w.device(i, kern.DeviceOpen)
		w.guard(i, 0)
	}
	w.home(w.to)
	return w
}

// home puts the destinations of all frames behind a device; their sources are behind the
// one they come from.
func (w *wayRig) home(index uint32) {
	w.t.Helper()
	for _, ip := range []net.IP{src4, src6} {
		a, _ := netip.AddrFromSlice(ip)
		if err := w.c.Maps["local_pods"].Put(flow.AddrFrom(a), &kern.LocalPod{Ifindex: w.from}); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, ip := range []net.IP{dst4, dst6} {
		a, _ := netip.AddrFromSlice(ip)
		if err := w.c.Maps["local_pods"].Put(flow.AddrFrom(a), &kern.LocalPod{Ifindex: index}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *wayRig) device(index, flags uint32) {
	w.t.Helper()
	if err := w.c.Maps["devices"].Put(index, &kern.DeviceState{Own: [6]byte(w.own), Flags: flags}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *wayRig) guard(index, bridge uint32) {
	w.t.Helper()
	if err := w.c.Maps["guards"].Put(index, &kern.GuardState{Flags: kern.GuardPod, Bridge: bridge}); err != nil {
		w.t.Fatal(err)
	}
}

// flow makes the flow of a frame known.
func (w *wayRig) flow(frame []byte, flags uint32) {
	w.t.Helper()
	var h packet.Headers
	if p := packet.ParseEthernet(frame, &h); p != packet.OK {
		w.t.Fatal(p)
	}
	name, _ := kern.MakeFlowKey(&h.Key)
	w.put("flows", name, kern.FlowState{Generation: 1, Last: kern.Now() + 1e12, Flags: flags})
}

// routed is the frame after the stack has routed it.
func (w *wayRig) routed(frame []byte) []byte {
	out := append([]byte(nil), frame...)
	copy(out, w.pod)
	copy(out[6:], w.own)
	return out
}

// pass has a frame come in and go out the ordinary way.
func (w *wayRig) pass(in, out []byte, ctx skbContext) {
	w.t.Helper()
	for _, p := range []struct {
		program string
		frame   []byte
		ctx     skbContext
	}{{"pod_ingress", in, skbContext{Ifindex: w.from}}, {"pod_egress", out, ctx}} {
		if fate, _, _ := w.runIn(p.ctx, p.program, p.frame); fate != passed {
			w.t.Errorf("%s: %s", p.program, fate)
		}
	}
}

// A way is learnt from a packet that demonstrably came in and left under the same
// tuple, routed once between two pods' devices, and from no other.
func TestWayIsLearnt(t *testing.T) {
	nstest.Need(t, canRun)
	ns := nstest.New(t)
	if err := ns.Do(func() error {
		onOneCPU(t)
		w := newWayRig(t, ns.NS)
		pay := gopacket.Payload("tierwall")
		udp := func(from, to layers.UDPPort) []byte {
			return build(t, ether4, ipv4(17), &layers.UDP{SrcPort: from, DstPort: to}, pay)
		}
		plain, other := udp(40000, 8080), udp(40001, 8080)
		bridged := append([]byte(nil), plain...)
		leaving := skbContext{Mark: DefaultMarks.Fast | DefaultMarks.Accept, Ifindex: w.to, IngressIfindex: w.from}
		routed := func(f []byte) []byte { return w.routed(f) }
		same := func(f []byte) []byte { return f }
		for _, c := range []struct {
			name   string
			frame  []byte
			out    func([]byte) []byte
			change func(ctx *skbContext)
			flags  uint32
			want   string
		}{
			{name: "routed", want: across},
			{name: "IPv6", frame: build(t, ether6, ipv6(17), &layers.UDP{SrcPort: 40000, DstPort: 8080}, pay), want: across},
			{name: "TCP", frame: build(t, ether4, ipv4(6), &layers.TCP{SrcPort: 40000, DstPort: 8080, ACK: true, DataOffset: 5}, pay), want: across},
			{name: "the accept mark has ended on its way", change: func(ctx *skbContext) { ctx.Mark = DefaultMarks.Fast }, want: across},
			{name: "not marked", change: func(ctx *skbContext) { ctx.Mark = 0 }},
			{name: "came from elsewhere", change: func(ctx *skbContext) { ctx.IngressIfindex = w.to }},
			{name: "the node's own", change: func(ctx *skbContext) { ctx.IngressIfindex = 0 }},
			{name: "another packet came in since", change: func(*skbContext) {
				w.flow(other, 0)
				if fate, _, _ := w.runOn(w.from, "pod_ingress", other, 0); fate != passed {
					t.Errorf("the other packet: %s", fate)
				}
			}},
			{name: "userspace sent one back since", change: func(*skbContext) { w.returned(w.from, other) }},
			{name: "another device's address", out: func(f []byte) []byte { f = routed(f); f[11]++; return f }},
			{name: "a device that is not open", change: func(*skbContext) { w.device(w.to, 0) }},
			{name: "from one that is not", change: func(*skbContext) { w.device(w.from, 0) }},
			{name: "no pod's device", change: func(*skbContext) { w.c.Maps["devices"].Delete(w.to) }},
			{name: "its own device", change: func(ctx *skbContext) { ctx.Ifindex = w.from }},
			{name: "a copy for somebody else", change: func(*skbContext) { w.home(w.from) }},
			{name: "to nobody we know", change: func(*skbContext) { w.home(0) }},
			{name: "to many", out: func(f []byte) []byte { f = routed(f); f[0] |= 1; return f }},
			{name: "to a bridge", change: func(*skbContext) { w.guard(w.to, 7) }},
			{name: "from a bridge", out: same, change: func(*skbContext) { w.guard(w.from, 7) }},
			{name: "between bridges", out: same, change: func(*skbContext) { w.guard(w.from, 7); w.guard(w.to, 8) }},
			{name: "bridged", frame: bridged, out: same, change: func(*skbContext) { w.guard(w.from, 7); w.guard(w.to, 7) }, want: across},
			{name: "closing", flags: kern.FlowClosing, frame: build(t, ether4, ipv4(6), &layers.TCP{SrcPort: 40000, DstPort: 8080, ACK: true, DataOffset: 5}, pay)},
			{name: "a DNS query", frame: udp(40000, 53)},
			{name: "a DNS answer", frame: udp(53, 40000)},
			{name: "SCTP", frame: build(t, ether4, ipv4(132), gopacket.Payload(append([]byte{0x9c, 0x40, 0x1f, 0x90}, make([]byte, 40)...)))},
		} {
			if c.frame == nil {
				c.frame = plain
			}
			if c.out == nil {
				c.out = routed
			}
			if c.want == "" {
				c.want = passed
			}
			w.forgetFront()
			for _, i := range []uint32{w.from, w.to} {
				w.device(i, kern.DeviceOpen)
				w.guard(i, 0)
			}
			w.home(w.to)
			w.flow(c.frame, c.flags)
			ctx := leaving
			if fate, _, _ := w.runOn(w.from, "pod_ingress", c.frame, 0); fate != passed {
				t.Errorf("%s: %s at first", c.name, fate)
			}
			if c.change != nil {
				c.change(&ctx)
			}
			if fate, _, _ := w.runIn(ctx, "pod_egress", c.out(c.frame)); fate != passed {
				t.Errorf("%s: %s on its way out", c.name, fate)
			}
			if fate, mark, _ := w.runOn(w.from, "pod_ingress", c.frame, 0); fate != c.want || fate == across && mark != 0 {
				t.Errorf("%s: the next packet was %s with mark %#x, want it %s", c.name, fate, mark, c.want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// A flow that could not go across is looked at again when its slot is filled anew.
func TestWayIsTriedAgain(t *testing.T) {
	nstest.Need(t, canRun)
	ns := nstest.New(t)
	if err := ns.Do(func() error {
		onOneCPU(t)
		w := newWayRig(t, ns.NS, frontEnds(t))
		frame := build(t, ether4, ipv4(17), &layers.UDP{SrcPort: 40000, DstPort: 8080}, gopacket.Payload("tierwall"))
		w.flow(frame, 0)
		leaving := skbContext{Mark: DefaultMarks.Fast, Ifindex: w.to, IngressIfindex: w.from}
		w.device(w.to, 0)
		w.pass(frame, w.routed(frame), leaving)
		w.device(w.to, kern.DeviceOpen)
		w.pass(frame, w.routed(frame), leaving) // still as it was noted
		time.Sleep(soon + 2*coarseTick(t))
		w.pass(frame, w.routed(frame), leaving)
		if fate, _, _ := w.runOn(w.from, "pod_ingress", frame, 0); fate != across {
			t.Errorf("the next packet was %s", fate)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// returned runs a packet that bears the mark of userspace.
func (k *kernel) returned(ifindex uint32, frame []byte) {
	k.t.Helper()
	if ret, err := k.c.Programs["pod_ingress"].Run(&ebpf.RunOptions{
		Data: frame, Context: skbContext{Mark: DefaultMarks.Return, Ifindex: ifindex},
	}); err != nil || ret != 0xffffffff {
		k.t.Errorf("a packet that came back: %d, %v", int32(ret), err)
	}
}

// Nothing about a packet changes but its MAC addresses, one hop less and what
// follows from that in its header's checksum, whatever that was.
func TestAcrossHeaders(t *testing.T) {
	nstest.Need(t, canRun)
	ns := nstest.New(t)
	if err := ns.Do(func() error {
		onOneCPU(t)
		w := newWayRig(t, ns.NS)
		udp, pay := &layers.UDP{SrcPort: 40000, DstPort: 8080}, gopacket.Payload("tierwall")
		for _, v := range []struct {
			frame []byte
			hops  int // where
		}{
			{build(t, ether4, ipv4(17), udp, pay), 22}, {build(t, ether6, ipv6(17), udp, pay), 21},
		} {
			w.flow(v.frame, 0)
			w.pass(v.frame, w.routed(v.frame), skbContext{Mark: DefaultMarks.Fast, Ifindex: w.to, IngressIfindex: w.from})
			for id := range 1 << 16 {
				if v.hops == 22 {
					binary.BigEndian.PutUint16(v.frame[18:], uint16(id))
					v.frame[24], v.frame[25] = 0, 0
					binary.BigEndian.PutUint16(v.frame[24:], checksum(v.frame[14:34]))
				} else if id > 255 {
					break
				} else {
					v.frame[15] = byte(id) // traffic class and flow label
				}
				out := make([]byte, len(v.frame)+256)
				opt := &ebpf.RunOptions{Data: v.frame, DataOut: out, Context: skbContext{Ifindex: w.from}}
				ret, err := w.c.Programs["pod_ingress"].Run(opt)
				if err != nil {
					return err
				}
				if ret != 7 { // the way has ended meanwhile
					w.pass(v.frame, w.routed(v.frame), skbContext{Mark: DefaultMarks.Fast, Ifindex: w.to, IngressIfindex: w.from})
					continue
				}
				want := w.routed(v.frame)
				want[v.hops]--
				if v.hops == 22 {
					if sum := checksum(opt.DataOut[14:34]); sum != 0 {
						t.Fatalf("header checksum %x of % x is off by %#x", opt.DataOut[24:26], v.frame[14:34], sum)
					}
					copy(want[24:], opt.DataOut[24:26])
				}
				if !bytes.Equal(opt.DataOut, want) {
					t.Fatalf("% x became\n% x, want\n% x", v.frame, opt.DataOut, want)
				}
			}
			// What does not fit, by the byte: the MTU is 1400.
			for _, c := range []struct {
				size, gso int // of the packet, of a segment's payload
				want      string
			}{{1400, 0, across}, {1401, 0, passed}, {3000, 0, passed}} {
				frame := append(append([]byte(nil), v.frame...), make([]byte, 14+c.size-len(v.frame))...)
				if fate, _, _ := w.runIn(skbContext{Ifindex: w.from, GsoSize: uint32(c.gso)}, "pod_ingress", frame); fate != c.want {
					t.Errorf("packet of %d bytes: %s, want it %s", c.size, fate, c.want)
				}
			}
			for _, hops := range []byte{0, 1} {
				frame := append([]byte(nil), v.frame...)
				frame[v.hops] = hops
				if fate, mark, _ := w.runOn(w.from, "pod_ingress", frame, 0); fate != passed || mark != DefaultMarks.Fast {
					t.Errorf("hop limit %d: %s with mark %#x", hops, fate, mark)
				}
			}
		}
		// Segments: the headers of each count, TCP's with its options.
		tcp := &layers.TCP{SrcPort: 40000, DstPort: 8080, ACK: true}
		tcp.Options = []layers.TCPOption{{OptionType: 1}, {OptionType: 1}, {OptionType: layers.TCPOptionKindTimestamps, OptionLength: 10, OptionData: make([]byte, 8)}}
		frame := build(t, ether4, ipv4(6), tcp, gopacket.Payload(make([]byte, 3000)))
		w.flow(frame, 0)
		w.pass(frame, w.routed(frame), skbContext{Mark: DefaultMarks.Fast, Ifindex: w.to, IngressIfindex: w.from})
		for gso, want := range map[uint32]string{1400 - 20 - 32: across, 1400 - 20 - 31: passed, 500: across} {
			if fate, _, _ := w.runIn(skbContext{Ifindex: w.from, GsoSize: gso, GsoSegs: (3000 + gso - 1) / gso}, "pod_ingress", frame); fate != want {
				t.Errorf("segments of %d bytes: %s, want it %s", gso, fate, want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
