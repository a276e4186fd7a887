package classifier

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/rule"
)

// An OutcomeID carries verdict and audit flag in its low bits, so that a lookup
// needs no load of the Outcome itself. Bit 31 stays clear.
//
//	30                    3   2      1..0
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
func (id OutcomeID) index() uint32    { return uint32(id) >> outcomeShift }

// Index numbers the outcomes of a table from 0 without gaps, in the order they were
// first met; [OutcomeAt] is its inverse.
func (id OutcomeID) Index() uint32 { return id.index() }

// FirstDecided is the first index whose outcome names rules or policies, or none of
// either because no policy selects: what is before it, no policy was asked about.
const FirstDecided = uint32(4)

// OutcomeAt returns an id of the outcome with an index. Only [Table.Outcome] may be
// asked about it: verdict and audit flag are not in it.
func OutcomeAt(index uint32) OutcomeID { return OutcomeID(index << outcomeShift) }

// internOutcome returns the id of an equal outcome, adding it if new; s is the subject
// that it is about.
func (m *memory) internOutcome(s *subject, o *Outcome) OutcomeID {
	key := o.key()
	m.mu.Lock()
	defer m.mu.Unlock()
	if id, ok := m.outcomeIDs[key]; ok {
		return id
	}
	list := *m.outcomes.Load()
	id := OutcomeID(uint32(len(list))<<outcomeShift | uint32(o.Verdict))
	if o.WantsRecord() {
		id |= outcomeAudit
	}
	list = append(list, o)
	m.outcomes.Store(&list)
	m.outcomeIDs[key] = id
	m.spent[s.rep.Namespace] += outcomeBytes
	return id
}

// key is equal for equal outcomes and different for different ones.
func (o *Outcome) key() string {
	b := make([]byte, 0, 48)
	num := func(ns ...int) {
		for _, n := range ns {
			b = binary.AppendVarint(b, int64(n))
		}
	}
	flags := 0
	if o.AuditIsolation {
		flags |= 1
	}
	if o.HasStaged {
		flags |= 2
	}
	num(flags, int(o.Verdict), int(o.Reason), int(o.Band), int(o.Rule), len(o.Isolations), len(o.Audit), len(o.Passed))
	for _, i := range o.Isolations {
		num(int(i))
	}
	for _, r := range o.Audit {
		num(int(r))
	}
	for _, r := range o.Passed {
		num(int(r))
	}
	if o.HasStaged {
		num(int(o.Staged), int(o.StagedReason), int(o.StagedBand), int(o.StagedRule), len(o.StagedPassed))
		for _, r := range o.StagedPassed {
			num(int(r))
		}
		for _, i := range o.StagedIsolations {
			num(int(i))
		}
	}
	return string(b)
}
