package classifier

import "github.com/tierwall/tierwall/classifier/rule"

// Verdict is what happens to a connection.
type Verdict uint8

// Verdicts. The zero value drops: forgetting to decide never opens.
const (
	Drop Verdict = iota
	Allow
	Reject // drop, and tell the sender
)

// String returns "Allow", "Drop" or "Reject", the words of the CLI contract.
func (v Verdict) String() string {
	switch v {
	case Allow:
		return "Allow"
	case Reject:
		return "Reject"
	}
	return "Drop"
}

// Reason says why one direction was decided as it was.
type Reason uint8

// Reasons.
const (
	ReasonNone         Reason = iota
	ReasonRule                // a rule matched
	ReasonIsolation           // a policy isolates the subject and nothing allowed the connection
	ReasonDefault             // no policy had anything to say: allow
	ReasonNodeLocal           // the node's own address to a pod on that node: allow
	ReasonSelf                // a pod to its own address: allow
	ReasonNotLocal            // the subject is not a pod policed here: nothing to decide, allow
	ReasonUnknownPeer         // peer inside a pod CIDR but no known pod, and a rule asks which pod: drop
	ReasonAuthRequired        // allowed, but only with authentication, which nobody can give: drop
)

var reasonNames = [...]string{"", "rule", "isolation", "default", "node-local", "self", "not-local", "unknown-peer", "auth-required"}

// String returns the reason's name as printed in JSON.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "invalid"
}

// RuleID numbers a rule inside one Table: an index into Table.Rule. NoRule
// means none.
type RuleID int32

// NoRule is the RuleID of decisions no rule made.
const NoRule RuleID = -1

// OutcomeID names an Outcome inside one Table. It is a plain number so that
// events can carry it without pointers. Zero is never a real outcome.
type OutcomeID uint32

// Outcome is the decision for one direction, complete with its explanation.
// Outcomes are hash-consed and immutable: compare and keep them by id.
type Outcome struct {
	Verdict Verdict
	Reason  Reason
	Band    rule.Band // deciding band; BandDefault where Reason is not rule, isolation or auth-required
	Rule    RuleID    // deciding rule, or NoRule
	// Isolations are the indexes (Table.Isolation) of every policy whose
	// isolation caused the drop, when Reason is isolation.
	Isolations []int32
	// Passed lists the matching rules whose action is skip, in the order they were
	// met before the deciding one. They need not have asked for a record.
	Passed []RuleID
	// Audit lists the rules that asked for a record: the skipped-through ones
	// in order, then the deciding one.
	Audit []RuleID
	// AuditIsolation is set when an isolation in Isolations asked for a record.
	AuditIsolation bool
	// Staged is what the verdict would be if audit-only policies were enforced.
	// StagedRule and StagedIsolations name what would decide. Only meaningful
	// when HasStaged is set, which it is when an audit-only rule or isolation
	// was met on the way.
	HasStaged        bool
	Staged           Verdict
	StagedReason     Reason
	StagedBand       rule.Band
	StagedRule       RuleID
	StagedIsolations []int32
	StagedPassed     []RuleID
}

// WantsRecord reports whether the outcome must leave an audit record.
func (o *Outcome) WantsRecord() bool {
	return len(o.Audit) > 0 || o.AuditIsolation || o.HasStaged
}

// Decision is the answer for one connection: a small value without pointers.
type Decision struct {
	Verdict Verdict
	Egress  OutcomeID // source's side
	Ingress OutcomeID // destination's side
	// Audit is set when either outcome wants a record.
	Audit bool
}
