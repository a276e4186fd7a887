package assure

import (
	"fmt"
	"iter"
	"net/netip"
	"runtime"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Change is a range of connections between two ends that is decided in another way
// than before. Its JSON form is a contract.
type Change struct {
	From     string `json:"from"` // "namespace/pod", "namespace/workload", or a prefix of outside addresses
	To       string `json:"to"`
	Family   int    `json:"family"`   // 4 or 6
	Protocol string `json:"protocol"` // "TCP", a number, or "other": see Other
	// Ports are the first and the last one; for ICMP they are type<<8|code.
	Ports [2]uint16 `json:"ports"`
	// SourcePorts is only there if the change is about some source ports.
	SourcePorts *[2]uint16 `json:"sourcePorts,omitempty"`
	Before      Decision   `json:"before"`
	After       Decision   `json:"after"`
	Kind        Kind       `json:"kind"`
	// Some is set where the change is about some pods of the workloads only.
	Some bool `json:"some,omitempty"`
	// Seen counts connections of an audit log; see Diff.Weigh.
	Seen uint64 `json:"seen,omitempty"`
}

// Summary counts changes.
type Summary struct {
	Opened int `json:"opened"`
	Closed int `json:"closed"`
	Rule   int `json:"rule"`
}

// Count counts one more change.
func (s *Summary) Count(k Kind) {
	switch k {
	case Opened:
		s.Opened++
	case Closed:
		s.Closed++
	default:
		s.Rule++
	}
}

// Total is the number of changes.
func (s *Summary) Total() int { return s.Opened + s.Closed + s.Rule }

// Diff is what differs between two states.
type Diff struct {
	// Added and Removed name the pods, or workloads, that only one state has. They
	// are in no Change.
	Added, Removed []string

	units    []unit
	families [2]*family // IPv4, IPv6
	programs *programs
	tables   [2]*classifier.Table
	weights  *weights
}

// Options of Compare. The zero value compares workloads.
type Options struct {
	Pods bool // name pods, not workloads
}

// memoryBudget lets tables remember the programs of large comparisons.
const memoryBudget = 512 << 20

// Compare finds every connection that two states decide differently: verdict or
// deciding rule, between any two pods that both have, between pods and nodes, and
// between pods and outside addresses, of all protocols and ports. Nothing is
// sampled.
func Compare(old, now State, opt Options) (*Diff, error) {
	for _, s := range []*State{&old, &now} {
		s.world = s.Snapshot.World("")
		s.Snapshot.FillSets(s.world, &s.Set)
	}
	return compare(&old, &now, opt)
}

func compare(old, now *State, opt Options) (*Diff, error) {
	var c classifier.Compiler
	var report *classifier.Report
	d := &Diff{}
	for i, s := range []*State{old, now} {
		var err error
		d.tables[i], report, err = c.Compile(s.Set, s.world, classifier.Options{Generation: uint64(i + 1), MemoryBudget: memoryBudget})
		if err != nil {
			return nil, fmt.Errorf("compile the %s policies: %w", [2]string{"old", "new"}[i], err)
		}
	}
	worlds := [2]*rule.World{old.world, now.world}
	if opt.Pods {
		d.units, d.Added, d.Removed = pairPods(worlds[0].Endpoints, worlds[1].Endpoints)
	} else {
		d.units, d.Added, d.Removed = pairWorkloads(
			workloadsOf(old.Snapshot, worlds[0].Endpoints), workloadsOf(now.Snapshot, worlds[1].Endpoints))
	}
	d.units = append(d.units, nodeUnits(worlds)...)
	d.programs = newPrograms(d.tables[:]...)
	for i, is4 := range []bool{true, false} {
		f := &family{diff: d, report: report, is4: is4, index: map[classKey]int32{}, cache: map[[4]int32]int32{}, results: make([][]portChange, 1)}
		f.addUnits()
		f.addRegions(regions(is4, old, now))
		f.compare()
		d.families[i] = f
	}
	return d, nil
}

// nodeUnits makes a unit for every address of a node that both worlds have and no
// host-network pod stands for.
func nodeUnits(worlds [2]*rule.World) []unit {
	addrs := func(w *rule.World) map[netip.Addr]bool {
		m := map[netip.Addr]bool{}
		for i := range w.Nodes {
			for _, a := range w.Nodes[i].Addrs {
				m[a] = true
			}
		}
		for i := range w.Endpoints {
			for _, a := range w.Endpoints[i].Addrs {
				delete(m, a)
			}
		}
		return m
	}
	old := addrs(worlds[0])
	var list []netip.Addr
	for a := range addrs(worlds[1]) {
		if old[a] {
			list = append(list, a)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	units := make([]unit, len(list))
	for i, a := range list {
		e := &rule.Endpoint{Addrs: []netip.Addr{a}}
		units[i] = unit{netip.PrefixFrom(a, a.BitLen()).String(), []slot{{e, e}}}
	}
	return units
}

// family compares the connections of one address family.
type family struct {
	diff   *Diff
	report *classifier.Report
	is4    bool

	classes []class
	index   map[classKey]int32
	ofUnit  [][]member // by unit: the classes of its slots
	pairs   [][]pair   // by class of the source
	cache   map[[4]int32]int32
	results [][]portChange // number 0: nothing changed
}

// class is a set of slots that neither table can tell apart.
type class struct {
	ends    [2]classifier.End
	same    classifier.Unchanged
	change  [2]*classifier.SubjectChange // by direction, where it is policed and not the same
	local   bool                         // policed in one of the tables
	units   []member                     // which units have slots of it
	outside []region                     // or which outside addresses it stands for
}

type classKey struct {
	old, now classifier.Class
	sameAddr bool
	outside  bool
}

// member counts slots of a class in a unit.
type member struct{ id, slots int32 }

// pair is a class that changes with another one, as destination, and how.
type pair struct{ to, result int32 }

func (f *family) class(old, now classifier.End, sameAddr, outside bool) int32 {
	key := classKey{f.diff.tables[0].Class(old), f.diff.tables[1].Class(now), sameAddr, outside}
	id, ok := f.index[key]
	if !ok {
		id = int32(len(f.classes))
		f.index[key] = id
		f.classes = append(f.classes, class{
			ends: [2]classifier.End{old, now}, same: f.report.Unchanged(old, now, sameAddr), local: old.Local() || now.Local(),
		})
	}
	return id
}

func (f *family) addUnits() {
	f.ofUnit = make([][]member, len(f.diff.units))
	for i := range f.diff.units {
		for _, s := range f.diff.units[i].slots {
			a, aok := s.old.Addr(f.is4)
			b, bok := s.now.Addr(f.is4)
			if !aok || !bok {
				continue
			}
			id := f.class(f.diff.tables[0].EndOf(a), f.diff.tables[1].EndOf(b), a == b, false)
			f.ofUnit[i] = countIn(f.ofUnit[i], id)
			f.classes[id].units = countIn(f.classes[id].units, int32(i))
		}
	}
}

func countIn(list []member, id int32) []member {
	for i := range list {
		if list[i].id == id {
			list[i].slots++
			return list
		}
	}
	return append(list, member{id, 1})
}

func (f *family) addRegions(regions []region) {
	for _, r := range regions {
		a := r.free
		id := f.class(f.diff.tables[0].OutsideEnd(a), f.diff.tables[1].OutsideEnd(a), true, true)
		f.classes[id].outside = append(f.classes[id].outside, r)
	}
}

// Changes lists the changes: opened, closed, then the others; within a kind by
// source, destination, family, protocol and ports.
func (d *Diff) Changes() iter.Seq[Change] {
	return func(yield func(Change) bool) {
		for _, kind := range Kinds {
			if !d.each(kind, yield) {
				return
			}
		}
	}
}

// outcome is a result and how many pairs of slots have it.
type outcome struct{ result, slots int32 }

func (d *Diff) each(kind Kind, yield func(Change) bool) bool {
	if !slices.ContainsFunc(d.families[:], func(f *family) bool { return f.has(kind) }) {
		return true
	}
	if !inOrder(len(d.units), func(u int) (rows []Change) {
		for _, f := range d.families {
			rows = append(rows, f.from(int32(u), kind)...)
		}
		return sortChanges(rows)
	}, yield) {
		return false
	}
	// Rows from outside come after those of all pods.
	var in [2]map[int32][]outcomeOutside
	for i, f := range d.families {
		in[i] = f.outsideSources()
	}
	return inOrder(len(d.units), func(u int) (rows []Change) {
		for i, f := range d.families {
			rows = append(rows, f.fromOutside(int32(u), in[i][int32(u)], kind)...)
		}
		return sortChanges(rows)
	}, yield)
}

// has reports whether a change of the kind occurs.
func (f *family) has(kind Kind) bool {
	return slices.ContainsFunc(f.results, func(r []portChange) bool {
		return slices.ContainsFunc(r, func(c portChange) bool { return c.kind == kind })
	})
}

// inOrder gives out the rows of 0 to n-1 one after the other, and makes those of the
// next ones at the same time.
func inOrder(n int, rows func(int) []Change, yield func(Change) bool) bool {
	const batch = 32
	stop := make(chan struct{})
	defer close(stop)
	ahead := make(chan chan []Change, 2*runtime.GOMAXPROCS(0))
	go func() {
		defer close(ahead)
		for first := 0; first < n; first += batch {
			done := make(chan []Change, 1)
			select {
			case ahead <- done:
			case <-stop:
				return
			}
			go func() {
				var out []Change
				for i := first; i < min(first+batch, n); i++ {
					out = append(out, rows(i)...)
				}
				done <- out
			}()
		}
	}()
	for done := range ahead {
		for _, c := range <-done {
			if !yield(c) {
				return false
			}
		}
	}
	return true
}

func sortChanges(rows []Change) []Change {
	slices.SortStableFunc(rows, func(a, b Change) int {
		if c := strings.Compare(a.From, b.From); c != 0 {
			return c
		}
		return strings.Compare(a.To, b.To)
	})
	return rows
}

// from returns the changes of connections that a unit opens.
func (f *family) from(u int32, kind Kind) []Change {
	to := map[int32][]outcome{}
	outside := map[int32]int32{} // class → result, with how many slots below
	type key struct{ class, result int32 }
	slots := map[key]int32{}
	total := int32(0)
	for _, m := range f.ofUnit[u] {
		total += m.slots
		for _, p := range f.pairs[m.id] {
			c := &f.classes[p.to]
			for _, v := range c.units {
				n := m.slots * v.slots
				if v.id == u && p.to == m.id {
					n -= m.slots // a pod to itself is always allowed
				}
				if n > 0 {
					to[v.id] = addOutcome(to[v.id], p.result, n)
				}
			}
			if len(c.outside) > 0 {
				slots[key{p.to, p.result}] += m.slots
				outside[p.to] = p.result
			}
		}
	}
	var out []Change
	name := f.diff.units[u].name
	for v, outcomes := range to {
		all := total * f.slotsOf(v)
		if v == u {
			all -= total
		}
		out = f.rows(out, kind, name, f.diff.units[v].name, outcomes, all)
	}
	if len(outside) == 0 {
		return out
	}
	byResult := map[outcome][]region{}
	for k, n := range slots {
		o := outcome{k.result, n}
		byResult[o] = append(byResult[o], f.classes[k.class].outside...)
	}
	for o, regions := range byResult {
		for _, p := range cover(regions) {
			out = f.rows(out, kind, name, p.String(), []outcome{o}, total)
		}
	}
	return out
}

func (f *family) slotsOf(u int32) int32 {
	n := int32(0)
	for _, m := range f.ofUnit[u] {
		n += m.slots
	}
	return n
}

// outcomeOutside is what changes for connections from a class of outside addresses.
type outcomeOutside struct {
	class int32
	outcome
}

// outsideSources finds, by unit, what changes for connections from outside.
func (f *family) outsideSources() map[int32][]outcomeOutside {
	out := map[int32][]outcomeOutside{}
	for src := range f.classes {
		if len(f.classes[src].outside) == 0 {
			continue
		}
		for _, p := range f.pairs[src] {
			for _, v := range f.classes[p.to].units {
				list := out[v.id]
				if n := len(list); n > 0 && list[n-1].class == int32(src) && list[n-1].result == p.result {
					list[n-1].slots += v.slots
					continue
				}
				out[v.id] = append(list, outcomeOutside{int32(src), outcome{p.result, v.slots}})
			}
		}
	}
	return out
}

func (f *family) fromOutside(u int32, outcomes []outcomeOutside, kind Kind) []Change {
	if len(outcomes) == 0 {
		return nil
	}
	byResult := map[outcome][]region{}
	for _, o := range outcomes {
		byResult[o.outcome] = append(byResult[o.outcome], f.classes[o.class].outside...)
	}
	var out []Change
	total := f.slotsOf(u)
	for o, regions := range byResult {
		for _, p := range cover(regions) {
			out = f.rows(out, kind, p.String(), f.diff.units[u].name, []outcome{o}, total)
		}
	}
	return out
}

func addOutcome(list []outcome, result, slots int32) []outcome {
	for i := range list {
		if list[i].result == result {
			list[i].slots += slots
			return list
		}
	}
	return append(list, outcome{result, slots})
}

// rows appends the changes of a kind between two ends. all is how many pairs of
// slots they have.
func (f *family) rows(out []Change, kind Kind, from, to string, outcomes []outcome, all int32) []Change {
	first := len(out)
	for _, o := range outcomes {
		for i := range f.results[o.result] {
			c := &f.results[o.result][i]
			if c.kind != kind {
				continue
			}
			row := Change{
				From: from, To: to, Family: 6, Protocol: f.diff.programs.protoName(c.proto),
				Ports: [2]uint16{c.ports.First, c.ports.Last}, Before: c.before, After: c.after, Kind: kind, Some: o.slots < all,
			}
			if f.is4 {
				row.Family = 4
			}
			if c.src != rule.AllPorts {
				row.SourcePorts = &[2]uint16{c.src.First, c.src.Last}
			}
			out = append(out, row)
		}
	}
	if len(outcomes) > 1 {
		out = mergeSome(out, first)
	}
	for i := first; i < len(out); i++ {
		out[i].Seen = f.diff.seen(&out[i])
	}
	return out
}

// mergeSome joins equal rows, which different pods of two workloads may have.
func mergeSome(rows []Change, first int) []Change {
	kept := rows[:first]
	for _, c := range rows[first:] {
		if !slices.ContainsFunc(kept[first:], func(o Change) bool {
			return o.Family == c.Family && o.Protocol == c.Protocol && o.Ports == c.Ports && o.Before == c.Before && o.After == c.After &&
				(o.SourcePorts == nil) == (c.SourcePorts == nil) && (o.SourcePorts == nil || *o.SourcePorts == *c.SourcePorts)
		}) {
			kept = append(kept, c)
		}
	}
	return kept
}
