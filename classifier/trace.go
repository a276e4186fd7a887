package classifier

import (
	"fmt"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Trace is the full story of one decision, for explain.
type Trace struct {
	Key      flow.Key
	Via      flow.Service // where the connection was opened to; zero: to Key
	Decision Decision
	Sides    [2]TraceSide // indexed by flow.Direction
}

// TraceSide is one direction's walk.
type TraceSide struct {
	Outcome *Outcome
	// Bands has every band with a rule or isolation whose subject is this pod,
	// in order. It is empty when the outcome needed no walk (not-local, self,
	// node-local).
	Bands []TraceBand
	// OtherSubjects counts the direction's rules whose subject is not this pod.
	OtherSubjects int
}

// BandResult says how a walk left a band.
type BandResult string

// Band results.
const (
	BandMatched    BandResult = "matched"     // a rule decided
	BandSkipped    BandResult = "skipped"     // a rule skipped the band, or the rest of it
	BandIsolated   BandResult = "isolated"    // the band's isolation decided
	BandNoMatch    BandResult = "no-match"    // nothing in it applied
	BandNotReached BandResult = "not-reached" // decided earlier
)

// TraceBand is one band of a walk.
type TraceBand struct {
	Band       rule.Band
	Result     BandResult
	Rules      []TraceRule
	Isolations []int32 // isolations of the band that select the subject
}

// TraceRule is one rule considered.
type TraceRule struct {
	Rule    RuleID
	Matched bool
	// Why is empty when the rule matched; else "peer", "port", "unknown-peer",
	// "skipped" or "not-reached", and Detail says it in words.
	Why    string
	Detail string
}

// Explain decides a connection like Lookup and records why. It allocates and
// takes its time; it is not for the packet path.
func (t *Table) Explain(k flow.Key) *Trace { return t.ExplainVia(k, flow.Service{}) }

// ExplainVia explains LookupVia.
func (t *Table) ExplainVia(k flow.Key, via flow.Service) *Trace {
	tr := &Trace{Key: k, Via: via, Decision: t.LookupVia(k, via)}
	src, dst := t.resolve(&k.Src), t.resolve(&k.Dst)
	tr.Sides[flow.Egress] = t.explainSide(flow.Egress, tr.Decision.Egress, src, dst, &k, via)
	tr.Sides[flow.Ingress] = t.explainSide(flow.Ingress, tr.Decision.Ingress, dst, src, &k, via)
	return tr
}

func (t *Table) explainSide(d flow.Direction, id OutcomeID, subject, peer party, k *flow.Key, via flow.Service) TraceSide {
	side := TraceSide{Outcome: t.Outcome(id)}
	switch side.Outcome.Reason {
	case ReasonNotLocal, ReasonSelf, ReasonNodeLocal:
		return side
	}
	s, p := t.subjects[subject.rec.subject].subject, peer.rec.peer
	side.OtherSubjects = t.ruleCount[d] - len(s.rules[d])
	ms := s.matches(d, p, nil)
	if d == flow.Egress && !via.IsZero() {
		ms = s.matchesVia(p, t.leafOf(via.Addr), k.Proto, via.Port, nil)
	}
	w := explainWalk{t: t, key: k, dir: d, subject: s, outcome: side.Outcome, byID: map[RuleID]*candidate{}, peers: map[RuleID]bool{}}
	for _, m := range ms {
		w.peers[s.rules[d][m.index].id] = true
	}
	cands := s.candidates(d, p, ms)
	if d == flow.Egress && !via.IsZero() {
		cands = s.candidatesVia(p, ms)
	}
	for i := range cands {
		w.byID[cands[i].id] = &cands[i]
	}
	for b := rule.Band(0); int(b) < rule.NumBands; b++ {
		if tb, ok := w.band(b); ok {
			side.Bands = append(side.Bands, tb)
		}
	}
	return side
}

// explainWalk repeats the enforced walk, keeping notes.
type explainWalk struct {
	t       *Table
	key     *flow.Key
	dir     flow.Direction
	subject *subject
	peers   map[RuleID]bool // rules whose peers match, or may
	byID    map[RuleID]*candidate
	outcome *Outcome
	skipped rule.BandSet
	skipper RuleID // the rule that skipped last
	done    bool
}

func (w *explainWalk) band(b rule.Band) (TraceBand, bool) {
	tb := TraceBand{Band: b, Result: BandNoMatch}
	wasSkipped := w.skipped.Has(b)
	switch {
	case w.done:
		tb.Result = BandNotReached
	case wasSkipped:
		tb.Result = BandSkipped
	}
	for _, r := range w.subject.rules[w.dir] {
		if r.rule.Order.Band == b {
			tb.Rules = append(tb.Rules, w.rule(r.id, r.rule, &tb))
		}
	}
	for _, iso := range w.subject.isolations[w.dir] {
		if iso.rule.Band == b {
			tb.Isolations = append(tb.Isolations, iso.index)
			if !w.done && !w.skipped.Has(b) && iso.rule.Stage == rule.Enforce {
				tb.Result = BandIsolated
			}
		}
	}
	if tb.Result == BandNoMatch && w.skipped.Has(b) {
		tb.Result = BandSkipped
	}
	if tb.Result == BandIsolated {
		w.done = true
	}
	return tb, len(tb.Rules) > 0 || len(tb.Isolations) > 0
}

func (w *explainWalk) rule(id RuleID, r *rule.Rule, tb *TraceBand) TraceRule {
	tr := TraceRule{Rule: id}
	if w.done {
		tr.Why, tr.Detail = "not-reached", "decided by a stronger rule"
		return tr
	}
	if w.skipped.Has(r.Order.Band) {
		tr.Why, tr.Detail = "skipped", "left out by "+describe(w.t.Rule(w.skipper))
		return tr
	}
	tr.Why, tr.Detail = w.match(id, r)
	if tr.Why == "unknown-peer" && r.Stage == rule.Enforce {
		w.done = w.outcome.Reason == ReasonUnknownPeer // else a further rule allows anyway
		return tr
	}
	if tr.Why != "" {
		return tr
	}
	if r.Action == rule.Allow && r.Stage == rule.Enforce && w.outcome.Reason == ReasonUnknownPeer {
		// The walk ended here all the same, see step.authenticate.
		w.done = true
		return TraceRule{
			Rule: id, Why: "unknown-peer",
			Detail: "a rule of the band that needs authentication may be meant: the other side is inside a pod CIDR but no known pod has its address",
		}
	}
	tr.Matched = true
	switch {
	case r.Stage == rule.AuditOnly:
		tr.Detail = "staged: would " + r.Action.String()
	case r.Action == rule.Skip:
		w.skipped |= r.Skip
		w.skipper = id
	default:
		tb.Result = BandMatched
		w.done = true
		if o := w.outcome; o.Reason == ReasonAuthRequired && o.Band == r.Order.Band {
			tr.Detail = "allows, but " + describe(w.t.Rule(o.Rule)) + " needs authentication, which nothing here can give"
		}
	}
	return tr
}

func (w *explainWalk) match(id RuleID, r *rule.Rule) (why, detail string) {
	c, ok := w.byID[id]
	if ok {
		switch c.matches(w.key.Proto, w.key.DstPort, w.key.SrcPort) {
		case yes:
			return "", ""
		case maybe:
			return "unknown-peer", "the other side is inside a pod CIDR but no known pod has its address"
		}
	}
	if !w.peers[id] {
		return "peer", peerDetail(r)
	}
	return "port", only(r) + l4Text(r.L4)
}

func peerDetail(r *rule.Rule) string {
	side := "from"
	if r.Direction == flow.Egress {
		side = "to"
	}
	if len(r.Peers) == 0 {
		why := "matches nothing because `" + side + "` is empty"
		if r.Origin.Dialect == "kep" { // elsewhere it would mean everybody
			why += " (KEP dialect)"
		}
		return why
	}
	parts := make([]string, len(r.Peers))
	for i := range r.Peers {
		parts[i] = r.Peers[i].Words()
	}
	return only(r) + strings.Join(parts, " or ")
}

// only begins a sentence on what a rule is about, by its action.
func only(r *rule.Rule) string {
	switch r.Action {
	case rule.Allow:
		return "allows only "
	case rule.Deny:
		return "denies only "
	case rule.Reject:
		return "rejects only "
	}
	return "matches only "
}

func l4Text(l []rule.L4) string {
	if len(l) == 0 {
		return "no port at all"
	}
	parts := make([]string, len(l))
	for i := range l {
		parts[i] = l[i].String()
	}
	return strings.Join(parts, " or ")
}

func describe(r *rule.Rule) string {
	return fmt.Sprintf("%s of %s", r.Origin.RuleName(r.Direction), r.Origin.Ref())
}
