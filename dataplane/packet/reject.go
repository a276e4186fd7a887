package packet

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
)

// MaxAnswer is the most bytes Answer writes: an ICMPv6 error of the least MTU
// behind an Ethernet header with all the tags we read.
const MaxAnswer = etherHeaderLen + MaxVLANTags*vlanTagLen + maxError6

const (
	maxError4 = 576  // RFC 1812 §4.3.2.3
	maxError6 = 1280 // RFC 4443 §2.4 (c)

	answerTTL = 64
	// Precedence of ICMP errors (RFC 1812 §4.3.2.5), which Linux uses as well.
	errorTOS = 0xc0
)

// Answer writes into buf what the sender of a refused packet is told, and returns
// its length; 0 if it must not be told anything, or if buf is too small (MaxAnswer
// always suffices). b is the frame or packet h was parsed from without a problem;
// the answer begins where b does: with an Ethernet header, tags included, if b has
// one. Nothing is kept and nothing allocated.
//
//	TCP              reset, from the address and port that refused (RFC 9293 §3.10.7.1; S2-21)
//	everything else  ICMP host administratively prohibited, or for IPv6
//	                 communication administratively prohibited (S2-22), from the
//	                 address that was to be reached
//
// SCTP is told by ICMP and not by an ABORT chunk, although most implementations take
// that for a hint only (RFC 9260 §10) and go on sending INIT: S2-22 says so, and the
// forward hook, where the kernel answers, has nothing else (nft "reject"). A policy
// looks the same to a client whatever backend refused it.
//
// No answer is given to what must not be answered (RFC 1122 §3.2.2, RFC 4443 §2.4
// (e), RFC 9293): ICMP errors and redirects, ICMP types of unknown kind, resets,
// later fragments, multicast and broadcast on either layer, and senders that are
// no single host. The broadcast address of a subnet cannot be told from any other
// here; who knows subnets must not ask. Limiting the rate is the caller's, too.
//
// All checksums are complete, whatever the packet's own are: a packet that comes
// from a socket of this host may have only begun its checksum. The quote in an
// ICMP error is the packet as it was.
func Answer(buf, b []byte, h *Headers) int {
	if !answerable(b, h) {
		return 0
	}
	l3 := int(h.L3)
	if h.Key.Proto == flow.TCP {
		return answerTCP(buf, b, h, l3)
	}
	return answerICMP(buf, b, h, l3)
}

// answerable reports whether the sender of a packet may be told anything.
func answerable(b []byte, h *Headers) bool {
	k := &h.Key
	switch {
	case !k.Valid(), h.IsError, int(h.L3) > len(b), !oneHost(&k.Src), !oneHost(&k.Dst):
		return false
	case h.L3 > 0 && b[0]&1 != 0: // sent to a group of stations, or to all
		return false
	}
	switch k.Proto {
	case flow.TCP:
		return h.TCPFlags&RST == 0
	case flow.ICMP:
		typ := k.DstPort >> 8
		return typ == flow.ICMPEchoRequest || typ == flow.ICMPEchoReply || typ >= 13 && typ <= 18
	case flow.ICMPv6:
		const redirect = 137
		typ := k.DstPort >> 8
		return typ >= flow.ICMPv6EchoRequest && typ != redirect // below are errors (RFC 4443 §2.1)
	case flow.IGMP:
		return false
	}
	return true
}

// oneHost reports whether a is the address of a single host that can be
// elsewhere: not unspecified, loopback, multicast, broadcast or reserved.
func oneHost(a *flow.Addr) bool {
	if a.Is4() {
		first := a[12]
		return first != 0 && first != 127 && first < 224
	}
	if a[0] == 0xff {
		return false
	}
	for _, x := range a[:15] {
		if x != 0 {
			return true
		}
	}
	return false // :: and ::1, and what else is in ::/120, which nobody has
}

// answerTCP writes the reset of RFC 9293 §3.10.7.1, for a connection that does
// not exist: the answer to a segment is built so that its sender accepts it.
func answerTCP(buf, b []byte, h *Headers, l3 int) int {
	if h.Fragment && h.TCPFlags&ACK == 0 {
		return 0 // its length, which the answer must acknowledge, is not known
	}
	at := ipHeader(buf, b, h, l3, uint8(flow.TCP), 0, tcpHeaderLen)
	if at == 0 {
		return 0
	}
	t := buf[at : at+tcpHeaderLen]
	clear(t)
	binary.BigEndian.PutUint16(t[0:2], h.Key.DstPort)
	binary.BigEndian.PutUint16(t[2:4], h.Key.SrcPort)
	t[12] = tcpHeaderLen / 4 << 4
	if h.TCPFlags&ACK != 0 {
		binary.BigEndian.PutUint32(t[4:8], h.TCPAck)
		t[13] = RST
	} else {
		// h.Length, not len(b): b may be cut short.
		length := uint32(l3+int(h.Length)) - uint32(h.Payload)
		for _, flag := range [...]uint8{SYN, FIN} {
			if h.TCPFlags&flag != 0 {
				length++
			}
		}
		binary.BigEndian.PutUint32(t[8:12], h.TCPSeq+length)
		t[13] = RST | ACK
	}
	binary.BigEndian.PutUint16(t[16:18], transportSum(&h.Key, t))
	return at + tcpHeaderLen
}

// answerICMP writes an ICMP or ICMPv6 destination unreachable message.
func answerICMP(buf, b []byte, h *Headers, l3 int) int {
	quote := b[l3:min(len(b), l3+int(h.Length))]
	proto, typ, code, tos, most := flow.ICMP, byte(3), byte(10), byte(errorTOS), maxError4-ipv4HeaderLen // RFC 1122 §3.2.2.1
	if !h.Key.Src.Is4() {
		proto, typ, code, tos, most = flow.ICMPv6, 1, 1, 0, maxError6-ipv6HeaderLen // RFC 4443 §3.1
	}
	quote = quote[:min(len(quote), most-icmpHeaderLen)]
	length := icmpHeaderLen + len(quote)
	at := ipHeader(buf, b, h, l3, uint8(proto), tos, length)
	if at == 0 {
		return 0
	}
	m := buf[at : at+length]
	clear(m[:icmpHeaderLen])
	m[0], m[1] = typ, code
	copy(m[icmpHeaderLen:], quote)
	sum := fold(sumOf(0, m))
	if proto == flow.ICMPv6 {
		k := h.Key
		k.Proto = flow.ICMPv6
		sum = transportSum(&k, m)
	}
	binary.BigEndian.PutUint16(m[2:4], sum)
	return at + length
}

// ipHeader writes the link and IP headers of an answer with length bytes of
// payload and returns where that begins, 0 if it does not fit.
func ipHeader(buf, b []byte, h *Headers, l3 int, proto, tos uint8, length int) int {
	is4 := h.Key.Src.Is4()
	header := ipv6HeaderLen
	if is4 {
		header = ipv4HeaderLen
	}
	if len(buf) < l3+header+length {
		return 0
	}
	if l3 > 0 {
		copy(buf[:l3], b[:l3]) // EtherType and tags stay
		copy(buf[0:6], b[6:12])
		copy(buf[6:12], b[0:6])
	}
	p := buf[l3 : l3+header]
	clear(p)
	if is4 {
		p[0], p[1] = 4<<4|ipv4HeaderLen/4, tos
		binary.BigEndian.PutUint16(p[2:4], uint16(header+length))
		p[6] = 0x40 // don't fragment: with that, the identification means nothing (RFC 6864 §4.1)
		p[8], p[9] = answerTTL, proto
		copy(p[12:16], h.Key.Dst[12:])
		copy(p[16:20], h.Key.Src[12:])
		binary.BigEndian.PutUint16(p[10:12], fold(sumOf(0, p)))
		return l3 + header
	}
	p[0], p[1] = 6<<4|tos>>4, tos<<4
	binary.BigEndian.PutUint16(p[4:6], uint16(length))
	p[6], p[7] = proto, answerTTL
	copy(p[8:24], h.Key.Dst[:])
	copy(p[24:40], h.Key.Src[:])
	return l3 + header
}

// transportSum returns the checksum of a TCP segment or ICMPv6 message whose
// checksum field is zero, pseudo-header included. It is symmetric in the ends, so
// k may be of either direction.
func transportSum(k *flow.Key, segment []byte) uint16 {
	var sum uint64
	if k.Src.Is4() {
		sum = sumOf(sumOf(0, k.Src[12:]), k.Dst[12:])
	} else {
		sum = sumOf(sumOf(0, k.Src[:]), k.Dst[:])
	}
	return fold(sumOf(sum+uint64(k.Proto)+uint64(len(segment)), segment))
}

// sumOf adds the 16-bit words of b to sum (RFC 1071).
func sumOf(sum uint64, b []byte) uint64 {
	for len(b) >= 2 {
		sum += uint64(b[0])<<8 | uint64(b[1])
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	return sum
}

// fold returns the checksum that a sum of words stands for.
func fold(sum uint64) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
