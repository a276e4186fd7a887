package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/tierwall/tierwall/dataplane/packet"
)

// Version is the schema version in every JSON record. A field may be added
// without a new version; a field that changes its meaning needs one.
const Version = 1

// Kinds of records.
const (
	KindFlow   = "flow"   // a policy decision about a connection or a packet of it
	KindPacket = "packet" // a packet that could not be decided; Reason says why
	KindLost   = "lost"   // Count records missing between Time and Until; Reason says where
)

// Verdict words. Pass is a rule's, never a connection's: evaluation went on.
const (
	Allow  = "Allow"
	Drop   = "Drop"
	Reject = "Reject"
	Pass   = "Pass"
)

// Stage words.
const (
	StageEnforce = "enforce" // the verdict was carried out
	StageAudit   = "audit"   // the verdict is what an audit-only policy would have done
)

// Reasons of lost records. Other reasons are those of classifier.Reason,
// dataplane.Cause and packet.Problem.
const (
	LostRing  = "ring-full"    // the writer was slower than the traffic
	LostWrite = "write-failed" // the file could not be written
	// ReasonForgotten marks a record whose table is gone: the verdict is right,
	// policy names are missing.
	ReasonForgotten = "table-forgotten"
)

// Record is one line of the log. The zero value of a field means it does not
// apply, and it is left out of the JSON.
type Record struct {
	V    int    `json:"v"`
	Kind string `json:"kind"`
	// Time is when the packet was seen (UTC); the first one's if Count > 1.
	Time time.Time `json:"time"`
	// Until is when an aggregate was closed, or the last loss of a lost record.
	// Absent when the record stands for one packet.
	Until *time.Time `json:"until,omitempty"`
	Node  string     `json:"node,omitempty"`

	Verdict   string `json:"verdict,omitempty"`
	Stage     string `json:"stage,omitempty"`
	Direction string `json:"direction,omitempty"` // "ingress" or "egress": whose side decided
	Band      string `json:"band,omitempty"`
	// Tier and Priority place the rule inside its band, as its API writes them
	// after normalisation: lower wins. Priority is absent without a rule.
	Tier     int32    `json:"tier,omitempty"`
	Priority *float64 `json:"priority,omitempty"`

	Policy *Policy `json:"policy,omitempty"`
	Rule   *Rule   `json:"rule,omitempty"`
	Label  string  `json:"label,omitempty"` // the rule's log label
	// Isolations are all policies whose isolation denied the connection, when
	// Reason is "isolation"; Policy is the first of them.
	Isolations []Policy `json:"isolations,omitempty"`
	Reason     string   `json:"reason,omitempty"`

	Source      *Endpoint `json:"source,omitempty"`
	Destination *Endpoint `json:"destination,omitempty"`
	Protocol    string    `json:"protocol,omitempty"`
	ICMPType    *uint8    `json:"icmpType,omitempty"`
	ICMPCode    *uint8    `json:"icmpCode,omitempty"`
	TCPFlags    string    `json:"tcpFlags,omitempty"` // of the recorded packet: "SYN", "SYN,ACK"
	Length      uint32    `json:"length,omitempty"`   // bytes of the recorded packet
	Interface   string    `json:"interface,omitempty"`
	Backend     string    `json:"backend,omitempty"`

	TableGeneration uint64 `json:"tableGeneration,omitempty"`
	// Connection names the admitted connection in hexadecimal, so that no JSON
	// reader rounds it. Egress and ingress records of one connection share it.
	Connection string `json:"connection,omitempty"`
	// Count is how many packets (for lost records: events) this record is for.
	Count uint64 `json:"count"`
}

// Policy names a policy object.
type Policy struct {
	Group      string `json:"group,omitempty"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
	Generation int64  `json:"generation,omitempty"` // metadata.generation
}

// Rule names a rule inside its policy.
type Rule struct {
	Name  string `json:"name,omitempty"`
	Index int    `json:"index"` // inside the policy and direction, from 0
	// Action is the API's own word where it is not the verdict, "Empower" for one.
	Action string `json:"action,omitempty"`
}

// Endpoint is one end of a connection.
type Endpoint struct {
	IP        netip.Addr `json:"ip"`
	Port      uint16     `json:"port,omitempty"` // TCP, UDP and SCTP
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	Node      string     `json:"node,omitempty"` // the pod's node
}

// Name returns "namespace/pod" for pods, else the address.
func (e *Endpoint) Name() string {
	if e == nil {
		return ""
	}
	if e.Pod != "" {
		return e.Namespace + "/" + e.Pod
	}
	return e.IP.String()
}

// ErrVersion is returned by Parse for records of another schema version.
var ErrVersion = errors.New("audit: unknown schema version")

// Parse reads one JSON line. Unknown fields are ignored, since a newer writer
// of the same version may have added some; another version is ErrVersion.
func Parse(line []byte) (Record, error) {
	var r Record
	dec := json.NewDecoder(bytes.NewReader(line))
	if err := dec.Decode(&r); err != nil {
		return Record{}, fmt.Errorf("audit: not a record: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return Record{}, errors.New("audit: something follows the record on its line")
	}
	if r.V != Version {
		return Record{}, fmt.Errorf("%w %d, want %d", ErrVersion, r.V, Version)
	}
	switch r.Kind {
	case KindFlow, KindPacket, KindLost:
	default:
		return Record{}, fmt.Errorf("audit: unknown kind %q", r.Kind)
	}
	return r, nil
}

// appendJSON appends the record as one line.
func (r *Record) appendJSON(b []byte) ([]byte, error) {
	line, err := json.Marshal(r)
	if err != nil {
		return b, err
	}
	return append(append(b, line...), '\n'), nil
}

var flagNames = [...]struct {
	bit  uint8
	name string
}{{packet.FIN, "FIN"}, {packet.SYN, "SYN"}, {packet.RST, "RST"}, {packet.PSH, "PSH"}, {packet.ACK, "ACK"}, {packet.URG, "URG"}}

func flagString(flags uint8) string {
	var names []string
	for _, f := range flagNames {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ",")
}
