package dataplane

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/conntrack"
)

// only is a Scope of the connections of one address.
type only flow.Addr

func (o only) Affects(k flow.Key) bool  { return k.Src == flow.Addr(o) || k.Dst == flow.Addr(o) }
func (o only) Touches(a flow.Addr) bool { return a == flow.Addr(o) }

// keys returns the live connections, sorted.
func (x *bench) keys() []string {
	var all []string
	x.e.Flows(func(_ string, r conntrack.Record) bool {
		all = append(all, r.Key.String())
		return true
	})
	slices.Sort(all)
	return all
}

// TestUpdateCostsWhatItChanges: of two connections one is affected. Only that one
// is judged again; the other stays as it is, also over many updates, and is a hit.
func TestUpdateCostsWhatItChanges(t *testing.T) {
	x := newBench(t, Config{})
	syn := func(src string) Packet {
		return Packet{Final: true, Frame: Segment(t, src, b4, Flags{SYN: true}, 1)}
	}
	data := func(src string) Packet {
		return Packet{Final: true, Frame: Segment(t, src, b4, Flags{ACK: true}, 2)}
	}
	publish := func(gen uint64, scope string, allowed func(flow.Key) bool) (*Stub, int) {
		t.Helper()
		stub := &Stub{Gen: gen, Allowed: allowed}
		change := Change{}
		if scope != "" {
			change = ChangeWithin(only(flow.AddrFrom(netip.MustParseAddr(scope))))
		}
		cut, err := x.e.PublishChange(stub, change)
		if err != nil {
			t.Fatal(err)
		}
		return stub, cut
	}
	const one, other = "10.0.0.1:1000", "10.0.0.9:1000"
	publish(1, "", Always)
	x.feed(syn(one))
	x.feed(syn(other))
	for gen := uint64(2); gen < 10; gen++ {
		stub, cut := publish(gen, "10.0.0.1", Always)
		if asked := stub.Asked(); cut != 0 || len(asked) != 1 || asked[0] != Key(flow.TCP, one, b4) {
			t.Fatalf("generation %d: cut %d, asked about %v", gen, cut, asked)
		}
		for _, src := range []string{one, other} {
			if path, p := x.feed(data(src)); path != PassHit || !p.Remember {
				t.Errorf("generation %d: %s took %v", gen, src, path)
			}
		}
	}
	x.e.Flows(func(_ string, r conntrack.Record) bool {
		if want := map[bool]uint64{true: 9, false: 1}[r.Key.Src == Key(flow.TCP, one, b4).Src]; r.Generation != want {
			t.Errorf("%v has generation %d, want %d", r.Key, r.Generation, want)
		}
		return true
	})
	if _, cut := publish(10, "10.0.0.1", func(k flow.Key) bool { return k != Key(flow.TCP, one, b4) }); cut != 1 {
		t.Errorf("cut %d", cut)
	}
	if path, _ := x.feed(data(one)); path != DropPolicy {
		t.Errorf("the denied connection took %v", path)
	}
	if path, _ := x.feed(data(other)); path != PassHit {
		t.Errorf("the other connection took %v", path)
	}
	// A table whose relation to the one before is not known.
	stub, cut := publish(11, "", Never)
	if asked := stub.Asked(); cut != 1 || len(asked) != 1 {
		t.Errorf("cut %d, asked about %v", cut, asked)
	}
}

// Before the update has been through the connection table, a packet of an
// affected connection is judged by itself, one of another is not.
func TestUpdateUnderWay(t *testing.T) {
	x := newBench(t, Config{})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
		t.Fatal(err)
	}
	for _, src := range []string{"10.0.0.1:1", "10.0.0.9:1"} {
		x.feed(Packet{Final: true, Frame: Datagram(t, src, b4)})
	}
	stub := &Stub{Gen: 2, Allowed: Always}
	x.e.current.Store(&snapshot{classifier: stub, generation: 2, change: ChangeWithin(only(flow.AddrFrom(netip.MustParseAddr("10.0.0.1"))))})
	if path, _ := x.feed(Packet{Final: true, Frame: Datagram(t, "10.0.0.9:1", b4)}); path != PassHit || len(stub.Asked()) != 0 {
		t.Errorf("the connection that is not affected took %v", path)
	}
	stub.Allowed = Never
	if path, _ := x.feed(Packet{Final: true, Frame: Datagram(t, "10.0.0.1:1", b4)}); path != DropCut {
		t.Errorf("the affected connection took %v", path)
	}
}

// TestCutUnderWay: a worker has a connection's record in its hands while the update
// that denies it comes to its end. What is settled is settled without that copy.
func TestCutUnderWay(t *testing.T) {
	for _, mode := range []Established{Strict, Keep} {
		x := newBench(t, Config{Established: mode})
		if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
			t.Fatal(err)
		}
		p := Packet{Final: true, Frame: Datagram(t, a4, b4)}
		x.feed(p)
		s := &snapshot{classifier: &Stub{Gen: 2, Allowed: Never}, generation: 2}
		if mode == Keep { // its address is another pod's
			k := Key(flow.UDP, a4, b4)
			s.before, s.table = podAt(t, k.Dst, "before"), podAt(t, k.Dst, "after")
		}
		x.e.current.Store(s)
		x.feed(Packet{Final: true, Frame: Datagram(t, b4, "10.0.0.9:9")}) // begins a batch
		p.Problem = parse(&p)
		x.w.seen = conntrack.Packet{Key: p.Headers.Key}
		if !x.w.conns.Seen(&x.w.seen, x.now, &x.w.rec).Found() {
			t.Fatal("no connection")
		}
		x.w.rejudgeAll(s)
		if n := len(x.keys()); n != 0 {
			t.Fatalf("%d connections are left", n)
		}
		s.settled.Store(true)
		if path := x.w.known(&p, s, x.now); path != DropCut || p.Remember {
			t.Errorf("%v: the copy took %v, remember %t", mode, path, p.Remember)
		}
	}
}

// podAt is a table with one pod.
func podAt(t *testing.T, a flow.Addr, name string) *classifier.Table {
	t.Helper()
	w := &rule.World{Node: "n", Endpoints: []rule.Endpoint{{Namespace: "x", Name: name, Node: "n", Addrs: []netip.Addr{a.Netip()}}}}
	table, _, err := classifier.Compile(rule.Set{}, w, classifier.Options{Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// recorder is a backend that keeps the changes it is told.
type recorder struct {
	quietBackend
	changes []Change
	fail    error
}

func (r *recorder) Drivers() []Driver { return []Driver{&r.d} }
func (r *recorder) Update(_ *classifier.Table, c Change) (int, error) {
	r.changes = append(r.changes, c)
	return 0, r.fail
}

// TestChangeIsNeverTooSmall: reports count only for the step they are about, and
// only if that step was complete.
func TestChangeIsNeverTooSmall(t *testing.T) {
	b := &recorder{}
	e := New(Config{Backends: []Backend{b}})
	var c classifier.Compiler
	gen := uint64(0)
	compile := func() (*classifier.Table, Change) {
		gen++
		labels := map[string]string{"gen": fmt.Sprint(gen)}
		pods := []rule.Endpoint{
			{Namespace: "x", Name: "a", Labels: labels, Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
			{Namespace: "x", Name: "b", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.2")}},
			{Namespace: "x", Name: "c", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.3")}},
		}
		table, report, err := c.Compile(rule.Set{}, &rule.World{Endpoints: pods}, classifier.Options{Generation: gen})
		if err != nil {
			t.Fatal(err)
		}
		return table, ChangeOf(report)
	}
	a, other := Key(flow.TCP, "10.0.0.1:1", "10.0.0.2:1"), Key(flow.TCP, "10.0.0.3:1", "10.0.0.2:1")
	expect := func(what string, all bool) {
		t.Helper()
		got := b.changes[len(b.changes)-1]
		if got.All() != all || !got.Affects(a) || got.Affects(other) != all || !got.Touches(a.Src) || got.Touches(other.Src) != all {
			t.Errorf("%s: everything is %t, want %t; affects %t, %t", what, got.All(), all, got.Affects(a), got.Affects(other))
		}
	}
	set := func(table *classifier.Table, change Change) error {
		_, err := e.SetTable(table, change)
		return err
	}
	if err := set(compile()); err != nil {
		t.Fatal(err)
	}
	expect("first", true)
	_ = set(compile())
	expect("second", false)
	compile() // never published
	_ = set(compile())
	expect("after a table that was skipped", true)
	_ = set(compile())
	expect("in step again", false)
	b.fail = errors.New("netlink")
	if err := set(compile()); !errors.Is(err, b.fail) {
		t.Fatal(err)
	}
	expect("failing", false)
	b.fail = nil
	_ = set(compile())
	expect("after a failure", true)
	table, _ := compile()
	_ = set(table, ChangeWithin(only{}))
	expect("not a report", true)
	if err := set(table, Change{}); !errors.Is(err, ErrGeneration) {
		t.Error(err)
	}
	_ = set(compile())
	expect("after a table that was refused", false)
	if !ChangeOf(nil).All() || !(Change{}).Affects(a) || !(Change{}).Touches(a.Src) {
		t.Error("the zero Change is not everything")
	}
}

// TestTargetedEqualsFull runs the same packets and the same random tables through
// two engines. One is told what changed, the other looks at everything: after
// every update they know the same connections, and packets fare alike.
func TestTargetedEqualsFull(t *testing.T) {
	cuts, spared := 0, 0
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 5))
		full, world := universe.Random(r)
		world.LocalPrefixes = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/29")}
		targeted, plain := newBench(t, Config{}), newBench(t, Config{})
		var c classifier.Compiler
		var rules []rule.Rule
		var isolations []rule.Isolation
		for gen := uint64(1); gen < 30; gen++ {
			switch {
			case len(full.Rules) > 0 && r.IntN(2) == 0:
				rules = toggle(rules, full.Rules[r.IntN(len(full.Rules))], func(a, b *rule.Rule) bool { return a.Origin == b.Origin })
			case len(full.Isolations) > 0:
				isolations = toggle(isolations, full.Isolations[r.IntN(len(full.Isolations))], func(a, b *rule.Isolation) bool { return a.Origin == b.Origin })
			}
			if r.IntN(4) == 0 && len(world.Endpoints) > 0 {
				w := *world
				w.Endpoints = slices.Clone(w.Endpoints)
				e := &w.Endpoints[r.IntN(len(w.Endpoints))]
				e.Labels = map[string]string{"app": fmt.Sprint(r.IntN(3))}
				if r.IntN(3) == 0 {
					e.Addrs = nil
				}
				world = &w
			}
			set := rule.Set{Rules: slices.Clone(rules), Isolations: slices.Clone(isolations)}
			table, report, err := c.Compile(set, world, classifier.Options{Generation: gen})
			if err != nil {
				t.Fatal(err)
			}
			alive := len(targeted.keys())
			cut, err := targeted.e.SetTable(table, ChangeOf(report))
			if err != nil {
				t.Fatal(err)
			}
			want, err := plain.e.SetTable(table, Change{})
			if err != nil {
				t.Fatal(err)
			}
			cuts += cut
			if !report.All() {
				spared += alive - cut
			}
			if got := targeted.keys(); cut != want || !slices.Equal(got, plain.keys()) {
				t.Fatalf("seed %d, table %d: cut %d, want %d\nalive %v\nwant  %v", seed, gen, cut, want, got, plain.keys())
			}
			for range 15 {
				k := universe.RandomKey(r, world)
				if k.Proto != flow.UDP && k.Proto != flow.TCP {
					continue
				}
				src, dst := netip.AddrPortFrom(k.Src.Netip(), k.SrcPort|1).String(), netip.AddrPortFrom(k.Dst.Netip(), k.DstPort|1).String()
				p := Packet{Final: r.IntN(4) > 0, Frame: Datagram(t, src, dst)}
				if k.Proto == flow.TCP {
					p.Frame = Segment(t, src, dst, Flags{SYN: r.IntN(2) == 0, ACK: true}, 7)
				}
				a, pa := targeted.feed(p)
				b, pb := plain.feed(p)
				if pa.Disposition != pb.Disposition || pa.Verdict != pb.Verdict || pa.Remember != pb.Remember || a != b {
					t.Fatalf("seed %d, table %d, %v: %v, want %v", seed, gen, k, a, b)
				}
			}
		}
	}
	if cuts < 50 || spared < 500 {
		t.Errorf("only %d connections cut and %d spared: nothing was tested", cuts, spared)
	}
	t.Logf("%d cut, %d spared", cuts, spared)
}

// toggle adds x, or removes what is the same.
func toggle[T any](list []T, x T, same func(a, b *T) bool) []T {
	if i := slices.IndexFunc(list, func(y T) bool { return same(&x, &y) }); i >= 0 {
		return slices.Delete(slices.Clone(list), i, i+1)
	}
	return append(slices.Clone(list), x)
}

// BenchmarkSetTable is the worker's part of an update: one of a hundred pods is
// relabelled while a worker has 65,536 connections.
func BenchmarkSetTable(b *testing.B) {
	for _, whole := range []bool{false, true} {
		b.Run(fmt.Sprintf("everything=%t", whole), func(b *testing.B) {
			x := newBench(b, Config{})
			var c classifier.Compiler
			world := &rule.World{}
			for i := range 100 {
				world.Endpoints = append(world.Endpoints, rule.Endpoint{Namespace: "x", Name: fmt.Sprint(i), Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}})
			}
			gen := uint64(0)
			next := func() {
				gen++
				w := *world
				w.Endpoints = slices.Clone(w.Endpoints)
				w.Endpoints[7].Labels = map[string]string{"gen": fmt.Sprint(gen)}
				table, report, err := c.Compile(rule.Set{}, &w, classifier.Options{Generation: gen})
				if err != nil {
					b.Fatal(err)
				}
				change := ChangeOf(report)
				if whole {
					change = Change{}
				}
				b.StartTimer()
				_, err = x.e.SetTable(table, change)
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
			}
			next()
			for i := range conntrack.DefaultRecords {
				k := flow.MakeKey(flow.UDP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), uint16(i)|1), netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i % 100)}), 80))
				x.w.conns.Insert(k, &conntrack.Packet{Key: k}, conntrack.Admission{Generation: 1}, x.now)
			}
			b.ResetTimer()
			for range b.N {
				next()
			}
		})
	}
}

// A worker that stalls may still add what the table before allowed: its records
// are judged by their next packet, though the update has been through.
func TestStalledWorkerIsNotTrusted(t *testing.T) {
	x := newBench(t, Config{StallTimeout: 1})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
		t.Fatal(err)
	}
	x.w.epoch.Store(1) // in the middle of a batch
	deny := &Stub{Gen: 2, Allowed: Never}
	if _, err := x.e.PublishChange(deny, ChangeWithin(only(Key(flow.UDP, a4, b4).Src))); !errors.Is(err, ErrStalled) {
		t.Fatal(err)
	}
	k := Key(flow.UDP, a4, b4)
	x.w.conns.Insert(k, &conntrack.Packet{Key: k}, conntrack.Admission{Generation: 1}, x.now)
	x.w.epoch.Store(2)
	if path, _ := x.feed(Packet{Final: true, Frame: Datagram(t, a4, b4)}); path != DropCut {
		t.Errorf("took %v", path)
	}
}
