package classifier

import (
	"cmp"
	"encoding/binary"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// manyPorts is from how many L4s on a rule gets a portIndex.
const manyPorts = 16

// portIndex is the L4s of a rule that has many: those whose ports are numbers and
// that take any source port are found by binary search. Immutable.
type portIndex struct {
	protos []protoPorts
	rest   []rule.L4 // those that a search cannot find
}

// protoPorts is what a rule matches of one protocol, or of flow.AnyProto: sorted
// ranges that neither overlap nor touch.
type protoPorts struct {
	proto  flow.Proto
	ranges []rule.PortRange
}

// indexPorts makes the index of a rule; nil where it has few L4s.
func indexPorts(r *rule.Rule) *portIndex {
	if len(r.L4) < manyPorts {
		return nil
	}
	x := &portIndex{}
	for i := range r.L4 {
		l := &r.L4[i]
		if l.Name != "" || l.SrcPorts != rule.AllPorts {
			x.rest = append(x.rest, *l)
			continue
		}
		at, ok := slices.BinarySearchFunc(x.protos, l.Proto, func(p protoPorts, proto flow.Proto) int { return cmp.Compare(p.proto, proto) })
		if !ok {
			x.protos = slices.Insert(x.protos, at, protoPorts{proto: l.Proto})
		}
		x.protos[at].ranges = append(x.protos[at].ranges, l.Ports)
	}
	for i := range x.protos {
		x.protos[i].ranges = mergeRanges(x.protos[i].ranges)
	}
	return x
}

// resolvePorts prepares what is the same for all destinations. Without it, each cell of
// a subject with many rules would cost an allocation for every rule.
func (e *ruleEntry) resolvePorts() {
	for _, l := range e.otherL4() {
		if l.Name != "" {
			e.named, e.l4 = true, nil
			return
		}
		e.l4 = append(e.l4, portMatch{proto: l.Proto, dst: l.Ports, src: l.SrcPorts})
	}
}

// otherL4 returns the L4s that are not in the entry's index.
func (e *ruleEntry) otherL4() []rule.L4 {
	if e.ports != nil {
		return e.ports.rest
	}
	return e.rule.L4
}

// mergeRanges sorts ranges and joins those that overlap or touch, in place.
func mergeRanges(rs []rule.PortRange) []rule.PortRange {
	slices.SortFunc(rs, func(a, b rule.PortRange) int { return cmp.Compare(a.First, b.First) })
	out := rs[:1]
	for _, r := range rs[1:] {
		if last := &out[len(out)-1]; int(r.First) <= int(last.Last)+1 {
			last.Last = max(last.Last, r.Last)
		} else {
			out = append(out, r)
		}
	}
	return slices.Clip(out)
}

// has reports whether a port of a protocol is in the index. A nil index has none.
func (x *portIndex) has(proto flow.Proto, port uint16) bool {
	if x == nil {
		return false
	}
	for i := range x.protos {
		if p := &x.protos[i]; p.proto == proto || p.proto == flow.AnyProto {
			at, ok := slices.BinarySearchFunc(p.ranges, port, func(r rule.PortRange, port uint16) int { return cmp.Compare(r.First, port) })
			if ok || at > 0 && p.ranges[at-1].Last >= port {
				return true
			}
		}
	}
	return false
}

// sweep goes through the destination ports of one protocol from low to high and
// keeps the ranges that hold the port it stands at. So the work for a program grows with
// the number of ranges, and not with its square.
type sweep struct {
	cands []candidate
	refs  []portRef
	// events are sorted: a port in the top 16 bits, below it the place of a range in
	// refs, and in the lowest bit whether that range ended before the port.
	events []uint64
	active []uint32 // the ranges that hold the port: places in refs, sorted

	// Memory that candidates and key use again.
	l4   []portMatch
	list []candidate
	text []byte
}

// portRef is a range with the place of its candidate in sweep.cands.
type portRef struct {
	cand  int
	match portMatch
}

func newSweep(cands []candidate, proto flow.Proto) *sweep {
	w := &sweep{cands: cands}
	add := func(cand int, m portMatch) {
		place := uint64(len(w.refs)) << 1
		w.refs = append(w.refs, portRef{cand, m})
		w.events = append(w.events, uint64(m.dst.First)<<lastShift|place)
		if m.dst.Last != 0xffff {
			w.events = append(w.events, uint64(m.dst.Last+1)<<lastShift|place|1)
		}
	}
	for i := range cands {
		if x := cands[i].ports; x != nil {
			for _, p := range x.protos {
				if p.proto != proto && p.proto != flow.AnyProto {
					continue
				}
				for _, r := range p.ranges {
					add(i, portMatch{proto: p.proto, dst: r, src: rule.AllPorts})
				}
			}
		}
		for j := range cands[i].l4 {
			if m := &cands[i].l4[j]; m.hasProto(proto) {
				add(i, *m)
			}
		}
	}
	slices.Sort(w.events)
	return w
}

// advance goes to a port and returns the last port up to which the same ranges apply.
func (w *sweep) advance(port uint16) (last uint16) {
	for len(w.events) > 0 && uint16(w.events[0]>>lastShift) <= port {
		e := w.events[0]
		w.events = w.events[1:]
		ref := uint32(e & (1<<lastShift - 1) >> 1)
		at, _ := slices.BinarySearch(w.active, ref)
		if e&1 == 0 {
			w.active = slices.Insert(w.active, at, ref)
		} else {
			w.active = slices.Delete(w.active, at, at+1)
		}
	}
	if len(w.events) == 0 {
		return 0xffff
	}
	return uint16(w.events[0]>>lastShift) - 1
}

// candidates returns the candidates that may match where the sweep stands, in order,
// with those of their ranges that do. They are good until the next call.
func (w *sweep) candidates() []candidate {
	w.l4, w.list = slices.Grow(w.l4[:0], len(w.active)), w.list[:0]
	cand, first := -1, 0 // first is where the ranges of cand begin
	for _, ref := range w.active {
		r := &w.refs[ref]
		if r.cand != cand {
			cand, first = r.cand, len(w.l4)
			c := &w.cands[cand]
			w.list = append(w.list, candidate{id: c.id, rule: c.rule, uncertain: c.uncertain})
		}
		w.l4 = append(w.l4, r.match)
		w.list[len(w.list)-1].l4 = w.l4[first:]
	}
	return w.list
}

// key is equal where the same ranges apply. It is good until the next call.
func (w *sweep) key() []byte {
	w.text = w.text[:0]
	for _, ref := range w.active {
		w.text = binary.LittleEndian.AppendUint32(w.text, ref)
	}
	return w.text
}
