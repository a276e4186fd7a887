package classifier

import (
	"encoding/binary"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// program maps (protocol slot, destination port, source port) to an outcome. It
// is one block of words, so that a lookup stays in a cache line or two:
//
//	[slot 0: first | count] … [slot n: first | count] [interval] … [interval] …
//
// The intervals of a slot are sorted and cover every port; one is its last port
// in the top 16 bits and its outcome in the low 32. Nearly all rules ignore
// source ports. The intervals of those that do not carry, in place of the
// outcome, subRef and the place of a list of source-port intervals, headed by
// its length. A program that is the same for everything is one word, the outcome.
type program []uint64

const (
	subRef    = 1 << 31 // outcomes and places never get near it
	lastShift = 48
)

func interval(last uint16, out uint32) uint64 { return uint64(last)<<lastShift | uint64(out) }

func (p program) lookup(slot uint8, dstPort, srcPort uint16) OutcomeID {
	head := p[slot]
	out := find(p[uint32(head>>32):][:uint32(head)], dstPort)
	if out&subRef == 0 {
		return OutcomeID(out)
	}
	at := out &^ subRef
	return OutcomeID(find(p[at+1:][:p[at]], srcPort))
}

// find returns the low word of the first interval that ends at port or later.
// There is always one: the last interval ends at 65535.
func find(ivs []uint64, port uint16) uint32 {
	want := uint64(port) << lastShift
	lo := 0
	for hi := len(ivs) - 1; hi-lo > 8; {
		if mid := int(uint(lo+hi) >> 1); ivs[mid]>>lastShift < uint64(port) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for ; lo < len(ivs)-1; lo++ {
		if ivs[lo]&^(1<<lastShift-1) >= want {
			break
		}
	}
	return uint32(ivs[lo])
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

// fill decides a connection whose cell is not there and remembers the cell.
func (t *Table) fill(d flow.Direction, s *subject, p *peerClass, k *flow.Key) OutcomeID {
	m := t.mem
	id, cands := t.fillCell(d, s, p, nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	if id == 0 {
		return m.internOutcome(walk(d, s, cands, k.Proto, k.DstPort, k.SrcPort))
	}
	return m.outcome(id, k)
}

// fillCell fills a cell and returns its program; 0 and the candidates to walk
// where there is no room for another program. Matching the rules needs no lock;
// memory.mu is held to look up or add what they come to. x may be nil.
func (t *Table) fillCell(d flow.Direction, s *subject, p *peerClass, x *Matcher) (uint32, []candidate) {
	m := t.mem
	var (
		msBuf  [32]match
		keyBuf [64]byte
		ms     []match
		text   = append(keyBuf[:0], 'n')
	)
	nodeLocal := d == flow.Ingress && p.nodes.has(s.node)
	if !nodeLocal {
		if x != nil {
			ms = x.matches(d, s, p, msBuf[:0])
		} else {
			ms = s.matches(d, p, msBuf[:0])
		}
		text = s.matchKey(d, p, ms, keyBuf[:0])
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.bySubject[s.serial[d]]
	id, ok := known[string(text)]
	if !ok {
		switch {
		case nodeLocal:
			id = m.internProgram(program{uint64(outcomeNodeLocal)})
		case m.full():
			return 0, s.candidates(d, p, ms)
		default:
			id = m.internProgram(m.buildProgram(d, s, s.candidates(d, p, ms)))
		}
		if known == nil {
			known = map[string]uint32{}
			m.bySubject[s.serial[d]] = known
		}
		known[string(text)] = id
		m.indexBytes += len(text) + entryBytes
	}
	m.store(cellKey(s.serial[d], p.serial), id)
	return id, nil
}

// outcome applies a program to a connection.
func (m *memory) outcome(id uint32, k *flow.Key) OutcomeID {
	p := (*m.programs.Load())[id]
	if len(p) == 1 {
		return OutcomeID(p[0])
	}
	return p.lookup(m.slots[k.Proto], k.DstPort, k.SrcPort)
}

// internProgram returns the number of an equal program, adding it if new. The
// caller holds m.mu.
func (m *memory) internProgram(p program) uint32 {
	if p.constant(len(m.protos)) {
		p = program{uint64(uint32(p[len(p)-1]))}
	}
	key := p.key()
	id, ok := m.programIDs[key]
	if !ok {
		list := append(*m.programs.Load(), p)
		m.programs.Store(&list)
		id = uint32(len(list) - 1)
		m.programIDs[key] = id
		m.programBytes += 8*cap(p) + len(key) + entryBytes
	}
	return id
}

// constant reports whether a program has the same outcome for everything.
func (p program) constant(slots int) bool {
	if len(p) != 2*slots {
		return false
	}
	for _, iv := range p[slots:] {
		if uint32(iv) != uint32(p[slots]) || iv&subRef != 0 {
			return false
		}
	}
	return true
}

// buildProgram decides every interval. The caller holds m.mu.
func (m *memory) buildProgram(d flow.Direction, s *subject, cands []candidate) program {
	prog := make(program, len(m.protos), 3*len(m.protos))
	type sub struct {
		at  int // interval that refers to it
		ivs []uint64
	}
	var subs []sub
	for slot, proto := range m.protos {
		first := len(prog)
		for _, iv := range cutPoints(cands, proto, func(m *portMatch) (rule.PortRange, bool) { return m.dst, true }) {
			ivs := m.sourceIntervals(d, s, cands, proto, iv.First)
			if len(ivs) > 1 {
				subs = append(subs, sub{len(prog), ivs})
				prog = append(prog, interval(iv.Last, subRef))
				continue
			}
			out := uint32(ivs[0])
			if n := len(prog); n > first && uint32(prog[n-1]) == out {
				prog[n-1] = interval(iv.Last, out) // equal to the interval before: merge
				continue
			}
			prog = append(prog, interval(iv.Last, out))
		}
		prog[slot] = uint64(first)<<32 | uint64(len(prog)-first)
	}
	for _, s := range subs {
		prog[s.at] |= uint64(len(prog))
		prog = append(append(prog, uint64(len(s.ivs))), s.ivs...)
	}
	return slices.Clip(prog)
}

// sourceIntervals decides one destination-port interval, represented by its
// first port, for every source port.
func (m *memory) sourceIntervals(d flow.Direction, s *subject, cands []candidate, proto flow.Proto, port uint16) []uint64 {
	var ivs []uint64
	for _, iv := range cutPoints(cands, proto, func(m *portMatch) (rule.PortRange, bool) { return m.src, m.dst.Contains(port) }) {
		out := uint32(m.internOutcome(walk(d, s, cands, proto, port, iv.First)))
		if n := len(ivs); n > 0 && uint32(ivs[n-1]) == out {
			ivs[n-1] = interval(iv.Last, out)
			continue
		}
		ivs = append(ivs, interval(iv.Last, out))
	}
	return ivs
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
func (p program) key() string {
	b := make([]byte, 0, 8*len(p))
	for _, w := range p {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return string(b)
}
