package classifier_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

var flows = flag.Int("flows", 200_000, "random flows to compare in TestTableEqualsOracle")

// TestTableEqualsOracle compares verdict, deciding rule, isolations, audit list
// and staged result of the table with the rule-by-rule evaluator over random
// tiny universes.
func TestTableEqualsOracle(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const perUniverse = 500
	reasons := map[classifier.Reason]int{}
	n := 0
	for ; n < *flows; n += perUniverse {
		compare(t, r, perUniverse, reasons)
		if t.Failed() {
			break
		}
	}
	t.Logf("%d flows compared; outcomes by reason: %v", n, reasons)
	for why := classifier.ReasonRule; why <= classifier.ReasonAuthRequired; why++ {
		if reasons[why] == 0 {
			t.Errorf("no outcome had reason %s: the universes do not cover it", why)
		}
	}
}

// FuzzTable is the same comparison steered by the fuzzer.
func FuzzTable(f *testing.F) {
	for i := range 8 {
		f.Add([]byte{byte(i), byte(i * 31)})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		compare(t, universe.FromBytes(data), 60, map[classifier.Reason]int{})
	})
}

func compare(t *testing.T, r *rand.Rand, n int, reasons map[classifier.Reason]int) {
	t.Helper()
	set, world := universe.Random(r)
	table, _, err := classifier.Compile(set, world, classifier.Options{Generation: 7})
	if err != nil {
		t.Fatalf("compile: %v", err)
	}
	set.Sort()
	for range n {
		k := universe.RandomKey(r, world)
		via := universe.RandomService(r, world, k)
		got, want := table.LookupVia(k, via), oracle.EvaluateVia(&set, world, k, via)
		if via.IsZero() && table.Lookup(k) != got {
			t.Errorf("%s: Lookup %+v, LookupVia nothing %+v", k, table.Lookup(k), got)
		}
		if got.Verdict != want.Verdict {
			t.Errorf("%s via %s: verdict %s, oracle says %s", k, via, got.Verdict, want.Verdict)
		}
		audit := false
		for _, d := range flow.Directions {
			id := got.Egress
			if d == flow.Ingress {
				id = got.Ingress
			}
			o := table.Outcome(id)
			reasons[o.Reason]++
			audit = audit || o.WantsRecord()
			if diff := difference(table, o, want.Direction(d)); diff != "" {
				t.Errorf("%s via %s %s: %s", k, via, d, diff)
			}
		}
		if got.Audit != audit {
			t.Errorf("%s: audit flag %t, outcomes want %t", k, got.Audit, audit)
		}
		if ex := table.ExplainVia(k, via); ex.Decision != got {
			t.Errorf("%s: explain decides %+v, lookup %+v", k, ex.Decision, got)
		} else {
			checkTrace(t, table, ex)
		}
		if t.Failed() {
			for i := range set.Rules {
				t.Logf("rule %d: %+v", i, set.Rules[i])
			}
			for i := range set.Isolations {
				t.Logf("isolation %d: %+v", i, set.Isolations[i])
			}
			t.Logf("world %+v", world)
			return
		}
	}
}

// difference compares an outcome with the oracle's; "" when they agree. Rules
// are compared by origin: no two rules of a universe have the same.
func difference(table *classifier.Table, o *classifier.Outcome, w *oracle.Outcome) string {
	type comparable struct {
		Verdict, Staged             classifier.Verdict
		Reason, StagedReason        classifier.Reason
		Band, StagedBand            rule.Band
		Rule, StagedRule            string
		Isolations, StagedIsolation []string
		Audit, Passed, StagedPassed []string
		AuditIsolation, HasStaged   bool
	}
	g := comparable{
		Verdict: o.Verdict, Reason: o.Reason, Band: o.Band, AuditIsolation: o.AuditIsolation, HasStaged: o.HasStaged,
	}
	name := func(id classifier.RuleID) string {
		if id == classifier.NoRule {
			return ""
		}
		return fmt.Sprint(table.Rule(id).Origin)
	}
	isos := func(l []int32) (out []string) {
		for _, i := range l {
			out = append(out, fmt.Sprint(table.Isolation(i).Origin))
		}
		return out
	}
	g.Rule, g.Isolations = name(o.Rule), isos(o.Isolations)
	ids := func(l []classifier.RuleID) (out []string) {
		for _, id := range l {
			out = append(out, name(id))
		}
		return out
	}
	g.Audit, g.Passed, g.StagedPassed = ids(o.Audit), ids(o.Passed), ids(o.StagedPassed)
	if o.HasStaged {
		g.Staged, g.StagedReason, g.StagedBand = o.Staged, o.StagedReason, o.StagedBand
		g.StagedRule, g.StagedIsolation = name(o.StagedRule), isos(o.StagedIsolations)
	}
	e := comparable{
		Verdict: w.Verdict, Reason: w.Reason, Band: w.Band, AuditIsolation: w.AuditIsolation, HasStaged: w.HasStaged,
	}
	ptr := func(r *rule.Rule) string {
		if r == nil {
			return ""
		}
		return fmt.Sprint(r.Origin)
	}
	isoPtrs := func(l []*rule.Isolation) (out []string) {
		for _, i := range l {
			out = append(out, fmt.Sprint(i.Origin))
		}
		return out
	}
	e.Rule, e.Isolations = ptr(w.Rule), isoPtrs(w.Isolations)
	ptrs := func(l []*rule.Rule) (out []string) {
		for _, r := range l {
			out = append(out, ptr(r))
		}
		return out
	}
	e.Audit, e.Passed, e.StagedPassed = ptrs(w.Audit), ptrs(w.Passed), ptrs(w.StagedPassed)
	if w.HasStaged {
		e.Staged, e.StagedReason, e.StagedBand = w.Staged, w.StagedReason, w.StagedBand
		e.StagedRule, e.StagedIsolation = ptr(w.StagedRule), isoPtrs(w.StagedIsolations)
	}
	if reflect.DeepEqual(g, e) {
		return ""
	}
	return fmt.Sprintf("table %+v, oracle %+v", g, e)
}

// checkTrace checks that a trace tells the same story as its outcome.
func checkTrace(t *testing.T, table *classifier.Table, tr *classifier.Trace) {
	t.Helper()
	for _, d := range flow.Directions {
		side := &tr.Sides[d]
		if len(side.Bands) == 0 {
			continue
		}
		decided := classifier.NoRule
		var isolated []int32
		for _, b := range side.Bands {
			for _, r := range b.Rules {
				if ru := table.Rule(r.Rule); r.Matched && ru.Stage == rule.Enforce && ru.Action != rule.Skip {
					decided = r.Rule
				}
			}
			if b.Result == classifier.BandIsolated {
				isolated = b.Isolations
			}
		}
		if side.Outcome.Reason == classifier.ReasonAuthRequired {
			// The walk ended at an Allow; the rule to blame is one that needs
			// authentication, the same or another of the band.
			if decided == classifier.NoRule || table.Rule(decided).Action != rule.Allow || !table.Rule(side.Outcome.Rule).Auth {
				t.Errorf("%s %s: auth-required by rule %d after rule %d", tr.Key, d, side.Outcome.Rule, decided)
			}
		} else if decided != side.Outcome.Rule {
			t.Errorf("%s %s: trace says rule %d decided, outcome %d", tr.Key, d, decided, side.Outcome.Rule)
		}
		if (len(isolated) > 0) != (side.Outcome.Reason == classifier.ReasonIsolation) {
			t.Errorf("%s %s: trace isolation %v, outcome reason %s", tr.Key, d, isolated, side.Outcome.Reason)
		}
	}
}
