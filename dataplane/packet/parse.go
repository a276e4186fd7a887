package packet

import (
	"encoding/binary"
	"math"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Bounds of what a parse follows. Both are far above what real traffic has and
// low enough that a crafted packet costs no more than an honest one.
const (
	MaxVLANTags   = 2 // 802.1ad outside, 802.1Q inside
	MaxExtHeaders = 8 // IPv6 extension headers before the transport header
)

// EtherTypes (IANA IEEE 802 numbers).
const (
	etherIPv4  = 0x0800
	etherIPv6  = 0x86dd
	etherVLAN  = 0x8100 // 802.1Q
	etherSVLAN = 0x88a8 // 802.1ad
)

const (
	etherHeaderLen = 14
	vlanTagLen     = 4
)

// ParseEthernet reads an Ethernet II frame without its FCS. See [Headers] for
// what it leaves in h; after a Problem other than LaterFragment h holds what was
// understood up to that point and serves only to describe the packet.
func ParseEthernet(b []byte, h *Headers) Problem {
	return ParseEthernetSnap(b, len(b), h)
}

// ParseEthernetSnap is ParseEthernet for a copy b of the first bytes of a frame
// of length bytes. A length below len(b) cuts b.
func ParseEthernetSnap(b []byte, length int, h *Headers) Problem {
	*h = Headers{}
	b, length = clip(b, length)
	if len(b) < etherHeaderLen {
		return Truncated
	}
	off := etherHeaderLen
	etherType := binary.BigEndian.Uint16(b[12:14])
	for tags := 0; etherType == etherVLAN || etherType == etherSVLAN; tags++ {
		if tags == MaxVLANTags {
			return TooManyHeaders
		}
		if len(b) < off+vlanTagLen {
			return Truncated
		}
		etherType = binary.BigEndian.Uint16(b[off+2 : off+4])
		off += vlanTagLen
	}
	switch etherType {
	case etherIPv4:
		return parsePacket(b, off, length, 4, h)
	case etherIPv6:
		return parsePacket(b, off, length, 6, h)
	}
	return NotIP
}

// ParseIP reads a packet that starts with its IP header; the version comes from
// the first nibble. Otherwise as [ParseEthernet].
func ParseIP(b []byte, h *Headers) Problem {
	return ParseIPSnap(b, len(b), h)
}

// ParseIPSnap is ParseIP for a copy b of the first bytes of a packet of length
// bytes. A length below len(b) cuts b.
func ParseIPSnap(b []byte, length int, h *Headers) Problem {
	*h = Headers{}
	b, length = clip(b, length)
	if len(b) == 0 {
		return Truncated
	}
	return parsePacket(b, 0, length, b[0]>>4, h)
}

// clip makes b and length agree: 0 ≤ len(b) ≤ length.
func clip(b []byte, length int) ([]byte, int) {
	if length < len(b) {
		length = max(length, 0)
		b = b[:length]
	}
	return b, length
}

// network is what an IP header says. Offsets count from the start of the parsed
// slice.
type network struct {
	src, dst flow.Addr
	l4       int // transport header, or the fragment's data
	end      int // end of the packet by its own length field; may lie beyond the copy
	proto    uint8
	first    bool // first of several fragments
}

// parsePacket reads the IP packet at b[l3:] of a packet or frame that truly ends
// at limit ≥ len(b), and fills h.
func parsePacket(b []byte, l3, limit int, version uint8, h *Headers) Problem {
	var n network
	problem := parseNetwork(b, l3, limit, version, &n)
	h.L3 = uint16(l3)
	h.Key.Src, h.Key.Dst, h.Key.Proto = n.src, n.dst, flow.Proto(n.proto)
	if n.end > l3 {
		h.Length = saturate(n.end - l3)
	}
	if problem != OK && problem != LaterFragment {
		return problem
	}
	b = b[:min(len(b), n.end)]
	h.L4 = saturate(min(n.l4, len(b)))
	h.Payload = saturate(len(b))
	h.Fragment = n.first
	if problem == LaterFragment {
		if n.src == (flow.Addr{}) {
			return BadAddress
		}
		return LaterFragment
	}
	if problem = parseTransport(b, &n, h); problem != OK {
		return problem
	}
	if n.src == (flow.Addr{}) && !mayLackSource(&h.Key) {
		return BadAddress
	}
	return OK
}

func saturate(n int) uint16 { return uint16(min(n, math.MaxUint16)) }

// mayLackSource reports whether the ICMPv6 message may come from ::. Everything
// else that does so cannot be answered and is not forwarded (RFC 4291 §2.5.2).
func mayLackSource(k *flow.Key) bool {
	if k.Proto != flow.ICMPv6 || k.Dst[0] != 0xff {
		return false
	}
	switch k.DstPort >> 8 {
	case 131, 132, 143: // MLD report and done, MLDv2 report (RFC 3590)
		return true
	case 133, 135: // router and neighbour solicitation (RFC 4861 §4.1, §4.3)
		return true
	}
	return false
}
