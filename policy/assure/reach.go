package assure

import (
	"net/netip"

	"go4.org/netipx"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Span is a range of ports of a protocol; see Case.Ports.
type Span struct {
	Protocol string
	Proto    flow.Proto // of Other: one of them
	Ports    rule.PortRange
}

// Contains reports whether a port of a protocol is in the span. named are the
// protocols that have spans of their own.
func (s *Span) Contains(proto flow.Proto, port uint16, named []flow.Proto) bool {
	if s.Protocol == Other {
		for _, n := range named {
			if n == proto {
				return false
			}
		}
		return true
	}
	return s.Proto == proto && s.Ports.Contains(port)
}

// Reach tells what a world allows between two ends. It remembers its answers, for
// callers that ask about most pairs; it is not for concurrent use.
type Reach struct {
	table    *classifier.Table
	programs *reader
	allowed  map[reachKey][]Span
}

type reachKey struct {
	from, to classifier.Class
	is4      bool
}

// NewReach returns a Reach of the world.
func (w *World) NewReach() *Reach {
	return &Reach{w.Table, newPrograms(w.Table).reader(), map[reachKey][]Span{}}
}

// Named returns the protocols with spans of their own: all but those of Other.
func (r *Reach) Named() []flow.Proto { return r.programs.protos[:len(r.programs.protos)-1] }

// Allowed returns which connections between two different ends both sides allow,
// by protocol and port. Where rules ask for source ports, one that is allowed is
// enough.
func (r *Reach) Allowed(from, to classifier.End, is4 bool) []Span {
	key := reachKey{r.table.Class(from), r.table.Class(to), is4}
	spans, ok := r.allowed[key]
	if ok {
		return spans
	}
	p := r.programs
	eg, in := p.of(0, flow.Egress, from, to), p.of(0, flow.Ingress, to, from)
	for i, proto := range p.protos {
		if skips(proto, is4) {
			continue
		}
		for _, c := range p.cells(i, ports(proto), []int32{eg, in}) {
			d := p.sides.decision(c.sides[0], c.sides[1])
			if !d.Allowed() {
				continue
			}
			if n := len(spans); n > 0 && spans[n-1].Proto == proto && int(spans[n-1].Ports.Last)+1 >= int(c.ports.First) {
				spans[n-1].Ports.Last = c.ports.Last
				continue
			}
			spans = append(spans, Span{p.protoName(i), proto, c.ports})
		}
	}
	r.allowed[key] = spans
	return spans
}

// Region is a set of outside addresses that a world's policies do not tell apart.
type Region struct {
	Prefixes []netip.Prefix
	Size     float64 // how many of its addresses no pod, node or pod network has
	End      classifier.End
	Addr     netip.Addr // one of these addresses
}

// Contains reports whether an address is in the region.
func (r *Region) Contains(a netip.Addr) bool {
	for _, p := range r.Prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// Regions divides the outside addresses of a family by all prefixes that policies
// mention.
func (w *World) Regions(is4 bool) []Region {
	state := &State{Set: w.Table.Policy(), world: w.Table.World()}
	t := takenBy([]*State{state})
	var out []Region
	for _, r := range regions(is4, state) {
		var b netipx.IPSetBuilder
		for _, p := range r.prefixes {
			b.AddPrefix(p)
		}
		for _, p := range t.nets {
			b.RemovePrefix(p)
		}
		for a := range t.addrs {
			b.Remove(a)
		}
		set, err := b.IPSet()
		if err != nil {
			continue // an invalid prefix: there is none
		}
		size := 0.0
		for _, p := range set.Prefixes() {
			n := 1.0
			for range p.Addr().BitLen() - p.Bits() {
				n *= 2
			}
			size += n
		}
		out = append(out, Region{r.prefixes, size, w.Table.OutsideEnd(r.free), r.free})
	}
	return out
}
