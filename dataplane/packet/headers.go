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
	BadTotalLength          // IP length field shorter than the header or longer than the packet
	BadPort                 // TCP or UDP port 0 where the RFC forbids it, SCTP included
	BadTCPFlags             // SYN+FIN, SYN+RST or no flag at all
	TooManyHeaders          // more IPv6 extension headers or VLAN tags than we follow
	LaterFragment           // fragment offset > 0: no L4 header here
	Unparsable              // a header order that RFC 8200 forbids
	NumProblems     = int(Unparsable) + 1
)

var problemNames = [NumProblems]string{
	"ok", "not-ip", "truncated", "bad-version", "bad-header-length", "bad-total-length", "bad-port",
	"bad-tcp-flags", "too-many-headers", "later-fragment", "unparsable",
}

// String returns the problem's name as used in counters and audit records.
func (p Problem) String() string {
	if int(p) < len(problemNames) {
		return problemNames[p]
	}
	return "invalid"
}

// TCP flag bits (RFC 9293 §3.1).
const (
	FIN = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
)

// Headers is what the packet path keeps of a packet. It holds no reference to
// the packet's memory.
type Headers struct {
	Key      flow.Key // in the packet's own direction; see package flow for ICMP
	L3       uint16   // offset of the IP header
	L4       uint16   // offset of the transport header
	Payload  uint16   // offset of the transport payload; equals the end for unknown protocols
	Length   uint16   // IP packet length in bytes, header included
	TCPFlags uint8
	Fragment bool   // first fragment of several (later ones are a Problem)
	TCPSeq   uint32 // host order
	TCPAck   uint32 // host order

	// Inner is the flow an ICMP error message complains about, in the direction
	// of the offending packet: its source is who the error is for. Valid only
	// when IsError.
	Inner   flow.Key
	IsError bool
}

// SYNOnly reports whether the packet opens a TCP connection.
func (h *Headers) SYNOnly() bool {
	return h.Key.Proto == flow.TCP && h.TCPFlags&(SYN|ACK|RST|FIN) == SYN
}
