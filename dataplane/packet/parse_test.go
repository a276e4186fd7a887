package packet

import (
	"reflect"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

func TestParseIP(t *testing.T) {
	names := map[string]bool{}
	for _, r := range rows() {
		if names[r.name] {
			t.Errorf("%s: name used twice", r.name)
		}
		names[r.name] = true
		var h Headers
		if got := ParseIP(r.ip, &h); got != r.problem {
			t.Errorf("%s: problem %v, want %v (%v)", r.name, got, r.problem, h.Key)
			continue
		}
		if r.key != "" && h.Key.String() != r.key {
			t.Errorf("%s: key %v, want %v", r.name, h.Key, r.key)
		}
		inner := ""
		if h.Inner != (flow.Key{}) {
			inner = h.Inner.String()
		}
		if inner != r.inner {
			t.Errorf("%s: inner %q, want %q", r.name, inner, r.inner)
		}
		if r.check != nil && !r.check(&h) {
			t.Errorf("%s: unexpected headers %+v", r.name, h)
		}
		if problems := invariants(r.ip, r.problem, &h); problems != "" {
			t.Errorf("%s: %s", r.name, problems)
		}
	}
}

// Every Problem an IP packet can have occurs in the table, so that no branch is
// tested by accident only.
func TestRowsCoverEveryProblem(t *testing.T) {
	seen := [NumProblems]bool{NotIP: true} // frames only
	for _, r := range rows() {
		seen[r.problem] = true
	}
	for p, ok := range seen {
		if !ok {
			t.Errorf("no row has problem %v", Problem(p))
		}
	}
}

func TestParseEthernet(t *testing.T) {
	syn4, syn6 := ip4(6, tcp(40000, 80)), ip6(6, tcp(40000, 80))
	tests := []struct {
		name    string
		frame   []byte
		problem Problem
		key     string
		l3      uint16
	}{
		{"v4", eth(0x0800, syn4), OK, "TCP" + k4, 14},
		{"v6", eth(0x86dd, syn6), OK, "TCP" + k6, 14},
		{"v4, one tag", vlan(0x8100, []uint16{5}, 0x0800, syn4), OK, "TCP" + k4, 18},
		{"v6, 802.1ad", vlan(0x88a8, []uint16{5, 6}, 0x86dd, syn6), OK, "TCP" + k6, 22},
		{"v4, padded", append(eth(0x0800, ip4(17, nil)[:20]), make([]byte, 30)...), Truncated, "", 14},
		{"v4, padding is not payload", append(eth(0x0800, syn4), make([]byte, 100)...), OK, "TCP" + k4, 14},
		{"three tags", vlan(0x8100, []uint16{5, 6, 7}, 0x0800, syn4), TooManyHeaders, "", 0},
		{"arp", eth(0x0806, make([]byte, 46)), NotIP, "", 0},
		{"mpls", eth(0x8847, syn4), NotIP, "", 0},
		{"802.3 length", eth(46, make([]byte, 46)), NotIP, "", 0},
		{"tagged arp", vlan(0x8100, []uint16{5}, 0x0806, make([]byte, 46)), NotIP, "", 0},
		{"v6 EtherType, v4 packet", eth(0x86dd, syn4), BadVersion, "", 14},
		{"v4 EtherType, v6 packet", eth(0x0800, syn6), BadVersion, "", 14},
		{"13 bytes", eth(0x0800, nil)[:13], Truncated, "", 0},
		{"header only", eth(0x0800, nil)[:14], Truncated, "", 14},
		{"cut tag", vlan(0x8100, []uint16{5}, 0x0800, nil)[:17], Truncated, "", 0},
		{"empty", nil, Truncated, "", 0},
	}
	for _, tt := range tests {
		var h Headers
		if got := ParseEthernet(tt.frame, &h); got != tt.problem {
			t.Errorf("%s: problem %v, want %v", tt.name, got, tt.problem)
			continue
		}
		if tt.key != "" && h.Key.String() != tt.key {
			t.Errorf("%s: key %v, want %v", tt.name, h.Key, tt.key)
		}
		if h.L3 != tt.l3 {
			t.Errorf("%s: L3 %d, want %d", tt.name, h.L3, tt.l3)
		}
		if tt.problem == OK && int(h.Length) != map[bool]int{true: len(syn4), false: len(syn6)}[h.Key.Src.Is4()] {
			t.Errorf("%s: length %d counts padding or misses bytes", tt.name, h.Length)
		}
	}
}

// The same packets behind an Ethernet header say the same, with offsets moved.
func TestEthernetAgreesWithIP(t *testing.T) {
	for _, r := range rows() {
		if len(r.ip) == 0 || r.problem == BadVersion {
			continue
		}
		etherType := uint16(0x0800)
		if r.ip[0]>>4 == 6 {
			etherType = 0x86dd
		}
		var bare, framed Headers
		want := ParseIP(r.ip, &bare)
		frame := append(eth(etherType, nil)[:14], r.ip...)
		got := ParseEthernet(frame, &framed)
		if got == OK || got == LaterFragment {
			framed.L3, framed.L4, framed.Payload = framed.L3-14, framed.L4-14, framed.Payload-14
		} else {
			framed.L3, framed.L4, framed.Payload, bare.L4, bare.Payload = 0, 0, 0, 0, 0
		}
		if got != want || framed != bare {
			t.Errorf("%s: frame says %v %+v, packet says %v %+v", r.name, got, framed, want, bare)
		}
	}
}

// A copy that lacks payload parses like the whole; one that lacks a header is
// Truncated; nothing in between.
func TestSnap(t *testing.T) {
	for _, r := range rows() {
		var whole Headers
		if ParseIP(r.ip, &whole) != OK {
			continue
		}
		for n := range len(r.ip) {
			var h Headers
			got := ParseIPSnap(r.ip[:n], len(r.ip), &h)
			known := whole.Key.Proto.HasPorts() || whole.Key.Proto == flow.ICMP || whole.Key.Proto == flow.ICMPv6 || whole.Key.Proto == flow.IGMP
			needed := int(whole.Payload)
			if !known {
				needed = int(whole.L4)
				h.Payload = whole.Payload // the copy's end, not the packet's
			}
			if n < needed {
				if got != Truncated {
					t.Errorf("%s: %d of %d bytes: problem %v, want %v", r.name, n, needed, got, Truncated)
				}
				continue
			}
			if h.Inner != whole.Inner && h.Inner != (flow.Key{}) {
				t.Errorf("%s: %d bytes: inner %v, whole packet %v", r.name, n, h.Inner, whole.Inner)
			}
			h.Inner = whole.Inner
			if got != OK || h != whole {
				t.Errorf("%s: %d bytes: %v %+v, whole packet %+v", r.name, n, got, h, whole)
			}
		}
		// 128 bytes are what the queue copies.
		if cut := min(len(r.ip), 128); whole.Payload <= 128 {
			var h Headers
			if got := ParseIPSnap(r.ip[:cut], len(r.ip), &h); got != OK {
				t.Errorf("%s: first %d bytes: %v", r.name, cut, got)
			}
		}
	}
}

func TestSnapLengthBelowCopy(t *testing.T) {
	p := ip4(6, tcp(40000, 80))
	var h Headers
	for length, want := range map[int]Problem{-1: Truncated, 0: Truncated, 20: BadTotalLength, len(p): OK, len(p) + 9: OK} {
		if got := ParseIPSnap(p, length, &h); got != want {
			t.Errorf("ParseIPSnap(length %d) = %v, want %v", length, got, want)
		}
		if got := ParseEthernetSnap(eth(0x0800, p), length+14, &h); length >= 0 && got != want {
			t.Errorf("ParseEthernetSnap(length %d) = %v, want %v", length+14, got, want)
		}
	}
	if got := ParseEthernetSnap(eth(0x0800, p), -5, &h); got != Truncated {
		t.Errorf("negative length = %v", got)
	}
}

// A parse leaves nothing of an earlier packet behind.
func TestParseOverwrites(t *testing.T) {
	for _, r := range rows() {
		var clean Headers
		problem := ParseIP(r.ip, &clean)
		var dirty Headers
		if ParseIP(ip6(58, icmp6(1, 0, 0, ip6(6, tcp(1, 2)))), &dirty) != OK {
			t.Fatal("fixture does not parse")
		}
		dirty.TCPFlags, dirty.Fragment, dirty.TCPSeq = 0xff, true, 1
		if got := ParseIP(r.ip, &dirty); got != problem || dirty != clean {
			t.Errorf("%s: after another packet %v %+v, alone %v %+v", r.name, got, dirty, problem, clean)
		}
	}
}

// Real bytes, typed in from the header diagrams of the RFCs.
func TestAnnotatedHex(t *testing.T) {
	tests := []struct{ name, hex, key string }{
		{
			"v4 syn-ack with options", `
			02 00 00 00 00 02  02 00 00 00 00 01  08 00  # Ethernet
			46 00 00 30                                  # version 4, IHL 6, length 48
			00 01 40 00 40 06 00 00                      # DF, TTL 64, TCP
			c0 00 02 01 c6 33 64 07                      # 192.0.2.1 > 198.51.100.7
			94 04 00 00                                  # router alert (RFC 2113)
			01 bb d4 31 00 00 00 64 00 00 00 c9          # 443 > 54321, seq 100, ack 201
			60 12 ff ff 00 00 00 00 02 04 05 b4          # 24 bytes, SYN ACK, MSS 1460
			00 00 00 00 00 00                            # padding`,
			"TCP 192.0.2.1:443 > 198.51.100.7:54321",
		},
		{
			"v6 dns in a tagged frame", `
			02 00 00 00 00 02  02 00 00 00 00 01  81 00 00 2a  86 dd
			60 00 00 00 00 1c 3c 40                      # payload 28, destination options
			20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 05
			20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 35
			11 00 01 04 00 00 00 00                      # next UDP, 8 bytes, PadN
			e0 00 00 35 00 14 00 00                      # 57344 > 53, length 20
			00 01 01 00 00 01 00 00 00 00 00 00`,
			"UDP [2001:db8::5]:57344 > [2001:db8::35]:53",
		},
	}
	for _, tt := range tests {
		var h Headers
		if p := ParseEthernet(unhex(t, tt.hex), &h); p != OK || h.Key.String() != tt.key {
			t.Errorf("%s: %v %v, want %v", tt.name, p, h.Key, tt.key)
		}
	}
}

func TestProblemNames(t *testing.T) {
	seen := map[string]bool{"": true, "invalid": true}
	for p := range NumProblems {
		name := Problem(p).String()
		if seen[name] {
			t.Errorf("problem %d has name %q", p, name)
		}
		seen[name] = true
	}
	if got := Problem(NumProblems).String(); got != "invalid" {
		t.Errorf("problem out of range is %q", got)
	}
}

// Headers travel through rings by value and must not keep packets alive.
func TestHeadersHaveNoPointers(t *testing.T) {
	var walk func(ty reflect.Type, path string)
	walk = func(ty reflect.Type, path string) {
		switch ty.Kind() {
		case reflect.Struct:
			for f := range ty.Fields() {
				walk(f.Type, path+"."+f.Name)
			}
		case reflect.Array:
			walk(ty.Elem(), path+"[]")
		case reflect.Pointer, reflect.Slice, reflect.Map, reflect.String, reflect.Interface, reflect.Chan, reflect.Func, reflect.UnsafePointer:
			t.Errorf("%s is a %s", path, ty.Kind())
		}
	}
	walk(reflect.TypeFor[Headers](), "Headers")
}

func TestParseAllocatesNothing(t *testing.T) {
	var h Headers
	for _, r := range rows() {
		frame := append(eth(0x0800, nil)[:14], r.ip...)
		n := testing.AllocsPerRun(10, func() {
			ParseIP(r.ip, &h)
			ParseIPSnap(r.ip, len(r.ip)+1, &h)
			ParseEthernet(frame, &h)
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", r.name, n)
		}
	}
}

func BenchmarkParse(b *testing.B) {
	syn := tcp(40000, 80)
	for _, bb := range []struct {
		name string
		ip   []byte
	}{
		{"v4-tcp", ip4(6, syn)},
		{"v6-udp", ip6(17, udp(40000, 80))},
		{"v6-ext", ip6(0, cat(ext(43, 0), routing(60, 4, 1), ext(51, 2), ah(6), syn))},
		{"icmp-error", ip4(1, icmp4(3, 1, 0, ip4(6, syn)))},
	} {
		b.Run(bb.name, func(b *testing.B) {
			b.ReportAllocs()
			var h Headers
			for b.Loop() {
				if ParseIP(bb.ip, &h) != OK {
					b.Fatal("does not parse")
				}
			}
		})
	}
}
