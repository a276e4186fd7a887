package simulate

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// The long run: go test ./policy/simulate -run Agree -flows 10000000 -v
var (
	flows = flag.Int("flows", 100_000, "random connections to compare in TestAgree")
	seed  = flag.Uint64("seed", 1, "seed of TestAgree; every run of a seed is the same")
)

// TestAgree compares simulate, oracle and table over random objects: verdict,
// reason, deciding policy and rule, isolating policies. It also asserts that the
// universes are rich enough for every answer to have been given.
func TestAgree(t *testing.T) {
	const perUniverse = 250
	r := rand.New(rand.NewPCG(*seed, 0))
	seen := map[string]int{}
	start, n, universes := time.Now(), 0, 0
	for ; n < *flows && !t.Failed(); n += perUniverse {
		agree(t, r, perUniverse, seen)
		universes++
	}
	t.Logf("%d connections in %d universes compared in %s: simulate, oracle, table", n, universes, time.Since(start).Round(time.Millisecond))
	for _, d := range flow.Directions {
		for _, what := range []string{
			"not-local", "self", "default", "isolation", "several isolations",
			"Allow networkpolicy", "Allow adminnetworkpolicy", "Drop adminnetworkpolicy", "Drop adminnetworkpolicy by name",
			"Drop adminnetworkpolicy baseline", "Allow adminnetworkpolicy baseline", "passed",
		} {
			t.Logf("%-8s%-35s%8d", d, what, seen[d.String()+" "+what])
			if seen[d.String()+" "+what] < 20 {
				t.Errorf("%s %s: seen %d times, want at least 20", d, what, seen[d.String()+" "+what])
			}
		}
	}
	if seen["ingress node-local"] < 20 {
		t.Errorf("node-local seen %d times", seen["ingress node-local"])
	}
}

// FuzzAgree is the same comparison steered by the fuzzer.
func FuzzAgree(f *testing.F) {
	for i := range 8 {
		f.Add([]byte{byte(i), byte(i * 37), byte(i * 101)})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		agree(t, universe.FromBytes(data), 60, map[string]int{})
	})
}

func agree(t *testing.T, r *rand.Rand, n int, seen map[string]int) {
	inv := randomInventory(r)
	objs := randomObjects(t, r, inv)
	node := pick(r, []string{"", "", "n1"})
	set, findings := lower.Build(objs, inv)
	if err := findings.Err(); err != nil {
		t.Errorf("valid objects refused: %v", err)
		dump(t, objs, inv, node)
		return
	}
	set.Sort()
	world := inv.World(node)
	table, _, err := classifier.Compile(set, world, classifier.Options{})
	if err != nil {
		t.Errorf("compile: %v", err)
		dump(t, objs, inv, node)
		return
	}
	sim, err := New(objs, inv, node)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		k := randomKey(r, inv)
		want, err := sim.Evaluate(k)
		if err != nil {
			t.Errorf("%s: %v", k, err)
			return
		}
		rules := oracle.Evaluate(&set, world, k)
		fast := table.Lookup(k)
		if rules.Verdict != want.Verdict || fast.Verdict != want.Verdict {
			t.Errorf("%s: simulate %s, oracle %s, table %s", k, want.Verdict, rules.Verdict, fast.Verdict)
		}
		for _, d := range flow.Directions {
			s, o, id := &want.Egress, rules.Direction(d), fast.Egress
			if d == flow.Ingress {
				s, id = &want.Ingress, fast.Ingress
			}
			count(seen, d, s, o)
			wantText, oracleText, tableText := full(s), full(fromOracle(d, o)), full(fromTable(d, table, table.Outcome(id)))
			if wantText != oracleText || wantText != tableText {
				t.Errorf("%s %s:\n simulate %s\n oracle   %s\n table    %s", k, d, wantText, oracleText, tableText)
			}
		}
		if t.Failed() {
			dump(t, objs, inv, node)
			return
		}
	}
}

func count(seen map[string]int, d flow.Direction, s *Outcome, o *oracle.Outcome) {
	add := func(what string) { seen[d.String()+" "+what]++ }
	if s.Reason != classifier.ReasonRule {
		add(s.Reason.String())
		if len(s.Isolating) > 1 {
			add("several isolations")
		}
		if len(o.Audit) > 0 {
			add("passed")
		}
		return
	}
	kind := o.Rule.Origin.Kind
	what := s.Verdict.String() + " networkpolicy"
	if kind == anpKind.Kind {
		what = s.Verdict.String() + " adminnetworkpolicy"
		if o.Band == rule.BandBaseline {
			add(what + " baseline")
		}
		if o.Rule.Origin.Rule != "" {
			add(what + " by name")
		}
	}
	add(what)
}

// full is everything two evaluators must agree on.
func full(o *Outcome) string {
	return fmt.Sprintf("%s %s %q %q %d %q", o.Verdict, o.Reason, o.Policy, o.Rule, o.Index, o.Isolating)
}

func fromRule(d flow.Direction, v classifier.Verdict, why classifier.Reason, r *rule.Rule, isos []*rule.Isolation) *Outcome {
	o := &Outcome{Verdict: v, Reason: why, Index: -1}
	if r != nil {
		o.Policy, o.Rule, o.Index = r.Origin.Ref(), r.Origin.Rule, r.Origin.Index
		if o.Rule == "" {
			o.Rule = fmt.Sprintf("%s[%d]", d, r.Origin.Index)
		}
	}
	for _, i := range isos {
		o.Isolating = append(o.Isolating, i.Origin.Ref())
	}
	slices.Sort(o.Isolating)
	return o
}

func fromOracle(d flow.Direction, o *oracle.Outcome) *Outcome {
	return fromRule(d, o.Verdict, o.Reason, o.Rule, o.Isolations)
}

func fromTable(d flow.Direction, t *classifier.Table, o *classifier.Outcome) *Outcome {
	var r *rule.Rule
	if o.Rule != classifier.NoRule {
		r = t.Rule(o.Rule)
	}
	var isos []*rule.Isolation
	for _, i := range o.Isolations {
		isos = append(isos, t.Isolation(i))
	}
	return fromRule(d, o.Verdict, o.Reason, r, isos)
}

// dump prints a universe as a reader can replay it by hand.
func dump(t *testing.T, objs []*api.Object, inv *inventory.Snapshot, node string) {
	t.Helper()
	t.Logf("policed node %q", node)
	for _, o := range objs {
		b, err := yaml.Marshal(o.Value)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("annotations %v\n%s", o.Annotations, b)
	}
	for _, n := range inv.Namespaces {
		t.Logf("namespace %s %v", n.Name, n.Labels)
	}
	for _, p := range inv.Pods {
		t.Logf("pod %s/%s %v on %s host network %t %v ports %v", p.Namespace, p.Name, p.Labels, p.Node, p.HostNetwork, p.IPs, p.Ports)
	}
	for _, n := range inv.Nodes {
		t.Logf("node %s %v pod CIDRs %v", n.Name, n.Addrs, n.PodCIDRs)
	}
}
