package classifier_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/bench/workload"
	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
)

// TestNothingLeaks runs many updates: what the writer holds afterwards must be
// what it holds after a fresh compile of the same state.
func TestNothingLeaks(t *testing.T) {
	r := rand.New(rand.NewPCG(41, 42))
	for range 40 {
		m := newModel(r)
		l := newLive(t, m)
		for range 60 {
			d := randomDelta(r, m)
			m.apply(d)
			mustApply(t, l, d)
		}
		got, want := l.Counts(), newLive(t, m).Counts()
		for name, n := range want {
			if got[name] != n {
				t.Errorf("%s: %d after increments, %d after a compile", name, got[name], n)
			}
		}
		if classes, users := l.PeerClasses(); users != got["addresses"] || classes > users {
			t.Errorf("%d peer classes with %d users, but %d addresses", classes, users, got["addresses"])
		}
		if t.Failed() {
			return
		}
	}
}

// TestRenumbering begins new series of serials every few updates. Decisions, of
// old tables too, and reports must not notice.
func TestRenumbering(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	began := uint64(0)
	for range 30 {
		m := newModel(r)
		l := newLive(t, m)
		first := l.Table().Series()
		l.SetSerialLimits(uint32(10+r.IntN(200)), uint32(60+r.IntN(400)))
		type past struct {
			table *classifier.Table
			key   flow.Key
			said  string
		}
		var memories []past
		for range 60 {
			before := l.Table()
			d := randomDelta(r, m)
			m.apply(d)
			table, rep := mustApply(t, l, d)
			set, world := m.set(), m.world()
			for range 20 {
				k := universe.RandomKey(r, world)
				checkOracle(t, table, &set, world, k, universe.RandomService(r, world, k))
				if !rep.Affects(k) && answer(before, k) != answer(table, k) {
					t.Errorf("%s: not reported", k)
				}
				memories = append(memories, past{table, k, answer(table, k)})
			}
			if t.Failed() {
				return
			}
		}
		for _, p := range memories {
			if answer(p.table, p.key) != p.said {
				t.Fatalf("table %d changed its mind about %s", p.table.Generation(), p.key)
			}
		}
		began += l.Table().Series() - first
	}
	if began < 50 {
		t.Errorf("only %d new series", began)
	}
}

// TestSmallBudget gives lookups hardly any memory: they must decide as with
// plenty, and stay within it.
func TestSmallBudget(t *testing.T) {
	c := cluster(workload.Small)
	plenty := compileOrFail(t, copyOf(c), c.World)
	keys := c.Keys(30_000, 3)
	for _, budget := range []int{1, 20_000, 100_000, 4_000_000} {
		l, _, err := classifier.NewLive(copyOf(c), c.World, classifier.Options{MemoryBudget: budget})
		if err != nil {
			t.Fatal(err)
		}
		for i, k := range keys {
			if a, b := plenty.Lookup(k), l.Table().Lookup(k); a.Verdict != b.Verdict {
				t.Fatalf("budget %d: %s is %s, want %s", budget, k, b.Verdict, a.Verdict)
			} else if i%500 == 0 && answer(plenty, k) != answer(l.Table(), k) {
				t.Fatalf("budget %d: %s: %s, want %s", budget, k, answer(l.Table(), k), answer(plenty, k))
			}
		}
		// Outcomes are not bounded: events refer to them. There are few.
		m := l.Table().Memory()
		if most := max(budget, 11<<10) / 4 * 3; m.Cells > most {
			t.Errorf("budget %d: %d bytes of cells", budget, m.Cells)
		}
		if most := budget/4 + 200_000; m.Programs > most {
			t.Errorf("budget %d: %d bytes of programs and outcomes", budget, m.Programs)
		}
		old := l.Table()
		next, _ := mustApply(t, l, &classifier.Delta{})
		if next.SharesMemory(old) != (budget == 4_000_000) {
			t.Errorf("budget %d: %d bytes used, shared with the next table: %t", budget, m.Cells+m.Programs, next.SharesMemory(old))
		}
	}
	if n := plenty.CellCount(); n < 1<<14 {
		t.Errorf("plenty is %d cells: the workload does not need a budget", n)
	}
}

// TestNewProtocol names a protocol no rule named before: programs get a slot for
// it, and programs built before do not decide it.
func TestNewProtocol(t *testing.T) {
	l, _, err := classifier.NewLive(isolateY(), twoPods(""), classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	gre := tcp("10.0.0.1", "10.0.1.1", 0)
	gre.Proto, gre.SrcPort = 47, 0
	if v := l.Table().Lookup(gre).Verdict; v != classifier.Drop {
		t.Fatalf("before: %s", v)
	}
	s := isolateY()
	s.Rules[0].L4 = append(s.Rules[0].L4, rule.L4{Proto: 47, Ports: rule.AllPorts, SrcPorts: rule.AllPorts})
	ref := classifier.RefOf(&s.Rules[0].Origin)
	table, _ := mustApply(t, l, &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: ref, Set: s}}})
	if v := table.Lookup(gre).Verdict; v != classifier.Allow {
		t.Errorf("named: %s", v)
	}
	other := gre
	other.Proto = 50
	if v := table.Lookup(other).Verdict; v != classifier.Drop {
		t.Errorf("another protocol: %s", v)
	}
	table, _ = mustApply(t, l, &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: ref, Set: isolateY()}}})
	if v := table.Lookup(gre).Verdict; v != classifier.Drop {
		t.Errorf("after: %s", v)
	}
}

// TestPodCoveringPrefixes adds and removes blocks around and inside the pod
// network of a larger cluster: pods must always be decided by the blocks there
// are.
func TestPodCoveringPrefixes(t *testing.T) {
	c := cluster(workload.Small)
	l, _, err := classifier.NewLive(rule.Set{}, c.World, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(61, 62))
	keys := c.Keys(40, 4)
	most := 0
	for i := range 1500 {
		// The pods are in 10.0.0.0 to 10.0.9.255.
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(r.IntN(10)), byte(r.IntN(110))}), 8+r.IntN(25)).Masked()
		origin := rule.Origin{Kind: "P", Name: fmt.Sprint(i % 3), Index: 0}
		s := rule.Set{Rules: []rule.Rule{{
			Direction: flow.Direction(i & 1), Action: rule.Deny, Origin: origin, L4: []rule.L4{rule.AnyL4},
			Peers: []rule.Peer{{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: p}}},
		}}}
		table, _ := mustApply(t, l, &classifier.Delta{Policies: []classifier.PolicyChange{{Ref: classifier.RefOf(&origin), Set: s}}})
		most = max(most, l.Idle())
		if i%40 == 0 || i < 60 {
			now := table.Policy()
			for _, k := range keys {
				checkOracle(t, table, &now, c.World, k, flow.Service{})
			}
			if t.Failed() {
				return
			}
		}
	}
	if most == 0 {
		t.Error("no prefix was kept idle")
	}
}

// TestNodeOfHostNetworkPod: an address that only a host-network pod tells about
// is named after its node as long as the node is known, and is the node's own in
// either case.
func TestNodeOfHostNetworkPod(t *testing.T) {
	w := twoPods("n2")
	host := rule.Endpoint{Namespace: "x", Name: "agent", Node: "n2", HostNetwork: true, Addrs: addrs("192.168.9.9")}
	w.Endpoints = append(w.Endpoints, host)
	l, _, err := classifier.NewLive(isolateY(), w, classifier.Options{})
	if err != nil {
		t.Fatal(err)
	}
	addr := flow.AddrFrom(host.Addrs[0])
	node := w.Nodes[1]
	for _, step := range []struct {
		do   *classifier.Delta
		want string
	}{
		{&classifier.Delta{}, "n2"},
		{&classifier.Delta{DropNodes: []string{"n2"}}, ""},
		{&classifier.Delta{Nodes: []rule.Node{node}}, "n2"},
	} {
		table, _ := mustApply(t, l, step.do)
		got := ""
		if n := table.NodeOf(addr); n != nil {
			got = n.Name
		}
		if got != step.want {
			t.Errorf("after %+v: node %q, want %q", step.do, got, step.want)
		}
		if why := table.Outcome(table.Lookup(tcp("192.168.9.9", "10.0.1.1", 1)).Ingress).Reason; why != classifier.ReasonNodeLocal {
			t.Errorf("after %+v: %s", step.do, why)
		}
	}
}
