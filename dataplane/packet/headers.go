package packet

import "github.com/tierwall/tierwall/classifier/flow"

// Problem names why a packet has no usable flow key. Zero is "no problem".
type Problem uint8

// Problems. NotIP is not an error: ARP and the like are none of our business.
// Every other problem is malformed or undecidable input.
const (
	OK              Problem = iota
	NotIP                   // EtherType is neither IPv4 nor IPv6
	Truncated               // shorter than its own headers say
	BadVersion              // IP version does not fit the EtherType, or is neither 4 nor 6
	BadHeaderLength         // IPv4 IHL below 5, TCP data offset below 5, extension header past the end
	BadTotalLength          // IP or UDP length field that does not fit what it measures
	BadPort                 // TCP or UDP port 0 where the RFC forbids it, SCTP included
	BadTCPFlags             // SYN+FIN, SYN+RST or no flag at all
	TooManyHeaders          // more IPv6 extension headers or VLAN tags than we follow
	LaterFragment           // fragment offset > 0: no L4 header here
	Unparsable              // a header order RFC 8200 forbids, or a protocol foreign to the IP version
	BadAddress              // an IPv6 address that may not be on the wire: IPv4-mapped or unspecified
	NumProblems     = int(BadAddress) + 1
)

var problemNames = [NumProblems]string{
	"ok", "not-ip", "truncated", "bad-version", "bad-header-length", "bad-total-length", "bad-port",
	"bad-tcp-flags", "too-many-headers", "later-fragment", "unparsable",
	"bad-address",
}

// String returns the problem's name as used in counters and audit records.
func (p Problem) String() string {
	if int(p) < len(problemNames) {
		return problemNames[p]
	}
	return "invalid"
}

// TCP flag bits (RFC 9293 §3.1). [Headers].TCPFlags keeps the whole octet, ECE
// and CWR included, so mask before comparing.
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
)

// Headers is what the packet path keeps of a packet. It holds no reference to
// the packet's memory. The zero value describes no packet; the parse functions
// overwrite all of it.
//
// All offsets count from the first byte of the slice that was parsed and never
// exceed its length.
type Headers struct {
	// Key is in the packet's own direction; see package flow for ICMP. It is
	// valid whenever the Problem is OK, but for one case: the ICMPv6 messages an
	// interface sends before it has an address (RFC 4862 §5.4, RFC 3590) come
	// from ::, and their key has the zero Src.
	Key      flow.Key
	L3       uint16 // offset of the IP header
	L4       uint16 // offset of the transport header
	Payload  uint16 // offset of the transport payload; for protocols we do not know, the packet's end or the copy's, whichever comes first
	Length   uint16 // IP packet length in bytes, header included; IPv6 can exceed the type by 40 and then stays at 65535
	TCPFlags uint8
	Fragment bool   // first fragment of several (later ones are a Problem)
	TCPSeq   uint32 // host order
	TCPAck   uint32 // host order

	// Inner is the flow an ICMP error message complains about, in the direction
	// of the offending packet: its source is who the error is for. It is the
	// zero key (Inner.Valid() is false) unless IsError is set and the message
	// quotes enough of the offending packet to name its flow. The quote is
	// written by whoever sent the error: trust it no more than its sender.
	Inner   flow.Key
	IsError bool // an ICMP or ICMPv6 error message, not an informational one
}

// SYNOnly reports whether the packet opens a TCP connection.
func (h *Headers) SYNOnly() bool {
	return h.Key.Proto == flow.TCP && h.TCPFlags&(SYN|ACK|RST|FIN) == SYN
}
