package auditlog

import (
	"slices"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Event is what one decision about a connection left in the log: the records of
// its directions, rules and stages stand next to each other there.
type Event struct {
	Records []audit.Record // at least one, all of kind "flow"
}

// identity is what records of one event have in common.
type identity struct {
	node, connection string
	time             time.Time
	key              flow.Key
	folded           bool
	count            uint64
}

func identityOf(r *audit.Record) identity {
	id := identity{node: r.Node, connection: r.Connection, time: r.Time.Round(0).UTC(), folded: r.Ports != nil, count: r.Count}
	id.key, _ = KeyOf(r)
	return id
}

// KeyOf returns the flow a record is about. It fails for records without
// addresses, and for folded ones, which stand for many flows.
func KeyOf(r *audit.Record) (flow.Key, bool) {
	if r.Source == nil || r.Destination == nil {
		return flow.Key{}, false
	}
	proto, err := flow.ParseProto(r.Protocol)
	if err != nil {
		return flow.Key{}, false
	}
	k := flow.Key{
		Src: flow.AddrFrom(r.Source.IP), Dst: flow.AddrFrom(r.Destination.IP), Proto: proto,
		SrcPort: r.Source.Port, DstPort: r.Destination.Port,
	}
	if r.ICMPType != nil && r.ICMPCode != nil {
		k.DstPort = flow.ICMPPort(*r.ICMPType, *r.ICMPCode)
	}
	return k, k.Valid() && r.Ports == nil
}

// Events groups records into events. Call Add for every record and Flush at the
// end; done is called for every event, and may keep it.
type Events struct {
	Done func(Event)
	id   identity
	cur  []audit.Record
}

// maxEventRecords bounds an event's records: no rule set makes that many.
const maxEventRecords = 4096

// Add takes the next record of the log.
func (e *Events) Add(r *audit.Record) {
	if r.Kind != audit.KindFlow {
		e.Flush()
		return
	}
	id := identityOf(r)
	if len(e.cur) > 0 && (id != e.id || len(e.cur) >= maxEventRecords) {
		e.Flush()
	}
	e.id = id
	e.cur = append(e.cur, *r)
}

// Flush ends the event being collected.
func (e *Events) Flush() {
	if len(e.cur) > 0 {
		e.Done(Event{Records: e.cur})
		e.cur = nil
	}
}

// first returns the event's first record, for what all have in common.
func (e *Event) first() *audit.Record { return &e.Records[0] }

// Any reports whether is holds for one of the event's records.
func (e *Event) Any(is func(*audit.Record) bool) bool {
	for i := range e.Records {
		if is(&e.Records[i]) {
			return true
		}
	}
	return false
}

// Passed reports whether the connection was let through: connections that were
// admitted have an id. Packets that were denied, on either side, have none.
func (e *Event) Passed() bool {
	if e.first().Connection == "" {
		return false
	}
	return !slices.ContainsFunc(e.Records, func(r audit.Record) bool { return denied(r.Verdict) })
}

func denied(verdict string) bool { return verdict == audit.Drop || verdict == audit.Reject }
