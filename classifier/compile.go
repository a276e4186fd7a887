package classifier

import (
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Options tune Compile. The zero value is what the daemon uses.
type Options struct {
	// Generation numbers the table; it appears in events and records.
	Generation uint64
	// MemoryBudget bounds, in bytes, what lookups remember: cells, programs and
	// outcomes. 0 means DefaultMemoryBudget. A table that reaches it forgets; it
	// does not decide differently.
	MemoryBudget int
}

// Compile builds a table from a policy and the world it is about. Both are kept
// and must not change afterwards; set's slices are sorted in place. The error
// joins everything that is wrong with the input.
//
// Rules are numbered in canonical order. Use NewLive where changes follow.
func Compile(set rule.Set, world *rule.World, opt Options) (*Table, *Report, error) {
	l, report, err := build(set, world, opt)
	if err != nil {
		return nil, nil, err
	}
	t := l.Table()
	t.known.world = world
	return t, report, nil
}

// Report says what a compile or an update did.
type Report struct {
	Rules, Isolations int
	Endpoints         int    // pods known
	Locals            int    // pods policed here
	SubjectClasses    [2]int // by flow.Direction
	PeerClasses       [2]int
	Prefixes          int // distinct prefixes with a class of their own
	Elapsed           time.Duration

	old, new    *Table
	knowsLocals bool // either table has local prefixes
	services    bool // a set by which rules name Services has other addresses
}

func (l *Live) report(old, t *Table, began time.Time) *Report {
	r := &Report{
		Rules: l.s.ruleCount[0] + l.s.ruleCount[1], Isolations: l.isolationIDs.used(),
		Endpoints: l.podCount, Locals: l.localCount, Prefixes: l.s.prefixes.Size(), old: old, new: t,
	}
	for d := range r.SubjectClasses {
		r.SubjectClasses[d] = len(l.subjects)
		r.PeerClasses[d] = l.peerCount + 2*(r.Prefixes+1) // of each prefix and of none: outside, and nobody's in a pod network
	}
	r.knowsLocals = len(t.localPrefixes) > 0 || old != nil && len(old.localPrefixes) > 0
	r.services = old != nil && !old.sameServices(&t.state)
	r.Elapsed = time.Since(began)
	return r
}

// Affects reports whether the update may have changed how a connection is
// decided: its (subject class, peer class) pair is another one than before, on
// the side of a policed pod. Connections it does not affect have the decision
// they had, rule included, through a Service or not. k is in the direction the connection was opened. After
// Compile or NewLive everything is affected. What UnknownLocal says of a
// connection counts as part of its decision.
//
// It costs about as much as a Lookup, fills no cell and may be called from any
// number of goroutines. The report keeps both tables alive.
func (r *Report) Affects(k flow.Key) bool {
	if r.All() {
		return true
	}
	if r.knowsLocals {
		src, dst := r.new.UnknownLocal(k)
		if src0, dst0 := r.old.UnknownLocal(k); src != src0 || dst != dst0 {
			return true
		}
	}
	src, dst := r.new.resolve(&k.Src), r.new.resolve(&k.Dst)
	src0, dst0 := r.old.resolve(&k.Src), r.old.resolve(&k.Dst)
	return r.new.pair(flow.Egress, src, dst) != r.old.pair(flow.Egress, src0, dst0) ||
		r.new.pair(flow.Ingress, dst, src) != r.old.pair(flow.Ingress, dst0, src0)
}

// Touches reports whether Affects may be true of a connection that has this
// address at either end: a connection neither of whose ends is touched is not
// affected. It costs about half of Affects, so who keeps connections by address
// asks it first.
func (r *Report) Touches(a flow.Addr) bool {
	if r.All() {
		return true
	}
	if r.knowsLocals && (r.new.unknownLocal(&a) != r.old.unknownLocal(&a) || r.new.ownNode(&a) != r.old.ownNode(&a)) {
		return true
	}
	now, then := r.new.resolve(&a), r.old.resolve(&a)
	if now.serial() != then.serial() || now.local() != then.local() {
		return true
	}
	return now.local() && r.new.subjects[now.rec.subject].serial != r.old.subjects[then.rec.subject].serial
}

// All reports whether everything is affected: for want of a table to compare
// with, or because a Service that rules name has other addresses.
// Neither end of a connection tells that it was opened to one of them.
func (r *Report) All() bool { return r.old == nil || r.services || r.old.series != r.new.series }

// Between reports whether the report compares exactly these two tables: Affects
// says nothing about the step from another one.
func (r *Report) Between(old, new *Table) bool { return r.old == old && r.new == new }

// pair returns the serials that decide one side of a connection; zero if the
// subject is not policed here.
func (t *Table) pair(d flow.Direction, subject, peer party) uint64 {
	if !subject.local() {
		return 0
	}
	return cellKey(t.subjects[subject.rec.subject].serial[d], peer.serial())
}

// MemoryUse is what a table occupies, in bytes. Tables of one Live share most of
// it.
type MemoryUse struct {
	Addresses int // exact addresses: pages and records
	Cells     int // remembered (subject class, peer class) pairs
	Programs  int // what cells refer to, with the index for building them
}

// Total is the sum.
func (m MemoryUse) Total() int { return m.Addresses + m.Cells + m.Programs }

// Memory returns what the table occupies now. It takes the lock of first touches.
func (t *Table) Memory() MemoryUse {
	const recordBytes = 32
	u := MemoryUse{Addresses: t.addrs.v4.bytes() + t.addrs.v6.bytes() + t.addrs.count()*recordBytes}
	t.mem.mu.Lock()
	defer t.mem.mu.Unlock()
	u.Cells = len(t.mem.cells.Load().words) * cellBytes
	u.Programs = t.mem.bytes() - u.Cells
	return u
}
