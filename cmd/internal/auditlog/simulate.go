package auditlog

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Simulation judges the connections of a log again, by another table, and
// collects what comes out differently.
//
// A pod in the log is the pod of that name now, whatever its address is now; if
// there is none, the first one (by name) of its namespace that has all the
// labels the record has; an end without a pod is its address. Only the sides
// that the recording node enforced are judged: what another node decides is in
// that node's log.
type Simulation struct {
	// VerdictsOnly leaves out of the report what keeps its verdict for another
	// reason; it is counted.
	VerdictsOnly bool

	table   *classifier.Table
	pods    map[string]*rule.Endpoint
	byNS    map[string][]*rule.Endpoint // sorted by name
	changes map[changeKey]*Change
	report  SimulationReport
	why     map[string]uint64
}

// Side is how a connection was or would be decided.
type Side struct {
	Verdict string `json:"verdict"` // Allow, Drop or Reject
	By      string `json:"by"`      // policies and rules; "" if the log does not say
}

// Change is a kind of connection that would be decided differently.
type Change struct {
	From   string    `json:"from"`
	To     string    `json:"to"`
	Port   string    `json:"port"`
	Before Side      `json:"before"` // as recorded
	After  Side      `json:"after"`  // by the candidate policies
	Events uint64    `json:"events"` // decisions in the log
	Count  uint64    `json:"count"`  // packets they stand for
	First  time.Time `json:"first"`
	Last   time.Time `json:"last"`
}

type changeKey struct {
	from, to, port string
	before, after  Side
}

// SimulationReport is the result.
type SimulationReport struct {
	Events      uint64 `json:"events"`      // decisions in the log
	Judged      uint64 `json:"judged"`      // of those, judged again
	Same        uint64 `json:"same"`        // same verdict, same policy and rule
	VerdictDiff uint64 `json:"verdictDiff"` // another verdict
	RuleDiff    uint64 `json:"ruleDiff"`    // same verdict, decided by another policy or rule
	// Changes are the other verdicts, RuleChanges the same verdicts for another
	// reason; most packets first.
	Changes     []Change   `json:"changes"`
	RuleChanges []Change   `json:"ruleChanges"`
	Unjudged    []Unjudged `json:"unjudged"`
	Unlisted    uint64     `json:"unlisted"` // changed decisions beyond the bound on different changes
	Lost        uint64     `json:"lost"`     // what the log itself says is missing
	Bad         uint64     `json:"bad"`      // lines that are no records
}

// Unjudged counts decisions that cannot be judged again.
type Unjudged struct {
	Why    string `json:"why"`
	Events uint64 `json:"events"`
}

// NewSimulation judges by a table, which must have every pod local: compiled for
// node "".
func NewSimulation(t *classifier.Table) *Simulation {
	s := &Simulation{
		table: t, pods: map[string]*rule.Endpoint{}, byNS: map[string][]*rule.Endpoint{},
		changes: map[changeKey]*Change{}, why: map[string]uint64{},
	}
	pods := t.World().Endpoints
	for i := range pods {
		e := &pods[i]
		s.pods[e.Namespace+"/"+e.Name] = e
		s.byNS[e.Namespace] = append(s.byNS[e.Namespace], e)
	}
	for _, list := range s.byNS {
		slices.SortFunc(list, func(a, b *rule.Endpoint) int { return cmp.Compare(a.Name, b.Name) })
	}
	return s
}

// Reasons not to judge.
const (
	whyFolded  = "a folded record stands for many ports"
	whyNoFlow  = "the record has no complete flow"
	whyICMP    = "an ICMP error follows the connection it is about"
	whyPartial = "one side's record of a packet the other side denied; that side's record is judged"
)

// Add judges an event.
func (s *Simulation) Add(ev Event) {
	s.report.Events++
	before, ok := recorded(&ev)
	if !ok {
		s.why[whyPartial]++
		return
	}
	r := ev.first()
	key, ok := KeyOf(r)
	switch {
	case r.Ports != nil:
		s.why[whyFolded]++
		return
	case !ok:
		s.why[whyNoFlow]++
		return
	case IsICMPError(&key):
		s.why[whyICMP]++
		return
	}
	src, why := s.now(r.Source)
	if why == "" {
		key.Src = flow.AddrFrom(src)
		var dst netip.Addr
		dst, why = s.now(r.Destination)
		key.Dst = flow.AddrFrom(dst)
	}
	if why != "" {
		s.why[why]++
		return
	}
	s.report.Judged++
	s.compare(&ev, &key, before)
}

// recorded is how the log says the connection was decided.
func recorded(ev *Event) (Side, bool) {
	if ev.Passed() {
		return Side{Verdict: audit.Allow, By: byAll(ev, audit.Allow)}, true
	}
	for i := range ev.Records {
		if r := &ev.Records[i]; denied(r.Verdict) {
			return Side{Verdict: r.Verdict, By: r.Direction + ": " + By(r)}, true
		}
	}
	return Side{}, false
}

// byAll lists what the records with a verdict say, one per direction.
func byAll(ev *Event, verdict string) string {
	var parts []string
	for i := range ev.Records {
		if r := &ev.Records[i]; r.Verdict == verdict && r.Stage != audit.StageAudit && r.Direction != "" {
			parts = append(parts, r.Direction+": "+By(r))
		}
	}
	return strings.Join(slices.Compact(parts), "; ")
}

// IsICMPError reports whether the key is an ICMP error's (RFC 792, RFC 4443 §2.1).
func IsICMPError(k *flow.Key) bool {
	typ := k.DstPort >> 8
	switch k.Proto {
	case flow.ICMP:
		return typ == 3 || typ == 4 || typ == 5 || typ == 11 || typ == 12
	case flow.ICMPv6:
		return typ < 128
	}
	return false
}

// now returns the address an end of a connection has today, or why there is none.
func (s *Simulation) now(e *audit.Endpoint) (netip.Addr, string) {
	if e.Pod == "" {
		return e.IP, ""
	}
	is4 := e.IP.Unmap().Is4()
	if pod := s.pods[e.Name()]; pod != nil {
		if a, ok := pod.Addr(is4); ok {
			return a, ""
		}
		return netip.Addr{}, "pod " + e.Name() + " has no address of that family any more"
	}
	if len(e.Labels) > 0 {
		for _, pod := range s.byNS[e.Namespace] {
			if a, ok := pod.Addr(is4); ok && hasAll(pod.Labels, e.Labels) {
				return a, ""
			}
		}
	}
	return netip.Addr{}, "pod " + e.Name() + " is not in the manifests, nor one with its labels"
}

func hasAll(labels, want map[string]string) bool {
	for k, v := range want {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// enforces reports whether a node decides for an end of a connection.
func (s *Simulation) enforces(node string, then *audit.Endpoint, now flow.Addr) bool {
	if node == "" {
		return true
	}
	if then.Pod != "" {
		return then.Node == "" || then.Node == node
	}
	pod := s.table.Endpoint(now)
	return pod != nil && pod.Node == node
}

func (s *Simulation) compare(ev *Event, key *flow.Key, before Side) {
	r := ev.first()
	d := s.table.Lookup(*key)
	sides := [...]struct {
		dir     flow.Direction
		outcome *classifier.Outcome
		on      bool
	}{
		{flow.Egress, s.table.Outcome(d.Egress), s.enforces(r.Node, r.Source, key.Src)},
		{flow.Ingress, s.table.Outcome(d.Ingress), s.enforces(r.Node, r.Destination, key.Dst)},
	}
	after := Side{Verdict: audit.Allow}
	var by []string
	same := true
	for _, side := range sides {
		if !side.on || side.outcome == nil {
			continue
		}
		text := side.dir.String() + ": " + s.by(side.dir, side.outcome)
		if v := side.outcome.Verdict; v != classifier.Allow {
			after.Verdict, by = v.String(), []string{text}
			same = before.By == "" || before.By == text
			break
		}
		// Of an allowed connection only the sides that were recorded can be compared.
		then := recordedSide(ev, side.dir.String())
		if then != "" && then != text {
			same = false
		}
		if then != "" || before.By == "" || before.Verdict != audit.Allow {
			by = append(by, text)
		}
	}
	after.By = strings.Join(by, "; ")
	switch {
	case after.Verdict != before.Verdict:
		s.report.VerdictDiff++
	case !same:
		s.report.RuleDiff++
		if s.VerdictsOnly {
			return
		}
	default:
		s.report.Same++
		return
	}
	s.change(r, before, after)
}

// recordedSide is what an allowed connection's record of a direction says.
func recordedSide(ev *Event, direction string) string {
	for i := range ev.Records {
		if r := &ev.Records[i]; r.Direction == direction && r.Verdict == audit.Allow && r.Stage != audit.StageAudit {
			return direction + ": " + By(r)
		}
	}
	return ""
}

// by says what decides a direction in the words By uses for records.
func (s *Simulation) by(dir flow.Direction, o *classifier.Outcome) string {
	r := audit.Record{Direction: dir.String(), Reason: o.Reason.String()}
	policy := func(o *rule.Origin) audit.Policy {
		return audit.Policy{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
	}
	if o.Rule != classifier.NoRule {
		origin := &s.table.Rule(o.Rule).Origin
		p := policy(origin)
		r.Policy, r.Rule = &p, &audit.Rule{Name: origin.Rule, Index: origin.Index}
	}
	if o.Reason == classifier.ReasonIsolation {
		for _, i := range o.Isolations {
			r.Isolations = append(r.Isolations, policy(&s.table.Isolation(i).Origin))
		}
	}
	return By(&r)
}

func (s *Simulation) change(r *audit.Record, before, after Side) {
	k := changeKey{r.Source.Name(), r.Destination.Name(), Port(r), before, after}
	c := s.changes[k]
	if c == nil {
		if len(s.changes) >= maxGroups {
			s.report.Unlisted++
			return
		}
		c = &Change{From: k.from, To: k.to, Port: k.port, Before: before, After: after, First: r.Time, Last: r.Time}
		s.changes[k] = c
	}
	c.Events++
	c.Count += r.Count
	if r.Time.Before(c.First) {
		c.First = r.Time
	}
	if r.Time.After(c.Last) {
		c.Last = r.Time
	}
}

// Report returns the result. Lists are cut to n; negative means all.
func (s *Simulation) Report(n int) SimulationReport {
	out := s.report
	out.Changes, out.RuleChanges, out.Unjudged = []Change{}, []Change{}, []Unjudged{}
	for _, c := range s.changes {
		if c.Before.Verdict != c.After.Verdict {
			out.Changes = append(out.Changes, *c)
		} else {
			out.RuleChanges = append(out.RuleChanges, *c)
		}
	}
	for _, list := range []*[]Change{&out.Changes, &out.RuleChanges} {
		slices.SortFunc(*list, func(a, b Change) int {
			return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To), cmp.Compare(a.Port, b.Port),
				cmp.Compare(fmt.Sprint(a.Before, a.After), fmt.Sprint(b.Before, b.After)))
		})
		if n >= 0 && n < len(*list) {
			*list = (*list)[:n]
		}
	}
	for why, events := range s.why {
		out.Unjudged = append(out.Unjudged, Unjudged{why, events})
	}
	slices.SortFunc(out.Unjudged, func(a, b Unjudged) int {
		return cmp.Or(cmp.Compare(b.Events, a.Events), cmp.Compare(a.Why, b.Why))
	})
	return out
}
