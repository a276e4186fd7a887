package classifier

import (
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// An End is an address as one table sees it. Callers that ask about many
// connections at once resolve their ends once and ask for the program of each
// pair: it holds the answer of Lookup for every protocol and port. An End is
// valid in the table it came from.
type End struct{ party party }

// EndOf resolves an address as Lookup does.
func (t *Table) EndOf(a netip.Addr) End {
	key := flow.AddrFrom(a)
	return End{t.resolve(&key)}
}

// OutsideEnd returns what Lookup would resolve the address to if no pod, node or
// pod CIDR had it: the class of the addresses around it.
func (t *Table) OutsideEnd(a netip.Addr) End { return End{t.leafOf(flow.AddrFrom(a)).party} }

// Local reports whether the end is a pod whose policy is decided by this table.
func (e End) Local() bool { return e.party.local() }

// IsNode reports whether the end is an address of a node, to whose own pods it
// is always allowed.
func (e End) IsNode() bool { return e.party.rec.peer.nodes != nil }

// Class is equal for ends of one table that no decision can tell apart, as
// source or as destination, except where they meet themselves.
type Class struct{ peer, egress, ingress uint32 }

// Class returns the class of an end of t.
func (t *Table) Class(e End) Class {
	c := Class{peer: e.party.peer}
	if e.Local() {
		s := &t.subjects[e.party.rec.subject]
		c.egress, c.ingress = s.serial[flow.Egress], s.serial[flow.Ingress]
	}
	return c
}

// Program is the answer of a table for one direction of every connection between
// two ends.
type Program struct {
	slots *[256]uint8
	words program
}

// notLocalProgram answers for ends that are policed elsewhere, or by nobody.
var notLocalProgram = program{uint64(outcomeNotLocal)}

// Matcher gives out the programs of one table. Unlike Lookup it is for callers that
// ask about most pairs: it remembers which rule matches which peer class, whoever
// the subject is. It is not for concurrent use.
type Matcher struct {
	t    *Table
	memo map[uint32][]uint8 // by peer serial, then rule: 0, or 1 + certainty
	like *likeness          // nil until asked for
}

// NewMatcher returns a Matcher of a table.
func NewMatcher(t *Table) *Matcher { return &Matcher{t: t, memo: map[uint32][]uint8{}} }

// Program returns what the policies of subject decide about connections with
// peer, of all protocols and ports: with d egress those to it, with d ingress
// those from it. Two ends are taken to be different pods, even if they are equal.
func (x *Matcher) Program(d flow.Direction, subject, peer End) Program {
	t := x.t
	if !subject.Local() {
		return Program{&t.mem.slots, notLocalProgram}
	}
	m, s := t.mem, &t.subjects[subject.party.rec.subject]
	id := m.cells.Load().get(cellKey(s.serial[d], peer.party.serial()))
	if id == 0 {
		var cands []candidate
		if id, cands = t.fillCell(d, s.subject, peer.party.rec.peer, x); id == 0 {
			return Program{&m.slots, m.buildProgram(d, s.subject, cands)}
		}
	}
	return Program{&m.slots, (*m.programs.Load())[id]}
}

// matches is subject.matches with a memory.
func (x *Matcher) matches(d flow.Direction, s *subject, p *peerClass, out []match) []match {
	memo := x.memo[p.serial]
	if memo == nil {
		memo = make([]uint8, len(x.t.rules.dir)*chunkSize)
		x.memo[p.serial] = memo
	}
	for i, r := range s.rules[d] {
		c := certainty(memo[r.id] - 1)
		if memo[r.id] == 0 {
			c = r.matchPeers(s, p)
			if !r.relates() {
				memo[r.id] = 1 + uint8(c)
			}
		}
		if c != no {
			out = append(out, match{i, c == maybe})
		}
	}
	return out
}

// relates reports whether which peers match depends on the subject.
func (r *ruleEntry) relates() bool {
	return slices.ContainsFunc(r.rule.Peers, func(p rule.Peer) bool { return !p.Relation.IsZero() })
}

// ID is equal for programs that are the same memory: while it is, the programs
// of one table are equal. Different IDs say nothing.
func (p Program) ID() *uint64 { return &p.words[0] }

// Outcome returns the outcome for the first packet of a connection. For ICMP dstPort is
// type<<8|code, as in [flow.Key].
func (p Program) Outcome(proto flow.Proto, dstPort, srcPort uint16) OutcomeID {
	if len(p.words) == 1 {
		return OutcomeID(p.words[0])
	}
	return p.words.lookup(p.slots[proto], dstPort, srcPort)
}

// PortSpan is a range of destination ports (type<<8|code for ICMP) and of source
// ports for which a program has one outcome.
type PortSpan struct {
	Ports, SrcPorts rule.PortRange
	Outcome         OutcomeID
}

// Spans returns the outcomes for a protocol, sorted by ports, then by source
// ports. Together they cover everything once.
func (p Program) Spans(proto flow.Proto) []PortSpan {
	if len(p.words) == 1 {
		return []PortSpan{{rule.AllPorts, rule.AllPorts, OutcomeID(p.words[0])}}
	}
	head := p.words[p.slots[proto]]
	var out []PortSpan
	first := 0
	for _, iv := range p.words[uint32(head>>32):][:uint32(head)] {
		ports := rule.PortRange{First: uint16(first), Last: uint16(iv >> lastShift)}
		first = int(ports.Last) + 1
		if uint32(iv)&subRef == 0 {
			out = append(out, PortSpan{ports, rule.AllPorts, OutcomeID(uint32(iv))})
			continue
		}
		at, src := uint32(iv)&^subRef, 0
		for _, sub := range p.words[at+1:][:p.words[at]] {
			srcPorts := rule.PortRange{First: uint16(src), Last: uint16(sub >> lastShift)}
			src = int(srcPorts.Last) + 1
			out = append(out, PortSpan{ports, srcPorts, OutcomeID(uint32(sub))})
		}
	}
	return out
}

// Protocols returns the protocols that have answers of their own, sorted. All
// others have the answers of other, which is one of them.
func (t *Table) Protocols() (named []flow.Proto, other flow.Proto) {
	named = slices.Clone(t.mem.protos[1:])
	slices.Sort(named)
	return named, t.mem.protos[0]
}

// Unchanged compares the ends of a pod, a node or an outside address before and
// after a step of one Compiler or Live; both tables are known to the report.
type Unchanged struct {
	// Egress and Ingress: the same rules and isolations select it, by direction.
	Egress, Ingress bool
	// Peer: to any pod whose rules are unchanged it is the same peer.
	Peer bool
}

// Unchanged says what of an end is the same in both tables of a report. same
// tells that its address is.
func (r *Report) Unchanged(old, now End, same bool) Unchanged {
	if r.All() {
		return Unchanged{}
	}
	was, is := r.old.Class(old), r.new.Class(now)
	u := Unchanged{Egress: was.egress == is.egress, Ingress: was.ingress == is.ingress, Peer: was.peer == is.peer}
	if a, b := old.party.rec.peer, now.party.rec.peer; !u.Peer && same && old.Local() == now.Local() {
		// Blocks contain the address or not, whatever other prefixes there are.
		u.Peer = a.kind == b.kind && a.identity == b.identity && a.nodes == b.nodes && slices.Equal(a.leaf.sets, b.leaf.sets)
	}
	return u
}

// SubjectChange is how the rules that select a pod differ between the two tables
// of a report, in one direction.
type SubjectChange struct {
	all   bool // not only rules differ
	moved bool // the pod runs on another node
	only  [2]struct {
		subject *subject
		rules   []*ruleEntry
	} // what only the old and only the new table has
}

// SubjectChange compares the rules and isolations that select a pod. Rules are the
// same if they are written alike and have the same name.
func (r *Report) SubjectChange(d flow.Direction, old, now End) SubjectChange {
	if r.All() || !old.Local() || !now.Local() {
		return SubjectChange{all: true}
	}
	a, b := r.old.subjects[old.party.rec.subject].subject, r.new.subjects[now.party.rec.subject].subject
	if a.rep != b.rep && !alike(a.rep, b.rep) || !slices.EqualFunc(a.isolations[d], b.isolations[d], alikeIsolations) {
		return SubjectChange{all: true} // relations and named ports look at the subject, too
	}
	c := SubjectChange{moved: a.node != b.node}
	c.only[0].subject, c.only[0].rules = a, onlyIn(a.rules[d], b.rules[d])
	c.only[1].subject, c.only[1].rules = b, onlyIn(b.rules[d], a.rules[d])
	return c
}

// Concerns reports whether the change may concern a peer, given as it is before
// and after. Where it does not, and the peer is unchanged, the programs of the two
// tables are equal: the same rules match, in the same order.
func (c *SubjectChange) Concerns(old, now End) bool {
	if c.all || c.moved && (old.IsNode() || now.IsNode()) {
		return true
	}
	for i, peer := range [2]End{old, now} {
		for _, r := range c.only[i].rules {
			if r.matchPeers(c.only[i].subject, peer.party.rec.peer) != no {
				return true
			}
		}
	}
	return false
}

// onlyIn returns the rules of a list that are not in another one, in its order. A
// rule that stands at another place may be returned, too.
func onlyIn(list, other []*ruleEntry) []*ruleEntry {
	var out []*ruleEntry
	at := 0
	for _, r := range list {
		i := slices.IndexFunc(other[at:], func(o *ruleEntry) bool { return o == r || alikeRules(o.rule, r.rule) })
		if i < 0 {
			out = append(out, r)
			continue
		}
		at += i + 1
	}
	return out
}

func alikeRules(a, b *rule.Rule) bool {
	x, y := *a, *b
	x.Origin.Generation, y.Origin.Generation = 0, 0 // a number of the API server's
	return sameRule(&x, &y)
}

func alikeIsolations(a, b *isolationEntry) bool {
	x, y := a.rule.Origin, b.rule.Origin
	x.Generation, y.Generation = 0, 0
	return a == b || x == y && a.rule.Band == b.rule.Band && a.rule.Stage == b.rule.Stage && a.rule.Audit == b.rule.Audit
}
