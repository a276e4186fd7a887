package lint

import (
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// span is an inclusive range of numbers.
type span struct{ first, last uint16 }

var everyNumber = span{0, 0xffff}

// The dimensions of a box beside the peers.
const (
	protocols = iota
	sources
	destinations
	dimensions
)

// box is a set of connections of one subject: every combination of a peer, a
// protocol number, a source port and a destination port (or ICMP type and code).
type box struct {
	peers bits
	dims  [dimensions]span
}

// piece is a box on its way through the bands: skipped are the bands it leaves out.
type piece struct {
	box
	skipped rule.BandSet
}

func (b *box) meets(o *box) bool {
	for i, s := range b.dims {
		if s.last < o.dims[i].first || o.dims[i].last < s.first {
			return false
		}
	}
	return b.peers.meets(o.peers)
}

// intersect returns what two boxes that meet have in common.
func (b *box) intersect(o *box) box {
	out := box{peers: b.peers.and(o.peers)}
	for i, s := range b.dims {
		out.dims[i] = span{max(s.first, o.dims[i].first), min(s.last, o.dims[i].last)}
	}
	return out
}

// minus appends b without o, which it meets, to out, in disjoint boxes.
func (b *box) minus(o *box, out []box) []box {
	if rest := b.peers.without(o.peers); !rest.empty() {
		out = append(out, box{rest, b.dims})
	}
	left := box{b.peers.and(o.peers), b.dims}
	for i := range left.dims {
		s, cut := &left.dims[i], o.dims[i]
		if s.first < cut.first {
			below := left
			below.dims[i].last = cut.first - 1
			out = append(out, below)
			s.first = cut.first
		}
		if s.last > cut.last {
			above := left
			above.dims[i].first = cut.last + 1
			out = append(out, above)
			s.last = cut.last
		}
	}
	return out
}

func (b bits) and(o bits) bits {
	out := make(bits, len(b))
	for i, w := range b {
		out[i] = w & o[i]
	}
	return out
}

func (b bits) without(o bits) bits {
	out := make(bits, len(b))
	for i, w := range b {
		out[i] = w &^ o[i]
	}
	return out
}

func (b bits) add(i int) { b[i/64] |= 1 << (i % 64) }

// example returns a protocol with ports that a client of the family can use out of
// a box; ok is false if there is none. Common protocols and ports come first.
func (b *box) example(is4 bool) (k flow.Key, ok bool) {
	icmp, echo := flow.ICMP, flow.ICMPPort(flow.ICMPEchoRequest, 0)
	if !is4 {
		icmp, echo = flow.ICMPv6, flow.ICMPPort(flow.ICMPv6EchoRequest, 0)
	}
	src, dst, protos := b.dims[sources], b.dims[destinations], b.dims[protocols]
	for _, p := range []flow.Proto{flow.TCP, flow.UDP, flow.SCTP, icmp} {
		if !protos.has(uint16(p)) {
			continue
		}
		switch {
		case p == icmp:
			return flow.Key{Proto: p, DstPort: dst.choose(echo, 0)}, true
		case src.last > 0 && dst.last > 0:
			return flow.Key{Proto: p, SrcPort: src.choose(sourcePort, 1), DstPort: dst.choose(80, 1)}, true
		}
	}
	for n := int(protos.first); n <= int(min(protos.last, 255)); n++ {
		p := flow.Proto(n)
		switch {
		case p == flow.AnyProto || p == flow.ICMP || p == flow.ICMPv6 || p.HasPorts():
		case p == flow.IGMP:
			return flow.Key{Proto: p, DstPort: dst.first}, true
		case src.has(0) && dst.has(0):
			return flow.Key{Proto: p}, true
		}
	}
	return flow.Key{}, false
}

// sourcePort is the source port of examples, where rules leave it open.
const sourcePort = 40000

func (s span) has(n uint16) bool { return s.first <= n && n <= s.last }

// choose returns want if it is in the span, else its first number from least on.
func (s span) choose(want, least uint16) uint16 {
	if s.has(want) {
		return want
	}
	return max(s.first, least)
}

// withPorts are the protocols that a source port can be asked of.
var withPorts = []flow.Proto{flow.TCP, flow.UDP, flow.SCTP}

// boxesOf returns the boxes of an alternative of a rule's ports, with these peers.
// named are the peers' part for a named port: each number the name stands for,
// with the peers for which it does.
func boxesOf(l *rule.L4, peers bits, named []namedBox) []box {
	dst := span{l.Ports.First, l.Ports.Last}
	src := span{l.SrcPorts.First, l.SrcPorts.Last}
	var out []box
	for _, p := range protosOf(l, src) {
		if l.Name == "" {
			out = append(out, box{peers, [dimensions]span{p, src, dst}})
			continue
		}
		for _, n := range named {
			if p.has(uint16(n.proto)) && peers.meets(n.peers) {
				proto := uint16(n.proto)
				out = append(out, box{peers.and(n.peers), [dimensions]span{{proto, proto}, src, {n.port, n.port}}})
			}
		}
	}
	return out
}

// namedBox is a number that a port name stands for, and the peers for which it does.
type namedBox struct {
	proto flow.Proto
	port  uint16
	peers bits
}

func protosOf(l *rule.L4, src span) []span {
	one := func(p flow.Proto) span { return span{uint16(p), uint16(p)} }
	switch {
	case src == everyNumber && l.Proto == flow.AnyProto:
		return []span{{0, 255}}
	case src == everyNumber:
		return []span{one(l.Proto)}
	case l.Proto == flow.AnyProto:
		var out []span
		for _, p := range withPorts {
			out = append(out, one(p))
		}
		return out
	case slices.Contains(withPorts, l.Proto):
		return []span{one(l.Proto)}
	}
	return nil
}
