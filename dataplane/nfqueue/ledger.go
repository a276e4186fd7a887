package nfqueue

import (
	"slices"
	"sync"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

const (
	// mostListed bounds a list: as many connections as the kernel's table has by
	// default on a large machine, at some 85 bytes each.
	mostListed = 1 << 18
	// settleTime is how long after it was told a connection may still get the
	// accept bit for what a worker decided then: its batch is still in the worker's
	// hands (dataplane.Config.StallTimeout), or its packet is held in a queue behind
	// ours, and the kernel's table does not have the connection yet.
	settleTime = 5 * time.Second
	// relistGrowth is how many connections may have ended unnoticed, beyond as
	// many as there were, before the list is made anew.
	relistGrowth = 8192
	// patience is how often the list may be asked in vain before it is made anew.
	patience = 2
)

// ledger lists the connections that may have the accept bit in the kernel's table,
// so that a change of policy costs what it concerns. Only packets that a worker has
// judged give the bit to a connection, and the engine tells of them (Backend.Learn).
// What the kernel's table has from before, a walk through it adds. How connections
// end the ledger does not see; the kernel says so when it is asked for one.
//
//	news ──► current list ──► which of these does a change deny? ──► Update
//	     └─► drafts: a walk is completing them, and makes one the current list
//
// The list counts as complete while nothing has been missed. Whoever finds it
// incomplete walks the kernel's table. Any goroutine may call the methods.
type ledger struct {
	settle time.Duration // settleTime, but in tests

	mu       sync.Mutex
	clock    func() time.Duration
	taught   bool // somebody tells news
	complete bool
	current  *list
	drafts   []*draft
	walked   int           // length of current when its walk was over
	missedAt time.Duration // the last time something was missed; the start is such a time
	burntAt  time.Duration // the last time a list was given up as too long
	expected uint64        // what kernelTable.expected said last
	asked    int           // times the list was asked and was not complete
}

// draft is a list that a walk is about to complete.
type draft struct {
	*list
	began time.Duration
}

func newLedger() *ledger {
	began := time.Now()
	return &ledger{settle: settleTime, clock: func() time.Duration { return time.Since(began) }, current: newList(), burntAt: never, asked: patience}
}

// learn adds what a worker saw packets of.
func (g *ledger) learn(news []conntrack.Record) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.taught = true
	now := g.clock()
	for i := range news {
		g.current.tell(&news[i], now)
		for _, d := range g.drafts {
			d.tell(&news[i], now)
		}
	}
	if g.current.len() > mostListed {
		g.miss()
	}
}

// lose notes that there may be connections nobody has told of.
func (g *ledger) lose() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.miss()
}

// expect notes how many connections some other one made the kernel expect, and that
// have come: they inherit its mark, without a worker's word.
func (g *ledger) expect(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if n != g.expected {
		g.expected = n
		g.miss()
	}
}

func (g *ledger) miss() {
	g.complete, g.missedAt = false, g.clock()
	if g.current.len() > mostListed {
		g.burntAt = g.missedAt
		old := g.current
		g.current = newList()
		g.current.copyTold(old, g.missedAt+1) // what is struck
	}
}

// burnt reports whether connections that may get the bit yet have been forgotten.
func (g *ledger) burnt() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.burntAt >= g.clock()-g.settle
}

// begin returns a draft for a walk that begins now. What may get its bit behind the
// back of the walk is in it already.
func (g *ledger) begin() *draft {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := &draft{list: newList(), began: g.clock()}
	d.copyTold(g.current, d.began-g.settle)
	g.drafts = append(g.drafts, d)
	return d
}

// found adds a connection that a walk has found to its draft.
func (g *ledger) found(d *draft, e *entry, k flow.Key) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d.found(e, k)
}

// end makes the draft the current list, if its walk saw everything.
func (g *ledger) end(d *draft, everything bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.drafts = slices.DeleteFunc(g.drafts, func(o *draft) bool { return o == d })
	if !everything || d.len() > mostListed {
		return
	}
	g.current, g.walked = d.list, d.len()
	// What was missed had its bit when the walk began, if it was to get one.
	g.complete = g.taught && d.began > g.missedAt+g.settle
	if g.complete {
		g.asked = 0
	}
}

// name notes that rules name Services that they did not before.
func (g *ledger) name() {
	g.mu.Lock()
	defer g.mu.Unlock()
	until := g.clock() + g.settle
	g.current.name(until)
	for _, d := range g.drafts {
		d.name(until)
	}
}

// denied returns the connections with an end that a change touches, and of which
// judge says that they are to lose the bit, but for those that are struck. complete
// says that there are no others.
func (g *ledger) denied(c dataplane.Change, judge func(flow.Key, flow.Service) bool) (victims []listed, complete bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.complete {
		g.asked++
	}
	return g.current.denied(c, judge), g.complete
}

// condemned returns the connections that are struck, and of which judge says so still.
func (g *ledger) condemned(judge func(flow.Key, flow.Service) bool) []listed {
	g.mu.Lock()
	defer g.mu.Unlock()
	victims, acquitted := g.current.condemned(judge)
	for _, k := range acquitted {
		g.each(func(l *list, _ time.Duration) {
			if _, i, ok := l.find(k); ok {
				l.acquit(&l.conns[i])
			}
		})
	}
	return victims
}

// unsettled strikes the connections that may get the bit yet, and of which judge says
// that they are to lose it.
func (g *ledger) unsettled(judge func(flow.Key, flow.Service) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.each(func(l *list, since time.Duration) { l.unsettled(since, judge) })
}

// strike removes connections that have been cut. Those that may have got the bit once
// more are struck instead: condemned returns them, and nobody else is asked about
// them until they are told again.
func (g *ledger) strike(cut []listed) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.each(func(l *list, since time.Duration) {
		for i := range cut {
			l.strike(&cut[i], since)
		}
	})
}

// replace puts what the kernel's table has of some keys in the place of what was told
// of them.
func (g *ledger) replace(found map[flow.Key][]entry) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.each(func(l *list, since time.Duration) {
		for k, entries := range found {
			l.replace(k, entries, since)
		}
	})
}

// each calls f for every list, with the time since when what was told is unsettled.
func (g *ledger) each(f func(l *list, since time.Duration)) {
	since := g.clock() - g.settle
	f(g.current, since)
	for _, d := range g.drafts {
		f(d.list, since)
	}
}

// stale reports whether the list should be made anew: because it is incomplete and
// asked for, or because too many in it may have ended.
func (g *ledger) stale() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case !g.taught || len(g.drafts) > 0:
		return false
	case g.complete:
		return g.current.len() > 2*g.walked+relistGrowth
	}
	return g.asked >= patience && g.clock() > g.missedAt+g.settle
}
