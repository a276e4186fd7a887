package upcall

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

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
		want  Meta
		ok    bool
	}{
		{"from a pod", frame(0x82, nonce, 0, 0, 0, 7), Meta{Ifindex: 7}, true},
		{"to a pod", frame(0x86, nonce, 0, 0, 1, 0), Meta{Ifindex: 256, Egress: true, Final: true}, true},
		{"bridged", frame(0xc2, nonce, 0, 0, 0, 7), Meta{Ifindex: 7, Final: true}, true},
		{"reply", frame(0x8a, nonce, 0x7f, 0xff, 0xff, 0xff), Meta{Ifindex: 1<<31 - 1, Reply: true}, true},
		{"everything", frame(0xfe, nonce, 1, 2, 3, 4), Meta{Ifindex: 0x01020304, Egress: true, Reply: true, Final: true, Cut: true}, true},
		{"another nonce", frame(0x82, nonce+1, 0, 0, 0, 7), Meta{}, false},
		{"no magic", frame(0x02, nonce, 0, 0, 0, 7), Meta{}, false},
		{"multicast source", frame(0x83, nonce, 0, 0, 0, 7), Meta{}, false},
		{"global source", frame(0x80, nonce, 0, 0, 0, 7), Meta{}, false},
		{"no device", frame(0x82, nonce, 0, 0, 0, 0), Meta{}, false},
		{"with an origin", frame(0x86, nonce, 0x80, 0, 0, 1), Meta{Ifindex: 1, Egress: true, Final: true, Origin: true}, true},
		{"with an origin and no device", frame(0x86, nonce, 0x80, 0, 0, 0), Meta{}, false},
		{"too short", frame(0x82, nonce, 0, 0, 0, 7)[:11], Meta{}, false},
		{"empty", nil, Meta{}, false},
	} {
		m, ok := ReadMeta(c.frame, nonce)
		if ok != c.ok || ok && m != c.want {
			t.Errorf("%s: got %+v, %v, want %+v, %v", c.name, m, ok, c.want, c.ok)
		}
		if !c.ok {
			continue
		}
		// The verdict changes its bit and nothing else, in both directions.
		before := string(c.frame)
		const marks = metaAccept | metaFast
		SetMarks(c.frame, true, true)
		if c.frame[6]&marks != marks || c.frame[6]&^marks != before[6]&^marks || string(c.frame[7:]) != before[7:] {
			t.Errorf("%s: accepting made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
		SetMarks(c.frame, false, true)
		if c.frame[6]&marks != metaFast {
			t.Errorf("%s: leaving it to where it leaves made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
		SetMarks(c.frame, false, false)
		if c.frame[6]&marks != 0 || c.frame[6] != before[6]&^marks {
			t.Errorf("%s: deferring made % x of % x", c.name, c.frame[6:12], before[6:12])
		}
	}
}

// An origin is read as the kernel side wrote it, and the frame is what it was before.
func TestTakeOrigin(t *testing.T) {
	want := kern.Origin{
		Client: flow.AddrFrom(netip.MustParseAddr("10.0.0.1")), Service: flow.AddrFrom(netip.MustParseAddr("fd00::2")), Backend: flow.Addr{15: 3},
		ClientPort: 0x1234, ServicePort: 80, BackendPort: 0xfffe, Proto: flow.SCTP, Flags: kern.OriginNAT | kern.OriginReply,
	}
	var b bytes.Buffer
	ether := []byte{1, 2, 3, 4, 5, 6, 0x86, 7, 0x80, 0, 0, 9, 8, 0}
	b.Write(ether)
	if err := binary.Write(&b, binary.LittleEndian, &want); err != nil {
		t.Fatal(err)
	}
	if b.Len() != len(ether)+kern.OriginLen {
		t.Fatalf("an origin of %d bytes", b.Len()-len(ether))
	}
	b.WriteString("packet")
	for cut := range b.Len() {
		var o kern.Origin
		frame, ok := TakeOrigin(bytes.Clone(b.Bytes()[:cut]), &o)
		if whole := cut >= len(ether)+kern.OriginLen; ok != whole || ok && o != want {
			t.Errorf("of %d bytes: %v, %+v", cut, ok, o)
		} else if ok && string(frame[kern.EtherHeader:]) != "packet"[:cut-len(ether)-kern.OriginLen] {
			t.Errorf("of %d bytes is left %q", cut, frame)
		}
	}
	var o kern.Origin
	frame, _ := TakeOrigin(b.Bytes(), &o)
	if m, ok := ReadMeta(frame, 7); !ok || m.Origin || m.Ifindex != 9 {
		t.Errorf("the frame goes back with %+v, %v", m, ok)
	}
}

// What an origin says is said in the packet's own direction; addresses of two
// families are nobody's.
func TestDescribe(t *testing.T) {
	addr := func(s string) flow.Addr { return flow.AddrFrom(netip.MustParseAddr(s)) }
	o := kern.Origin{
		Client: addr("10.0.0.1"), Service: addr("10.96.0.1"), Backend: addr("10.0.0.2"),
		ClientPort: 40000, ServicePort: 80, BackendPort: 8080, Proto: flow.TCP, Flags: kern.OriginNAT | kern.OriginDNAT,
	}
	there := flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: 40000, DstPort: 8080, Proto: flow.TCP}
	service := flow.Service{Addr: o.Service, Port: 80}
	for _, c := range []struct {
		name string
		o    kern.Origin
		want dataplane.Packet
	}{
		{"to a backend", o, dataplane.Packet{Real: there, Service: service}},
		{"from it", with(o, func(o *kern.Origin) { o.Flags |= kern.OriginReply }), dataplane.Packet{Real: there.Reverse(), Reply: true, Service: service}},
		{"masqueraded only", with(o, func(o *kern.Origin) { o.Flags = kern.OriginNAT }), dataplane.Packet{Real: there}},
		{"the host's own", with(o, func(o *kern.Origin) { o.Flags |= kern.OriginHost }), dataplane.Packet{Real: there, FromHost: true, Service: service}},
		{"the host's, not translated", kern.Origin{Flags: kern.OriginHost}, dataplane.Packet{FromHost: true}},
		{"masked", kern.Origin{Flags: kern.OriginMasked}, dataplane.Packet{Masked: true}},
		{"between families", with(o, func(o *kern.Origin) { o.Backend = addr("fd00::1") }), dataplane.Packet{Masked: true}},
	} {
		var p dataplane.Packet
		DescribeOrigin(&c.o, &p)
		if !reflect.DeepEqual(p, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, p, c.want)
		}
	}
}

func with(o kern.Origin, change func(*kern.Origin)) kern.Origin { change(&o); return o }

func TestAnswerMeta(t *testing.T) {
	dev := kern.DeviceState{Own: [6]byte{2, 1, 1, 1, 1, 1}, Peer: [6]byte{2, 2, 2, 2, 2, 2}}
	for _, egress := range []bool{false, true} {
		frame := make([]byte, 64)
		AnswerMeta(frame, &Meta{Ifindex: 1 << 20, Egress: egress}, &dev, 7)
		m, ok := ReadMeta(frame, 7)
		if !ok || m.Ifindex != 1<<20 || m.Egress == egress || frame[metaOffset]&metaAccept == 0 {
			t.Errorf("answer to a packet captured with egress %t has %+v", egress, m)
		}
		if want := map[bool][6]byte{false: dev.Peer, true: dev.Own}[egress]; [6]byte(frame[:6]) != want {
			t.Errorf("answer to a packet captured with egress %t goes to %x", egress, frame[:6])
		}
	}
}
