package packet

import (
	"encoding/binary"
	"encoding/hex"
	"net"
	"strings"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Packets in these tests come from two places that know nothing of the parser:
// gopacket's serialisers, and annotated hex.

var (
	mac1 = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	mac2 = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	a4   = net.IP{10, 0, 0, 1}
	b4   = net.IP{10, 0, 0, 2}
	a6   = net.ParseIP("fd00::1")
	b6   = net.ParseIP("fd00::2")
)

// build serialises layers with correct lengths and no checksums (the parser
// does not look at them, and some layers cannot compute theirs).
func build(ls ...gopacket.SerializableLayer) []byte {
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ls...); err != nil {
		panic(err)
	}
	return append([]byte(nil), buf.Bytes()...)
}

func cat(parts ...[]byte) []byte {
	var out []byte
	for _, p := range parts {
		out = append(out, p...)
	}
	return out
}

// ip4 is an IPv4 packet with the protocol and payload; mod may change its header.
func ip4(proto uint8, payload []byte, mod ...func(*layers.IPv4)) []byte {
	l := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocol(proto), SrcIP: a4, DstIP: b4}
	for _, f := range mod {
		f(l)
	}
	return build(l, gopacket.Payload(payload))
}

// ip6 is an IPv6 packet whose next header is proto; extension headers are part
// of the payload.
func ip6(proto uint8, payload []byte, mod ...func(*layers.IPv6)) []byte {
	l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocol(proto), SrcIP: a6, DstIP: b6}
	for _, f := range mod {
		f(l)
	}
	return build(l, gopacket.Payload(payload))
}

func src6(s string) func(*layers.IPv6) { return func(l *layers.IPv6) { l.SrcIP = net.ParseIP(s) } }
func dst6(s string) func(*layers.IPv6) { return func(l *layers.IPv6) { l.DstIP = net.ParseIP(s) } }

func options4(n int) func(*layers.IPv4) {
	return func(l *layers.IPv4) {
		l.Options = []layers.IPv4Option{{OptionType: 7, OptionLength: uint8(n), OptionData: make([]byte, n-2)}}
	}
}

// frag4 sets IPv4 fragment fields; offset in bytes.
func frag4(offset int, more bool) func(*layers.IPv4) {
	return func(l *layers.IPv4) {
		l.FragOffset = uint16(offset / 8)
		if more {
			l.Flags = layers.IPv4MoreFragments
		}
	}
}

func tcp(src, dst uint16, mod ...func(*layers.TCP)) []byte {
	l := &layers.TCP{SrcPort: layers.TCPPort(src), DstPort: layers.TCPPort(dst), Seq: 0x01020304, Ack: 0x05060708, SYN: true, Window: 1000}
	for _, f := range mod {
		f(l)
	}
	return build(l, gopacket.Payload("hello wo")) // 8 bytes: fits a fragment boundary
}

func tcpFlags(flags uint8) func(*layers.TCP) {
	return func(l *layers.TCP) {
		l.FIN, l.SYN, l.RST, l.PSH = flags&FIN != 0, flags&SYN != 0, flags&RST != 0, flags&PSH != 0
		l.ACK, l.URG, l.ECE, l.CWR = flags&ACK != 0, flags&URG != 0, flags&0x40 != 0, flags&0x80 != 0
	}
}

func udp(src, dst uint16) []byte {
	return build(&layers.UDP{SrcPort: layers.UDPPort(src), DstPort: layers.UDPPort(dst)}, gopacket.Payload("datagram"))
}

func sctp(src, dst uint16) []byte {
	return build(&layers.SCTP{SrcPort: layers.SCTPPort(src), DstPort: layers.SCTPPort(dst), VerificationTag: 7}, gopacket.Payload("chunkchu"))
}

func icmp4(typ, code uint8, id uint16, data []byte) []byte {
	return build(&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(typ, code), Id: id, Seq: 1}, gopacket.Payload(data))
}

// icmp6 writes what gopacket splits over several layers: type, code, checksum,
// four bytes of body, then data.
func icmp6(typ, code uint8, id uint16, data []byte) []byte {
	return cat([]byte{typ, code, 0, 0, byte(id >> 8), byte(id), 0, 1}, data)
}

func eth(etherType uint16, payload []byte) []byte {
	return build(&layers.Ethernet{SrcMAC: mac1, DstMAC: mac2, EthernetType: layers.EthernetType(etherType)}, gopacket.Payload(payload))
}

// vlan prepends tags, outermost first; the last tag carries etherType.
func vlan(outer uint16, tags []uint16, etherType uint16, payload []byte) []byte {
	var p []byte
	for i, tag := range tags {
		next := etherType
		if i < len(tags)-1 {
			next = 0x8100
		}
		p = binary.BigEndian.AppendUint16(p, tag)
		p = binary.BigEndian.AppendUint16(p, next)
	}
	return eth(outer, append(p, payload...))
}

// ext is an extension header with n extra units of 8 bytes.
func ext(next uint8, n int) []byte {
	b := make([]byte, 8+8*n)
	b[0], b[1] = next, uint8(n)
	b[2], b[3] = 1, uint8(len(b)-4) // PadN, RFC 8200 §4.2
	return b
}

// routing is a routing header of the given type.
func routing(next, typ, segmentsLeft uint8) []byte {
	b := make([]byte, 24)
	b[0], b[1], b[2], b[3] = next, 2, typ, segmentsLeft
	return b
}

// ah is an authentication header with a 12-byte check value: 24 bytes.
func ah(next uint8) []byte {
	b := make([]byte, 24)
	b[0], b[1] = next, 4
	return b
}

// frag6 is a fragment header; offset in bytes.
func frag6(next uint8, offset int, more bool) []byte {
	b := []byte{next, 0xff, 0, 0, 0xde, 0xad, 0xbe, 0xef} // 0xff: reserved, must be ignored
	binary.BigEndian.PutUint16(b[2:], uint16(offset))
	if more {
		b[3] |= 1
	}
	return b
}

// poke returns a copy of b with bytes replaced from offset at.
func poke(b []byte, at int, v ...byte) []byte {
	out := append([]byte(nil), b...)
	copy(out[at:], v)
	return out
}

// unhex reads annotated hex: everything after # on a line is a comment.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	var digits strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "#")
		for _, f := range strings.Fields(line) {
			digits.WriteString(f)
		}
	}
	b, err := hex.DecodeString(digits.String())
	if err != nil {
		t.Fatalf("bad fixture: %v", err)
	}
	return b
}

// rebuild writes the smallest packet whose headers say what h says. Together
// with a parse it makes a round trip.
func rebuild(h *Headers) []byte {
	k := h.Key
	port := func(p uint16) []byte { return binary.BigEndian.AppendUint16(nil, p) }
	var l4 []byte
	switch k.Proto {
	case flow.TCP:
		l4 = cat(port(k.SrcPort), port(k.DstPort), binary.BigEndian.AppendUint32(nil, h.TCPSeq),
			binary.BigEndian.AppendUint32(nil, h.TCPAck), []byte{5 << 4, h.TCPFlags, 0, 0, 0, 0, 0, 0})
	case flow.UDP:
		l4 = cat(port(k.SrcPort), port(k.DstPort), []byte{0, 8, 0, 0})
	case flow.SCTP:
		l4 = cat(port(k.SrcPort), port(k.DstPort), make([]byte, 8))
	case flow.ICMP, flow.ICMPv6, flow.IGMP:
		l4 = cat(port(k.DstPort), []byte{0, 0}, port(k.SrcPort), []byte{0, 0})
	}
	if k.Src.Is4() {
		p := []byte{0x45, 0, 0, byte(20 + len(l4)), 0, 0, 0, 0, 64, byte(k.Proto), 0, 0}
		return cat(p, k.Src[12:], k.Dst[12:], l4)
	}
	p := []byte{0x60, 0, 0, 0, 0, byte(len(l4)), byte(k.Proto), 64}
	return cat(p, k.Src[:], k.Dst[:], l4)
}
