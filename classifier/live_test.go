package classifier_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

var updates = flag.Int("updates", 4000, "random updates to compare in TestIncrementsEqualCompile")

// model is the plain truth an event sequence leads to.
type model struct {
	node     string
	policies map[classifier.PolicyRef]rule.Set
	pods     map[classifier.PodName]rule.Endpoint
	nodes    map[string]rule.Node
	sets     map[string][]netip.Prefix
	vips     []netip.Addr
	locals   []netip.Prefix
}

// newModel turns a universe into policies of several rules each.
func newModel(r *rand.Rand) *model {
	set, w := universe.Random(r)
	m := &model{
		node: w.Node, policies: grouped(r, set), pods: map[classifier.PodName]rule.Endpoint{},
		nodes: map[string]rule.Node{}, sets: maps.Clone(w.Sets),
	}
	for _, e := range w.Endpoints {
		m.pods[classifier.PodName{Namespace: e.Namespace, Name: e.Name}] = e
	}
	for _, n := range w.Nodes {
		m.nodes[n.Name] = n
	}
	return m
}

// grouped gives the rules of a set to four objects.
func grouped(r *rand.Rand, set rule.Set) map[classifier.PolicyRef]rule.Set {
	out := map[classifier.PolicyRef]rule.Set{}
	own := func(o rule.Origin, kind string) (rule.Origin, classifier.PolicyRef) {
		o.Rule, o.Kind, o.Namespace = kind+o.Name, "Policy", ""
		o.Name = fmt.Sprint("p", r.IntN(4))
		return o, classifier.RefOf(&o)
	}
	for _, ru := range set.Rules {
		var ref classifier.PolicyRef
		ru.Origin, ref = own(ru.Origin, "rule ")
		s := out[ref]
		s.Rules = append(s.Rules, ru)
		out[ref] = s
	}
	for _, iso := range set.Isolations {
		var ref classifier.PolicyRef
		iso.Origin, ref = own(iso.Origin, "isolation ")
		s := out[ref]
		s.Isolations = append(s.Isolations, iso)
		out[ref] = s
	}
	return out
}

func (m *model) clone() *model {
	c := *m
	c.policies, c.pods, c.nodes, c.sets = maps.Clone(m.policies), maps.Clone(m.pods), maps.Clone(m.nodes), maps.Clone(m.sets)
	return &c
}

func (m *model) set() rule.Set {
	var s rule.Set
	for _, p := range m.policies {
		s.Add(p)
	}
	s.Sort()
	return s
}

func (m *model) world() *rule.World {
	w := &rule.World{Node: m.node, Sets: maps.Clone(m.sets), VIPs: m.vips, LocalPrefixes: m.locals}
	for _, n := range sortedPods(m.pods) {
		w.Endpoints = append(w.Endpoints, m.pods[n])
	}
	for _, n := range slices.Sorted(maps.Keys(m.nodes)) {
		w.Nodes = append(w.Nodes, m.nodes[n])
	}
	return w
}

func sortedPods(m map[classifier.PodName]rule.Endpoint) []classifier.PodName {
	return slices.SortedFunc(maps.Keys(m), func(a, b classifier.PodName) int {
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
}

// apply does to the model what a Delta is documented to do.
func (m *model) apply(d *classifier.Delta) {
	for _, p := range d.Policies {
		m.policies[p.Ref] = p.Set
		if len(p.Set.Rules)+len(p.Set.Isolations) == 0 {
			delete(m.policies, p.Ref)
		}
	}
	maps.Copy(m.sets, d.Sets)
	for _, s := range d.DropSets {
		delete(m.sets, s)
	}
	for _, n := range d.DropNodes {
		delete(m.nodes, n)
	}
	for _, n := range d.Nodes {
		m.nodes[n.Name] = n
	}
	for k, e := range m.pods {
		if l, ok := d.Namespaces[e.Namespace]; ok {
			e.NamespaceLabels = l
			m.pods[k] = e
		}
	}
	for _, n := range d.DropPods {
		delete(m.pods, n)
	}
	for _, e := range d.Pods {
		m.pods[classifier.PodName{Namespace: e.Namespace, Name: e.Name}] = e
	}
	if d.ReplaceVIPs {
		m.vips = d.VIPs
	}
	if d.ReplaceLocalPrefixes {
		m.locals = d.LocalPrefixes
	}
}

// pickKey draws a key; the same one for the same stream.
func pickKey[K comparable, V any](r *rand.Rand, m map[K]V) (k K, ok bool) {
	keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	if len(keys) == 0 {
		return k, false
	}
	return keys[r.IntN(len(keys))], true
}

// randomDelta draws one to three events from another universe.
func randomDelta(r *rand.Rand, m *model) *classifier.Delta {
	d := &classifier.Delta{}
	other := newModel(r)
	for range 1 + r.IntN(3) {
		switch r.IntN(13) {
		case 0, 1, 2: // a policy appears or changes
			if ref, ok := pickKey(r, other.policies); ok {
				d.Policies = append(d.Policies, classifier.PolicyChange{Ref: ref, Set: other.policies[ref]})
			}
		case 3: // a policy goes
			d.Policies = append(d.Policies, classifier.PolicyChange{Ref: classifier.PolicyRef{Group: "test", Kind: "Policy", Name: fmt.Sprint("p", r.IntN(4))}})
		case 4, 5, 6: // a pod appears, moves, is relabelled, takes another's address
			if n, ok := pickKey(r, other.pods); ok {
				d.Pods = append(d.Pods, other.pods[n])
			}
		case 7: // a pod goes
			if n, ok := pickKey(r, m.pods); ok {
				d.DropPods = append(d.DropPods, n)
			}
		case 8: // a namespace is relabelled
			if n, ok := pickKey(r, other.pods); ok {
				d.Namespaces = map[string]map[string]string{n.Namespace: other.pods[n].NamespaceLabels}
			}
		case 9: // a node changes or goes
			if r.IntN(3) == 0 {
				d.DropNodes = append(d.DropNodes, fmt.Sprint("n", 1+r.IntN(2)))
			} else {
				d.Nodes = append(d.Nodes, other.nodes[fmt.Sprint("n", 1+r.IntN(2))])
			}
		case 10: // a set changes or goes
			name, _ := pickKey(r, other.sets)
			if r.IntN(3) == 0 {
				d.DropSets = append(d.DropSets, name)
			} else {
				if d.Sets == nil {
					d.Sets = map[string][]netip.Prefix{}
				}
				d.Sets[name] = other.sets[name]
			}
		case 11:
			d.VIPs, d.ReplaceVIPs = []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, byte(r.IntN(4))})}, true
		case 12:
			d.ReplaceLocalPrefixes = true
			for _, p := range []string{"10.0.1.0/29", "10.0.2.0/30", "fd00:1::/125"} {
				if r.IntN(2) == 0 {
					d.LocalPrefixes = append(d.LocalPrefixes, netip.MustParsePrefix(p))
				}
			}
		}
	}
	// A set dropped and given in one Delta: the drop comes last by contract.
	for _, s := range d.DropSets {
		delete(d.Sets, s)
	}
	return d
}

func newLive(tb testing.TB, m *model) *classifier.Live {
	tb.Helper()
	l, _, err := classifier.NewLive(m.set(), m.world(), classifier.Options{Generation: 1})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func mustApply(tb testing.TB, l *classifier.Live, d *classifier.Delta) (*classifier.Table, *classifier.Report) {
	tb.Helper()
	t, rep, err := l.Apply(d)
	if err != nil {
		tb.Fatal(err)
	}
	return t, rep
}

// answer is a decision in words that do not depend on the table.
func answer(t *classifier.Table, k flow.Key) string { return answerVia(t, k, flow.Service{}) }

func answerVia(t *classifier.Table, k flow.Key, via flow.Service) string {
	d := t.LookupVia(k, via)
	src, dst := t.UnknownLocal(k)
	s := fmt.Sprint(d.Verdict, src, dst)
	for _, id := range []classifier.OutcomeID{d.Egress, d.Ingress} {
		o := *t.Outcome(id)
		s += fmt.Sprintf(" | %s %s %s %v %v %v", o.Verdict, o.Reason, o.Band, o.AuditIsolation, o.HasStaged, d.Audit)
		ids := append(slices.Concat(o.Passed, o.Audit, o.StagedPassed), o.Rule)
		isos := slices.Clone(o.Isolations)
		if o.HasStaged {
			s += fmt.Sprint(o.Staged, o.StagedReason, o.StagedBand)
			ids, isos = append(ids, o.StagedRule), append(isos, o.StagedIsolations...)
		}
		for _, id := range ids {
			if id != classifier.NoRule {
				s += fmt.Sprint(t.Rule(id).Origin)
			}
		}
		for _, i := range isos {
			s += fmt.Sprint(t.Isolation(i).Origin)
		}
	}
	return s
}

// TestIncrementsEqualCompile runs random event sequences through a Live and
// after every event asks the oracle about the state the events lead to, and the
// report whether it told the truth about what changed. At the end of a sequence
// the table must equal a fresh compile, and tables of the past must still say
// what they said.
func TestIncrementsEqualCompile(t *testing.T) {
	const perSequence, keysPerStep = 25, 40
	r := rand.New(rand.NewPCG(11, 12))
	affected, spared := 0, 0
	for n := 0; n < *updates && !t.Failed(); n += perSequence {
		m := newModel(r)
		l := newLive(t, m)
		type past struct {
			table *classifier.Table
			key   flow.Key
			said  string
		}
		var memories []past
		for range perSequence {
			before := l.Table()
			d := randomDelta(r, m)
			m.apply(d)
			table, rep := mustApply(t, l, d)
			set, world := m.set(), m.world()
			for range keysPerStep {
				k := universe.RandomKey(r, world)
				via := universe.RandomService(r, world, k)
				checkOracle(t, table, &set, world, k, via)
				now := answer(table, k)
				checkUnknownLocal(t, table, world, k)
				if !rep.Affects(k) {
					if a, b := answerVia(before, k, via), answerVia(table, k, via); a != b {
						t.Errorf("%s via %s: the report says it is not affected by %+v\nbefore %s\nnow    %s", k, via, d, a, b)
					}
				}
				if rep.Affects(k) {
					if affected++; !rep.Touches(k.Src) && !rep.Touches(k.Dst) {
						t.Errorf("%s: affected by %+v, which touches neither end", k, d)
					}
				} else if spared++; answer(before, k) != now {
					t.Errorf("%s: the report says it is not affected by %+v\nbefore %s\nnow    %s", k, d, answer(before, k), now)
				}
				if r.IntN(20) == 0 {
					memories = append(memories, past{table, k, now})
				}
			}
			if t.Failed() {
				t.Logf("delta %+v\nset %s\nworld %+v", d, set.Text(), world)
				return
			}
		}
		fresh := compileOrFail(t, m.set(), m.world())
		for range 200 {
			k := universe.RandomKey(r, m.world())
			if a, b := answer(l.Table(), k), answer(fresh, k); a != b {
				t.Errorf("%s\nincrements %s\ncompile    %s", k, a, b)
			}
		}
		checkNames(t, l.Table(), fresh)
		for _, p := range memories {
			if now := answer(p.table, p.key); now != p.said {
				t.Errorf("table %d, %s: said %s, says %s", p.table.Generation(), p.key, p.said, now)
			}
		}
	}
	if spared < affected/4 {
		t.Errorf("reports spare only %d of %d connections", spared, spared+affected)
	}
	t.Logf("%d updates; %d connections affected, %d spared", *updates, affected, spared)
}

// checkUnknownLocal compares UnknownLocal with its definition.
func checkUnknownLocal(t *testing.T, table *classifier.Table, world *rule.World, k flow.Key) {
	t.Helper()
	unknown := func(a flow.Addr) bool {
		ip := a.Netip()
		if !slices.ContainsFunc(world.LocalPrefixes, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return false
		}
		pods, locals, host := 0, 0, false
		for i := range world.Endpoints {
			e := &world.Endpoints[i]
			switch {
			case !slices.Contains(e.Addrs, ip):
			case e.HostNetwork:
				host = true
			default:
				pods++
				if world.Local(e) {
					locals++
				}
			}
		}
		host = host || slices.ContainsFunc(world.Nodes, func(n rule.Node) bool { return slices.Contains(n.Addrs, ip) })
		switch {
		case pods == 0:
			return !host
		case locals > 0 && locals < pods: // contested: the table knows who has it
			return !slices.Contains(table.Locals(), ip)
		}
		return locals == 0
	}
	own := func(a flow.Addr) bool {
		n := table.NodeOf(a)
		return n != nil && n.Name == world.Node && table.Endpoint(a) == nil
	}
	src, dst := table.UnknownLocal(k)
	if src != unknown(k.Src) || dst != (unknown(k.Dst) && !own(k.Src)) {
		t.Errorf("%s: unknown %t, %t with prefixes %v", k, src, dst, world.LocalPrefixes)
	}
}

func checkOracle(t *testing.T, table *classifier.Table, set *rule.Set, world *rule.World, k flow.Key, via flow.Service) {
	t.Helper()
	got, want := table.LookupVia(k, via), oracle.EvaluateVia(set, world, k, via)
	if got.Verdict != want.Verdict {
		t.Errorf("%s via %s: verdict %s, oracle says %s", k, via, got.Verdict, want.Verdict)
	}
	for _, d := range flow.Directions {
		id := got.Egress
		if d == flow.Ingress {
			id = got.Ingress
		}
		if diff := difference(table, table.Outcome(id), want.Direction(d)); diff != "" {
			t.Errorf("%s via %s %s: %s", k, via, d, diff)
		}
	}
}

// checkNames compares what tables say besides decisions.
func checkNames(t *testing.T, a, b *classifier.Table) {
	t.Helper()
	if !slices.Equal(a.Selected(), b.Selected()) || !slices.Equal(a.Locals(), b.Locals()) {
		t.Errorf("selected %v and %v, locals %v and %v", a.Selected(), b.Selected(), a.Locals(), b.Locals())
	}
	pa, pb := a.Policy(), b.Policy()
	if pa.Text() != pb.Text() {
		t.Errorf("policies differ:\n%s\n%s", pa.Text(), pb.Text())
	}
	wa, wb := a.World(), b.World()
	if !reflect.DeepEqual(wa.Endpoints, wb.Endpoints) || !reflect.DeepEqual(wa.Nodes, wb.Nodes) || len(wa.Sets) != len(wb.Sets) {
		t.Errorf("worlds differ:\n%+v\n%+v", wa, wb)
	}
	for _, e := range wb.Endpoints {
		for _, addr := range e.Addrs {
			k := flow.AddrFrom(addr)
			if !reflect.DeepEqual(a.Endpoint(k), b.Endpoint(k)) || !reflect.DeepEqual(a.NodeOf(k), b.NodeOf(k)) || a.IsVIP(k) != b.IsVIP(k) {
				t.Errorf("%s: %+v %+v and %+v %+v", addr, a.Endpoint(k), a.NodeOf(k), b.Endpoint(k), b.NodeOf(k))
			}
		}
	}
}

// TestOrderOfIncrementsDoesNotMatter applies one set of events forwards,
// backwards, all at once, one at a time, and with each event undone and redone.
// Every way must decide alike.
func TestOrderOfIncrementsDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	for range 60 {
		start := newModel(r)
		end := newModel(r)
		var events []*classifier.Delta
		undo := map[*classifier.Delta]*classifier.Delta{}
		event := func(do, back *classifier.Delta) {
			events = append(events, do)
			undo[do] = back
		}
		for i := range 4 {
			ref := classifier.PolicyRef{Group: "test", Kind: "Policy", Name: fmt.Sprint("p", i)}
			event(&classifier.Delta{Policies: []classifier.PolicyChange{{Ref: ref, Set: end.policies[ref]}}},
				&classifier.Delta{Policies: []classifier.PolicyChange{{Ref: ref, Set: start.policies[ref]}}})
		}
		for _, n := range sortedPods(start.pods) {
			if _, stays := end.pods[n]; !stays {
				event(&classifier.Delta{DropPods: []classifier.PodName{n}}, &classifier.Delta{Pods: []rule.Endpoint{start.pods[n]}})
			}
		}
		for _, n := range sortedPods(end.pods) {
			e := end.pods[n]
			back := &classifier.Delta{DropPods: []classifier.PodName{n}}
			if was, ok := start.pods[n]; ok {
				back = &classifier.Delta{Pods: []rule.Endpoint{was}}
			}
			event(&classifier.Delta{Pods: []rule.Endpoint{e}}, back)
		}
		for _, n := range slices.Sorted(maps.Keys(end.nodes)) {
			e := end.nodes[n]
			event(&classifier.Delta{Nodes: []rule.Node{e}}, &classifier.Delta{Nodes: []rule.Node{start.nodes[n]}})
		}
		for _, n := range slices.Sorted(maps.Keys(end.sets)) {
			p := end.sets[n]
			event(&classifier.Delta{Sets: map[string][]netip.Prefix{n: p}}, &classifier.Delta{Sets: map[string][]netip.Prefix{n: start.sets[n]}})
		}
		end.node = start.node

		together := &classifier.Delta{Sets: map[string][]netip.Prefix{}}
		for _, e := range events {
			together.Policies = append(together.Policies, e.Policies...)
			together.Pods = append(together.Pods, e.Pods...)
			together.DropPods = append(together.DropPods, e.DropPods...)
			together.Nodes = append(together.Nodes, e.Nodes...)
			maps.Copy(together.Sets, e.Sets)
		}
		ways := map[string][]*classifier.Delta{"forwards": events, "together": {together}}
		for i := range events {
			ways["backwards"] = append(ways["backwards"], events[len(events)-1-i])
			ways["to and fro"] = append(ways["to and fro"], events[i], undo[events[i]], events[i])
		}
		want := compileOrFail(t, end.set(), end.world())
		for _, name := range slices.Sorted(maps.Keys(ways)) {
			way := ways[name]
			l := newLive(t, start)
			for _, d := range way {
				mustApply(t, l, d)
			}
			for range 100 {
				k := universe.RandomKey(r, end.world())
				if a, b := answer(l.Table(), k), answer(want, k); a != b {
					t.Fatalf("%s: %s\nincrements %s\ncompile    %s", name, k, a, b)
				}
			}
		}
	}
}

// TestLiveRefusesBadDeltas: an error leaves everything as it was.
func TestLiveRefusesBadDeltas(t *testing.T) {
	l, _, err := classifier.NewLive(isolateY(), twoPods(""), classifier.Options{Generation: 5})
	if err != nil {
		t.Fatal(err)
	}
	before := l.Table()
	bad := isolateY()
	bad.Rules[0].Action = 0
	ref := classifier.RefOf(&bad.Rules[0].Origin)
	for want, d := range map[string]*classifier.Delta{
		"no action":         {Policies: []classifier.PolicyChange{{Ref: ref, Set: bad}}},
		"in the change of":  {Policies: []classifier.PolicyChange{{Ref: classifier.PolicyRef{Name: "other"}, Set: isolateY()}}},
		"unusable address":  {Pods: []rule.Endpoint{{Namespace: "x", Name: "bad", Addrs: []netip.Addr{{}}}}},
		"does not follow 5": {Generation: 5},
	} {
		if _, _, err := l.Apply(d); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if l.Table() != before {
		t.Error("a refused delta changed the table")
	}
	twice := twoPods("")
	twice.Endpoints = append(twice.Endpoints, twice.Endpoints[0])
	if _, _, err := classifier.NewLive(rule.Set{}, twice, classifier.Options{}); err == nil {
		t.Error("a pod listed twice is accepted")
	}
}

// TestReadersDuringUpdates has readers look up while one goroutine updates; run
// with -race. Every answer must be that of the table it came from, old or new:
// recomputed without hurry it is the same.
func TestReadersDuringUpdates(t *testing.T) {
	r := rand.New(rand.NewPCG(31, 32))
	for range 4 {
		m := newModel(r)
		m.node = ""
		l := newLive(t, m)
		keys := make([]flow.Key, 300)
		for i := range keys {
			keys[i] = universe.RandomKey(r, m.world())
		}
		type sample struct {
			table *classifier.Table
			key   flow.Key
			said  string
		}
		var stop atomic.Bool
		var wg, reading sync.WaitGroup
		samples := make([][]sample, 4)
		reading.Add(len(samples))
		for i := range samples {
			wg.Go(func() {
				for n := i; !stop.Load(); n++ {
					if n == i+1 {
						reading.Done()
					}
					table, k := l.Table(), keys[n%len(keys)]
					said := answer(table, k)
					if (n-i)%97 == 0 && len(samples[i]) < 400 {
						samples[i] = append(samples[i], sample{table, k, said})
					}
				}
			})
		}
		reading.Wait()
		truth := map[uint64]*model{1: m.clone()}
		for range 120 {
			d := randomDelta(r, m)
			m.apply(d)
			table, _ := mustApply(t, l, d)
			truth[table.Generation()] = m.clone()
		}
		stop.Store(true)
		wg.Wait()
		checked := 0
		for _, list := range samples {
			for _, s := range list {
				was := truth[s.table.Generation()]
				if want := answer(compileOrFail(t, was.set(), was.world()), s.key); s.said != want {
					t.Fatalf("generation %d, %s: a reader got %s, want %s", s.table.Generation(), s.key, s.said, want)
				}
				checked++
			}
		}
		if checked < len(samples) {
			t.Errorf("%d answers of %d readers", checked, len(samples))
		}
	}
}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func set(name string, p []netip.Prefix) map[string][]netip.Prefix {
	return map[string][]netip.Prefix{name: p}
}
