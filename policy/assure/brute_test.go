package assure

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

var worldsFlag = flag.Int("worlds", 0, "random worlds that a comparison is checked in; 0 is each test's own number")

// worlds returns how many random worlds a test makes, n where nobody asks for another
// number.
func worlds(n int) int {
	if *worldsFlag > 0 {
		return *worldsFlag
	}
	return n
}

// TestDiffIsWhatLookupSays compares every pair of pods, nodes and outside addresses
// of two random states, one connection at a time, and wants the same from Compare:
// every protocol, every port next to a boundary, with nothing missing, nothing too
// much, and no two intervals that could be one.
func TestDiffIsWhatLookupSays(t *testing.T) {
	const shards = 4
	var mu sync.Mutex
	counted := Summary{}
	t.Run("shards", func(t *testing.T) {
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				some := diffWorlds(t, shard, shards)
				mu.Lock()
				defer mu.Unlock()
				counted.Opened, counted.Closed, counted.Rule = counted.Opened+some.Opened, counted.Closed+some.Closed, counted.Rule+some.Rule
			})
		}
	})
	t.Logf("%d worlds: %+v", worlds(1000), counted)
	if counted.Opened == 0 || counted.Closed == 0 || counted.Rule == 0 {
		t.Errorf("not every kind of change came up: %+v", counted)
	}
}

// diffWorlds checks every shards-th world.
func diffWorlds(t *testing.T, shard, shards int) (counted Summary) {
	for seed := shard; seed < worlds(1000); seed += shards {
		r := rand.New(rand.NewPCG(uint64(seed), 17))
		var old, now State
		old.Set, old.world = universe.Random(r)
		old.world.Node = ""
		now.Set, now.world = mutate(r, &old)
		for _, s := range []*State{&old, &now} {
			s.Snapshot = &inventory.Snapshot{}
		}
		brute := newBrute(t, &old, &now)
		d, err := compare(&old, &now, Options{Pods: true})
		if err != nil {
			t.Fatalf("world %d: %v", seed, err)
		}
		brute.check(fmt.Sprint("world ", seed), d, &counted)
		if t.Failed() {
			break
		}
	}
	return counted
}

// mutate makes the second state of the first: some rules go, some come from
// another universe, a pod changes labels or address, one goes, one comes.
func mutate(r *rand.Rand, s *State) (rule.Set, *rule.World) {
	var set rule.Set
	other, world := universe.Random(r)
	if r.IntN(6) == 0 {
		world.Node = ""
		return other, world // nothing in common but names
	}
	for _, x := range s.Set.Rules {
		if r.IntN(8) > 0 {
			set.Rules = append(set.Rules, x)
		}
	}
	for _, x := range other.Rules {
		if r.IntN(8) == 0 {
			x.Origin.Name += "-new"
			x.Order.Name = x.Origin.Name
			set.Rules = append(set.Rules, x)
		}
	}
	for _, x := range s.Set.Isolations {
		if r.IntN(6) > 0 {
			set.Isolations = append(set.Isolations, x)
		}
	}
	w := *s.world
	w.Endpoints = slices.Clone(w.Endpoints)
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		switch r.IntN(10) {
		case 0:
			e.Labels = map[string]string{"app": "b"}
		case 1:
			e.Ports = nil
		case 2:
			e.Node = "n2"
		}
	}
	if n := len(w.Endpoints); n > 1 && r.IntN(3) == 0 {
		w.Endpoints = w.Endpoints[:n-1]
	}
	if r.IntN(3) == 0 {
		w.Sets = world.Sets
	}
	return set, &w
}

// brute asks both tables, compiled each by itself, one connection at a time.
type brute struct {
	t      *testing.T
	tables [2]*classifier.Table
	old    *State
	now    *State
	protos []flow.Proto
	ports  []uint16
	srcs   []uint16
	sides  map[outcomeRef]side
}

func newBrute(t *testing.T, old, now *State) *brute {
	b := &brute{t: t, old: old, now: now, srcs: []uint16{SourcePort}, sides: map[outcomeRef]side{}}
	b.ports = []uint16{0, 1, 65535, flow.ICMPPort(8, 0)}
	named := map[flow.Proto]bool{flow.TCP: true, flow.UDP: true, flow.SCTP: true, flow.ICMP: true, flow.ICMPv6: true, flow.IGMP: true}
	for i, s := range []*State{old, now} {
		set := rule.Set{Rules: slices.Clone(s.Set.Rules), Isolations: slices.Clone(s.Set.Isolations)}
		var err error
		if b.tables[i], _, err = classifier.Compile(set, s.world, classifier.Options{}); err != nil {
			t.Fatal(err)
		}
		around := func(to *[]uint16, r rule.PortRange) { *to = append(*to, r.First-1, r.First, r.Last, r.Last+1) }
		for _, x := range s.Set.Rules {
			for _, l := range x.L4 {
				around(&b.ports, l.Ports)
				around(&b.srcs, l.SrcPorts)
				named[l.Proto] = true
			}
		}
		for _, e := range s.world.Endpoints {
			for _, p := range e.Ports {
				around(&b.ports, rule.PortRange{First: p.Port, Last: p.Port})
			}
		}
	}
	for p := flow.Proto(1); p < 255; p++ {
		if named[p] || p == 253 {
			b.protos = append(b.protos, p)
		}
	}
	for _, list := range []*[]uint16{&b.ports, &b.srcs} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	return b
}

// addr is an end of a brute force question: its name in answers, and its address
// in both worlds.
type addr struct {
	name     string
	old, now netip.Addr
}

func (b *brute) ends() []addr {
	var out []addr
	for _, e := range b.old.world.Endpoints {
		for _, f := range b.now.world.Endpoints {
			if e.Namespace != f.Namespace || e.Name != f.Name {
				continue
			}
			for _, is4 := range []bool{true, false} {
				x, ok := e.Addr(is4)
				y, ok2 := f.Addr(is4)
				if ok && ok2 {
					out = append(out, addr{e.Namespace + "/" + e.Name, x, y})
				}
			}
		}
	}
	// Outside addresses in and around every prefix, as long as nobody has them.
	probes := []netip.Addr{netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("2001:db8:ffff::7")}
	for _, s := range []*State{b.old, b.now} {
		for _, p := range prefixesOf(s) {
			probes = append(probes, p.Addr(), p.Addr().Next(), p.Addr().Prev())
		}
	}
	slices.SortFunc(probes, netip.Addr.Compare)
	for _, a := range slices.Compact(probes) {
		if a.IsValid() && !b.inhabited(a) {
			out = append(out, addr{"", a, a})
		}
	}
	return out
}

func prefixesOf(s *State) (out []netip.Prefix) {
	for _, x := range s.Set.Rules {
		for _, p := range x.Peers {
			if p.Kind == rule.PeerBlock {
				out = append(append(out, p.Block.Prefix), p.Block.Except...)
			}
		}
	}
	for _, set := range s.world.Sets {
		out = append(out, set...)
	}
	return out
}

// inhabited reports whether a pod, a node or a pod network has the address.
func (b *brute) inhabited(a netip.Addr) bool {
	for _, s := range []*State{b.old, b.now} {
		for _, e := range s.world.Endpoints {
			if slices.Contains(e.Addrs, a) {
				return true
			}
		}
		for _, n := range s.world.Nodes {
			if slices.Contains(n.Addrs, a) || slices.ContainsFunc(n.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(a) }) {
				return true
			}
		}
	}
	return false
}

func (b *brute) check(what string, d *Diff, counted *Summary) {
	type pairOf struct {
		from, to string
		family   int
	}
	byPair := map[pairOf][]Change{}
	var outside [2][]outsideChange // by: from is a prefix, to is one
	for c := range d.Changes() {
		counted.Count(c.Kind)
		if c.Before.Verdict == c.After.Verdict && c.Before.Policy == c.After.Policy && c.Before.Rule == c.After.Rule {
			b.t.Errorf("%s: nothing changes in %+v", what, c)
		}
		byPair[pairOf{c.From, c.To, c.Family}] = append(byPair[pairOf{c.From, c.To, c.Family}], c)
		if p, err := netip.ParsePrefix(c.From); err == nil {
			outside[0] = append(outside[0], outsideChange{p, c.To, c})
		}
		if p, err := netip.ParsePrefix(c.To); err == nil {
			outside[1] = append(outside[1], outsideChange{p, c.From, c})
		}
	}
	maximal(b.t, what, byPair[pairOf{}])
	for _, rows := range byPair {
		maximal(b.t, what, rows)
	}
	ends := b.ends()
	for _, x := range ends {
		for _, y := range ends {
			if x == y || x.old == y.old || x.now == y.now || x.name == "" && y.name == "" || x.old.Is4() != y.old.Is4() {
				continue
			}
			family := 6
			if x.old.Is4() {
				family = 4
			}
			rows := byPair[pairOf{x.name, y.name, family}]
			switch {
			case x.name == "":
				rows = covering(outside[0], y.name, x.old)
			case y.name == "":
				rows = covering(outside[1], x.name, y.old)
			}
			b.pair(what, x, y, rows)
			if b.t.Failed() {
				return
			}
		}
	}
}

// outsideChange is a change between a prefix and another end.
type outsideChange struct {
	prefix netip.Prefix
	other  string
	Change
}

func covering(rows []outsideChange, name string, a netip.Addr) []Change {
	var out []Change
	for i := range rows {
		if rows[i].other == name && rows[i].prefix.Contains(a) {
			out = append(out, rows[i].Change)
		}
	}
	return out
}

// maximal wants intervals of one pair that neither overlap nor could be joined.
func maximal(t *testing.T, what string, rows []Change) {
	for i, a := range rows {
		for _, b := range rows[i+1:] {
			if a.Protocol != b.Protocol {
				continue
			}
			overlap := a.Ports[0] <= b.Ports[1] && b.Ports[0] <= a.Ports[1]
			if overlap && (a.SourcePorts == nil || b.SourcePorts == nil || a.SourcePorts[0] <= b.SourcePorts[1] && b.SourcePorts[0] <= a.SourcePorts[1]) {
				t.Errorf("%s: overlap: %+v and %+v", what, a, b)
			}
			touch := int(a.Ports[1])+1 == int(b.Ports[0]) || int(b.Ports[1])+1 == int(a.Ports[0])
			if touch && a.SourcePorts == nil && b.SourcePorts == nil && a.Before == b.Before && a.After == b.After {
				t.Errorf("%s: not maximal: %+v and %+v", what, a, b)
			}
		}
	}
}

func (b *brute) pair(what string, x, y addr, rows []Change) {
	for _, proto := range b.protos {
		if skips(proto, x.old.Is4()) {
			continue
		}
		within := ports(proto)
		for _, port := range b.ports {
			if !within.Contains(port) {
				continue
			}
			for _, src := range b.srcs {
				old := b.ask(0, x.old, y.old, proto, port, src)
				now := b.ask(1, x.now, y.now, proto, port, src)
				var found []Change
				for _, c := range rows {
					if (c.Protocol == proto.String() || c.Protocol == Other && proto == 253) && c.Ports[0] <= port && port <= c.Ports[1] &&
						(c.SourcePorts == nil || c.SourcePorts[0] <= src && src <= c.SourcePorts[1]) {
						found = append(found, c)
					}
				}
				want := old.verdict != now.verdict || old.key() != now.key() // of isolations only the first is named
				switch {
				case len(found) > 1:
					b.t.Errorf("%s: %v → %v %s %d from %d: in several rows %+v", what, x, y, proto, port, src, found)
				case (len(found) == 1) != want:
					b.t.Errorf("%s: %v → %v %s %d from %d: before %+v, after %+v, rows %+v", what, x, y, proto, port, src, old, now, found)
				case want:
					b.same(what, &found[0], old, now)
				}
				if b.t.Failed() {
					return
				}
			}
		}
	}
}

// verdict is what the two directions of a connection come to.
type verdict struct {
	verdict         classifier.Verdict
	egress, ingress side
}

// key is equal for connections whose answers name the same policies and rules.
func (v *verdict) key() [2]side {
	named := func(s side) side { s.isolations = ""; return s }
	switch {
	case v.egress.verdict != classifier.Allow:
		return [2]side{named(v.egress)}
	case v.ingress.verdict != classifier.Allow:
		return [2]side{named(v.ingress)}
	}
	return [2]side{named(v.egress), named(v.ingress)}
}

func (b *brute) ask(table int, src, dst netip.Addr, proto flow.Proto, port, srcPort uint16) verdict {
	t := b.tables[table]
	d := t.Lookup(flow.Key{Src: flow.AddrFrom(src), Dst: flow.AddrFrom(dst), Proto: proto, DstPort: port, SrcPort: srcPort})
	return verdict{d.Verdict, b.side(table, flow.Egress, d.Egress), b.side(table, flow.Ingress, d.Ingress)}
}

// side remembers sides: there are few, of many connections.
func (b *brute) side(table int, d flow.Direction, id classifier.OutcomeID) side {
	ref := outcomeRef{table, d, id}
	s, ok := b.sides[ref]
	if !ok {
		s = sideOf(b.tables[table], d, id)
		b.sides[ref] = s
	}
	return s
}

func (b *brute) same(what string, c *Change, old, now verdict) {
	kind := OtherRule
	switch {
	case old.verdict != classifier.Allow && now.verdict == classifier.Allow:
		kind = Opened
	case old.verdict == classifier.Allow && now.verdict != classifier.Allow:
		kind = Closed
	}
	of := func(v verdict, d Decision) bool {
		s := v.ingress
		if d.Direction == "egress" {
			s = v.egress
		}
		return d.Verdict == v.verdict.String() && d.Policy == s.policy && d.Rule == s.rule
	}
	if c.Kind != kind || !of(old, c.Before) || !of(now, c.After) {
		b.t.Errorf("%s: want %s, before %+v, after %+v; got %+v", what, kind, old, now, *c)
	}
}
