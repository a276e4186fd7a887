package afxdp

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

// The Go structs and the programs' structs have the same fields in the same
// places: the object file says what clang made of them.
func TestLayout(t *testing.T) {
	spec, err := loadPod()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		go_  any
		btf  btf.Type
		size uint32
		want []string
	}{
		{"flow_key", flowKey{}, spec.Maps["flows"].Key, spec.Maps["flows"].KeySize, []string{"a", "b", "aport", "bport", "proto", "back", "zero"}},
		{"flow", flowState{}, spec.Maps["flows"].Value, spec.Maps["flows"].ValueSize, []string{"generation", "last", "cell", "flags"}},
		{"origin", origin{}, spec.Maps["origins"].Value, spec.Maps["sights"].ValueSize, []string{"client", "service", "backend", "client_port", "service_port", "backend_port", "proto", "flags"}},
		{"device", deviceState{}, spec.Maps["devices"].Value, spec.Maps["devices"].ValueSize, []string{"own", "peer", "flags", "due"}},
	} {
		s, ok := c.btf.(*btf.Struct)
		if !ok || s.Name != c.name {
			t.Errorf("%s: the object has %v", c.name, c.btf)
			continue
		}
		typ := reflect.TypeOf(c.go_)
		if uint32(typ.Size()) != s.Size || s.Size != c.size {
			t.Errorf("%s: %d bytes in Go, %d in the object", c.name, typ.Size(), s.Size)
		}
		if typ.NumField() != len(s.Members) || len(c.want) != len(s.Members) {
			t.Errorf("%s: %d fields in Go, %d in the object", c.name, typ.NumField(), len(s.Members))
			continue
		}
		for i, m := range s.Members {
			if m.Name != c.want[i] || uintptr(m.Offset.Bytes()) != typ.Field(i).Offset {
				t.Errorf("%s: field %s at %d in Go, %s at %d in the object", c.name, typ.Field(i).Name, typ.Field(i).Offset, m.Name, m.Offset.Bytes())
			}
		}
	}
	for _, name := range []string{"later", "denied"} {
		if a, b := spec.Maps[name], spec.Maps["flows"]; a.KeySize != b.KeySize || a.ValueSize != b.ValueSize {
			t.Errorf("maps %s and flows differ in their types", name)
		}
	}
	if c := spec.Maps["cells"]; c.MaxEntries != numCells || c.ValueSize != 8 {
		t.Errorf("%d cells of %d bytes in the object, %d in Go", c.MaxEntries, c.ValueSize, numCells)
	}
	if n := spec.Maps["counters"].MaxEntries; n != numCounters {
		t.Errorf("%d counters in the object, %d in Go", n, numCounters)
	}
	if n := spec.Maps["node_addresses"].KeySize; n != 16 {
		t.Errorf("addresses of %d bytes", n)
	}
}

// The programs' keys follow package flow: see bpf/tierwall.h. What the kernel
// makes of real packets is tested in TestKernelKeys.
func TestFlowKey(t *testing.T) {
	client, server := netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80")
	k := flow.MakeKey(flow.TCP, client, server)
	got, back := makeFlowKey(&k)
	want := flowKey{
		A:     [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1},
		B:     [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2},
		APort: 40000, BPort: 80, Proto: 6,
	}
	if got != want || back {
		t.Errorf("got %+v, back %v, want %+v", got, back, want)
	}
	// A key and its reverse have one name, and are its two directions; a ping in
	// one direction and one in the other have two.
	one, six := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::ff00:0:0:2")
	for _, k := range []flow.Key{
		k, k.Reverse(),
		flow.MakeKey(flow.UDP, server, client),
		flow.MakeKey(flow.UDP, client, netip.AddrPortFrom(client.Addr(), 53)),
		flow.MakeKey(50, netip.AddrPortFrom(one, 0), netip.AddrPortFrom(six, 0)),
		flow.MakeKey(flow.TCP, netip.AddrPortFrom(six, 1), netip.AddrPortFrom(one, 2)),
		flow.MakeKey(flow.ICMP, netip.AddrPortFrom(client.Addr(), 7), netip.AddrPortFrom(server.Addr(), 8<<8)),
		flow.MakeKey(flow.ICMP, netip.AddrPortFrom(server.Addr(), 7), netip.AddrPortFrom(client.Addr(), 8<<8)),
		flow.MakeKey(flow.ICMPv6, netip.AddrPortFrom(six, 7), netip.AddrPortFrom(one, 129<<8)),
	} {
		r := k.Reverse()
		kf, kb := makeFlowKey(&k)
		rf, rb := makeFlowKey(&r)
		if kf != rf || kb == rb {
			t.Errorf("%v is %+v, back %v; its reverse is %+v, back %v", k, kf, kb, rf, rb)
		}
	}
	ping := flow.MakeKey(flow.ICMP, netip.AddrPortFrom(client.Addr(), 7), netip.AddrPortFrom(server.Addr(), 8<<8))
	pong := flow.MakeKey(flow.ICMP, netip.AddrPortFrom(server.Addr(), 7), netip.AddrPortFrom(client.Addr(), 8<<8))
	a, _ := makeFlowKey(&ping)
	b, _ := makeFlowKey(&pong)
	if a == b {
		t.Errorf("a ping and one in the opposite direction are both %+v", a)
	}
}

func TestMeta(t *testing.T) {
	const nonce = 0x5a
	frame := func(b0, b1 byte, ifindex ...byte) []byte {
		f := make([]byte, 60)
		f[6], f[7] = b0, b1
		copy(f[8:], ifindex)
		return f
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  meta
		ok    bool
	}{
		{"from a pod", frame(0x82, nonce, 0, 0, 0, 7), meta{Ifindex: 7}, true},
		{"to a pod", frame(0x86, nonce, 0, 0, 1, 0), meta{Ifindex: 256, Egress: true, Final: true}, true},
		{"bridged", frame(0xc2, nonce, 0, 0, 0, 7), meta{Ifindex: 7, Final: true}, true},
		{"reply", frame(0x8a, nonce, 0x7f, 0xff, 0xff, 0xff), meta{Ifindex: 1<<31 - 1, Reply: true}, true},
		{"everything", frame(0xfe, nonce, 1, 2, 3, 4), meta{Ifindex: 0x01020304, Egress: true, Reply: true, Final: true, Cut: true}, true},
		{"another nonce", frame(0x82, nonce+1, 0, 0, 0, 7), meta{}, false},
		{"no magic", frame(0x02, nonce, 0, 0, 0, 7), meta{}, false},
		{"multicast source", frame(0x83, nonce, 0, 0, 0, 7), meta{}, false},
		{"global source", frame(0x80, nonce, 0, 0, 0, 7), meta{}, false},
		{"no device", frame(0x82, nonce, 0, 0, 0, 0), meta{}, false},
		{"with an origin", frame(0x86, nonce, 0x80, 0, 0, 1), meta{Ifindex: 1, Egress: true, Final: true, Origin: true}, true},
		{"with an origin and no device", frame(0x86, nonce, 0x80, 0, 0, 0), meta{}, false},
		{"too short", frame(0x82, nonce, 0, 0, 0, 7)[:11], meta{}, false},
		{"empty", nil, meta{}, false},
	} {
		m, ok := readMeta(c.frame, nonce)
		if ok != c.ok || ok && m != c.want {
			t.Errorf("%s: got %+v, %v, want %+v, %v", c.name, m, ok, c.want, c.ok)
		}
		if !c.ok {
			continue
		}
		// The verdict changes its bit and nothing else, in both directions.
		before := string(c.frame)
		const marks = metaAccept | metaFast
		setMarks(c.frame, true, true)
		if c.frame[6]&marks != marks || c.frame[6]&^marks != before[6]&^marks || string(c.frame[7:]) != before[7:] {
			t.Errorf("%s: accepting made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
		setMarks(c.frame, false, true)
		if c.frame[6]&marks != metaFast {
			t.Errorf("%s: leaving it to where it leaves made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
		setMarks(c.frame, false, false)
		if c.frame[6]&marks != 0 || c.frame[6] != before[6]&^marks {
			t.Errorf("%s: deferring made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
	}
}

// An origin is read as the kernel side wrote it, and the frame is what it was before.
func TestTakeOrigin(t *testing.T) {
	want := origin{
		Client: flow.AddrFrom(netip.MustParseAddr("10.0.0.1")), Service: flow.AddrFrom(netip.MustParseAddr("fd00::2")), Backend: flow.Addr{15: 3},
		ClientPort: 0x1234, ServicePort: 80, BackendPort: 0xfffe, Proto: flow.SCTP, Flags: originNAT | originReply,
	}
	var b bytes.Buffer
	ether := []byte{1, 2, 3, 4, 5, 6, 0x86, 7, 0x80, 0, 0, 9, 8, 0}
	b.Write(ether)
	if err := binary.Write(&b, binary.LittleEndian, &want); err != nil {
		t.Fatal(err)
	}
	if b.Len() != len(ether)+originLen {
		t.Fatalf("an origin of %d bytes", b.Len()-len(ether))
	}
	b.WriteString("packet")
	for cut := range b.Len() {
		var o origin
		frame, ok := takeOrigin(bytes.Clone(b.Bytes()[:cut]), &o)
		if whole := cut >= len(ether)+originLen; ok != whole || ok && o != want {
			t.Errorf("of %d bytes: %v, %+v", cut, ok, o)
		} else if ok && string(frame[etherHeader:]) != "packet"[:cut-len(ether)-originLen] {
			t.Errorf("of %d bytes is left %q", cut, frame)
		}
	}
	var o origin
	frame, _ := takeOrigin(b.Bytes(), &o)
	if m, ok := readMeta(frame, 7); !ok || m.Origin || m.Ifindex != 9 {
		t.Errorf("the frame goes back with %+v, %v", m, ok)
	}
}

// What an origin says is said in the packet's own direction; addresses of two
// families are nobody's.
func TestDescribe(t *testing.T) {
	addr := func(s string) flow.Addr { return flow.AddrFrom(netip.MustParseAddr(s)) }
	o := origin{
		Client: addr("10.0.0.1"), Service: addr("10.96.0.1"), Backend: addr("10.0.0.2"),
		ClientPort: 40000, ServicePort: 80, BackendPort: 8080, Proto: flow.TCP, Flags: originNAT | originDNAT,
	}
	there := flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: 40000, DstPort: 8080, Proto: flow.TCP}
	service := flow.Service{Addr: o.Service, Port: 80}
	for _, c := range []struct {
		name string
		o    origin
		want dataplane.Packet
	}{
		{"to a backend", o, dataplane.Packet{Real: there, Service: service}},
		{"from it", with(o, func(o *origin) { o.Flags |= originReply }), dataplane.Packet{Real: there.Reverse(), Reply: true, Service: service}},
		{"masqueraded only", with(o, func(o *origin) { o.Flags = originNAT }), dataplane.Packet{Real: there}},
		{"the host's own", with(o, func(o *origin) { o.Flags |= originHost }), dataplane.Packet{Real: there, FromHost: true, Service: service}},
		{"the host's, not translated", origin{Flags: originHost}, dataplane.Packet{FromHost: true}},
		{"masked", origin{Flags: originMasked}, dataplane.Packet{Masked: true}},
		{"between families", with(o, func(o *origin) { o.Backend = addr("fd00::1") }), dataplane.Packet{Masked: true}},
	} {
		var p dataplane.Packet
		c.o.describe(&p)
		if !reflect.DeepEqual(p, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, p, c.want)
		}
	}
}

func with(o origin, change func(*origin)) origin { change(&o); return o }

func TestHasEntry(t *testing.T) {
	a, b := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	key := func(p flow.Proto, dport uint16) flow.Key {
		return flow.MakeKey(p, netip.AddrPortFrom(a, 1), netip.AddrPortFrom(b, dport))
	}
	for _, c := range []struct {
		k    flow.Key
		want bool
	}{
		{key(flow.TCP, 80), true},
		{key(flow.UDP, 53), true},
		{key(flow.SCTP, 5000), true},
		{key(50, 0), true}, // ESP: no ports
		{key(flow.ICMP, flow.ICMPPort(8, 0)), true},
		{key(flow.ICMP, flow.ICMPPort(0, 0)), true},
		{key(flow.ICMP, flow.ICMPPort(3, 4)), false},
		{key(flow.ICMP, flow.ICMPPort(13, 0)), false},
		{key(flow.ICMPv6, flow.ICMPPort(128, 0)), true},
		{key(flow.ICMPv6, flow.ICMPPort(129, 0)), true},
		{key(flow.ICMPv6, flow.ICMPPort(2, 0)), false},
		{key(flow.IGMP, flow.ICMPPort(0x16, 0)), false},
		{flow.Key{}, false},
	} {
		if got := hasEntry(&c.k); got != c.want {
			t.Errorf("%v: %v, want %v", c.k, got, c.want)
		}
	}
}

func TestConfig(t *testing.T) {
	var c Config
	if err := c.fill(); err != nil {
		t.Fatalf("the zero value: %v", err)
	}
	if c.Marks != DefaultMarks || c.FrameSize != 2048 || c.maxFrame() != 1792 {
		t.Errorf("defaults: %+v", c)
	}
	if big := (Config{FrameSize: 4096}); big.maxFrame() > 4096-headroom {
		t.Errorf("frames of %d bytes in buffers of 4096", big.maxFrame())
	}
	for name, c := range map[string]Config{
		"frame size":     {FrameSize: 3000},
		"ring":           {Ring: 100},
		"small ring":     {Ring: 32},
		"flow entries":   {FlowEntries: -1},
		"alive time":     {AliveTime: 100 * time.Millisecond},
		"upcall burst":   {UpcallBurst: -1},
		"idle time":      {Timeouts: Timeouts{UDP: -1}},
		"one mark twice": {Marks: Marks{Accept: 1, Fast: 2, Return: 2}},
		"two bits":       {Marks: Marks{Accept: 3, Fast: 4, Return: 8}},
		"no mark":        {Marks: Marks{Accept: 1, Fast: 2}},
		"pattern":        {Devices: []string{"[veth"}},
	} {
		if err := c.fill(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	some := Config{Devices: []string{"veth*", "lxc?"}}
	for name, want := range map[string]bool{"veth12": true, "lxc1": true, "lxc12": false, "eth0": false} {
		if some.wants(name) != want {
			t.Errorf("wants(%s) = %v", name, !want)
		}
	}
	if !c.wants("eth0") {
		t.Error("no pattern must mean every device")
	}
}
