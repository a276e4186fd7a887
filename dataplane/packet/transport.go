package packet

import (
	"encoding/binary"
	"math"

	"github.com/tierwall/tierwall/classifier/flow"
)

const (
	tcpHeaderLen  = 20
	udpHeaderLen  = 8
	sctpHeaderLen = 12 // common header, RFC 9260 §3.1
	icmpHeaderLen = 8  // every message of both ICMPs has at least this
	igmpHeaderLen = 8
)

// parseTransport reads the transport header at b[n.l4:]. b ends where the packet
// or its copy ends, whichever comes first.
func parseTransport(b []byte, n *network, h *Headers) Problem {
	p := b[min(n.l4, len(b)):]
	switch flow.Proto(n.proto) {
	case flow.TCP:
		return parseTCP(p, n, h)
	case flow.UDP:
		return parseUDP(p, n, h)
	case flow.SCTP:
		if len(p) < sctpHeaderLen {
			return Truncated
		}
		h.Payload = h.L4 + sctpHeaderLen
		setPorts(&h.Key, p)
		if h.Key.SrcPort == 0 || h.Key.DstPort == 0 { // RFC 9260 §3.1
			return BadPort
		}
	case flow.ICMP, flow.ICMPv6:
		if len(p) < icmpHeaderLen {
			return Truncated
		}
		h.Payload = h.L4 + icmpHeaderLen
		setICMP(&h.Key, p)
		if h.IsError = isICMPError(h.Key.Proto, p[0]); h.IsError {
			h.Inner = quoted(b, n.l4+icmpHeaderLen, h.Key.Proto)
		}
	case flow.IGMP:
		if len(p) < igmpHeaderLen {
			return Truncated
		}
		h.Payload = h.L4 + igmpHeaderLen
		h.Key.DstPort = flow.ICMPPort(p[0], 0) // the second octet is a response time, not a code
	}
	return OK
}

// parseTCP follows RFC 9293 §3.1.
func parseTCP(p []byte, n *network, h *Headers) Problem {
	if len(p) < tcpHeaderLen {
		return Truncated
	}
	setPorts(&h.Key, p)
	h.TCPSeq = binary.BigEndian.Uint32(p[4:8])
	h.TCPAck = binary.BigEndian.Uint32(p[8:12])
	h.TCPFlags = p[13]
	header := int(p[12]>>4) * 4
	if header < tcpHeaderLen || n.l4+header > n.end {
		return BadHeaderLength
	}
	if len(p) < header {
		return Truncated
	}
	h.Payload = h.L4 + uint16(header)
	// Stacks disagree about these, which is what makes them useful for slipping
	// past a filter: SYN+FIN opens a connection on a receiver that overlooks the
	// FIN, and a segment without any flag belongs to no state.
	switch f := h.TCPFlags; {
	case f&(FIN|SYN|RST|PSH|ACK|URG) == 0,
		f&(SYN|FIN) == SYN|FIN,
		f&(SYN|RST) == SYN|RST:
		return BadTCPFlags
	}
	if h.Key.SrcPort == 0 || h.Key.DstPort == 0 { // RFC 6335 §6: reserved
		return BadPort
	}
	return OK
}

// parseUDP follows RFC 768. A source port of 0 means "no reply wanted".
func parseUDP(p []byte, n *network, h *Headers) Problem {
	if len(p) < udpHeaderLen {
		return Truncated
	}
	setPorts(&h.Key, p)
	h.Payload = h.L4 + udpHeaderLen
	// The datagram's length may be less than the packet holds (surplus is
	// ignored by receivers), and more only if fragments bring the rest.
	length := int(binary.BigEndian.Uint16(p[4:6]))
	if length < udpHeaderLen || !n.first && n.l4+length > n.end {
		return BadTotalLength
	}
	if h.Key.DstPort == 0 {
		return BadPort
	}
	return OK
}

func setPorts(k *flow.Key, p []byte) {
	k.SrcPort = binary.BigEndian.Uint16(p[0:2])
	k.DstPort = binary.BigEndian.Uint16(p[2:4])
}

// setICMP fills the ports of an ICMP or ICMPv6 key by package flow's convention
// from the first 8 bytes of a message.
func setICMP(k *flow.Key, p []byte) {
	k.DstPort = flow.ICMPPort(p[0], p[1])
	if isEcho(k.Proto, p[0]) {
		k.SrcPort = binary.BigEndian.Uint16(p[4:6])
	}
}

func isEcho(p flow.Proto, typ uint8) bool {
	if p == flow.ICMP {
		return typ == flow.ICMPEchoRequest || typ == flow.ICMPEchoReply
	}
	return typ == flow.ICMPv6EchoRequest || typ == flow.ICMPv6EchoReply
}

// isICMPError reports whether the message type quotes an offending packet.
func isICMPError(p flow.Proto, typ uint8) bool {
	if p == flow.ICMP {
		switch typ {
		case 3, 4, 5, 11, 12: // unreachable, source quench, redirect, time exceeded, parameter problem (RFC 792)
			return true
		}
		return false
	}
	return typ >= 1 && typ <= 4 // unreachable, too big, time exceeded, parameter problem (RFC 4443 §3)
}

// quoted reads the start of the offending packet at b[at:] of an ICMP error and
// returns its key, or the zero key when the quote cannot name a flow: too short,
// malformed, a later fragment, or itself an ICMP error, about which no error may
// be sent (RFC 1122 §3.2.2, RFC 4443 §2.4).
func quoted(b []byte, at int, outer flow.Proto) flow.Key {
	version := uint8(4)
	if outer == flow.ICMPv6 {
		version = 6
	}
	var n network
	// A quote is shorter than the packet it quotes, so its length field has no
	// bound to be checked against.
	if parseNetwork(b, at, math.MaxInt, version, &n) != OK {
		return flow.Key{}
	}
	b = b[:min(len(b), n.end)]
	p := b[min(n.l4, len(b)):]
	k := flow.Key{Src: n.src, Dst: n.dst, Proto: flow.Proto(n.proto)}
	// RFC 792 guarantees 8 bytes beyond the IP header; ports need 4 of them.
	const portsLen = 4
	switch k.Proto {
	case flow.TCP, flow.SCTP, flow.UDP:
		if len(p) < portsLen {
			return flow.Key{}
		}
		setPorts(&k, p)
		if k.DstPort == 0 || k.SrcPort == 0 && k.Proto != flow.UDP {
			return flow.Key{}
		}
	case flow.ICMP, flow.ICMPv6:
		if len(p) < icmpHeaderLen || isICMPError(k.Proto, p[0]) {
			return flow.Key{}
		}
		setICMP(&k, p)
	case flow.IGMP:
		if len(p) < 1 {
			return flow.Key{}
		}
		k.DstPort = flow.ICMPPort(p[0], 0)
	}
	if !k.Valid() {
		return flow.Key{}
	}
	return k
}
