package conntrack

import "github.com/tierwall/tierwall/classifier/flow"

// State is how far a connection has got. The zero value is no connection.
type State uint8

// States. The TCP ones belong to TCP, the last two to everything else.
const (
	NoState     State = iota
	SynSent           // SYN seen from the opener
	SynRecv           // SYN-ACK seen from the replier
	Established       // handshake complete, or first seen in mid-stream
	FinOpener         // FIN from the opener only: half closed
	FinReplier        // FIN from the replier only: half closed
	Closing           // FIN from both, last ACK outstanding
	TimeWait          // closed in order
	Closed            // reset
	Unreplied         // packets from the opener only
	Replied           // packets both ways
	NumStates   = int(Replied) + 1
)

var stateNames = [NumStates]string{
	"none", "syn-sent", "syn-recv", "established", "fin-opener", "fin-replier", "closing", "time-wait", "closed",
	"unreplied", "replied",
}

// String returns the state's name as printed in flow listings.
func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "invalid"
}

// Over reports whether the connection has ended: a SYN on its tuple opens
// another one.
func (s State) Over() bool { return s == TimeWait || s == Closed }

// Packet is what the table needs to know of one packet.
type Packet struct {
	Key      flow.Key // in the packet's own direction
	Length   uint32   // bytes, IP header included
	TCPSeq   uint32   // host order; TCP only
	TCPFlags uint8    // as on the wire (RFC 9293 §3.1); TCP only
	// Plain is set when the kernel's own connection table, if it has one, names
	// the connection by the ends Key has.
	Plain bool
}

// Admission is why a connection was let in. Its numbers are the caller's: the
// table stores them and compares nothing but Generation.
type Admission struct {
	Generation uint64 // of the classifier table that decided
	Egress     uint32 // outcome id of the source's side
	Ingress    uint32 // outcome id of the destination's side
	Device     int32  // ifindex of the first packet; 0 = unknown
	Verdict    uint8
	Host       uint8 // bits: which ends are the host itself
	Recorded   bool  // the audit record has been written
	// Service is where the connection was opened to before its destination was
	// translated; zero if it was not, or nobody knows.
	Service flow.Service
	// Bypassed is set when the kernel was asked to keep the rest of the
	// connection to itself. See the package comment for what follows from it.
	Bypassed bool
}

// Indexes of Record.Packets and Record.Bytes.
const (
	FromOpener  = 0
	FromReplier = 1
)

// Record is one connection. It is a value without pointers; a copy stays what
// it was when the table's record moves on. The zero value is no connection.
type Record struct {
	Admission
	ID       uint64    // unique among the tables of a process; never 0. See Limits.Worker
	Since    int64     // first packet that is known of, ns since the Unix epoch
	LastSeen int64     // last packet in userspace, ns since the Unix epoch
	Packets  [2]uint64 // seen in userspace, by direction
	Bytes    [2]uint64 // seen in userspace, by direction, IP headers included
	ISN      uint32    // sequence number of the SYN that opened it; 0 if that was not seen
	Key      flow.Key  // in the direction the connection was opened
	State    State
	Plain    bool // so was every packet of it
}

// count adds a packet to the totals.
func (r *Record) count(p *Packet, reply bool) {
	i := FromOpener
	if reply {
		i = FromReplier
	}
	r.Packets[i]++
	r.Bytes[i] += uint64(p.Length)
}

// start returns the state after a connection's first packet.
func start(p *Packet, reply bool) State {
	if p.Key.Proto == flow.TCP {
		return startTCP(p.TCPFlags, reply)
	}
	return startPair(reply)
}

// advance returns the state that follows s on a packet of a known connection.
func advance(s State, p *Packet, reply bool) State {
	if p.Key.Proto == flow.TCP {
		return advanceTCP(s, p.TCPFlags, reply)
	}
	return advancePair(s, reply)
}

// IsNewConnection reports whether p, whose tuple is that of rec, opens another
// connection instead of belonging to rec's. The caller then decides it like any
// first packet, and inserts it over rec if it is allowed.
//
// A TCP SYN opens a connection
//   - when rec's is over;
//   - when it comes from the side that did not open rec's: whoever opens is what
//     policies are about;
//   - when rec's handshake was not seen to complete, or both sides have closed, or
//     the rest of the connection bypassed us, unless the SYN repeats the one rec
//     was opened with (same initial sequence number: a retransmission).
//
// On a connection we see in full and that is open, a SYN opens nothing: the
// receiver answers with a challenge ACK (RFC 5961 §4), and a client that really
// lost the connection resets it then.
//
// An ICMP echo request is never the reply to an echo reply. Other protocols do
// not mark first packets that far down.
func IsNewConnection(rec *Record, p *Packet) bool {
	reply := p.Key != rec.Key
	switch p.Key.Proto {
	case flow.ICMP, flow.ICMPv6:
		return reply && isEchoRequest(p.Key)
	case flow.TCP:
	default:
		return false
	}
	if !isSYN(p.TCPFlags) {
		return false
	}
	if reply || rec.State.Over() {
		return true
	}
	complete := rec.State == Established || rec.State == FinOpener || rec.State == FinReplier
	return (!complete || rec.Bypassed) && p.TCPSeq != rec.ISN
}
