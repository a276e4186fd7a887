package packet

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/tierwall/tierwall/classifier/flow"
)

// invariants returns what is wrong with a result, or "".
func invariants(b []byte, p Problem, h *Headers) string {
	if p != OK && p != LaterFragment {
		return ""
	}
	if h.L3 > h.L4 || h.L4 > h.Payload || int(h.Payload) > len(b) {
		return fmt.Sprintf("offsets out of order or bounds: %+v of %d bytes", h, len(b))
	}
	if h.Length < h.L4-h.L3 {
		return fmt.Sprintf("length %d shorter than the network header", h.Length)
	}
	if !h.Key.Valid() && !(p == OK && h.Key.Proto == flow.ICMPv6 && h.Key.Src == flow.Addr{} && h.Key.Dst[0] == 0xff) {
		return fmt.Sprintf("invalid key %v", h.Key)
	}
	if !h.IsError && h.Inner != (flow.Key{}) {
		return fmt.Sprintf("inner key %v without an error", h.Inner)
	}
	if h.Inner != (flow.Key{}) && (!h.Inner.Valid() || h.Inner.Src.Is4() != h.Key.Src.Is4()) {
		return fmt.Sprintf("bad inner key %v", h.Inner)
	}
	if h.Key.Proto != flow.TCP && (h.TCPFlags != 0 || h.TCPSeq != 0 || h.TCPAck != 0) {
		return "TCP fields without TCP"
	}
	return ""
}

// FuzzParse throws bytes at the parser and checks what must hold for any input.
func FuzzParse(f *testing.F) {
	for _, r := range rows() {
		f.Add(r.ip, true)
		f.Add(append(eth(0x0800, nil)[:14], r.ip...), false)
		f.Add(vlan(0x88a8, []uint16{1, 2}, 0x86dd, r.ip), false)
	}
	f.Fuzz(func(t *testing.T, b []byte, bare bool) {
		parse, snap := ParseEthernet, ParseEthernetSnap
		if bare {
			parse, snap = ParseIP, ParseIPSnap
		}
		before := bytes.Clone(b)
		var h Headers
		p := parse(b, &h)
		if !bytes.Equal(b, before) {
			t.Fatal("parse wrote to the packet")
		}
		if int(p) >= NumProblems {
			t.Fatalf("problem %d has no name", p)
		}
		if msg := invariants(b, p, &h); msg != "" {
			t.Fatal(msg)
		}
		if p != OK && p != LaterFragment {
			return
		}

		// Padding changes nothing.
		var padded Headers
		if got := parse(append(bytes.Clone(b), 0xff, 0xff, 0xff), &padded); got != p || padded != h {
			t.Fatalf("padded: %v %+v, want %v %+v", got, padded, p, h)
		}
		// Nor does the absence of payload.
		if p == OK {
			var cut Headers
			got := snap(b[:h.Payload], len(b), &cut)
			cut.Inner = h.Inner
			if got != OK || cut != h {
				t.Fatalf("without payload: %v %+v, want %+v", got, cut, h)
			}
		}
		if p != OK || h.Fragment {
			return
		}
		// A packet written from the headers reads back as the same flow.
		var again Headers
		if got := ParseIP(rebuild(&h), &again); got != OK || again.Key != h.Key || again.TCPFlags != h.TCPFlags || again.TCPSeq != h.TCPSeq || again.TCPAck != h.TCPAck || again.IsError != h.IsError {
			t.Fatalf("rebuilt: %v %+v, want %+v", got, again, h)
		}
		if msg := disagreement(b[h.L3:], &h); msg != "" {
			t.Fatal(msg)
		}
	})
}

// disagreement compares h with what gopacket reads in the same IP packet, as far
// as gopacket reads it, and says how they differ.
func disagreement(ip []byte, h *Headers) string {
	first := layers.LayerTypeIPv4
	if ip[0]>>4 == 6 {
		first = layers.LayerTypeIPv6
	}
	pkt := gopacket.NewPacket(ip, first, gopacket.DecodeOptions{NoCopy: true})
	var src, dst netip.Addr
	switch l := pkt.NetworkLayer().(type) {
	case *layers.IPv4:
		src, _ = netip.AddrFromSlice(l.SrcIP)
		dst, _ = netip.AddrFromSlice(l.DstIP)
	case *layers.IPv6:
		src, _ = netip.AddrFromSlice(l.SrcIP)
		dst, _ = netip.AddrFromSlice(l.DstIP)
	default:
		return fmt.Sprintf("gopacket sees no IP packet in %x", ip)
	}
	if got := [2]netip.Addr{h.Key.Src.Netip(), h.Key.Dst.Netip()}; got != [2]netip.Addr{src, dst} {
		return fmt.Sprintf("addresses %v, gopacket %v > %v", got, src, dst)
	}
	want := h.Key
	// A layer that follows the first transport header (GRE carries packets) is
	// none of ours, so only the outermost one counts.
	for i, l := range pkt.Layers() {
		switch l := l.(type) {
		case *layers.TCP:
			want.Proto, want.SrcPort, want.DstPort = flow.TCP, uint16(l.SrcPort), uint16(l.DstPort)
			if l.Seq != h.TCPSeq || l.Ack != h.TCPAck || l.SYN != (h.TCPFlags&SYN != 0) || l.ACK != (h.TCPFlags&ACK != 0) ||
				l.FIN != (h.TCPFlags&FIN != 0) || l.RST != (h.TCPFlags&RST != 0) {
				return fmt.Sprintf("TCP fields %+v, gopacket %+v", h, l)
			}
		case *layers.UDP:
			want.Proto, want.SrcPort, want.DstPort = flow.UDP, uint16(l.SrcPort), uint16(l.DstPort)
		case *layers.SCTP:
			want.Proto, want.SrcPort, want.DstPort = flow.SCTP, uint16(l.SrcPort), uint16(l.DstPort)
		case *layers.ICMPv4:
			want.Proto, want.DstPort = flow.ICMP, uint16(l.TypeCode)
		case *layers.ICMPv6:
			want.Proto, want.DstPort = flow.ICMPv6, uint16(l.TypeCode)
		case *layers.IPv4, *layers.IPv6:
			if i > 0 {
				return "" // IP in IP
			}
			continue
		case *layers.IPv6HopByHop, *layers.IPv6Destination, *layers.IPv6Routing:
			if h.Key.Src.Is4() {
				return "" // gopacket follows them in IPv4 too, where they mean nothing
			}
			continue
		default:
			return "" // gopacket stops, or goes its own way, here
		}
		break
	}
	if want != h.Key {
		return fmt.Sprintf("key %v, gopacket %v", h.Key, want)
	}
	return ""
}

// Random well-formed packets, and the same with one byte changed: gopacket and
// the parser must read the same flow wherever both read one.
func TestAgreesWithGopacket(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	parsed, changed := 0, 0
	for range 20000 {
		ip := randomPacket(rng)
		var h Headers
		if p := ParseIP(ip, &h); p != OK {
			t.Fatalf("well-formed packet %x: %v", ip, p)
		}
		if msg := disagreement(ip, &h); msg != "" {
			t.Fatalf("%s\n%x", msg, ip)
		}
		parsed++
		ip[rng.IntN(len(ip))] = byte(rng.Uint32())
		if ParseIP(ip, &h) != OK || h.Fragment {
			continue
		}
		changed++
		if msg := disagreement(ip, &h); msg != "" {
			t.Fatalf("one byte changed: %s\n%x", msg, ip)
		}
	}
	if changed < parsed/2 {
		t.Errorf("only %d of %d changed packets still parsed: the comparison is too weak", changed, parsed)
	}
}

func randomPacket(rng *rand.Rand) []byte {
	port := func() uint16 { return uint16(1 + rng.IntN(65535)) }
	v6 := rng.IntN(2) == 0
	var proto uint8
	var l4 []byte
	switch rng.IntN(4) {
	case 0:
		flags := []uint8{SYN, SYN | ACK, ACK, ACK | PSH, FIN | ACK, RST, RST | ACK}[rng.IntN(7)]
		proto, l4 = 6, tcp(port(), port(), tcpFlags(flags), func(l *layers.TCP) { l.Seq, l.Ack = rng.Uint32(), rng.Uint32() })
	case 1:
		proto, l4 = 17, udp(port(), port())
	case 2:
		proto, l4 = 132, sctp(port(), port())
	default:
		if v6 {
			proto, l4 = 58, icmp6(uint8(128+rng.IntN(2)), 0, port(), []byte("ping"))
		} else {
			proto, l4 = 1, icmp4(uint8(8*rng.IntN(2)), 0, port(), []byte("ping"))
		}
	}
	if !v6 {
		return ip4(proto, l4, func(l *layers.IPv4) {
			if rng.IntN(2) == 0 {
				options4(4 * (1 + rng.IntN(10)))(l)
			}
		})
	}
	switch rng.IntN(4) {
	case 0:
		l4, proto = cat(ext(proto, rng.IntN(4)), l4), 0
	case 1:
		l4, proto = cat(ext(proto, rng.IntN(4)), l4), 60
	case 2:
		l4, proto = cat(ext(60, rng.IntN(2)), ext(proto, rng.IntN(4)), l4), 0
	}
	return ip6(proto, l4)
}
