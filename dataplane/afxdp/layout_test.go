package afxdp

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/cilium/ebpf/btf"

	"github.com/tierwall/tierwall/classifier/flow"
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
		{"flow_key", flowKey{}, spec.Maps["flows"].Key, spec.Maps["flows"].KeySize, []string{"src", "dst", "sport", "dport", "proto", "zero"}},
		{"flow", flowState{}, spec.Maps["flows"].Value, spec.Maps["flows"].ValueSize, []string{"generation", "flags", "last"}},
		{"device", deviceState{}, spec.Maps["devices"].Value, spec.Maps["devices"].ValueSize, []string{"own", "peer"}},
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
	if a, b := spec.Maps["later"], spec.Maps["flows"]; a.KeySize != b.KeySize || a.ValueSize != b.ValueSize {
		t.Error("maps later and flows differ in their types")
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
	k := flow.MakeKey(flow.TCP, netip.MustParseAddrPort("10.0.0.1:40000"), netip.MustParseAddrPort("10.0.0.2:80"))
	got := makeFlowKey(&k)
	want := flowKey{
		Src:   [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 1},
		Dst:   [16]byte{10: 0xff, 11: 0xff, 12: 10, 15: 2},
		Sport: 40000, Dport: 80, Proto: 6,
	}
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
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
		{"from a pod", frame(0xa2, nonce, 0, 0, 0, 7), meta{Ifindex: 7}, true},
		{"to a pod", frame(0xa6, nonce, 0, 0, 1, 0), meta{Ifindex: 256, Egress: true}, true},
		{"reply", frame(0xaa, nonce, 0x7f, 0xff, 0xff, 0xff), meta{Ifindex: 1<<31 - 1, Reply: true}, true},
		{"everything", frame(0xbe, nonce, 1, 2, 3, 4), meta{Ifindex: 0x01020304, Egress: true, Reply: true}, true},
		{"another nonce", frame(0xa2, nonce+1, 0, 0, 0, 7), meta{}, false},
		{"no magic", frame(0x22, nonce, 0, 0, 0, 7), meta{}, false},
		{"multicast source", frame(0xa3, nonce, 0, 0, 0, 7), meta{}, false},
		{"global source", frame(0xa0, nonce, 0, 0, 0, 7), meta{}, false},
		{"no device", frame(0xa2, nonce, 0, 0, 0, 0), meta{}, false},
		{"negative device", frame(0xa2, nonce, 0x80, 0, 0, 1), meta{}, false},
		{"too short", frame(0xa2, nonce, 0, 0, 0, 7)[:11], meta{}, false},
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
		setAccept(c.frame, true)
		if c.frame[6]&metaAccept == 0 || c.frame[6]&^metaAccept != before[6]&^metaAccept || string(c.frame[7:]) != before[7:] {
			t.Errorf("%s: accepting made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
		setAccept(c.frame, false)
		if c.frame[6]&metaAccept != 0 || c.frame[6] != before[6]&^metaAccept {
			t.Errorf("%s: deferring made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
	}
}

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
		"flow entries":   {FlowEntries: 1},
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
