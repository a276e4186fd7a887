package classifier

import (
	"encoding/binary"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// program maps (protocol slot, destination port, source port) to an outcome.
// Per slot it holds sorted intervals that together cover every port; an
// interval is known by its last port.
//
// Nearly all rules ignore source ports. The intervals of those that do not
// point to a list of source-port intervals instead of an outcome.
type program struct {
	start []uint32 // slot → first interval; one more entry than slots
	last  []uint16
	out   []OutcomeID // parallel to last; subRef marks an index into sub
	sub   []sourceIntervals
}

// subRef marks program.out entries that are indexes into program.sub. Outcome
// indexes never get near it.
const subRef = 1 << 31

type sourceIntervals struct {
	last []uint16
	out  []OutcomeID
}

func (p *program) lookup(slot uint8, dstPort, srcPort uint16) OutcomeID {
	i, end := int(p.start[slot]), int(p.start[slot+1])
	if end-i > 8 {
		i = searchPort(p.last, i, end, dstPort)
	} else {
		for p.last[i] < dstPort {
			i++
		}
	}
	out := p.out[i]
	if out&subRef == 0 {
		return out
	}
	s := &p.sub[out&^subRef]
	return s.out[searchPort(s.last, 0, len(s.last), srcPort)]
}

// searchPort returns the first index in [lo,hi) whose last port is at least
// port. There is always one: the final interval ends at 65535.
func searchPort(last []uint16, lo, hi int, port uint16) int {
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); last[mid] < port {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// candidate is a rule that applies to one (subject class, peer class).
type candidate struct {
	id        RuleID
	rule      *rule.Rule
	l4        []portMatch
	uncertain bool // the peer is unknown and may or may not match
}

// portMatch is an L4 with its named port resolved.
type portMatch struct {
	proto     flow.Proto
	dst, src  rule.PortRange
	uncertain bool // a named port of a destination that is not known
}

func (m *portMatch) hasProto(p flow.Proto) bool { return m.proto == flow.AnyProto || m.proto == p }

// fillCell builds the program of a cell and publishes it. It returns the
// program's index plus one.
func (t *Table) fillCell(d flow.Direction, s, p uint32) uint32 {
	t.fill.Lock()
	defer t.fill.Unlock()
	cell := &t.dirs[d].rows[s][p]
	if id := cell.Load(); id != 0 {
		return id // another goroutine was first
	}
	prog := t.buildProgram(d, &t.dirs[d].subjects[s], &t.dirs[d].peers[p])
	key := prog.key()
	id, ok := t.consing.programs[key]
	if !ok {
		list := append(*t.programs.Load(), prog)
		t.programs.Store(&list)
		id = uint32(len(list))
		t.consing.programs[key] = id
	}
	cell.Store(id)
	return id
}

func (t *Table) buildProgram(d flow.Direction, s *subjectClass, p *peerClass) *program {
	cands := t.candidates(d, s, p)
	prog := &program{start: make([]uint32, 0, len(t.protos)+1)}
	for slot, proto := range t.protos {
		prog.start = append(prog.start, uint32(len(prog.last)))
		for _, iv := range cutPoints(cands, proto, func(m *portMatch) (rule.PortRange, bool) { return m.dst, true }) {
			out := t.intervalOutcome(s, cands, proto, iv.First, prog)
			if n := len(prog.last); n > int(prog.start[slot]) && prog.out[n-1] == out && out&subRef == 0 {
				prog.last[n-1] = iv.Last // equal to the interval before: merge
				continue
			}
			prog.last = append(prog.last, iv.Last)
			prog.out = append(prog.out, out)
		}
	}
	prog.start = append(prog.start, uint32(len(prog.last)))
	return prog
}

// intervalOutcome decides one destination-port interval, represented by its
// first port; where a rule restricts source ports it returns a reference to
// source intervals.
func (t *Table) intervalOutcome(s *subjectClass, cands []candidate, proto flow.Proto, port uint16, prog *program) OutcomeID {
	ivs := cutPoints(cands, proto, func(m *portMatch) (rule.PortRange, bool) { return m.src, m.dst.Contains(port) })
	if len(ivs) == 1 {
		return t.internOutcome(walk(s, cands, proto, port, 0))
	}
	var sub sourceIntervals
	for _, iv := range ivs {
		out := t.internOutcome(walk(s, cands, proto, port, iv.First))
		if n := len(sub.out); n > 0 && sub.out[n-1] == out {
			sub.last[n-1] = iv.Last
			continue
		}
		sub.last = append(sub.last, iv.Last)
		sub.out = append(sub.out, out)
	}
	if len(sub.out) == 1 {
		return sub.out[0]
	}
	prog.sub = append(prog.sub, sub)
	return OutcomeID(subRef | uint32(len(prog.sub)-1))
}

// cutPoints splits the port space wherever one of the candidates' ranges for
// the protocol begins or ends. ranges picks the range to look at and whether
// the match takes part.
func cutPoints(cands []candidate, proto flow.Proto, ranges func(*portMatch) (rule.PortRange, bool)) []rule.PortRange {
	starts := []uint16{0}
	for i := range cands {
		for j := range cands[i].l4 {
			m := &cands[i].l4[j]
			r, ok := ranges(m)
			if !ok || !m.hasProto(proto) {
				continue
			}
			starts = append(starts, r.First)
			if r.Last != 0xffff {
				starts = append(starts, r.Last+1)
			}
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	out := make([]rule.PortRange, len(starts))
	for i, s := range starts {
		out[i] = rule.PortRange{First: s, Last: 0xffff}
		if i > 0 {
			out[i-1].Last = s - 1
		}
	}
	return out
}

// key is equal for programs that answer alike because they are built alike.
func (p *program) key() string {
	var b []byte
	for _, v := range p.start {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	for i, v := range p.last {
		b = binary.LittleEndian.AppendUint16(b, v)
		b = binary.LittleEndian.AppendUint32(b, uint32(p.out[i]))
	}
	for _, s := range p.sub {
		b = append(b, '|')
		for i, v := range s.last {
			b = binary.LittleEndian.AppendUint16(b, v)
			b = binary.LittleEndian.AppendUint32(b, uint32(s.out[i]))
		}
	}
	return string(b)
}
