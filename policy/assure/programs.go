package assure

import (
	"encoding/binary"
	"slices"
	"sync"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Other is the name of all protocols that neither table treats in a way of their
// own, in the place of a protocol.
const Other = "other"

// span is a range of ports and source ports for which one direction has one side.
type span struct {
	ports, src rule.PortRange
	side       int32
}

// answers are a direction's spans for each protocol of programs.protos.
type answers [][]span

// programs numbers the answers that occur, so that equal ones of different tables
// have one number. Number 0 is not used.
type programs struct {
	tables []*classifier.Table
	protos []flow.Proto // the last one stands for all others

	mu    sync.Mutex // guards what follows, while several readers are at work
	sides *sides
	list  []answers
	ids   map[string]int32
	out   map[outcomeRef]int32
}

// reader reads the programs of the tables for one goroutine.
type reader struct {
	*programs
	match []*classifier.Matcher // by table
	seen  map[programRef]int32
}

type programRef struct {
	table int
	d     flow.Direction
	id    *uint64
}

type outcomeRef struct {
	table   int
	d       flow.Direction
	outcome classifier.OutcomeID
}

func newPrograms(tables ...*classifier.Table) *programs {
	p := &programs{
		tables: tables, sides: newSides(), list: make([]answers, 1), ids: map[string]int32{}, out: map[outcomeRef]int32{},
	}
	for _, t := range tables {
		named, _ := t.Protocols()
		p.protos = append(p.protos, named...)
	}
	slices.Sort(p.protos)
	p.protos = slices.Compact(p.protos)
	for other := flow.Proto(255); other > 0; other-- {
		if !slices.Contains(p.protos, other) {
			p.protos = append(p.protos, other)
			break
		}
	}
	return p
}

func (p *programs) reader() *reader {
	r := &reader{programs: p, seen: map[programRef]int32{}}
	for _, t := range p.tables {
		r.match = append(r.match, classifier.NewMatcher(t))
	}
	return r
}

// protoName is what a protocol is called in answers.
func (p *programs) protoName(i int) string {
	if i == len(p.protos)-1 {
		return Other
	}
	return p.protos[i].String()
}

// skips reports whether packets of a family never have the protocol.
func skips(proto flow.Proto, is4 bool) bool {
	return is4 && proto == flow.ICMPv6 || !is4 && proto == flow.ICMP
}

// of returns the number of the answers to connections between two ends of a table.
func (r *reader) of(table int, d flow.Direction, subject, peer classifier.End) int32 {
	return r.ofProgram(table, d, r.match[table].Program(d, subject, peer))
}

// ofProgram returns the number of what a program answers.
func (r *reader) ofProgram(table int, d flow.Direction, prog classifier.Program) int32 {
	ref := programRef{table, d, prog.ID()}
	id, ok := r.seen[ref]
	if !ok {
		r.mu.Lock()
		defer r.mu.Unlock()
		id = r.number(table, d, prog)
		r.seen[ref] = id
	}
	return id
}

// number returns the number of what a program answers. The caller holds mu.
func (p *programs) number(table int, d flow.Direction, prog classifier.Program) int32 {
	ans := make(answers, len(p.protos))
	var key []byte
	for i, proto := range p.protos {
		for _, s := range prog.Spans(proto) {
			side := p.side(table, d, s.Outcome)
			if n := len(ans[i]); n > 0 && ans[i][n-1].side == side && ans[i][n-1].src == s.SrcPorts && s.SrcPorts == rule.AllPorts {
				ans[i][n-1].ports.Last = s.Ports.Last
				continue
			}
			ans[i] = append(ans[i], span{s.Ports, s.SrcPorts, side})
		}
		for _, s := range ans[i] {
			for _, n := range [...]uint16{s.ports.First, s.ports.Last, s.src.First, s.src.Last} {
				key = binary.BigEndian.AppendUint16(key, n)
			}
			key = binary.BigEndian.AppendUint32(key, uint32(s.side))
		}
		key = append(key, '/')
	}
	id, ok := p.ids[string(key)]
	if !ok {
		id = int32(len(p.list))
		p.list = append(p.list, ans)
		p.ids[string(key)] = id
	}
	return id
}

func (p *programs) side(table int, d flow.Direction, o classifier.OutcomeID) int32 {
	ref := outcomeRef{table, d, o}
	id, ok := p.out[ref]
	if !ok {
		id = p.sides.id(sideOf(p.tables[table], d, o))
		p.out[ref] = id
	}
	return id
}

// cell is a rectangle of ports and source ports in which each of several answers
// has one side.
type cell struct {
	ports, src rule.PortRange
	sides      [4]int32
}

// cells cuts the ports within into rectangles, by ports, then source ports.
func (p *programs) cells(proto int, within rule.PortRange, ids []int32) []cell {
	starts := func(cut func(*span) (rule.PortRange, bool)) []rule.PortRange {
		var at []uint16
		for _, id := range ids {
			for i := range p.list[id][proto] {
				if r, ok := cut(&p.list[id][proto][i]); ok {
					at = append(at, r.First)
				}
			}
		}
		slices.Sort(at)
		at = slices.Compact(at)
		out := make([]rule.PortRange, len(at))
		for i, first := range at {
			out[i] = rule.PortRange{First: first, Last: 0xffff}
			if i > 0 {
				out[i-1].Last = first - 1
			}
		}
		return out
	}
	var out []cell
	for _, dst := range starts(func(s *span) (rule.PortRange, bool) { return s.ports, true }) {
		if dst.Last < within.First || dst.First > within.Last {
			continue
		}
		ports := rule.PortRange{First: max(dst.First, within.First), Last: min(dst.Last, within.Last)}
		for _, src := range starts(func(s *span) (rule.PortRange, bool) { return s.src, s.ports.Contains(dst.First) }) {
			c := cell{ports: ports, src: src}
			for i, id := range ids {
				for j := range p.list[id][proto] {
					if s := &p.list[id][proto][j]; s.ports.Contains(dst.First) && s.src.Contains(src.First) {
						c.sides[i] = s.side
						break
					}
				}
			}
			out = append(out, c)
		}
	}
	return out
}

// portChange is a change for a range of ports of a protocol.
type portChange struct {
	proto         int
	ports, src    rule.PortRange
	kind          Kind
	before, after Decision
}

func (c *portChange) same(o *portChange) bool {
	return c.kind == o.kind && c.before == o.before && c.after == o.after
}

// changes compares connections whose directions have the answers of these numbers.
// Ranges are disjoint and maximal.
func (p *programs) changes(is4 bool, oldEgress, oldIngress, egress, ingress int32) []portChange {
	var out []portChange
	for proto := range p.protos {
		if skips(p.protos[proto], is4) {
			continue
		}
		var open []portChange // those that reach up to the last ports, by source ports
		var row []portChange  // of the current ports
		flush := func() {
			for i := range row {
				// The same change of the same source ports goes on.
				j := slices.IndexFunc(open, func(o portChange) bool {
					return o.same(&row[i]) && o.src == row[i].src && int(o.ports.Last)+1 == int(row[i].ports.First)
				})
				if j >= 0 {
					row[i].ports.First = open[j].ports.First
					open = slices.Delete(open, j, j+1)
				}
			}
			out = append(out, open...)
			open, row = row, nil
		}
		last := -1
		for _, c := range p.cells(proto, ports(p.protos[proto]), []int32{oldEgress, oldIngress, egress, ingress}) {
			if int(c.ports.First) != last {
				flush()
				last = int(c.ports.First)
			}
			kind, before, after, ok := p.sides.change(c.sides[0], c.sides[1], c.sides[2], c.sides[3])
			if !ok {
				continue
			}
			change := portChange{proto, c.ports, c.src, kind, before, after}
			if n := len(row); n > 0 && row[n-1].same(&change) && int(row[n-1].src.Last)+1 == int(c.src.First) {
				row[n-1].src.Last = c.src.Last
				continue
			}
			row = append(row, change)
		}
		flush()
		flush()
	}
	return out
}

// within calls f with the cells of the ports of a question, by protocol: i is the
// protocol's place in protos, want the one that was asked for, AnyProto for all. It
// stops where f returns false.
func (p *programs) within(asked Ports, is4 bool, ids []int32, f func(i int, want flow.Proto, c *cell) bool) {
	want := asked.Proto
	if want == flow.ICMP && !is4 || want == flow.ICMPv6 && is4 {
		want = map[bool]flow.Proto{true: flow.ICMP, false: flow.ICMPv6}[is4]
		if asked.First == asked.Last && asked.First == flow.ICMPPort(flow.ICMPEchoRequest, 0) && !is4 {
			asked.First, asked.Last = flow.ICMPPort(flow.ICMPv6EchoRequest, 0), flow.ICMPPort(flow.ICMPv6EchoRequest, 0)
		}
	}
	for i, proto := range p.protos {
		other := i == len(p.protos)-1
		if skips(proto, is4) || want != flow.AnyProto && want != proto && (!other || slices.Contains(p.protos[:i], want)) {
			continue
		}
		r := ports(proto)
		if want != flow.AnyProto {
			r = rule.PortRange{First: max(r.First, asked.First), Last: min(r.Last, asked.Last)}
		}
		if r.First > r.Last {
			continue
		}
		cells := p.cells(i, r, ids)
		for j := range cells {
			if !f(i, want, &cells[j]) {
				return
			}
		}
	}
}
