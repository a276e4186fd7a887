package classifier_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

// TestCompilerEqualsCompile gives a Compiler one state after another, some of
// them broken: it must decide as Compile does, and as before after an error.
func TestCompilerEqualsCompile(t *testing.T) {
	r := rand.New(rand.NewPCG(71, 72))
	shared := 0
	for range 60 {
		m := newModel(r)
		var c classifier.Compiler
		var last *classifier.Table
		generation := uint64(0)
		for range 25 {
			var d *classifier.Delta
			switch r.IntN(12) {
			case 0:
				m.node = map[string]string{"": "n1", "n1": ""}[m.node]
			case 1:
				generation++
				w := m.world()
				if len(w.Endpoints) > 0 {
					w.Endpoints = append(w.Endpoints, w.Endpoints[0])
					if _, _, err := c.Compile(m.set(), w, classifier.Options{Generation: generation}); err == nil {
						t.Fatal("a pod listed twice is accepted")
					}
				}
			default:
				d = randomDelta(r, m)
				m.apply(d)
			}
			generation++
			compile := func() (*classifier.Table, *classifier.Report, error) {
				if last != nil && d != nil && r.IntN(2) == 0 { // told what changed
					d.Generation = generation
					return c.Update(d)
				}
				return c.Compile(m.set(), m.world(), classifier.Options{Generation: generation})
			}
			table, rep, err := compile()
			if err != nil {
				t.Fatal(err)
			}
			if table.Generation() != generation {
				t.Fatalf("generation %d, want %d", table.Generation(), generation)
			}
			fresh := compileOrFail(t, m.set(), m.world())
			for range 40 {
				k := universe.RandomKey(r, m.world())
				now := answer(table, k)
				if want := answer(fresh, k); now != want {
					t.Fatalf("%s\ncompiler %s\ncompile  %s", k, now, want)
				}
				if last != nil && !rep.Affects(k) && answer(last, k) != now {
					t.Fatalf("%s: not reported", k)
				}
			}
			checkNames(t, table, fresh)
			if last != nil && last.SharesMemory(table) {
				shared++
			}
			last = table
		}
	}
	if shared < 500 {
		t.Errorf("only %d tables share memory with the one before", shared)
	}
}

// TestCompilerAfterUpdate: the very lists of before an Update are another policy
// after it, and the very pods another world.
func TestCompilerAfterUpdate(t *testing.T) {
	var c classifier.Compiler
	if _, _, err := c.Update(&classifier.Delta{}); err == nil {
		t.Error("updated before anything was compiled")
	}
	set, w := isolateY(), twoPods("n2")
	k := tcp("8.8.8.8", "10.0.1.1", 80)
	reason := func(table *classifier.Table, _ *classifier.Report, err error) classifier.Reason {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return table.Outcome(table.Lookup(k).Ingress).Reason
	}
	if got := reason(c.Compile(set, w, classifier.Options{Generation: 1})); got != classifier.ReasonIsolation {
		t.Fatal(got)
	}
	ref := classifier.RefOf(&set.Isolations[0].Origin)
	if got := c.Policy(ref); len(got.Isolations) != len(set.Isolations) || len(got.Rules) != len(set.Rules) {
		t.Errorf("the object brings %+v", got)
	}
	if got := reason(c.Update(&classifier.Delta{Policies: []classifier.PolicyChange{{Ref: ref}}})); got != classifier.ReasonDefault {
		t.Errorf("without the policy: %s", got)
	}
	if got := c.Policy(ref); len(got.Isolations)+len(got.Rules) != 0 {
		t.Errorf("an object that is gone brings %+v", got)
	}
	if got := reason(c.Compile(set, w, classifier.Options{Generation: 3})); got != classifier.ReasonIsolation {
		t.Errorf("the same lists again: %s", got)
	}
	gone := classifier.PodName{Namespace: w.Endpoints[1].Namespace, Name: w.Endpoints[1].Name}
	table, rep, err := c.Update(&classifier.Delta{DropPods: []classifier.PodName{gone}})
	if got := reason(table, rep, err); got == classifier.ReasonIsolation || table.Knows(w.Endpoints[1].Addrs[0]) {
		t.Errorf("without the pod: %s, known %t", got, table.Knows(w.Endpoints[1].Addrs[0]))
	}
	if got := reason(c.Compile(set, w, classifier.Options{Generation: 5})); got != classifier.ReasonIsolation {
		t.Errorf("the same pods again: %s", got)
	}
}

// TestCompilerSeesNoChange: input that came to the same, whatever its order,
// affects no connection.
func TestCompilerSeesNoChange(t *testing.T) {
	r := rand.New(rand.NewPCG(73, 74))
	for range 50 {
		m := newModel(r)
		var c classifier.Compiler
		compile := func(generation uint64) *classifier.Report {
			s, w := m.set(), m.world()
			for i := range s.Rules { // other memory, same meaning
				s.Rules[i].Peers = slices.Clone(s.Rules[i].Peers)
			}
			for i := range w.Endpoints {
				w.Endpoints[i].Labels = maps.Clone(w.Endpoints[i].Labels)
			}
			r.Shuffle(len(s.Rules), func(i, j int) { s.Rules[i], s.Rules[j] = s.Rules[j], s.Rules[i] })
			r.Shuffle(len(w.Endpoints), func(i, j int) { w.Endpoints[i], w.Endpoints[j] = w.Endpoints[j], w.Endpoints[i] })
			_, rep, err := c.Compile(s, w, classifier.Options{Generation: generation})
			if err != nil {
				t.Fatal(err)
			}
			return rep
		}
		compile(1)
		rep := compile(2)
		for range 200 {
			if k := universe.RandomKey(r, m.world()); rep.Affects(k) {
				t.Fatalf("%s is affected by nothing", k)
			}
		}
	}
}

// BenchmarkCompiler measures a change found by comparison: one pod relabelled.
func BenchmarkCompiler(b *testing.B) {
	for _, s := range sizes[3:] {
		b.Run(s.String(), func(b *testing.B) {
			c := cluster(s)
			var compiler classifier.Compiler
			generation := uint64(0)
			world := *c.World
			world.Endpoints = slices.Clone(world.Endpoints)
			set := copyOf(c)
			b.ReportAllocs()
			for b.Loop() {
				generation++
				world.Endpoints[generation%100].Labels = world.Endpoints[generation*7%100].Labels
				next := world
				next.Endpoints = slices.Clone(world.Endpoints)
				if _, _, err := compiler.Compile(rule.Set{Rules: slices.Clone(set.Rules), Isolations: slices.Clone(set.Isolations)}, &next, classifier.Options{Generation: generation}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// TestCompilerSeesNodeOfPod: a pod that only changes its node changes sides.
func TestCompilerSeesNodeOfPod(t *testing.T) {
	var c classifier.Compiler
	for i, node := range []string{"n2", "n1", "n2"} {
		w := twoPods("n2")
		w.Endpoints[1].Node = node
		table, _, err := c.Compile(isolateY(), w, classifier.Options{Generation: uint64(i + 1)})
		if err != nil {
			t.Fatal(err)
		}
		want := classifier.ReasonIsolation
		if node == "n1" {
			want = classifier.ReasonNotLocal
		}
		k := tcp("8.8.8.8", "10.0.1.1", 80)
		if got := table.Outcome(table.Lookup(k).Ingress).Reason; got != want {
			t.Errorf("pod on %s: %s, want %s", node, got, want)
		}
		if n := len(table.Locals()); (n > 0) != (node == "n2") {
			t.Errorf("pod on %s: %d local addresses", node, n)
		}
	}
}
