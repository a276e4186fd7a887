package classifier

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Trace is the full story of one decision, for explain.
type Trace struct {
	Key      flow.Key
	Decision Decision
	Sides    [2]TraceSide // indexed by flow.Direction
}

// TraceSide is one direction's walk.
type TraceSide struct {
	Outcome *Outcome
	Bands   []TraceBand // every band that has a rule or isolation for the subject, in order
}

// TraceBand is one band of a walk.
type TraceBand struct {
	Band    rule.Band
	Result  string // "matched", "skipped", "isolated", "no-match", "not-reached"
	Rules   []TraceRule
	Isolate []int32 // isolations of the band that select the subject
}

// TraceRule is one rule considered.
type TraceRule struct {
	Rule    RuleID
	Matched bool
	// Why is empty when the rule matched; else "subject", "peer", "port",
	// "skipped" or "not-reached", with Detail saying it in words.
	Why    string
	Detail string
}

// Explain decides a connection like Lookup and records why.
func (t *Table) Explain(k flow.Key) *Trace { panic("stub") }
