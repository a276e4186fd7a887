package classifier

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// certainty is the answer of a match that may involve an unknown endpoint.
type certainty uint8

const (
	no certainty = iota
	maybe
	yes
)

func (c *candidate) matches(proto flow.Proto, dst, src uint16) certainty {
	best := no
	if c.ports.has(proto, dst) {
		if !c.uncertain {
			return yes
		}
		best = maybe
	}
	for i := range c.l4 {
		m := &c.l4[i]
		if !m.hasProto(proto) || !m.dst.Contains(dst) || !m.src.Contains(src) {
			continue
		}
		if !m.uncertain && !c.uncertain {
			return yes
		}
		best = maybe
	}
	return best
}

// step is the result of one walk.
type step struct {
	verdict    Verdict
	reason     Reason
	band       rule.Band
	rule       RuleID
	isolations []int32
	passed     []RuleID
	audit      []RuleID
	auditIso   bool
	metStaged  bool // an audit-only rule or isolation took part
}

// walk decides one subject class against candidates for one protocol and port
// pair, exactly as package rule's comment describes, once for what is enforced
// and, if anything is audit-only, once as if it were enforced too.
func walk(d flow.Direction, s *subject, cands []candidate, proto flow.Proto, dst, src uint16) *Outcome {
	e := walkOnce(d, s, cands, proto, dst, src, false)
	o := &Outcome{
		Verdict: e.verdict, Reason: e.reason, Band: e.band, Rule: e.rule, Isolations: e.isolations,
		Passed: e.passed, Audit: e.audit, AuditIsolation: e.auditIso, StagedRule: NoRule,
	}
	if s.staged[d] {
		if st := walkOnce(d, s, cands, proto, dst, src, true); st.metStaged {
			o.HasStaged = true
			o.Staged, o.StagedReason, o.StagedBand = st.verdict, st.reason, st.band
			o.StagedRule, o.StagedIsolations, o.StagedPassed = st.rule, st.isolations, st.passed
		}
	}
	return o
}

func walkOnce(d flow.Direction, s *subject, cands []candidate, proto flow.Proto, dst, src uint16, staged bool) step {
	st := step{rule: NoRule, band: rule.BandDefault}
	var skipped rule.BandSet
	i := 0
	for b := rule.Band(0); int(b) < rule.NumBands; b++ {
		band := i // first candidate of the band
		for ; i < len(cands) && cands[i].rule.Order.Band == b; i++ {
			c := &cands[i]
			if skipped.Has(b) || c.rule.Stage == rule.AuditOnly && !staged {
				continue
			}
			m := c.matches(proto, dst, src)
			if m == no {
				continue
			}
			if m == maybe {
				if c.rule.Action == rule.Allow && allowedAnyway(cands[i+1:], b, proto, dst, src, staged) {
					continue
				}
				// The connection may or may not be meant: fail closed.
				st.metStaged = st.metStaged || c.rule.Stage == rule.AuditOnly
				st.verdict, st.reason = Drop, ReasonUnknownPeer
				return st
			}
			if c.rule.Stage == rule.AuditOnly {
				st.metStaged = true
			}
			if c.rule.Action == rule.Allow {
				if st.authenticate(cands[band:], b, proto, dst, src, staged) {
					return st
				}
			}
			if c.rule.Audit {
				st.audit = append(st.audit, c.id)
			}
			if c.rule.Action == rule.Skip {
				skipped |= c.rule.Skip
				st.passed = append(st.passed, c.id)
				continue
			}
			st.verdict, st.reason, st.band, st.rule = verdictOf(c.rule.Action), ReasonRule, b, c.id
			return st
		}
		if skipped.Has(b) {
			continue // leaving a band leaves its isolation too
		}
		for _, iso := range s.isolations[d] {
			if iso.rule.Band != b || iso.rule.Stage == rule.AuditOnly && !staged {
				continue
			}
			st.isolations = append(st.isolations, iso.index)
			st.auditIso = st.auditIso || iso.rule.Audit
			st.metStaged = st.metStaged || iso.rule.Stage == rule.AuditOnly
		}
		if len(st.isolations) > 0 {
			st.verdict, st.reason, st.band = Drop, ReasonIsolation, b
			return st
		}
	}
	st.verdict, st.reason = Allow, ReasonDefault
	return st
}

// allowedAnyway is asked when an Allow of band b is in doubt: is the next rule of the
// band that matches an Allow, too? Then the doubt changes nothing, and names, by
// which rules of one rank are ordered, do not decide. cands starts behind the rule.
func allowedAnyway(cands []candidate, b rule.Band, proto flow.Proto, dst, src uint16, staged bool) bool {
	for i := range cands {
		c := &cands[i]
		if c.rule.Order.Band != b {
			return false
		}
		if c.rule.Stage == rule.AuditOnly && !staged {
			continue
		}
		switch m := c.matches(proto, dst, src); {
		case m == no:
		case c.rule.Action != rule.Allow:
			return false
		case m == yes:
			return true
		}
	}
	return false
}

// authenticate is asked when a rule of band b allows: does any rule of the band
// that matches, too, stronger or weaker, need authentication? Then it turns the
// walk's result into the drop and returns true. cands starts at the band.
func (st *step) authenticate(cands []candidate, b rule.Band, proto flow.Proto, dst, src uint16, staged bool) bool {
	for i := range cands {
		c := &cands[i]
		if c.rule.Order.Band != b {
			return false
		}
		if !c.rule.Auth || c.rule.Stage == rule.AuditOnly && !staged {
			continue
		}
		switch c.matches(proto, dst, src) {
		case maybe:
			st.metStaged = st.metStaged || c.rule.Stage == rule.AuditOnly
			st.verdict, st.reason = Drop, ReasonUnknownPeer
			return true
		case yes:
			st.metStaged = st.metStaged || c.rule.Stage == rule.AuditOnly
			if c.rule.Audit {
				st.audit = append(st.audit, c.id)
			}
			st.verdict, st.reason, st.band, st.rule = Drop, ReasonAuthRequired, b, c.id
			return true
		}
	}
	return false
}

func verdictOf(a rule.Action) Verdict {
	switch a {
	case rule.Allow:
		return Allow
	case rule.Reject:
		return Reject
	}
	return Drop
}
