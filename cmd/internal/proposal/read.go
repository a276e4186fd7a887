package proposal

import (
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/assure/recommend"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Reader feeds the events of a log to a recommend.Seen.
type Reader struct {
	Seen *recommend.Seen

	names     map[ruleKey][]string
	Decisions uint64 // about connections
	Partial   uint64 // of those, with a side enforced there that nobody recorded
	Half      uint64 // one side's record of a packet that the other side denied
	Folded    uint64 // denied packets to many ports
	First     time.Time
	Last      time.Time
	Nodes     map[string]bool // that have decided something
}

type ruleKey struct {
	group, kind, namespace, name string
	index                        int
}

// NewReader reads for s. set are the existing policies: an address that one of
// their rules let pass by DNS names has those names.
func NewReader(s *recommend.Seen, set *rule.Set) *Reader {
	r := &Reader{Seen: s, names: map[ruleKey][]string{}, Nodes: map[string]bool{}}
	for i := range set.Rules {
		x := &set.Rules[i]
		if x.Direction != flow.Egress || x.Action != rule.Allow {
			continue
		}
		var names []string
		for j := range x.Peers {
			if x.Peers[j].Kind != rule.PeerSet || !inventory.LearntSet(x.Peers[j].Set) {
				names = nil // who was meant is not certain
				break
			}
			_, name, _ := strings.Cut(x.Peers[j].Set, ":")
			names = append(names, name)
		}
		if len(names) > 0 {
			o := &x.Origin
			r.names[ruleKey{o.Group, o.Kind, o.Namespace, o.Name, o.Index}] = names
		}
	}
	return r
}

// Add counts an event.
func (r *Reader) Add(ev auditlog.Event) {
	for i := range ev.Records {
		x := &ev.Records[i]
		if r.First.IsZero() || x.Time.Before(r.First) {
			r.First = x.Time
		}
		if x.Time.After(r.Last) {
			r.Last = x.Time
		}
		if x.Node != "" {
			r.Nodes[x.Node] = true
		}
	}
	c, ok := r.connection(&ev)
	if !ok {
		return
	}
	r.Decisions++
	if c.Allowed && partial(&ev) {
		r.Partial++
	}
	r.Seen.Add(&c)
}

// connection is what an event says about a connection. ok is false for events that
// say nothing of that.
func (r *Reader) connection(ev *auditlog.Event) (c recommend.Connection, ok bool) {
	x := &ev.Records[0]
	c = recommend.Connection{Allowed: ev.Passed(), Time: x.Time, Count: x.Count}
	denied := ev.Any(func(x *audit.Record) bool { return x.Verdict == audit.Drop || x.Verdict == audit.Reject })
	if !c.Allowed && !denied {
		r.Half++
		return c, false
	}
	if x.Ports != nil {
		r.Folded++
		return c, false
	}
	key, ok := auditlog.KeyOf(x)
	if !ok || auditlog.IsICMPError(&key) {
		return c, false // an ICMP error follows the connection it is about
	}
	c.From, c.To = end(x.Source), end(x.Destination)
	c.Proto, c.SrcPort, c.Port = key.Proto, key.SrcPort, key.DstPort
	c.Answer = strings.Contains(x.TCPFlags, "ACK")
	c.BySource = x.Node != "" && x.Source.Node == x.Node
	for i := range ev.Records {
		x := &ev.Records[i]
		if x.Stage == audit.StageAudit || x.Direction != flow.Egress.String() {
			continue
		}
		c.BySource = true
		if x.Verdict == audit.Allow && x.Policy != nil && x.Rule != nil {
			p := x.Policy
			c.Names = append(c.Names, r.names[ruleKey{p.Group, p.Kind, p.Namespace, p.Name, x.Rule.Index}]...)
		}
	}
	return c, true
}

func end(e *audit.Endpoint) recommend.End {
	return recommend.End{Namespace: e.Namespace, Pod: e.Pod, Labels: e.Labels, Addr: e.IP, Node: e.Node, Service: e.Service}
}

// partial reports whether a side that the recording node enforces left no record:
// then the log is not one of all decisions.
func partial(ev *auditlog.Event) bool {
	x := &ev.Records[0]
	recorded := func(d flow.Direction) bool {
		return ev.Any(func(x *audit.Record) bool { return x.Direction == d.String() && x.Stage != audit.StageAudit })
	}
	here := func(e *audit.Endpoint) bool { return x.Node != "" && e.Pod != "" && e.Node == x.Node }
	return here(x.Source) && !recorded(flow.Egress) || here(x.Destination) && !recorded(flow.Ingress)
}
