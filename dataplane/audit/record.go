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
	KindFile   = "file"   // the first line of a hash-chained file; Count is 0
)

// Verdict words. Pass is a rule's, never a connection's: evaluation went on.
const (
	Allow  = "Allow"
	Drop   = "Drop"
	Reject = "Reject"
	Pass   = "Pass"
)

// Verdict words of audit-only policies: what they would have done. They differ
// from those of enforced ones so that whoever counts drops counts real ones.
const (
	WouldAllow  = "would-allow"
	WouldDrop   = "would-drop"
	WouldReject = "would-reject"
	WouldPass   = "would-pass"
)

var would = map[string]string{Allow: WouldAllow, Drop: WouldDrop, Reject: WouldReject, Pass: WouldPass}

// Stage words.
const (
	StageEnforce = "enforce" // the verdict was carried out
	StageAudit   = "audit"   // the verdict is what an audit-only policy would have done
)

// Reasons of lost records. Other reasons are those of classifier.Reason,
// dataplane.Cause and packet.Problem.
const (
	LostRing  = "ring-full"    // the writer was slower than the traffic; counts decisions
	LostWrite = "write-failed" // the file, or another output, could not be written; counts records
	LostCrash = "crash"        // the daemon died; counts decisions that were not written yet
	LostTorn  = "torn-line"    // the file ended inside a line, and nothing tells how much is missing
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
	// Reason is "isolation". Policy is the first of them, for readers of one field;
	// to credit policies with denials, use Deciders.
	Isolations []Policy `json:"isolations,omitempty"`
	Reason     string   `json:"reason,omitempty"`
	// Service is where the connection was opened to, "namespace/name:port", when
	// rules are about that Service; Destination is the backend.
	Service string `json:"service,omitempty"`

	Source      *Endpoint `json:"source,omitempty"`
	Destination *Endpoint `json:"destination,omitempty"`
	Protocol    string    `json:"protocol,omitempty"`
	ICMPType    *uint8    `json:"icmpType,omitempty"`
	ICMPCode    *uint8    `json:"icmpCode,omitempty"`
	// Ports is the span of destination ports of a folded aggregate: Count denied
	// packets between two addresses, too many of them different to tell each.
	// The endpoints' ports are absent then.
	Ports     *Ports `json:"ports,omitempty"`
	TCPFlags  string `json:"tcpFlags,omitempty"` // of the recorded packet: "SYN", "SYN,ACK"
	Length    uint32 `json:"length,omitempty"`   // bytes of the recorded packet
	Interface string `json:"interface,omitempty"`
	Backend   string `json:"backend,omitempty"`

	TableGeneration uint64 `json:"tableGeneration,omitempty"`
	// Connection names the admitted connection in hexadecimal, so that no JSON
	// reader rounds it. Egress and ingress records of one connection share it.
	Connection string `json:"connection,omitempty"`
	// Count is how many packets (for lost records: events) this record is for.
	Count uint64 `json:"count"`

	// Seq numbers the lines of a log, across its files and restarts, from 1.
	Seq uint64 `json:"seq,omitempty"`
	// Events is how many decisions the log accounts for up to and including this
	// line, since its first. A daemon that died tells by it what it did not
	// write: see LostCrash.
	Events uint64 `json:"events,omitempty"`
	// Prev is the SHA-256 of the line before, without its newline, in
	// hexadecimal: the hash chain. See Chain.
	Prev string `json:"prev,omitempty"`
}

// Ports is an inclusive span.
type Ports struct {
	First uint16 `json:"first"`
	Last  uint16 `json:"last"`
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
	Node      string     `json:"node,omitempty"` // the pod's node, or the node that has the address
	// Service is set for an address that is a Service's.
	Service bool `json:"service,omitempty"`
	// Labels are those of the pod that Config.Labels names and the pod has.
	Labels map[string]string `json:"labels,omitempty"`
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

// Deciders returns the policies that decided: the one whose rule did, or all that
// isolate. No one of those alone is to blame for a default deny.
func (r *Record) Deciders() []Policy {
	switch {
	case len(r.Isolations) > 0:
		return r.Isolations
	case r.Policy != nil:
		return []Policy{*r.Policy}
	}
	return nil
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
	case KindFlow, KindPacket, KindLost, KindFile:
	default:
		return Record{}, fmt.Errorf("audit: unknown kind %q", r.Kind)
	}
	return r, nil
}

// Append appends the record as one line of a format, newline included. Unlike a
// Writer it collects nothing: a record read with [Parse] comes out as it went in.
func (r *Record) Append(b []byte, f Format) ([]byte, error) {
	switch f {
	case AntreaV1:
		return r.appendAntrea(b, false), nil
	case AntreaV2:
		return r.appendAntrea(b, true), nil
	}
	return r.appendJSON(b)
}

var flagNames = [...]struct {
	bit  uint8
	name string
}{{packet.FIN, "FIN"}, {packet.SYN, "SYN"}, {packet.RST, "RST"}, {packet.PSH, "PSH"}, {packet.ACK, "ACK"}, {packet.URG, "URG"}}

// flagTexts has every combination of the low eight flag bits.
var flagTexts = func() (texts [256]string) {
	for flags := range texts {
		var names []string
		for _, f := range flagNames {
			if uint8(flags)&f.bit != 0 {
				names = append(names, f.name)
			}
		}
		texts[flags] = strings.Join(names, ",")
	}
	return texts
}()
