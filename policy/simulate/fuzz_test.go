package simulate

import (
	"flag"
	"fmt"
	"maps"
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

// defaultFlows is enough for every word of every language to decide a few times.
const defaultFlows = 200_000

// The long run: go test ./policy/simulate -run Agree -flows 10000000 -v
var (
	flows = flag.Int("flows", defaultFlows, "random connections to compare in TestAgree")
	only  = flag.String("only", "", "one language for TestAgree: np, kep, released, cnp, kepcnp, antrea or cilium")
	seed  = flag.Uint64("seed", 1, "seed of TestAgree; every run of a seed is the same")
)

// TestAgree compares simulate, oracle and table over random objects: verdict,
// reason, deciding policy and rule, isolating policies. It also asserts that the
// universes are rich enough for every answer to have been given.
func TestAgree(t *testing.T) {
	const perUniverse = 100
	r := rand.New(rand.NewPCG(*seed, 0))
	seen := richness{}
	start, n, universes := time.Now(), 0, 0
	for ; n < *flows && !t.Failed(); n += perUniverse {
		agree(t, r, languages(r, *only), perUniverse, seen)
		universes++
	}
	t.Logf("%d connections in %d universes compared in %s: simulate, oracle, table", n, universes, time.Since(start).Round(time.Millisecond))
	if *only == "" && *flows >= defaultFlows {
		seen.check(t)
	}
}

// FuzzAgree is the same comparison steered by the fuzzer.
func FuzzAgree(f *testing.F) {
	for i := range 8 {
		f.Add([]byte{byte(i), byte(i * 37), byte(i * 101)})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := universe.FromBytes(data)
		agree(t, r, randomMix(r), 60, richness{})
	})
}

func agree(t *testing.T, r *rand.Rand, m mix, n int, seen richness) {
	inv := randomInventory(r, m)
	objs := randomObjects(t, r, inv, m)
	node := pick(r, []string{"", "", "n1"})
	set, findings := lower.Options{AllowMixedDialects: m.kepANP && m.released}.Build(objs, inv)
	if err := findings.Err(); err != nil {
		t.Errorf("valid objects refused: %v", err)
		dump(t, objs, inv, node)
		return
	}
	set.Sort()
	world := inv.World(node)
	inv.FillSets(world, &set)
	names := randomNames(r, inv)
	learn(world, inv, names)
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
	stricter, err := New(enforced(objs), inv, node)
	if err != nil {
		t.Fatal(err)
	}
	sim.Resolve(names)
	stricter.Resolve(names)
	for range n {
		k := randomKey(r, inv)
		via := randomService(r, inv, k)
		want, would := sim.EvaluateVia(k, via), stricter.EvaluateVia(k, via)
		rules := oracle.EvaluateVia(&set, world, k, via)
		fast := table.LookupVia(k, via)
		if rules.Verdict != want.Verdict || fast.Verdict != want.Verdict {
			t.Errorf("%s via %s: simulate %s, oracle %s, table %s", k, via, want.Verdict, rules.Verdict, fast.Verdict)
		}
		for _, d := range flow.Directions {
			s, w, o, id := &want.Egress, &would.Egress, rules.Direction(d), fast.Egress
			if d == flow.Ingress {
				s, w, id = &want.Ingress, &would.Ingress, fast.Ingress
			}
			differ(t, d.String(), k, s, fromOracle(d, o), fromTable(d, table, table.Outcome(id)))
			differ(t, d.String()+", audit-only policies in force", k, w, stagedFromOracle(d, o), stagedFromTable(d, table, table.Outcome(id)))
			if o.HasStaged && o.Staged != o.Verdict {
				seen[d.String()+" any staged"]++
			}
		}
		if t.Failed() {
			dump(t, objs, inv, node)
			return
		}
		seen.count(flow.Egress, objs, &want.Egress, &rules.Egress)
		seen.count(flow.Ingress, objs, &want.Ingress, &rules.Ingress)
	}
}

// randomService draws the Service a connection was opened to, as the proxy knows
// it: an address and port some Service has.
func randomService(r *rand.Rand, inv *inventory.Snapshot, k flow.Key) flow.Service {
	if !k.Proto.HasPorts() || len(inv.Services) == 0 || chance(r, 2) {
		return flow.Service{}
	}
	svc := pick(r, inv.Services)
	for _, a := range svc.ClusterIPs {
		if a.Is4() == k.Dst.Is4() && len(svc.Ports) > 0 {
			return flow.Service{Addr: flow.AddrFrom(a), Port: pick(r, svc.Ports).Port}
		}
	}
	return flow.Service{}
}

// differ reports answers that are not all the same in everything.
func differ(t *testing.T, what string, k flow.Key, simulated, rules, fast *Outcome) {
	if !same(simulated, rules) || !same(simulated, fast) {
		t.Errorf("%s %s:\n simulate %+v\n oracle   %+v\n table    %+v", k, what, *simulated, *rules, *fast)
	}
}

func same(a, b *Outcome) bool {
	return a.Verdict == b.Verdict && a.Reason == b.Reason && a.Policy == b.Policy && a.Rule == b.Rule && a.Index == b.Index &&
		slices.Equal(a.Isolating, b.Isolating)
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
	o.Isolating = slices.Compact(o.Isolating) // a policy may isolate with several specs
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

func stagedFromOracle(d flow.Direction, o *oracle.Outcome) *Outcome {
	if !o.HasStaged {
		return fromOracle(d, o)
	}
	return fromRule(d, o.Staged, o.StagedReason, o.StagedRule, o.StagedIsolations)
}

func stagedFromTable(d flow.Direction, t *classifier.Table, o *classifier.Outcome) *Outcome {
	if !o.HasStaged {
		return fromTable(d, t, o)
	}
	staged := classifier.Outcome{Verdict: o.Staged, Reason: o.StagedReason, Rule: o.StagedRule, Isolations: o.StagedIsolations}
	return fromTable(d, t, &staged)
}

// enforced returns the objects without the annotation that puts them on trial.
func enforced(objs []*api.Object) []*api.Object {
	out := make([]*api.Object, len(objs))
	for i, o := range objs {
		c := *o
		c.Annotations = maps.Clone(o.Annotations)
		delete(c.Annotations, stageAnnotation)
		out[i] = &c
	}
	return out
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
