package kern

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
	spec, err := LoadPod()
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
		{"flow_key", FlowKey{}, spec.Maps["flows"].Key, spec.Maps["flows"].KeySize, []string{"a", "b", "aport", "bport", "proto", "back", "zero"}},
		{"flow", FlowState{}, spec.Maps["flows"].Value, spec.Maps["flows"].ValueSize, []string{"generation", "last", "cell", "flags"}},
		{"origin", Origin{}, spec.Maps["origins"].Value, spec.Maps["sights"].ValueSize, []string{"client", "service", "backend", "client_port", "service_port", "backend_port", "proto", "flags"}},
		{"device", DeviceState{}, spec.Maps["devices"].Value, spec.Maps["devices"].ValueSize, []string{"own", "peer", "flags", "due"}},
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
	if c := spec.Maps["cells"]; c.MaxEntries != NumCells || c.ValueSize != 8 {
		t.Errorf("%d cells of %d bytes in the object, %d in Go", c.MaxEntries, c.ValueSize, NumCells)
	}
	if n := spec.Maps["sockets"].MaxEntries; n != MaxQueues {
		t.Errorf("room for %d queues in the object, for %d in Go", n, MaxQueues)
	}
	if n := spec.Maps["counters"].MaxEntries; n != NumCounters {
		t.Errorf("%d counters in the object, %d in Go", n, NumCounters)
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
	got, back := MakeFlowKey(&k)
	want := FlowKey{
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
		kf, kb := MakeFlowKey(&k)
		rf, rb := MakeFlowKey(&r)
		if kf != rf || kb == rb {
			t.Errorf("%v is %+v, back %v; its reverse is %+v, back %v", k, kf, kb, rf, rb)
		}
	}
	ping := flow.MakeKey(flow.ICMP, netip.AddrPortFrom(client.Addr(), 7), netip.AddrPortFrom(server.Addr(), 8<<8))
	pong := flow.MakeKey(flow.ICMP, netip.AddrPortFrom(server.Addr(), 7), netip.AddrPortFrom(client.Addr(), 8<<8))
	a, _ := MakeFlowKey(&ping)
	b, _ := MakeFlowKey(&pong)
	if a == b {
		t.Errorf("a ping and one in the opposite direction are both %+v", a)
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
		if got := HasEntry(&c.k); got != c.want {
			t.Errorf("%v: %v, want %v", c.k, got, c.want)
		}
	}
}
