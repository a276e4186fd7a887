package dataplane

import (
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Cause says what kind of thing an Event reports.
type Cause uint8

// Causes. The zero value is the common one: a table decided.
const (
	// CausePolicy: the table of Event.Generation decided; Egress and Ingress say how.
	CausePolicy Cause = iota
	// CauseProblem: the packet has no usable flow key; Event.Problem says why.
	// Key holds whatever could be read and may be invalid.
	CauseProblem
	// CauseNotReady: no table was published yet and the fail mode is closed.
	CauseNotReady
	// CauseICMPInner: an ICMP error quotes too little to name a flow, or a packet
	// that whoever it is sent to did not send.
	CauseICMPInner
	// CauseICMPError: an ICMP error about a flow that policy does not allow.
	// Egress and Ingress decide the quoted flow, Key is the error's own.
	CauseICMPError
	// CauseUnknownLocal: an end of the connection is an address of this node's pods
	// that no known pod has (classifier.Table.UnknownLocal), and the fail mode is
	// closed. Key is in the direction the connection was opened, as far as known.
	CauseUnknownLocal
	// CauseUnsolicited: an ICMP echo reply without a request.
	CauseUnsolicited
	// CauseForged: the packet says what its sender cannot have a right to say: it has
	// another's address, or it is a router's or a DHCP server's.
	CauseForged
	// CauseTunnel: a pod's packet to a node's end of a tunnel. Whoever may send to it
	// speaks for pods of other nodes.
	CauseTunnel
	// Of packets that a backend's kernel side dropped by itself. Key.Src is the pod that
	// sent them, if that is known, and Device where they came from.
	CauseUnparsed // cannot be judged, and nobody judges later: fragments, tags
	CauseLimited  // the sender opens more connections a second than it may
	CauseUnheard  // nobody was there to judge
	// CauseLost: Event.Count events between Time and Last found the ring full.
	CauseLost
)

var causeNames = [...]string{"policy", "malformed", "table-not-ready", "icmp-invalid-inner", "icmp-unrelated", "unknown-local", "unsolicited-reply", "forged", "tunnel", "unparsed", "limited", "unheard", "lost"}

// String returns the cause's name as printed in audit records and metrics.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "invalid"
}

// Event is one thing worth an audit record, written by a Worker and read by the
// audit writer. It is a plain value without pointers, so a ring of them is not
// scanned by the garbage collector and pins no table; ids are resolved by the
// reader, against the table of Generation. Comparable.
type Event struct {
	Time       int64  // engine clock, nanoseconds; for CauseLost the first loss
	Last       int64  // CauseLost: the last loss; 0 otherwise
	Generation uint64 // of the table that decided; 0 with CauseNotReady and CauseLost
	Conn       uint64 // connection id, unique while the process lives; 0 = no connection was admitted
	Count      uint64 // packets this event stands for: 1, or more where events are sampled
	Egress     classifier.OutcomeID
	Ingress    classifier.OutcomeID
	Device     int32  // ifindex, 0 = unknown
	Length     uint32 // true packet length in bytes, link header not included where there is one
	Key        flow.Key
	Service    flow.Service // where the connection was opened to; zero: to Key, as far as known
	Verdict    classifier.Verdict
	Cause      Cause
	Problem    packet.Problem
	TCPFlags   uint8 // flag bits as in package packet
	Backend    uint8 // index into Engine.BackendNames
	// Forced is set when the event was asked for by the engine's AuditAll or
	// AuditDenies, so a record is due even if no rule wants one.
	Forced bool
}
