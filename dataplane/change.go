package dataplane

import (
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
)

// Change says which connections a table may decide differently from the table
// before it. The zero value is the safe one: every connection. A Change is a
// value; it keeps both tables alive, so nobody should hold it for longer than a
// call takes. Any number of goroutines may ask it.
type Change struct {
	scope Scope // nil: everything
}

// Scope tells what a change is about. *classifier.Report is one.
type Scope interface {
	// Affects reports whether the decision about a connection, in the direction
	// it was opened, may be another one than before.
	Affects(k flow.Key) bool
	// Touches reports whether Affects may be true of a connection with this
	// address at either end.
	Touches(a flow.Addr) bool
}

// ChangeOf returns the change a compile reports. nil is everything: a first
// table, or one whose relation to the table in force is not known.
func ChangeOf(r *classifier.Report) Change {
	if r == nil || r.All() {
		return Change{}
	}
	return Change{scope: r}
}

// ChangeWithin returns a change of the given scope, for tests of backends. nil
// is everything. Engine.SetTable believes only reports.
func ChangeWithin(s Scope) Change { return Change{scope: s} }

// All reports whether every connection is affected.
func (c Change) All() bool { return c.scope == nil }

// Affects reports whether the decision about a connection may have changed. k is
// in the direction the connection was opened. False is certain: the same
// decision, by the same rule. It costs about as much as a Lookup.
func (c Change) Affects(k flow.Key) bool { return c.scope == nil || c.scope.Affects(k) }

// Touches reports whether some connection with this address at either end may be
// affected: when it is false of both ends, Affects is false. Cheaper than
// Affects where connections are kept by address.
func (c Change) Touches(a flow.Addr) bool { return c.scope == nil || c.scope.Touches(a) }

// Touched names the addresses for which Touches is true, in no order, if their
// scope can and they are no more than limit; else ok is false. Who can look up
// connections by address need not walk all of them.
func (c Change) Touched(limit int) (addrs []flow.Addr, ok bool) {
	if s, can := c.scope.(interface {
		Touched(limit int) ([]flow.Addr, bool)
	}); can {
		return s.Touched(limit)
	}
	return nil, false
}

// between reports whether c is known to be about the step from old to t.
func (c Change) between(old, t *classifier.Table) bool {
	r, ok := c.scope.(*classifier.Report)
	return ok && r.Between(old, t)
}
