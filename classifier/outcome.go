package classifier

import (
	"fmt"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// An OutcomeID carries verdict and audit flag in its low bits, so that a lookup
// needs no load of the Outcome itself.
//
//	31                    3   2      1..0
//	[ index into outcomes ][audit][verdict]
const (
	outcomeAudit = 1 << 2
	outcomeShift = 3
)

// Outcomes every table has, at fixed indexes. Index 0 is no outcome.
const (
	outcomeNotLocal  = OutcomeID(1<<outcomeShift | uint32(Allow))
	outcomeSelf      = OutcomeID(2<<outcomeShift | uint32(Allow))
	outcomeNodeLocal = OutcomeID(3<<outcomeShift | uint32(Allow))
)

var fixedOutcomes = []*Outcome{
	nil,
	{Verdict: Allow, Reason: ReasonNotLocal, Band: rule.BandDefault, Rule: NoRule, StagedRule: NoRule},
	{Verdict: Allow, Reason: ReasonSelf, Band: rule.BandDefault, Rule: NoRule, StagedRule: NoRule},
	{Verdict: Allow, Reason: ReasonNodeLocal, Band: rule.BandDefault, Rule: NoRule, StagedRule: NoRule},
}

func (id OutcomeID) verdict() Verdict { return Verdict(id & 3) }
func (id OutcomeID) audit() bool      { return id&outcomeAudit != 0 }
func (id OutcomeID) index() uint32    { return uint32(id) >> outcomeShift }

// consing holds the hash-consing maps; Table.fill guards it.
type consing struct {
	outcomes map[string]OutcomeID
	programs map[string]uint32 // key → index + 1
}

// internOutcome returns the id of an equal outcome, adding it if new. The
// caller holds t.fill.
func (t *Table) internOutcome(o *Outcome) OutcomeID {
	key := o.key()
	if id, ok := t.consing.outcomes[key]; ok {
		return id
	}
	list := *t.outcomes.Load()
	id := OutcomeID(uint32(len(list))<<outcomeShift | uint32(o.Verdict))
	if o.WantsRecord() {
		id |= outcomeAudit
	}
	list = append(list, o)
	t.outcomes.Store(&list)
	t.consing.outcomes[key] = id
	return id
}

// key is equal for equal outcomes and different for different ones.
func (o *Outcome) key() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d %d %d %d %v %v %t", o.Verdict, o.Reason, o.Band, o.Rule, o.Isolations, o.Audit, o.AuditIsolation)
	if o.HasStaged {
		fmt.Fprintf(&b, " staged %d %d %d %d %v", o.Staged, o.StagedReason, o.StagedBand, o.StagedRule, o.StagedIsolations)
	}
	return b.String()
}
