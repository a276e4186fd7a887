package assure

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Range is a range of ports between two ends with the answer to all of it.
type Range struct {
	Family   int       `json:"family"` // 4 or 6
	Protocol string    `json:"protocol"`
	Ports    [2]uint16 `json:"ports"`
	// SourcePorts is only there if the answer is about some source ports.
	SourcePorts *[2]uint16 `json:"sourcePorts,omitempty"`
	Decision
}

// Ranges is what is decided about all connections between two ends: ranges that
// are disjoint and maximal, and together everything there is.
type Ranges []Range

// MatrixEnd is an end of [Matrix]: pods of one workload that no connection can tell
// apart, or such outside addresses.
type MatrixEnd struct {
	Workload    string // "" for outside addresses
	Namespace   string
	Pods        []*rule.Endpoint
	HostNetwork bool // the pods share the addresses of their nodes
	Outside     []netip.Prefix
	Group       int // of ends with the same answers, also of other workloads
}

// Size is the number of pods, 1 for outside addresses.
func (e *MatrixEnd) Size() int { return max(len(e.Pods), 1) }

// Matrix is who can reach whom: the answer for every ordered pair of ends. Ends of
// one workload differ in some answer.
type Matrix struct {
	Ends    []MatrixEnd // by namespace and workload; those outside come last
	Answers []Ranges    // number 0 is empty: nothing is decided
	// Cells are the numbers of answers, by group of the source, then of the
	// destination. Both ends are different pods, even if they are of one group.
	Cells [][]int32

	protocols
}

// protocols are all that answers name.
type protocols struct{ programs *programs }

// Protocols names the protocols that a family's answers are about: all together
// they are all there are.
func (p protocols) Protocols(family int) []string { return p.programs.protocolNames(family) }

// Cell returns the number of the answer to connections from one end to another, by
// their indexes: 0 where there is none, since the two have no family in common, are
// both outside, or are one pod, which always reaches itself.
func (r *Matrix) Cell(from, to int) int32 {
	if from == to && r.Ends[from].Size() < 2 {
		return 0
	}
	return r.Cells[r.Ends[from].Group][r.Ends[to].Group]
}

// alikeEnds is a set of pods, or of outside addresses, that no decision can tell apart.
type alikeEnds struct {
	ends    [2]classifier.End // IPv4, IPv6
	has     [2]bool
	outside []region
	pods    []*rule.Endpoint
}

// kinds finds the kinds of pods, in the order of their first pod, then those of
// outside addresses.
func (w *World) kinds(m *classifier.Matcher) []alikeEnds {
	type alikeKey struct {
		like    [2]string
		has     [2]bool
		outside bool
	}
	var out []alikeEnds
	index, memo := map[alikeKey]int{}, map[classifier.Class]string{}
	add := func(k alikeEnds) *alikeEnds {
		key := alikeKey{has: k.has, outside: len(k.outside) > 0}
		for i := range k.ends {
			if !k.has[i] {
				continue
			}
			c := w.Table.Class(k.ends[i])
			if _, ok := memo[c]; !ok {
				memo[c] = m.Likeness(k.ends[i])
			}
			key.like[i] = memo[c]
		}
		at, ok := index[key]
		if !ok {
			at = len(out)
			index[key] = at
			out = append(out, k)
			return &out[at]
		}
		out[at].outside = append(out[at].outside, k.outside...)
		return &out[at]
	}
	for _, e := range w.Pods() {
		var k alikeEnds
		for i, is4 := range []bool{true, false} {
			if a, ok := e.Addr(is4); ok {
				k.ends[i], k.has[i] = w.Table.EndOf(a), true
			}
		}
		at := add(k)
		at.pods = append(at.pods, e)
	}
	state := &State{Set: w.Table.Policy(), world: w.Table.World()}
	for i, is4 := range []bool{true, false} {
		if !slices.ContainsFunc(out, func(k alikeEnds) bool { return k.has[i] }) {
			continue // nobody to talk to
		}
		for _, r := range regions(is4, state) {
			k := alikeEnds{outside: []region{r}}
			k.ends[i], k.has[i] = w.Table.OutsideEnd(r.free), true
			add(k)
		}
	}
	return out
}

// matrixMaker answers pairs of kinds.
type matrixMaker struct {
	kinds    []alikeEnds
	programs *reader
	matcher  *classifier.Matcher
	byPair   [2]map[[2]int32]int32 // egress and ingress program → family's answer
	byFamily map[[2]int32]int32    // answers of both families → answer
	single   []Ranges              // of one family; 0 is empty
	answers  []Ranges
	byText   map[string]int32
}

func (w *World) matrixMaker() *matrixMaker {
	q := &matrixMaker{programs: newPrograms(w.Table).reader()}
	q.matcher = q.programs.match[0]
	q.kinds = w.kinds(q.matcher)
	q.byPair = [2]map[[2]int32]int32{{}, {}}
	q.byFamily, q.byText = map[[2]int32]int32{{}: 0}, map[string]int32{}
	q.single, q.answers = make([]Ranges, 1), make([]Ranges, 1)
	return q
}

// answer returns the number of the answer between two kinds.
func (q *matrixMaker) answer(from, to *alikeEnds) int32 {
	if len(from.outside) > 0 && len(to.outside) > 0 {
		return 0
	}
	var both [2]int32
	for i := range both {
		if !from.has[i] || !to.has[i] {
			continue
		}
		pair := [2]int32{
			q.programs.ofProgram(0, flow.Egress, q.matcher.PolicyProgram(flow.Egress, from.ends[i], to.ends[i])),
			q.programs.ofProgram(0, flow.Ingress, q.matcher.PolicyProgram(flow.Ingress, to.ends[i], from.ends[i])),
		}
		id, ok := q.byPair[i][pair]
		if !ok {
			id = q.family(i == 0, pair)
			q.byPair[i][pair] = id
		}
		both[i] = id
	}
	id, ok := q.byFamily[both]
	if !ok {
		id = int32(len(q.answers))
		q.answers = append(q.answers, slices.Concat(q.single[both[0]], q.single[both[1]]))
		q.byFamily[both] = id
	}
	return id
}

// family returns the number of the answer of one family.
func (q *matrixMaker) family(is4 bool, pair [2]int32) int32 {
	var out Ranges
	var key strings.Builder
	for i, proto := range q.programs.protos {
		if skips(proto, is4) {
			continue
		}
		first := len(out)
		for _, c := range q.programs.cells(i, ports(proto), pair[:]) {
			r := Range{Family: 6, Protocol: q.programs.protoName(i), Ports: [2]uint16{c.ports.First, c.ports.Last}}
			if is4 {
				r.Family = 4
			}
			r.Decision = q.programs.sides.decision(c.sides[0], c.sides[1])
			if c.src != rule.AllPorts {
				r.SourcePorts = &[2]uint16{c.src.First, c.src.Last}
			} else if n := len(out); n > first && out[n-1].Decision == r.Decision && out[n-1].SourcePorts == nil {
				out[n-1].Ports[1] = r.Ports[1]
				continue
			}
			out = append(out, r)
		}
	}
	for i := range out {
		out[i].key(&key)
	}
	id, ok := q.byText[key.String()]
	if !ok {
		id = int32(len(q.single))
		q.single = append(q.single, out)
		q.byText[key.String()] = id
	}
	return id
}

func (r *Range) key(b *strings.Builder) {
	number := func(n uint16) { b.Write([]byte{byte(n >> 8), byte(n)}) }
	number(uint16(r.Family))
	number(r.Ports[0])
	number(r.Ports[1])
	if r.SourcePorts != nil {
		b.WriteByte('s')
		number(r.SourcePorts[0])
		number(r.SourcePorts[1])
	}
	for _, s := range []string{r.Protocol, r.Verdict, r.Policy, r.Rule, r.Direction, string(r.Isolations)} {
		b.WriteString(s)
		b.WriteByte(0)
	}
}

// Matrix answers for every pair of pods, and for pods with addresses outside.
//
// Ends are taken to be on different nodes: that a host-network pod always reaches
// the pods of its own node shows in no answer.
func (w *World) Matrix() *Matrix {
	q := w.matrixMaker()
	n := len(q.kinds)
	cells := make([][]int32, n)
	for i := range cells {
		cells[i] = make([]int32, n)
		for j := range cells[i] {
			cells[i][j] = q.answer(&q.kinds[i], &q.kinds[j])
		}
	}
	r := &Matrix{Answers: q.answers, Cells: cells, protocols: protocols{q.programs.programs}}
	// Kinds with the same answers as sources and as destinations are one group,
	// under the number of its first.
	group, leaders := make([]int32, n), map[uint64][]int32{}
	seed := maphash.MakeSeed()
	same := func(a, b int32) bool {
		if !slices.Equal(cells[a], cells[b]) || (len(q.kinds[a].outside) > 0) != (len(q.kinds[b].outside) > 0) {
			return false
		}
		for i := range cells {
			if cells[i][a] != cells[i][b] {
				return false
			}
		}
		return true
	}
	for i := range q.kinds {
		h := maphash.Comparable(seed, len(q.kinds[i].outside) > 0)
		for _, c := range cells[i] {
			h = maphash.Comparable(seed, [2]uint64{h, uint64(c)})
		}
		group[i] = int32(i)
		if at := slices.IndexFunc(leaders[h], func(l int32) bool { return same(l, int32(i)) }); at >= 0 {
			group[i] = leaders[h][at]
		} else {
			leaders[h] = append(leaders[h], int32(i))
		}
	}
	r.number(group)
	type endKey struct {
		workload string
		group    int32
	}
	at := map[endKey]int{}
	for i := range q.kinds {
		for _, e := range q.kinds[i].pods {
			key := endKey{w.WorkloadOf(e), group[i]}
			j, ok := at[key]
			if !ok {
				j = len(r.Ends)
				at[key] = j
				r.Ends = append(r.Ends, MatrixEnd{Workload: key.workload, Namespace: e.Namespace, HostNetwork: e.HostNetwork, Group: int(group[i])})
			}
			r.Ends[j].Pods = append(r.Ends[j].Pods, e)
		}
	}
	outside := map[int32][]region{}
	for i := range q.kinds {
		if k := &q.kinds[i]; len(k.outside) > 0 {
			outside[group[i]] = append(outside[group[i]], k.outside...)
		}
	}
	for g, regions := range outside {
		r.Ends = append(r.Ends, MatrixEnd{Outside: cover(regions), Group: int(g)})
	}
	r.sort()
	return r
}

// number gives groups, named by the first, numbers without holes, and
// leaves one row and column of each.
func (r *Matrix) number(group []int32) {
	var leaders []int32
	for i, g := range group {
		if g == int32(i) {
			leaders = append(leaders, g)
		}
	}
	small := make([][]int32, len(leaders))
	for i, a := range leaders {
		small[i] = make([]int32, len(leaders))
		for j, b := range leaders {
			small[i][j] = r.Cells[a][b]
		}
	}
	r.Cells = small
	for i, g := range group {
		at, _ := slices.BinarySearch(leaders, g)
		group[i] = int32(at)
	}
}

// sort orders the ends.
func (r *Matrix) sort() {
	for i := range r.Ends {
		slices.SortFunc(r.Ends[i].Pods, comparePods)
	}
	slices.SortFunc(r.Ends, func(a, b MatrixEnd) int {
		switch {
		case len(a.Pods) == 0 && len(b.Pods) == 0:
			return a.Outside[0].Compare(b.Outside[0])
		case len(a.Pods) == 0:
			return 1
		case len(b.Pods) == 0:
			return -1
		}
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Workload, b.Workload), comparePods(a.Pods[0], b.Pods[0]))
	})
}
