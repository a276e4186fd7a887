package assure

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Ports are those a question is about. The zero value is every protocol and port.
type Ports struct {
	Text        string
	Proto       flow.Proto // AnyProto: all; ICMP stands for ICMPv6 between IPv6 addresses
	First, Last uint16     // type<<8|code for ICMP; 0, 65535 for all
	Name        string     // a named port of the destination's pods, in the place of numbers
}

// ParsePorts reads "any", "443", "443/TCP", "8000-8100/UDP", "http/TCP", "any/TCP",
// "TCP", "ICMP" (an echo request), "any/ICMP" or "0/47". Without a protocol it is
// TCP.
func ParsePorts(text string) (Ports, error) {
	p := Ports{Text: text, Last: 0xffff}
	if text == "any" || text == "*" || text == "" {
		p.Text = "any"
		return p, nil
	}
	num, protoText, found := strings.Cut(text, "/")
	if !found {
		if proto, err := flow.ParseProto(text); err == nil && strings.Trim(text, "0123456789") != "" {
			num, protoText = "any", text
			if proto == flow.ICMP || proto == flow.ICMPv6 {
				num = "0"
			}
		} else {
			protoText = "TCP"
			p.Text += "/TCP"
		}
	}
	proto, err := flow.ParseProto(protoText)
	if err != nil {
		return p, fmt.Errorf("port %q: %w", text, err)
	}
	p.Proto = proto
	all := num == "any" || num == "*"
	first, last, isRange := strings.Cut(num, "-")
	n, err := strconv.ParseUint(first, 10, 16)
	switch {
	case all:
	case proto == flow.ICMP || proto == flow.ICMPv6:
		if num != "0" {
			return p, fmt.Errorf("port %q: %s has no ports: write 0/%s for an echo request, or any/%s", text, proto, proto, proto)
		}
		p.First, p.Last = flow.ICMPPort(flow.ICMPEchoRequest, 0), flow.ICMPPort(flow.ICMPEchoRequest, 0)
	case !proto.HasPorts():
		if num != "0" {
			return p, fmt.Errorf("port %q: %s has no ports: write 0/%s", text, proto, proto)
		}
		p.Last = 0
	case err == nil && n > 0:
		p.First, p.Last = uint16(n), uint16(n)
		if isRange {
			m, err := strconv.ParseUint(last, 10, 16)
			if err != nil || m < n {
				return p, fmt.Errorf("port %q: want FIRST-LAST/%s with FIRST not above LAST", text, proto)
			}
			p.Last = uint16(m)
		}
	case strings.Trim(num, "0123456789-") == "":
		return p, fmt.Errorf("port %q: %s ports go from 1 to 65535", text, proto)
	default:
		if !portName(num) {
			return p, fmt.Errorf("port %q: %q is neither a number nor a port name", text, num)
		}
		p.Name = num
	}
	return p, nil
}

// portName follows RFC 6335, section 5.1, as Kubernetes applies it.
func portName(s string) bool {
	letter := false
	for _, c := range s {
		letter = letter || c >= 'a' && c <= 'z'
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return letter && len(s) <= 15 && s[0] != '-' && s[len(s)-1] != '-' && !strings.Contains(s, "--")
}

// Case is a set of connections that are alike, with the answer to all of them: the
// ends have the classes of these two, and Packet is one of the connections.
type Case struct {
	From, To    string // a pod, or a prefix of outside addresses
	Family      int
	Protocol    string
	Ports       [2]uint16
	SourcePorts *[2]uint16 // nil: any
	Decision    Decision
	Packet      flow.Key
	Via         flow.Service // where it was opened to, if to a Service
}

// Ask returns the answer to every connection from an end to another one, of these
// ports, in as few cases as have different answers or ends of different classes.
// An end that cannot be asked about is an error, never an empty answer.
func (w *World) Ask(from, to End, ports Ports) ([]Case, error) {
	if from.Service != nil {
		return nil, fmt.Errorf("%s is a Service: connections come from pods and addresses", from.Text)
	}
	q := asker{world: w, programs: newPrograms(w.Table).reader(), ports: ports}
	if to.Service != nil {
		return q.service(from, to)
	}
	for _, is4 := range []bool{true, false} {
		q.is4 = is4
		q.pairs(w.sources(from, is4), w.sources(to, is4))
	}
	return q.out, q.err(from, to)
}

// source is an end of one family, standing for all of its class.
type source struct {
	name string
	addr netip.Addr
	end  classifier.End
	pod  *rule.Endpoint
}

// sources returns one end of each class.
func (w *World) sources(e End, is4 bool) []source {
	var out []source
	seen := map[classifier.Class]int{}
	for _, p := range e.Pods {
		a, ok := p.Addr(is4)
		if !ok {
			continue
		}
		s := source{PodName(p), a, w.Table.EndOf(a), p}
		// Two of a class are kept, so that a class meets itself without a pod
		// meeting itself.
		if c := w.Table.Class(s.end); seen[c] < 2 {
			seen[c]++
			out = append(out, s)
		}
	}
	if len(e.Outside) == 0 {
		return out
	}
	set := w.Table.Policy()
	state := &State{Set: set, world: w.Table.World()}
	all, free := regions(is4, state), takenBy([]*State{state})
	for _, asked := range e.Outside {
		if asked.Addr().Is4() != is4 {
			continue
		}
		if asked.IsSingleIP() { // a node has it, maybe
			out = append(out, source{asked.Addr().String(), asked.Addr(), w.Table.EndOf(asked.Addr()), nil})
			continue
		}
		for _, r := range all {
			for _, p := range r.prefixes {
				if !p.Overlaps(asked) {
					continue
				}
				if p.Bits() < asked.Bits() {
					p = asked
				}
				a, ok := free.free([]netip.Prefix{p})
				if !ok {
					continue
				}
				s := source{p.String(), a, w.Table.OutsideEnd(a), nil}
				if c := w.Table.Class(s.end); seen[c] == 0 {
					seen[c]++
					out = append(out, s)
				}
				break
			}
		}
	}
	return out
}

type asker struct {
	world    *World
	programs *reader
	ports    Ports
	is4      bool
	out      []Case
	met      bool     // some pair has a family in common
	unnamed  []string // pods without the named port
}

func (q *asker) pairs(from, to []source) {
	type key struct{ src, dst classifier.Class }
	asked := map[key]bool{}
	for _, s := range from {
		for _, d := range to {
			self := s.addr == d.addr
			if self && (len(from) > 1 || len(to) > 1) {
				continue
			}
			k := key{q.world.Table.Class(s.end), q.world.Table.Class(d.end)}
			if asked[k] {
				continue
			}
			asked[k] = true
			q.met = true
			q.pair(s, d, self)
		}
	}
}

func (q *asker) pair(s, d source, self bool) {
	within := q.ports
	if within.Name != "" {
		n := namedPort(d.pod, within.Name, within.Proto)
		if n == 0 {
			q.unnamed = append(q.unnamed, d.name)
			return
		}
		within.First, within.Last = n, n
	}
	eg := q.programs.of(0, flow.Egress, s.end, d.end)
	in := q.programs.of(0, flow.Ingress, d.end, s.end)
	q.programs.within(within, q.is4, []int32{eg, in}, func(i int, want flow.Proto, c *cell) bool {
		dec := q.programs.sides.decision(c.sides[0], c.sides[1])
		if self {
			dec = Decision{Verdict: classifier.Allow.String(), Direction: flow.Ingress.String()}
		}
		q.add(s, d, i, want, *c, dec)
		return true
	})
}

// add appends a case, or widens the one before.
func (q *asker) add(s, d source, proto int, want flow.Proto, c cell, dec Decision) {
	name, number := q.programs.protoName(proto), q.programs.protos[proto]
	if want != flow.AnyProto {
		name, number = want.String(), want
	}
	family := 6
	if q.is4 {
		family = 4
	}
	if n := len(q.out); n > 0 && c.src == rule.AllPorts {
		last := &q.out[n-1]
		if last.From == s.name && last.To == d.name && last.Family == family && last.Protocol == name && last.Decision == dec &&
			last.SourcePorts == nil && int(last.Ports[1])+1 == int(c.ports.First) {
			last.Ports[1] = c.ports.Last
			return
		}
	}
	cs := Case{From: s.name, To: d.name, Family: family, Protocol: name, Ports: [2]uint16{c.ports.First, c.ports.Last}, Decision: dec}
	cs.Packet = flow.Key{Src: flow.AddrFrom(s.addr), Dst: flow.AddrFrom(d.addr), Proto: number, DstPort: c.ports.First}
	switch {
	case c.src != rule.AllPorts:
		cs.SourcePorts = &[2]uint16{c.src.First, c.src.Last}
		if cs.Packet.SrcPort = c.src.First; c.src.Contains(SourcePort) {
			cs.Packet.SrcPort = SourcePort
		}
	case number.HasPorts():
		cs.Packet.SrcPort = SourcePort
	}
	q.out = append(q.out, cs)
}

func namedPort(e *rule.Endpoint, name string, proto flow.Proto) uint16 {
	if e == nil {
		return 0
	}
	for _, np := range e.Ports {
		if np.Name == name && np.Proto == proto {
			return np.Port
		}
	}
	return 0
}

// err says why there is no case.
func (q *asker) err(from, to End) error {
	switch {
	case len(q.out) > 0:
		return nil
	case len(q.unnamed) > 0:
		return fmt.Errorf("no pod of %s has a port named %s for %s (%s, for one, has not)", to.Text, q.ports.Name, q.ports.Proto, q.unnamed[0])
	case !q.met:
		return fmt.Errorf("%s and %s have no address family in common", from.Text, to.Text)
	}
	return fmt.Errorf("there is no connection of %s from %s to %s", q.ports.Text, from.Text, to.Text)
}

// Deciders names every policy that decides a case: the one whose rule denies it, all
// whose isolation does, or those whose rules allow it, source's side first.
func (w *World) Deciders(c *Case) []string {
	d := w.Table.LookupVia(c.Packet, c.Via)
	var out []string
	for _, dir := range []flow.Direction{flow.Egress, flow.Ingress} {
		o := w.Table.Outcome(d.Egress)
		if dir == flow.Ingress {
			o = w.Table.Outcome(d.Ingress)
		}
		if d.Verdict != classifier.Allow && o.Verdict == classifier.Allow {
			continue
		}
		switch {
		case o.Rule != classifier.NoRule:
			out = append(out, w.Table.Rule(o.Rule).Origin.Ref())
		case o.Reason == classifier.ReasonIsolation:
			for _, i := range o.Isolations {
				out = append(out, w.Table.Isolation(i).Origin.Ref())
			}
		}
		if o.Verdict != classifier.Allow {
			break // egress denies: ingress is not asked
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
