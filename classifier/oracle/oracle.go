package oracle

import (
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Result is the decision for one connection.
type Result struct {
	Verdict classifier.Verdict
	Egress  Outcome // the source's side
	Ingress Outcome // the destination's side
}

// Direction returns the outcome of one direction.
func (r *Result) Direction(d flow.Direction) *Outcome {
	if d == flow.Egress {
		return &r.Egress
	}
	return &r.Ingress
}

// Outcome is the decision for one direction. Rules and isolations point into
// the set that was evaluated. Fields mean what they mean in
// [classifier.Outcome].
type Outcome struct {
	Verdict    classifier.Verdict
	Reason     classifier.Reason
	Band       rule.Band         // rule.BandDefault unless a rule or an isolation decided
	Rule       *rule.Rule        // nil unless Reason is rule
	Isolations []*rule.Isolation // all that caused the drop, in set order

	Passed         []*rule.Rule // the matching rules whose action is skip, in order
	Audit          []*rule.Rule // audited rules skipped through, in order, then the deciding one
	AuditIsolation bool         // one of Isolations asked for a record

	// The walk with audit-only policies enforced. Filled only when HasStaged.
	HasStaged        bool
	Staged           classifier.Verdict
	StagedReason     classifier.Reason
	StagedBand       rule.Band
	StagedRule       *rule.Rule
	StagedIsolations []*rule.Isolation
	StagedPassed     []*rule.Rule
}

// Evaluate decides the connection k, given in the direction it was opened. The
// set need not be sorted, but isolations are reported in the order they have in
// it, so compare with a table only after [rule.Set.Sort]. Nothing is modified;
// concurrent calls are safe.
func Evaluate(set *rule.Set, world *rule.World, k flow.Key) Result {
	return EvaluateVia(set, world, k, flow.Service{})
}

// EvaluateVia decides a connection that was opened to via, of which the Service
// proxy made k. Rules to Services look at via, all others at k. The zero via is
// Evaluate.
func EvaluateVia(set *rule.Set, world *rule.World, k flow.Key, via flow.Service) Result {
	src, dst := resolve(world, k.Src), resolve(world, k.Dst)
	r := Result{
		Egress:  direction(set, world, flow.Egress, &src, &dst, k, via),
		Ingress: direction(set, world, flow.Ingress, &dst, &src, k, via),
	}
	r.Verdict = r.Egress.Verdict
	if r.Verdict == classifier.Allow {
		r.Verdict = r.Ingress.Verdict
	}
	return r
}

// direction decides one side of the connection.
func direction(set *rule.Set, world *rule.World, d flow.Direction, subject, peer *party, k flow.Key, via flow.Service) Outcome {
	free := func(why classifier.Reason) Outcome {
		return Outcome{Verdict: classifier.Allow, Reason: why, Band: rule.BandDefault}
	}
	switch {
	case subject.pod == nil || !world.Local(subject.pod):
		return free(classifier.ReasonNotLocal)
	case k.Src == k.Dst:
		return free(classifier.ReasonSelf)
	case d == flow.Ingress && slices.Contains(peer.nodes, subject.pod.Node):
		return free(classifier.ReasonNodeLocal)
	}

	q := question{set: set, world: world, dir: d, subject: subject.pod, peer: peer, key: k, via: via}
	if d == flow.Egress {
		q.dst, q.dstUnknown = peer.pod, peer.unknown
	} else {
		q.dst = subject.pod
	}
	enforced := q.walk(false)
	o := Outcome{
		Verdict:    enforced.verdict,
		Reason:     enforced.reason,
		Band:       enforced.band,
		Rule:       enforced.rule,
		Isolations: enforced.isolations,
		Passed:     enforced.passed,
		Audit:      enforced.audit,
	}
	for _, i := range o.Isolations {
		o.AuditIsolation = o.AuditIsolation || i.Audit
	}
	if staged := q.walk(true); staged.metStaged {
		o.HasStaged = true
		o.Staged = staged.verdict
		o.StagedReason = staged.reason
		o.StagedBand = staged.band
		o.StagedRule = staged.rule
		o.StagedIsolations = staged.isolations
		o.StagedPassed = staged.passed
	}
	return o
}

// question is one direction of one connection, with both sides resolved.
type question struct {
	set     *rule.Set
	world   *rule.World
	dir     flow.Direction
	subject *rule.Endpoint
	peer    *party
	key     flow.Key
	via     flow.Service // zero: nothing was translated
	// dst resolves named ports: the destination pod, nil if it is no pod.
	dst        *rule.Endpoint
	dstUnknown bool
}

// walked is what one walk over the bands came to.
type walked struct {
	verdict    classifier.Verdict
	reason     classifier.Reason
	band       rule.Band
	rule       *rule.Rule
	isolations []*rule.Isolation
	passed     []*rule.Rule
	audit      []*rule.Rule
	metStaged  bool // an audit-only rule matched or was in doubt, or an audit-only isolation decided
}

// walk evaluates the bands in order. With staged set, audit-only rules and
// isolations take part as if they were enforced.
func (q *question) walk(staged bool) walked {
	var w walked
	end := func(v classifier.Verdict, why classifier.Reason, b rule.Band) walked {
		w.verdict, w.reason, w.band = v, why, b
		return w
	}
	rules := q.rules(staged)
	var skipped rule.BandSet
	for band := rule.BandAntreaUpper; band < rule.BandDefault; band++ {
		for i, r := range rules {
			if r.Order.Band != band || skipped.Has(band) {
				continue
			}
			m := q.match(r)
			if m == no {
				continue
			}
			if m == inDoubt {
				if r.Action == rule.Allow && q.allowedAnyway(rules[i+1:], band) {
					continue
				}
				w.metStaged = w.metStaged || r.Stage == rule.AuditOnly
				return end(classifier.Drop, classifier.ReasonUnknownPeer, rule.BandDefault)
			}
			if r.Stage == rule.AuditOnly {
				w.metStaged = true
			}
			if r.Action == rule.Allow {
				needs, m := q.authentication(rules, band)
				if m == inDoubt {
					w.metStaged = w.metStaged || needs.Stage == rule.AuditOnly
					return end(classifier.Drop, classifier.ReasonUnknownPeer, rule.BandDefault)
				}
				if m == yes {
					w.rule = needs
					w.metStaged = w.metStaged || needs.Stage == rule.AuditOnly
					if needs.Audit {
						w.audit = append(w.audit, needs)
					}
					return end(classifier.Drop, classifier.ReasonAuthRequired, band)
				}
			}
			if r.Audit {
				w.audit = append(w.audit, r)
			}
			if r.Action == rule.Skip {
				skipped |= r.Skip
				w.passed = append(w.passed, r)
				continue
			}
			w.rule = r
			switch r.Action {
			case rule.Allow:
				return end(classifier.Allow, classifier.ReasonRule, band)
			case rule.Reject:
				return end(classifier.Reject, classifier.ReasonRule, band)
			}
			return end(classifier.Drop, classifier.ReasonRule, band)
		}
		// Isolation ends its band, so a band skipped half-way has no end.
		if skipped.Has(band) {
			continue
		}
		if w.isolations = q.isolations(band, staged); len(w.isolations) > 0 {
			for _, i := range w.isolations {
				w.metStaged = w.metStaged || i.Stage == rule.AuditOnly
			}
			return end(classifier.Drop, classifier.ReasonIsolation, band)
		}
	}
	return end(classifier.Allow, classifier.ReasonDefault, rule.BandDefault)
}

// allowedAnyway reports whether the first of the rules of a band that match for sure
// allows, and none before it that is in doubt does anything else.
func (q *question) allowedAnyway(rules []*rule.Rule, band rule.Band) bool {
	for _, r := range rules {
		if r.Order.Band != band {
			continue
		}
		m := q.match(r)
		if m != no && r.Action != rule.Allow {
			return false
		}
		if m == yes {
			return true
		}
	}
	return false
}

// authentication finds the strongest rule of a band that needs authentication
// for the connection, or may.
func (q *question) authentication(rules []*rule.Rule, band rule.Band) (*rule.Rule, answer) {
	for _, r := range rules {
		if r.Order.Band == band && r.Auth {
			if m := q.match(r); m != no {
				return r, m
			}
		}
	}
	return nil, no
}

// rules lists the rules of the direction that take part, strongest first.
func (q *question) rules(staged bool) []*rule.Rule {
	var rs []*rule.Rule
	for i := range q.set.Rules {
		r := &q.set.Rules[i]
		if r.Direction == q.dir && (staged || r.Stage == rule.Enforce) {
			rs = append(rs, r)
		}
	}
	slices.SortStableFunc(rs, rule.Compare)
	return rs
}

// isolations lists the isolations of a band that select the subject.
func (q *question) isolations(band rule.Band, staged bool) []*rule.Isolation {
	var is []*rule.Isolation
	for i := range q.set.Isolations {
		s := &q.set.Isolations[i]
		if s.Direction == q.dir && s.Band == band && (staged || s.Stage == rule.Enforce) && s.Subject.Matches(q.subject) {
			is = append(is, s)
		}
	}
	return is
}
