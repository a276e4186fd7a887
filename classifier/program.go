package classifier

import (
	"crypto/sha256"
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
	ports     *portIndex // what it matches beside l4; may be nil
	l4        []portMatch
	uncertain bool // the peer is unknown and may or may not match
}

// ranges returns how many ranges of ports it has.
func (c *candidate) ranges() int {
	n := len(c.l4)
	if c.ports != nil {
		for i := range c.ports.protos {
			n += len(c.ports.protos[i].ranges)
		}
	}
	return n
}

// portMatch is an L4 with its named port resolved.
type portMatch struct {
	proto     flow.Proto
	dst, src  rule.PortRange
	uncertain bool // a named port of a destination that is not known
}

func (m *portMatch) hasProto(p flow.Proto) bool { return m.proto == flow.AnyProto || m.proto == p }

// fill decides a connection whose cell is not there and remembers the cell. Where the
// program is long to build, another goroutine does that, and until it has the rules are
// walked: a worker waits for no program, and for none of another's.
func (t *Table) fill(d flow.Direction, s *subject, p *peerClass, k *flow.Key) OutcomeID {
	m := t.mem
	id, cands := t.fillCell(d, s, p, nil)
	if id == 0 {
		return m.internOutcome(s, walk(d, s, cands, k.Proto, k.DstPort, k.SrcPort))
	}
	return m.outcome(id, k)
}

// fillCell fills a cell and returns its program; 0 and the candidates to walk where
// there is none yet, or no room for it. With a Matcher it waits for the program.
// Matching rules and building programs needs no lock; memory.mu is held to look up and
// to add what they come to.
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
	id := m.known(s.serial[d], text)
	switch {
	case id != 0:
	case nodeLocal:
		id = m.learn(s, d, text, program{uint64(outcomeNodeLocal)})
	default:
		cands := s.candidates(d, p, ms)
		if id = m.decideAll(d, s, text, cands, x != nil); id == 0 {
			return 0, cands
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.store(cellKey(s.serial[d], p.serial), id)
	return id, nil
}

// known returns the program for the rules that a subject's peer matches; 0 if it was
// not built yet.
func (m *memory) known(subject uint32, text []byte) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.bySubject[subject][string(text)]
}

// promptRanges is up to how many ranges of ports the packet path builds a program
// itself: some 100 µs.
const promptRanges = 256

// decideAll builds the program of candidates and remembers it for text. It returns 0
// where there is no room, and, unless it is to wait, where there is much to do: then
// another goroutine builds it, one at a time.
func (m *memory) decideAll(d flow.Direction, s *subject, text []byte, cands []candidate, wait bool) uint32 {
	if !m.hasRoom(s) {
		return 0
	}
	ranges := 0
	for i := range cands {
		ranges += cands[i].ranges()
	}
	if wait || ranges <= promptRanges {
		return m.learn(s, d, text, m.buildProgram(d, s, cands))
	}
	if m.building.CompareAndSwap(false, true) {
		text := slices.Clone(text)
		go func() {
			defer m.building.Store(false)
			m.learn(s, d, text, m.buildProgram(d, s, cands))
		}()
	}
	return 0
}

// hasRoom reports whether a subject may add a program. Once half the room is taken, a
// namespace that has more than its share may not: its connections are decided by walking
// the rules, and those of other namespaces are not.
func (m *memory) hasRoom(s *subject) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return !m.full() && (m.spent[s.rep.Namespace] < m.budget/32 || m.programMemory() < m.budget/8)
}

// learn remembers a program for the rules that a subject's peer matches.
func (m *memory) learn(s *subject, d flow.Direction, text []byte, p program) uint32 {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.programMemory()
	id, serial := m.internProgram(p), s.serial[d]
	if m.bySubject[serial] == nil {
		m.bySubject[serial] = map[string]uint32{}
	}
	if _, ok := m.bySubject[serial][string(text)]; !ok {
		m.indexBytes += len(text) + entryBytes
	}
	m.bySubject[serial][string(text)] = id
	m.spent[s.rep.Namespace] += m.programMemory() - before
	return id
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

// buildProgram decides every interval.
func (m *memory) buildProgram(d flow.Direction, s *subject, cands []candidate) program {
	prog := make(program, len(m.protos), 3*len(m.protos))
	type sub struct {
		at  int // interval that refers to it
		ivs []uint64
	}
	var subs []sub
	for slot, proto := range m.protos {
		first := len(prog)
		w, known := newSweep(cands, proto), map[string][]uint64{}
		for port, last := uint16(0), uint16(0); ; port = last + 1 {
			last = w.advance(port)
			ivs, ok := known[string(w.key())]
			if !ok {
				ivs = m.sourceIntervals(d, s, w.candidates(), proto, port)
				known[string(w.key())] = ivs
			}
			out := uint32(ivs[0])
			switch n := len(prog); {
			case len(ivs) > 1:
				subs = append(subs, sub{n, ivs})
				prog = append(prog, interval(last, subRef))
			case n > first && uint32(prog[n-1]) == out:
				prog[n-1] = interval(last, out) // equal to the interval before: merge
			default:
				prog = append(prog, interval(last, out))
			}
			if last == 0xffff {
				break
			}
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
// first port, for every source port. The candidates' ranges hold the port.
func (m *memory) sourceIntervals(d flow.Direction, s *subject, cands []candidate, proto flow.Proto, port uint16) []uint64 {
	var ivs []uint64
	for _, iv := range sourceCuts(cands) {
		out := uint32(m.internOutcome(s, walk(d, s, cands, proto, port, iv.First)))
		if n := len(ivs); n > 0 && uint32(ivs[n-1]) == out {
			ivs[n-1] = interval(iv.Last, out)
			continue
		}
		ivs = append(ivs, interval(iv.Last, out))
	}
	return ivs
}

// sourceCuts splits the source ports wherever one of the candidates' ranges begins or
// ends.
func sourceCuts(cands []candidate) []rule.PortRange {
	starts := []uint16{0}
	for i := range cands {
		for j := range cands[i].l4 {
			r := cands[i].l4[j].src
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

// key is equal for programs that answer alike because they are built alike: their
// words, or where these are many a digest of them.
func (p program) key() string {
	b := make([]byte, 0, 8*len(p))
	for _, w := range p {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	if len(b) > 4096 {
		digest := sha256.Sum256(b)
		b = digest[:]
	}
	return string(b)
}
