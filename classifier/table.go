package classifier

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Options tune Compile. The zero value is what the daemon uses.
type Options struct {
	// Generation numbers the table; it appears in events and records.
	Generation uint64
}

// Table is an immutable compiled policy. Any number of goroutines may use it.
type Table struct{}

// Report says what a compile did.
type Report struct{}

// Compile builds a table.
func Compile(set rule.Set, world *rule.World, opt Options) (*Table, *Report, error) {
	panic("stub")
}

// Lookup decides a connection. k is in the direction the connection was opened.
func (t *Table) Lookup(k flow.Key) Decision { panic("stub") }

// Generation returns Options.Generation.
func (t *Table) Generation() uint64 { panic("stub") }

// Outcome resolves an id from a Decision of this table. Zero yields nil.
func (t *Table) Outcome(id OutcomeID) *Outcome { panic("stub") }

// Rule resolves a rule id of this table.
func (t *Table) Rule(id RuleID) *rule.Rule { panic("stub") }

// Isolation resolves an isolation index of this table.
func (t *Table) Isolation(i int32) *rule.Isolation { panic("stub") }

// Endpoint returns the pod that has the address, or nil.
func (t *Table) Endpoint(a flow.Addr) *rule.Endpoint { panic("stub") }

// IsVIP reports whether a is a Service address (see rule.World.VIPs).
func (t *Table) IsVIP(a flow.Addr) bool { panic("stub") }

// Selected returns the addresses of local pods that at least one rule or
// isolation selects in either direction, sorted. Only their traffic needs judging.
func (t *Table) Selected() []netip.Addr { panic("stub") }

// Locals returns the addresses of all local pods, sorted.
func (t *Table) Locals() []netip.Addr { panic("stub") }
