package api

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// How many connections are listed in one answer.
const (
	DefaultFlows = 1000
	MaxFlows     = 1 << 20
)

// FlowWords are the filters of connections: those of auditlog.WordNames that say
// something about one.
var FlowWords = []string{
	"verdict", "direction", "band", "reason", "protocol", "namespace", "pod", "policy", "rule", "cidr", "from", "to", "port",
}

// Whether a connection goes on, as far as the daemon can tell.
const (
	AliveYes     = "yes"     // userspace sees its packets, and it has not ended
	AliveNo      = "no"      // it has ended, and is remembered for a while
	AliveUnknown = "unknown" // the kernel has it, and does not report its end
)

// alive says whether a connection goes on.
func alive(rec *conntrack.Record) string {
	switch {
	case rec.State.Over():
		return AliveNo
	case rec.Bypassed:
		return AliveUnknown
	}
	return AliveYes
}

// Flow is a connection the daemon remembers. Addresses, names and policies are
// written as in audit records.
type Flow struct {
	Node        string          `json:"node"`
	Backend     string          `json:"backend"`    // whose worker saw it; a connection two saw is listed twice
	Connection  string          `json:"connection"` // as in audit records
	Protocol    string          `json:"protocol"`
	Source      *audit.Endpoint `json:"source"` // who opened it
	Destination *audit.Endpoint `json:"destination"`
	ICMPType    *uint8          `json:"icmpType,omitempty"`
	ICMPCode    *uint8          `json:"icmpCode,omitempty"`
	State       string          `json:"state"`
	Since       time.Time       `json:"since"`    // first packet
	LastSeen    time.Time       `json:"lastSeen"` // last packet in userspace
	// InKernel is set when the kernel was asked to keep the connection to itself:
	// LastSeen, Packets and Bytes are then those of the packets before, and State
	// what they said.
	InKernel bool `json:"inKernel"`
	// Alive says whether it goes on: "yes", "no", or "unknown" of one in the kernel.
	Alive   string `json:"alive"`
	Packets Count  `json:"packets"`
	Bytes   Count  `json:"bytes"` // IP headers included
	// TableGeneration is of the table the decisions below are from.
	TableGeneration uint64 `json:"tableGeneration"`
	// Rejudged is set when the table that admitted the connection is forgotten,
	// and the decisions are those of the table in force.
	Rejudged bool   `json:"rejudged,omitempty"`
	Egress   *Judge `json:"egress,omitempty"`  // the source's side
	Ingress  *Judge `json:"ingress,omitempty"` // the destination's side
}

// Count is a total by direction.
type Count struct {
	FromSource      uint64 `json:"fromSource"`
	FromDestination uint64 `json:"fromDestination"`
}

// Judge is what decided one side.
type Judge struct {
	Verdict    string         `json:"verdict"`
	Band       string         `json:"band"`
	Reason     string         `json:"reason"`
	Policy     *audit.Policy  `json:"policy,omitempty"`
	Rule       *audit.Rule    `json:"rule,omitempty"`
	Isolations []audit.Policy `json:"isolations,omitempty"`
}

func (s *server) flows(w http.ResponseWriter, r *http.Request) {
	limit, filter, err := s.flowQuestion(r.URL.Query())
	if err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	out := stream(w)
	var end End
	now := s.cfg.Engine.Table()
	s.cfg.Engine.Flows(func(backend string, rec conntrack.Record) bool {
		f := s.flow(backend, &rec, now)
		if !f.match(filter) {
			return true
		}
		if end.Lines >= limit {
			end.Omitted++
			return true
		}
		end.Lines++
		out.json(&f)
		return out.err == nil && r.Context().Err() == nil
	})
	out.json(control{End: &end})
	out.flush()
}

func (s *server) flowQuestion(q url.Values) (limit int, filter *auditlog.Filter, err error) {
	if limit, err = number(q, "limit", DefaultFlows, 1, MaxFlows); err != nil {
		return 0, nil, err
	}
	words := auditlog.Words{}
	for name, v := range q {
		switch {
		case name == "limit":
		case slices.Contains(FlowWords, name):
			words[name] = v
		default:
			return 0, nil, fmt.Errorf("unknown parameter %q", name)
		}
	}
	f, err := words.Filter("", s.cfg.Now())
	if err != nil {
		return 0, nil, err
	}
	if f.Empty() {
		return limit, nil, nil
	}
	return limit, &f, nil
}

// flow describes a record. inForce is the current table, nil when there is none.
func (s *server) flow(backend string, rec *conntrack.Record, inForce *classifier.Table) Flow {
	k := &rec.Key
	f := Flow{
		Node: s.cfg.Node, Backend: backend, Connection: strconv.FormatUint(rec.ID, 16), Protocol: k.Proto.String(),
		State: rec.State.String(), Since: time.Unix(0, rec.Since).UTC(), LastSeen: time.Unix(0, rec.LastSeen).UTC(),
		InKernel: rec.Bypassed, Alive: alive(rec),
		Packets: Count{rec.Packets[conntrack.FromOpener], rec.Packets[conntrack.FromReplier]},
		Bytes:   Count{rec.Bytes[conntrack.FromOpener], rec.Bytes[conntrack.FromReplier]},
	}
	t := s.cfg.Engine.TableOf(rec.Generation)
	d := classifier.Decision{Egress: classifier.OutcomeID(rec.Egress), Ingress: classifier.OutcomeID(rec.Ingress)}
	if t == nil && inForce != nil {
		t, f.Rejudged = inForce, true
		d = t.LookupVia(*k, rec.Service)
	}
	f.Source, f.Destination = endpoint(t, k.Src), endpoint(t, k.Dst)
	switch {
	case k.Proto.HasPorts():
		f.Source.Port, f.Destination.Port = k.SrcPort, k.DstPort
	case k.Proto == flow.ICMP || k.Proto == flow.ICMPv6 || k.Proto == flow.IGMP:
		typ, code := uint8(k.DstPort>>8), uint8(k.DstPort)
		f.ICMPType, f.ICMPCode = &typ, &code
	}
	if t != nil {
		f.TableGeneration = t.Generation()
		f.Egress = judge(t, t.Outcome(d.Egress))
		f.Ingress = judge(t, t.Outcome(d.Ingress))
	}
	return f
}

func endpoint(t *classifier.Table, a flow.Addr) *audit.Endpoint {
	e := &audit.Endpoint{IP: a.Netip()}
	if t == nil {
		return e
	}
	if pod := t.Endpoint(a); pod != nil {
		e.Namespace, e.Pod, e.Node = pod.Namespace, pod.Name, pod.Node
		return e
	}
	if n := t.NodeOf(a); n != nil {
		e.Node = n.Name
	}
	e.Service = t.IsVIP(a)
	return e
}

func judge(t *classifier.Table, o *classifier.Outcome) *Judge {
	j := &Judge{Verdict: o.Verdict.String(), Band: o.Band.String(), Reason: o.Reason.String()}
	if o.Rule != classifier.NoRule {
		r := t.Rule(o.Rule)
		j.Policy, j.Rule = policyOf(&r.Origin), &audit.Rule{Name: r.Origin.Rule, Index: r.Origin.Index}
	}
	for _, i := range o.Isolations {
		j.Isolations = append(j.Isolations, *policyOf(&t.Isolation(i).Origin))
	}
	if len(j.Isolations) > 0 && j.Policy == nil {
		j.Policy = &j.Isolations[0]
	}
	return j
}

func policyOf(o *rule.Origin) *audit.Policy {
	return &audit.Policy{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, Generation: o.Generation}
}

// match reports whether the filter selects one of the connection's sides. Filters
// are those of audit records, so each side is asked about as a record of it.
func (f *Flow) match(filter *auditlog.Filter) bool {
	if filter == nil {
		return true
	}
	ingress, egress := f.record(flow.Ingress), f.record(flow.Egress)
	return filter.Match(&ingress) || filter.Match(&egress)
}

// record is the audit record a side of the connection could have left.
func (f *Flow) record(d flow.Direction) audit.Record {
	r := audit.Record{
		V: audit.Version, Kind: audit.KindFlow, Time: f.Since, Node: f.Node, Direction: d.String(),
		Source: f.Source, Destination: f.Destination, Protocol: f.Protocol, ICMPType: f.ICMPType, ICMPCode: f.ICMPCode,
		Connection: f.Connection, Backend: f.Backend, Count: 1,
	}
	j := f.Egress
	if d == flow.Ingress {
		j = f.Ingress
	}
	if j != nil {
		r.Verdict, r.Band, r.Reason = j.Verdict, j.Band, j.Reason
		r.Policy, r.Rule, r.Isolations = j.Policy, j.Rule, j.Isolations
	}
	return r
}

// Decided names what allowed the connection, for people: both sides' policies
// and rules, "default" where no policy had anything to say.
func (f *Flow) Decided() string {
	var out []string
	for _, side := range []struct {
		d flow.Direction
		j *Judge
	}{{flow.Egress, f.Egress}, {flow.Ingress, f.Ingress}} {
		if side.j == nil || side.j.Policy == nil && (side.j.Reason == classifier.ReasonDefault.String() || side.j.Reason == classifier.ReasonNotLocal.String()) {
			continue
		}
		r := f.record(side.d)
		out = append(out, side.d.String()+" "+auditlog.By(&r))
	}
	if len(out) == 0 {
		return classifier.ReasonDefault.String()
	}
	return strings.Join(out, "; ")
}
