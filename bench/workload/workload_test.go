package workload_test

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/bench/workload"
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/manifests"
)

var specs = []workload.Spec{
	{Pods: 300, Policies: 120, Admin: 20, Baseline: 4, Domains: 5, PerNode: 30, Seed: 3},
	{Pods: 200, Policies: 60, Admin: 7, Baseline: 2, PerNode: 50, DualStack: true, Seed: 4},
	{Pods: 200, Namespaces: 50, Policies: 150, OwnLabels: true, Seed: 5},
}

// TestManifestsEqualSet reads the written manifests the way the product does:
// what comes out must be the lowered form the benchmarks use.
func TestManifestsEqualSet(t *testing.T) {
	for _, s := range specs {
		c := workload.New(s)
		dir := t.TempDir()
		if err := c.WriteManifests(dir); err != nil {
			t.Fatal(err)
		}
		objs, inv, findings := manifests.Load(dir, lower.Kinds())
		set, more := lower.Build(objs, inv)
		findings.Add(more)
		if err := findings.Err(); err != nil {
			t.Fatalf("%+v: %v", s, err)
		}
		if got, want := set.Text(), c.Set.Text(); got != want {
			t.Errorf("%+v: %s", s, firstDifference(got, want))
		}
		world := inv.World(c.World.Node)
		want := slices.Clone(c.World.Endpoints)
		slices.SortFunc(want, func(a, b rule.Endpoint) int { return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name) })
		if !reflect.DeepEqual(world.Endpoints, want) {
			for i := range want {
				if !reflect.DeepEqual(world.Endpoints[i], want[i]) {
					t.Errorf("pod %+v\nwant %+v", world.Endpoints[i], want[i])
					break
				}
			}
		}
		if !reflect.DeepEqual(world.Nodes, c.World.Nodes) {
			t.Errorf("%d nodes, want %d", len(world.Nodes), len(c.World.Nodes))
		}
	}
}

func firstDifference(a, b string) string {
	x, y := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(x), len(y)) {
		if x[i] != y[i] {
			lo := max(0, i-4)
			return "manifests:\n" + strings.Join(x[lo:i+1], "\n") + "\nset:\n" + strings.Join(y[lo:i+1], "\n")
		}
	}
	return "one is longer"
}

// TestDeterministic: same spec, same cluster and connections.
func TestDeterministic(t *testing.T) {
	for _, s := range specs {
		a, b := workload.New(s), workload.New(s)
		if a.Set.Text() != b.Set.Text() || !reflect.DeepEqual(a.World, b.World) || !slices.Equal(a.Keys(500, 1), b.Keys(500, 1)) {
			t.Errorf("%+v: two clusters", s)
		}
		if slices.Equal(a.Keys(500, 1), a.Keys(500, 2)) {
			t.Errorf("%+v: the seed of keys does nothing", s)
		}
	}
}

// TestWorkloadsAreMixed: a workload that allows everything measures nothing.
func TestWorkloadsAreMixed(t *testing.T) {
	for _, s := range specs[:2] {
		c := workload.New(s)
		table, _, err := classifier.Compile(c.Set, c.World, classifier.Options{})
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[classifier.Reason]int{}
		for _, k := range c.Keys(20_000, 1) {
			if !k.Valid() {
				t.Fatalf("invalid key %v", k)
			}
			d := table.Lookup(k)
			for _, id := range []classifier.OutcomeID{d.Egress, d.Ingress} {
				reasons[table.Outcome(id).Reason]++
			}
		}
		for _, why := range []classifier.Reason{classifier.ReasonRule, classifier.ReasonIsolation, classifier.ReasonDefault, classifier.ReasonNotLocal} {
			if reasons[why] < 500 {
				t.Errorf("%+v: %s decides %d of 20000", s, why, reasons[why])
			}
		}
	}
}

func TestPrefixes(t *testing.T) {
	p := workload.Prefixes(workload.PrefixSpec{Rules: 500, Seed: 1})
	table, _, err := classifier.Compile(p.Set, p.World, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	deciding := map[classifier.RuleID]bool{}
	for _, k := range p.Keys(20_000, 1) {
		deciding[table.Outcome(table.Lookup(k).Ingress).Rule] = true
	}
	if len(deciding) < 200 {
		t.Errorf("only %d of 500 rules decide anything", len(deciding))
	}
}
