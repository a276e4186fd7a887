// Package hits keeps how often each rule and each isolation of a policy has decided,
// and when it last did, from table to table.
//
// A hit is a new connection that was allowed, or a packet that was refused, as a
// worker judged it. What the kernel passes or refuses by itself afterwards is none.
// Of rules that allow the same connection the one that decides has the hit: the first
// in order. A default deny is a hit of every policy that isolates, and a rule that
// skips bands ("Pass") has one whenever it was passed through. Staged rules have the
// hits they would have if they were enforced.
//
// A rule keeps its hits for as long as its policy has a rule of the same content in
// the same direction, wherever in the list that is. A rule that is edited is a new one.
package hits

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// keepGone is how long hits of a rule are kept that no table has any more, in
// nanoseconds: an object may be written anew, or its file replaced.
const keepGone = int64(3600e9)

// maxEntries bounds the rules remembered that no table has.
const maxEntries = 1 << 16

// ID names a rule as its author wrote it. Index is -1 for an isolation.
type ID struct {
	Policy    classifier.PolicyRef
	Direction flow.Direction
	Index     int
	Name      string // the rule's own name, if it has one
}

// RuleID is the ID of what a rule was written as.
func RuleID(r *rule.Rule) ID {
	return ID{classifier.RefOf(&r.Origin), r.Direction, r.Origin.Index, r.Origin.Rule}
}

// IsolationID is the same for an isolation.
func IsolationID(i *rule.Isolation) ID {
	return ID{Policy: classifier.RefOf(&i.Origin), Direction: i.Direction, Index: -1}
}

// Rule is a rule or an isolation of a table with its hits. Times are of the engine's
// clock: nanoseconds since the Unix epoch that never step.
type Rule struct {
	ID
	Band   rule.Band
	Stage  rule.Stage
	Action string // the API's own word; "" for an isolation
	Hits   uint64
	Last   int64 // 0 = never
	Since  int64 // from when on it was counted
}

// key is what makes a rule the same one in another table.
type key struct {
	policy    classifier.PolicyRef
	direction flow.Direction
	isolation bool
	content   [sha256.Size]byte
}

type entry struct {
	hits  uint64
	last  int64
	since int64
	gone  int64 // when no table had it any more; 0 = it is there
}

// Ledger implements dataplane.HitSink. All methods may be called from any goroutine.
type Ledger struct {
	clock func() int64

	mu         sync.Mutex
	entries    map[key]*entry
	rules      map[*rule.Rule]*entry // of the last table observed, and of those since
	isolations map[*rule.Isolation]*entry
	observed   *classifier.Table
}

// New returns an empty ledger. clock is the engine's.
func New(clock func() int64) *Ledger {
	return &Ledger{
		clock: clock, entries: map[key]*entry{}, rules: map[*rule.Rule]*entry{}, isolations: map[*rule.Isolation]*entry{},
	}
}

// Deciders calls rules and isolations with what an outcome of t is a hit of. An id
// that t does not have is nobody's.
func Deciders(t *classifier.Table, id classifier.OutcomeID, rules func(*rule.Rule), isolations func(*rule.Isolation)) {
	o := t.Outcome(id)
	if o == nil {
		return
	}
	for _, r := range o.Passed {
		rules(t.Rule(r))
	}
	if o.Rule != classifier.NoRule {
		rules(t.Rule(o.Rule))
	}
	for _, i := range o.Isolations {
		isolations(t.Isolation(i))
	}
	if !o.HasStaged {
		return
	}
	// Of the walk with staged policies only these count: the others had theirs above.
	staged := func(id classifier.RuleID) {
		if r := t.Rule(id); r.Stage == rule.AuditOnly {
			rules(r)
		}
	}
	for _, r := range o.StagedPassed {
		staged(r)
	}
	if o.StagedRule != classifier.NoRule {
		staged(o.StagedRule)
	}
	for _, i := range o.StagedIsolations {
		if iso := t.Isolation(i); iso.Stage == rule.AuditOnly {
			isolations(iso)
		}
	}
}

// Count implements dataplane.HitSink.
func (l *Ledger) Count(t *classifier.Table, id classifier.OutcomeID, n uint64, last int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock()
	hit := func(e *entry) {
		e.hits += n
		e.last = max(e.last, last)
	}
	Deciders(t, id, func(r *rule.Rule) { hit(l.ofRule(r, now)) }, func(i *rule.Isolation) { hit(l.ofIsolation(i, now)) })
}

func (l *Ledger) ofRule(r *rule.Rule, now int64) *entry {
	e := l.rules[r]
	if e == nil {
		e = l.entry(ruleKey(r), now)
		l.rules[r] = e
	}
	return e
}

func (l *Ledger) ofIsolation(i *rule.Isolation, now int64) *entry {
	e := l.isolations[i]
	if e == nil {
		e = l.entry(isolationKey(i), now)
		l.isolations[i] = e
	}
	return e
}

func (l *Ledger) entry(k key, now int64) *entry {
	e := l.entries[k]
	if e == nil {
		e = &entry{since: now}
		l.entries[k] = e
	}
	return e
}

// ruleKey leaves out what an edit elsewhere in the policy, or in its metadata, changes.
// %+v writes selectors and peers completely, whatever their String methods leave out.
func ruleKey(r *rule.Rule) key {
	h := sha256.New()
	fmt.Fprintf(h, "%d %+v %+v %+v %d %d %t %d", r.Order.Band, r.Subject, r.Peers, r.L4, r.Action, r.Skip, r.Auth, r.Stage)
	k := key{policy: classifier.RefOf(&r.Origin), direction: r.Direction}
	h.Sum(k.content[:0])
	return k
}

func isolationKey(i *rule.Isolation) key {
	h := sha256.New()
	fmt.Fprintf(h, "%d %+v %d", i.Band, i.Subject, i.Stage)
	k := key{policy: classifier.RefOf(&i.Origin), direction: i.Direction, isolation: true}
	h.Sum(k.content[:0])
	return k
}

// Observe takes note of a table's rules: from now on those that are new count as
// watched, and those that are gone are forgotten after a while. It costs a look at
// every rule, and nothing for the table it saw last.
func (l *Ledger) Observe(t *classifier.Table) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(t)
}

func (l *Ledger) observe(t *classifier.Table) {
	if t == nil || t == l.observed {
		return
	}
	now := l.clock()
	rules, isolations := map[*rule.Rule]*entry{}, map[*rule.Isolation]*entry{}
	here := make(map[*entry]struct{}, len(l.entries))
	t.EachRule(func(r *rule.Rule) {
		e := l.ofRule(r, now)
		rules[r], here[e] = e, struct{}{}
	})
	t.EachIsolation(func(i *rule.Isolation) {
		e := l.ofIsolation(i, now)
		isolations[i], here[e] = e, struct{}{}
	})
	gone := len(l.entries) - len(here)
	for k, e := range l.entries {
		if _, ok := here[e]; ok {
			e.gone = 0
			continue
		}
		if e.gone == 0 {
			e.gone = now
		}
		if now-e.gone > keepGone || gone > maxEntries {
			delete(l.entries, k)
			gone--
		}
	}
	l.rules, l.isolations, l.observed = rules, isolations, t
}

// Rules returns every rule and isolation of t with its hits: what was written as one
// rule is one, in the order in which tables are evaluated. Of rules of one policy that
// are written alike the first has the hits: it is the one that decides.
func (l *Ledger) Rules(t *classifier.Table) []Rule {
	if t == nil {
		return nil
	}
	var rules []*rule.Rule
	var isolations []*rule.Isolation
	t.EachRule(func(r *rule.Rule) { rules = append(rules, r) })
	t.EachIsolation(func(i *rule.Isolation) { isolations = append(isolations, i) })
	slices.SortStableFunc(rules, func(a, b *rule.Rule) int { return rule.Compare(a, b) })
	slices.SortStableFunc(isolations, func(a, b *rule.Isolation) int { return rule.CompareIsolations(a, b) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(t)
	var out []Rule
	at := map[ID]int{}
	used := map[*entry]bool{}
	add := func(id ID, e *entry, r Rule) {
		n, ok := at[id]
		if !ok {
			n = len(out)
			at[id] = n
			r.ID, r.Since = id, e.since
			out = append(out, r)
		}
		w := &out[n]
		w.Since = max(w.Since, e.since)
		if !used[e] {
			used[e] = true
			w.Hits += e.hits
			w.Last = max(w.Last, e.last)
		}
	}
	now := l.clock()
	for _, r := range rules {
		add(RuleID(r), l.ofRule(r, now), Rule{Band: r.Order.Band, Stage: r.Stage, Action: r.Origin.Word})
	}
	for _, iso := range isolations {
		add(IsolationID(iso), l.ofIsolation(iso, now), Rule{Band: iso.Band, Stage: iso.Stage})
	}
	slices.SortStableFunc(out, func(a, b Rule) int { return cmp.Compare(a.Band, b.Band) })
	return out
}
