package cilium_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
)

// grid asks everything about x/t: one line per flow.
func (a asked) grid(t *testing.T, peers ...string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, proto := range []string{"TCP", "UDP"} {
		for _, peer := range peers {
			for _, port := range orderPorts {
				verdicts, why := a.ask(t, peer, proto, port, false)
				out[fmt.Sprintf("%s %d/%s", peer, port, proto)] = fmt.Sprint(verdicts, why)
			}
		}
	}
	return out
}

// live compiles a world for changes one by one.
func live(t *testing.T, w *fixture.World, yaml string) *classifier.Live {
	t.Helper()
	set, _ := fixture.MustBuild(t, w, yaml)
	inv := w.Inventory.World("")
	w.Inventory.FillSets(inv, &set)
	l, _, err := classifier.NewLive(set, inv, classifier.Options{})
	if err != nil {
		t.Fatalf("%v\n%s", err, yaml)
	}
	return l
}

// endpoint returns a pod of a world as the classifier has it.
func endpoint(t *testing.T, w *fixture.World, name string) rule.Endpoint {
	t.Helper()
	all := w.Inventory.World("").Endpoints
	i := slices.IndexFunc(all, func(e rule.Endpoint) bool { return e.Name == name })
	if i < 0 {
		t.Fatalf("no pod %s", name)
	}
	return all[i]
}

func apply(t *testing.T, l *classifier.Live, d classifier.Delta) *classifier.Table {
	t.Helper()
	table, _, err := l.Apply(&d)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// The proposal's first incremental example: one identity joins three rules and
// leaves them, by updates of the table in force, while packets are judged.
func TestIdentityComesAndGoes(t *testing.T) {
	const before = `
namespace x
pod x/t t=t
pod x/id5 one=y
pod x/id6 one=y
pod x/id7 two=y
pod x/id8 three=y
`
	const with = before + "pod x/id9 one=y two=y three=y\n"
	const policies = `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: p, namespace: x}
specs:
- order: 1
  endpointSelector: {matchLabels: {t: t}}
  ingress: [{fromEndpoints: [{matchLabels: {one: y}}], toPorts: [{ports: [{port: "1", endPort: 1023, protocol: TCP}]}]}]
- order: 2
  endpointSelector: {matchLabels: {t: t}}
  ingressDeny: [{fromEndpoints: [{matchLabels: {two: y}}], toPorts: [{ports: [{port: "80", protocol: TCP}]}]}]
- order: 3
  endpointSelector: {matchLabels: {t: t}}
  ingress: [{fromEndpoints: [{matchLabels: {three: y}}], toPorts: [{ports: [{port: "0", protocol: TCP}]}]}]
`
	others := []string{"x/id5", "x/id6", "x/id7", "x/id8"}
	everybody := append(slices.Clone(others), "x/id9")
	l := live(t, fixture.MustWorld(t, before), policies)
	w := fixture.MustWorld(t, with)
	joined := asked{w, l.Table()}
	was := joined.grid(t, everybody...)
	if was["x/id9 80/TCP"] != "[false false] [isolation isolation]" {
		t.Fatalf("an address without a pod: %s", was["x/id9 80/TCP"])
	}

	// Packets of the identity that comes and goes, all the time.
	src, _ := w.Party("x/id9")
	dst, _ := w.Party("x/t")
	key := (&fixture.Probe{From: src, To: dst, Proto: flow.TCP, Port: 80}).Keys()[0]
	wide := (&fixture.Probe{From: src, To: dst, Proto: flow.TCP, Port: 8080}).Keys()[0]
	var stop atomic.Bool
	var wg, reading sync.WaitGroup
	seen := make([]map[string]int, 2)
	reading.Add(len(seen))
	for i := range seen {
		seen[i] = map[string]int{}
		wg.Go(func() {
			for n := 0; !stop.Load(); n++ {
				table := l.Table()
				seen[i][decided(table, key)+", "+decided(table, wide)]++
				if n == 0 {
					reading.Done()
				}
			}
		})
	}
	reading.Wait()

	for range 100 {
		id9 := endpoint(t, w, "id9")
		joined.table = apply(t, l, classifier.Delta{Pods: []rule.Endpoint{id9}})
		for _, c := range []struct {
			peer string
			port uint16
			want string
		}{
			{"x/id9", 80, "[true true] [order 1 order 1]"},   // S3-39: rule 1 gains 9, rule 2 does not; S3-40; X-48: not the figure
			{"x/id9", 79, "[true true] [order 1 order 1]"},   // S3-39
			{"x/id9", 8080, "[true true] [order 3 order 3]"}, // S3-39: rule 3 gains 9; S3-40; X-48
			{"x/id7", 80, "[false false] [order 2 order 2]"},
			{"x/id8", 80, "[true true] [order 3 order 3]"},
			{"x/id5", 8080, "[false false] [isolation isolation]"},
		} {
			verdicts, why := joined.ask(t, c.peer, "TCP", c.port, false)
			if got := fmt.Sprint(verdicts, why); got != c.want {
				t.Fatalf("%s %d: got %s, want %s", c.peer, c.port, got, c.want)
			}
		}
		// S3-36: the update comes to what everything computed anew does.
		if got, want := joined.grid(t, everybody...), compile(t, with, policies).grid(t, everybody...); !maps.Equal(got, want) {
			t.Fatalf("got\n%v\nwant\n%v", got, want)
		}
		joined.table = apply(t, l, classifier.Delta{DropPods: []classifier.PodName{{Namespace: "x", Name: "id9"}}})
		// S3-41: when the identity goes, everything is as it was.
		if now := joined.grid(t, everybody...); !maps.Equal(now, was) {
			t.Fatalf("not restored:\n%v\n%v", now, was)
		}
	}
	stop.Store(true)
	wg.Wait()
	for _, s := range seen {
		for what, n := range s {
			// S3-35, S3-37: no packet sees rule 3 know the identity and rule 1 not yet, or
			// one port before and the other after the update.
			if what != "isolation, isolation" && what != "order 1, order 3" {
				t.Errorf("%d times: port 80 by %s", n, what)
			}
		}
	}
}

// decided names what decides a connection to x/t in a table.
func decided(t *classifier.Table, k flow.Key) string {
	o := t.Outcome(t.Lookup(k).Ingress)
	if o.Reason == classifier.ReasonRule {
		return fmt.Sprint("order ", t.Rule(o.Rule).Order.Priority)
	}
	return o.Reason.String()
}

// The proposal's second incremental example has no contents (S3-42). Derived from
// its examples 2a and 2b: under wildcards and single identities at once, pods come,
// go and get other labels, one or several in an update.
func TestIdentitiesUnderWildcards(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 42))
	updates := 0
	for range 60 {
		rules := randomRules(r)
		yaml := policiesOf(rules, r)
		// Which identity a pod has changes, its name and address do not. 0: it is gone.
		is := [4]int{}
		world := func() *fixture.World {
			lines := "namespace x\npod x/t t=t\n"
			for i, id := range is {
				lines += fmt.Sprintf("pod x/p%d id=%d\n", i, id)
			}
			w := fixture.MustWorld(t, lines)
			w.Inventory.Pods = slices.DeleteFunc(w.Inventory.Pods, func(p inventory.Pod) bool { return p.Labels["id"] == "0" })
			return w
		}
		l := live(t, world(), yaml)
		for range 8 {
			var d classifier.Delta
			for _, i := range r.Perm(len(is))[:1+r.IntN(3)] {
				if is[i] = r.IntN(5); is[i] > 0 {
					is[i] += 4
				}
				name := fmt.Sprint("p", i)
				if is[i] > 0 {
					d.Pods = append(d.Pods, endpoint(t, world(), name))
				} else {
					d.DropPods = append(d.DropPods, classifier.PodName{Namespace: "x", Name: name})
				}
			}
			w := world()
			got, whole := asked{w, apply(t, l, d)}, compileWorld(t, w, yaml)
			updates++
			for i, id := range is {
				peer := fmt.Sprint("x/p", i)
				// S3-36, X-49: the table of the update is that of a full computation.
				if a, b := got.grid(t, peer), whole.grid(t, peer); !maps.Equal(a, b) {
					t.Fatalf("%s is id %d: updates\n%v\nall anew\n%v\n%s", peer, id, a, b, yaml)
				}
				for _, port := range orderPorts {
					allow, want := decide(rules, fmt.Sprint("x/id", id), "TCP", port, false)
					verdicts, why := got.ask(t, peer, "TCP", port, false)
					// first match by order, of the identity the pod has now (S3-38).
					if verdicts[0] != allow || why[0] != want {
						t.Fatalf("%s is id %d, port %d: got %v by %s, want %v by %s\n%s", peer, id, port, verdicts[0], why[0], allow, want, yaml)
					}
				}
			}
		}
	}
	if updates != 480 {
		t.Errorf("%d updates", updates)
	}
}
