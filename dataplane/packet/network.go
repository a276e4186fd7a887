package packet

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
)

// IPv6 next-header numbers of the extension headers we follow (RFC 8200 §4,
// RFC 4302).
const (
	extHopByHop    = 0
	extRouting     = 43
	extFragment    = 44
	extAH          = 51
	extDestination = 60
)

const (
	ipv4HeaderLen = 20
	ipv6HeaderLen = 40
	fragHeaderLen = 8

	// maxReassembled is the most the 16-bit length fields can describe. A
	// fragment that would end beyond it is an attack on reassembly.
	maxReassembled = 65535
)

// parseNetwork reads the IP header at b[l3:]. The packet may not claim to end
// beyond limit. On LaterFragment n is complete; on other problems n holds what
// was understood.
func parseNetwork(b []byte, l3, limit int, version uint8, n *network) Problem {
	switch version {
	case 4:
		return parseIPv4(b, l3, limit, n)
	case 6:
		return parseIPv6(b, l3, limit, n)
	}
	return BadVersion
}

// parseIPv4 follows RFC 791 §3.1. Options are stepped over.
func parseIPv4(b []byte, l3, limit int, n *network) Problem {
	p := b[l3:]
	if len(p) < ipv4HeaderLen {
		return Truncated
	}
	if p[0]>>4 != 4 {
		return BadVersion
	}
	n.src, n.dst, n.proto = mapped(p[12:16]), mapped(p[16:20]), p[9]
	header := int(p[0]&0x0f) * 4
	if header < ipv4HeaderLen {
		return BadHeaderLength
	}
	total := int(binary.BigEndian.Uint16(p[2:4]))
	n.end = l3 + total
	if total < header || n.end > limit {
		return BadTotalLength
	}
	if len(p) < header {
		return Truncated
	}
	n.l4 = l3 + header
	if n.proto == 0 || n.proto == uint8(flow.ICMPv6) {
		// 0 is IPv6's hop-by-hop; ICMPv6 exists for IPv6 only, and its types
		// would be taken for ICMP's.
		return Unparsable
	}
	const moreFragments, offsetMask = 0x2000, 0x1fff
	word := binary.BigEndian.Uint16(p[6:8])
	return fragment(int(word&offsetMask)*8, word&moreFragments != 0, header, n)
}

// parseIPv6 follows RFC 8200 §3 and §4.
func parseIPv6(b []byte, l3, limit int, n *network) Problem {
	p := b[l3:]
	if len(p) < ipv6HeaderLen {
		return Truncated
	}
	if p[0]>>4 != 6 {
		return BadVersion
	}
	n.src, n.dst, n.proto = flow.Addr(p[8:24]), flow.Addr(p[24:40]), p[6]
	n.end = l3 + ipv6HeaderLen + int(binary.BigEndian.Uint16(p[4:6]))
	n.l4 = l3 + ipv6HeaderLen
	if n.end > limit {
		return BadTotalLength
	}
	if n.proto == extHopByHop && n.end == n.l4 {
		return BadTotalLength // a jumbogram (RFC 2675): its length is an option we do not read
	}
	if n.src.Is4() || n.dst.Is4() || n.dst == (flow.Addr{}) {
		return BadAddress
	}

	fragmented := false
	for count := 0; ; count++ {
		switch n.proto {
		case extHopByHop:
			if count > 0 {
				return Unparsable
			}
		case extRouting, extDestination, extAH:
		case extFragment:
			// Reassembly happens once; what a fragment inside a fragment
			// becomes depends on who reassembles.
			if fragmented {
				return Unparsable
			}
			fragmented = true
		case uint8(flow.ICMP), uint8(flow.IGMP):
			return Unparsable // IPv4's own; the types would be taken for something else
		default:
			return OK
		}
		if count == MaxExtHeaders {
			return TooManyHeaders
		}
		if problem := stepExtension(b, l3, n); problem != OK {
			return problem
		}
	}
}

// stepExtension reads the extension header n.proto at n.l4 and moves both past
// it.
func stepExtension(b []byte, l3 int, n *network) Problem {
	const smallest = 8
	if n.l4+smallest > n.end {
		return BadHeaderLength
	}
	if n.l4+smallest > len(b) {
		return Truncated
	}
	p := b[n.l4:]
	size := (int(p[1]) + 1) * 8
	switch n.proto {
	case extFragment:
		size = fragHeaderLen // the second octet is reserved
	case extAH:
		const fixed = 12 // RFC 4302 §2, without the integrity check value
		if size = (int(p[1]) + 2) * 4; size < fixed {
			return BadHeaderLength
		}
	case extRouting:
		if typ, segmentsLeft := p[2], p[3]; typ == 0 && segmentsLeft > 0 {
			return Unparsable // RFC 5095 §3
		}
	}
	if n.l4+size > n.end {
		return BadHeaderLength
	}
	if n.l4+size > len(b) {
		return Truncated
	}
	isFragment := n.proto == extFragment
	n.proto = p[0]
	n.l4 += size
	if isFragment {
		if n.proto == extHopByHop {
			return Unparsable
		}
		word := binary.BigEndian.Uint16(p[2:4])
		// Unlike IPv4's, the length field does not count the IPv6 header.
		return fragment(int(word&^7), word&1 != 0, n.l4-size-l3-ipv6HeaderLen, n)
	}
	return OK
}

// fragment judges fragment fields: offset in bytes, and how many bytes of header
// the length field of the reassembled packet will count.
func fragment(offset int, more bool, header int, n *network) Problem {
	data := n.end - n.l4
	if more && data%8 != 0 || header+offset+data > maxReassembled {
		return BadTotalLength
	}
	if offset > 0 {
		return LaterFragment
	}
	n.first = more
	return OK
}

// mapped returns the IPv4 address in p[:4] in the form package flow uses.
func mapped(p []byte) flow.Addr {
	return flow.Addr{10: 0xff, 11: 0xff, 12: p[0], 13: p[1], 14: p[2], 15: p[3]}
}
