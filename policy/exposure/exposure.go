// Package exposure compares two policies in one world: which connections that the
// first denies would the second allow? It is for the question what opens if a policy,
// a policy API or the whole firewall is taken away (S0-65).
//
// The answer comes from the tables that daemons enforce. Every pair of ends that
// rules can tell apart is looked up in both, with one port of every interval in which
// no rule about the pair begins or ends, so no connection between pods, nodes and
// outside is missed; connections to Services count by their backends, and names only
// DNS knows by nobody. Pods that nothing tells apart are one end.
package exposure

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/terrain"
)

// End is one side of an Opening.
type End struct {
	// Name is a pod's "namespace/name", for all pods like it, or an address.
	Name      string
	Namespace string // "" for an address
	Pods      int    // how many pods it stands for; 0 for an address
	Node      string // for an address of a node
}

// Opening is what opens between two ends.
type Opening struct {
	From, To End
	// Ports are "80/TCP", "8000-8080/UDP", "all/TCP", "ICMP 8/0", "protocol 47"; "all"
	// where nothing of the pair was allowed.
	Ports []string
	// DeniedBy are the policies that deny it now, without duplicates.
	DeniedBy []api.Ref
	// Key is one such connection.
	Key flow.Key
}

// Options bound the search. The zero value searches everything.
type Options struct {
	// Namespace limits it to connections from or to its pods; "" means all.
	Namespace string
	// MaxLookups ends the search early; 0 means DefaultMaxLookups.
	MaxLookups int
}

// DefaultMaxLookups is some twenty seconds' work.
const DefaultMaxLookups = 200_000_000

// Side is a policy and its table.
type Side struct {
	Table *classifier.Table
	Set   *rule.Set
}

// Opened returns what after allows of what before denies, by names of the ends. after
// has the rules of a part of before's policies. complete is false if the search was
// ended early. The tables are for the same world, with every pod local.
func Opened(before, after Side, world *rule.World, opt Options) (out []Opening, complete bool) {
	if opt.MaxLookups == 0 {
		opt.MaxLookups = DefaultMaxLookups
	}
	s := search{before: before.Table, after: after.Table, set: before.Set, ground: terrain.New(before.Set, world), opt: opt}
	s.prepare(after.Set)
	ends := s.ends()
	for i := range ends {
		for j := range ends {
			if s.lookups > opt.MaxLookups {
				return s.sorted(), false
			}
			s.pair(&ends[i], &ends[j])
		}
	}
	return s.sorted(), true
}

// end is a kind of pods, or a place that is no pod's.
type end struct {
	kind   int // -1: no pods
	places []int
	end    End
}

type search struct {
	before, after *classifier.Table
	set           *rule.Set
	ground        *terrain.Terrain
	opt           Options
	lookups       int
	out           []Opening

	l4     [2][][]rule.L4 // direction → kind → the ports of the rules about its pods
	denied [2][]bool      // direction → kind → something can deny
	lost   [2][]bool      // direction → kind → a policy about its pods goes
}

func (s *search) sorted() []Opening {
	slices.SortStableFunc(s.out, func(a, b Opening) int {
		return cmp.Or(cmp.Compare(a.From.Name, b.From.Name), cmp.Compare(a.To.Name, b.To.Name))
	})
	return s.out
}

// prepare collects, for each kind of pods, what rules say about ports, and whether some
// of them are not among what is left.
func (s *search) prepare(left *rule.Set) {
	stays := map[api.Ref]bool{}
	for i := range left.Rules {
		stays[api.RefOf(&left.Rules[i].Origin)] = true
	}
	for i := range left.Isolations {
		stays[api.RefOf(&left.Isolations[i].Origin)] = true
	}
	kinds := s.ground.Kinds
	for _, d := range flow.Directions {
		s.l4[d], s.denied[d], s.lost[d] = make([][]rule.L4, len(kinds)), make([]bool, len(kinds)), make([]bool, len(kinds))
	}
	for k := range kinds {
		pod := s.ground.Pods[kinds[k].Members[0]]
		for i := range s.set.Rules {
			r := &s.set.Rules[i]
			if r.Stage != rule.Enforce || !r.Subject.Matches(pod) {
				continue
			}
			if r.Action == rule.Deny || r.Action == rule.Reject || r.Auth {
				s.denied[r.Direction][k] = true
			}
			if !stays[api.RefOf(&r.Origin)] {
				s.lost[r.Direction][k] = true
			}
			for _, l := range r.L4 {
				if !slices.Contains(s.l4[r.Direction][k], l) {
					s.l4[r.Direction][k] = append(s.l4[r.Direction][k], l)
				}
			}
		}
		for i := range s.set.Isolations {
			iso := &s.set.Isolations[i]
			if iso.Stage == rule.Enforce && iso.Subject.Matches(pod) {
				s.denied[iso.Direction][k] = true
				if !stays[api.RefOf(&iso.Origin)] {
					s.lost[iso.Direction][k] = true
				}
			}
		}
	}
}

func (s *search) ends() []end {
	var out []end
	for k := range s.ground.Kinds {
		kind := &s.ground.Kinds[k]
		pod := s.ground.Pods[kind.Members[0]]
		e := end{kind: k, end: End{Name: pod.Namespace + "/" + pod.Name, Namespace: pod.Namespace, Pods: kind.Pods}}
		for _, m := range kind.Members {
			e.places = append(e.places, s.ground.OfPod[m]...)
		}
		out = append(out, e)
	}
	for i := range s.ground.Places {
		if p := &s.ground.Places[i]; p.Pod == nil {
			e := end{kind: -1, places: []int{i}, end: End{Name: p.String()}}
			if len(p.Nodes) > 0 {
				e.end.Node = p.Nodes[0]
			}
			out = append(out, e)
		}
	}
	return out
}

// pair compares all connections from one end to another.
func (s *search) pair(from, to *end) {
	switch {
	case from.kind < 0 && to.kind < 0:
		return
	case s.opt.Namespace != "" && from.end.Namespace != s.opt.Namespace && to.end.Namespace != s.opt.Namespace:
		return
	case !about(&s.denied, from, to), !about(&s.lost, from, to):
		return // nothing denies it now, or as before
	}
	for _, is4 := range []bool{true, false} {
		src, dst := s.choose(from, to, is4)
		if src == nil {
			continue
		}
		o := s.compare(from, to, src, dst)
		if o == nil {
			continue
		}
		// What opens in both families is said once.
		if n := len(s.out); n > 0 && s.out[n-1].From == o.From && s.out[n-1].To == o.To {
			for _, p := range o.Ports {
				if !slices.Contains(s.out[n-1].Ports, p) {
					s.out[n-1].Ports = append(s.out[n-1].Ports, p)
				}
			}
			continue
		}
		s.out = append(s.out, *o)
	}
}

// about reports whether what is noted of the source's egress or the destination's
// ingress is so.
func about(noted *[2][]bool, from, to *end) bool {
	return from.kind >= 0 && noted[flow.Egress][from.kind] || to.kind >= 0 && noted[flow.Ingress][to.kind]
}

// choose picks addresses for two ends: not the same pod, and not a node and one of
// its own pods, which no policy is asked about.
func (s *search) choose(from, to *end, is4 bool) (src, dst *terrain.Place) {
	for _, i := range from.places {
		for _, j := range to.places {
			a, b := &s.ground.Places[i], &s.ground.Places[j]
			if a.Addr.Is4() != is4 || b.Addr.Is4() != is4 || a.Addr == b.Addr || a.Pod != nil && a.Pod == b.Pod ||
				b.Pod != nil && slices.Contains(a.Nodes, b.Pod.Node) {
				continue
			}
			return a, b
		}
	}
	return nil, nil
}

// compare looks up one port of each interval.
func (s *search) compare(from, to *end, src, dst *terrain.Place) *Opening {
	var rules []rule.L4
	if from.kind >= 0 {
		rules = append(rules, s.l4[flow.Egress][from.kind]...)
	}
	if to.kind >= 0 {
		rules = append(rules, s.l4[flow.Ingress][to.kind]...)
	}
	o := Opening{From: from.end, To: to.end}
	everything := true
	for _, proto := range protocols(rules, src.Addr.Is4()) {
		sources := sourcePorts(rules, proto)
		starts := portStarts(rules, proto, dst.Pod)
		first := -1 // of the open interval
		for i, start := range starts {
			last := 0xffff
			if i+1 < len(starts) {
				last = int(starts[i+1]) - 1
			}
			open := false
			for _, sp := range sources {
				k := flow.Key{Src: flow.AddrFrom(src.Addr), Dst: flow.AddrFrom(dst.Addr), Proto: proto, SrcPort: sp, DstPort: start}
				s.lookups += 2
				if s.opens(&o, k) {
					open = true
				} else {
					everything = false
				}
			}
			if open && first < 0 {
				first = int(start)
			}
			if first >= 0 && (!open || i+1 == len(starts)) {
				end := last
				if !open {
					end = int(start) - 1
				}
				o.Ports = append(o.Ports, portText(proto, first, end))
				first = -1
			}
		}
	}
	if len(o.Ports) == 0 {
		return nil
	}
	if everything {
		o.Ports = []string{"all"}
	}
	slices.SortFunc(o.DeniedBy, api.Ref.Compare)
	return &o
}

// opens reports whether a connection is denied before and allowed after, and notes
// by whom.
func (s *search) opens(o *Opening, k flow.Key) bool {
	was := s.before.Lookup(k)
	if was.Verdict == classifier.Allow || s.after.Lookup(k).Verdict != classifier.Allow {
		return false
	}
	if len(o.Ports) == 0 && o.Key == (flow.Key{}) {
		o.Key = k
	}
	for _, id := range []classifier.OutcomeID{was.Egress, was.Ingress} {
		out := s.before.Outcome(id)
		if out == nil || out.Verdict == classifier.Allow {
			continue
		}
		add := func(origin *rule.Origin) {
			if ref := api.RefOf(origin); !slices.Contains(o.DeniedBy, ref) {
				o.DeniedBy = append(o.DeniedBy, ref)
			}
		}
		if out.Rule != classifier.NoRule {
			add(&s.before.Rule(out.Rule).Origin)
		}
		for _, i := range out.Isolations {
			add(&s.before.Isolation(i).Origin)
		}
	}
	return true
}

// unnamed is a protocol without ports that policies do not name (RFC 3692).
const unnamed flow.Proto = 253

// protocols are those to try: the common ones, those that rules name, and one more
// that stands for the others.
func protocols(rules []rule.L4, is4 bool) []flow.Proto {
	icmp := flow.ICMP
	if !is4 {
		icmp = flow.ICMPv6
	}
	out := []flow.Proto{flow.TCP, flow.UDP, flow.SCTP, icmp, unnamed}
	for i := range rules {
		if p := rules[i].Proto; p != flow.AnyProto && p != flow.ICMP && p != flow.ICMPv6 && !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

// sourcePort is that of a usual client.
const sourcePort = 40000

func sourcePorts(rules []rule.L4, proto flow.Proto) []uint16 {
	if !proto.HasPorts() {
		return []uint16{0}
	}
	var starts []uint16
	for i := range rules {
		if l := &rules[i]; l.SrcPorts != rule.AllPorts && (l.Proto == flow.AnyProto || l.Proto == proto) {
			starts = append(starts, 1, max(l.SrcPorts.First, 1))
			if l.SrcPorts.Last < 0xffff {
				starts = append(starts, l.SrcPorts.Last+1)
			}
		}
	}
	slices.Sort(starts)
	return append([]uint16{sourcePort}, slices.Compact(starts)...) // the usual one first
}

// portStarts are the numbers at which what rules say about a protocol's destination
// ports may change: sorted, the least possible one first.
func portStarts(rules []rule.L4, proto flow.Proto, dst *rule.Endpoint) []uint16 {
	least := uint16(0)
	switch {
	case proto.HasPorts():
		least = 1
	case proto != flow.ICMP && proto != flow.ICMPv6 && proto != flow.IGMP:
		return []uint16{0} // no ports
	}
	out := []uint16{least}
	add := func(first, last uint16) {
		out = append(out, max(first, least))
		if last < 0xffff {
			out = append(out, last+1)
		}
	}
	for i := range rules {
		l := &rules[i]
		switch {
		case l.Proto != flow.AnyProto && l.Proto != proto:
		case l.Name == "":
			add(l.Ports.First, l.Ports.Last)
		case dst != nil:
			for _, p := range dst.Ports {
				if p.Name == l.Name && p.Proto == proto {
					add(p.Port, p.Port)
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func portText(proto flow.Proto, first, last int) string {
	switch {
	case proto == unnamed:
		return "other protocols"
	case proto.HasPorts() && first <= 1 && last == 0xffff:
		return "all/" + proto.String()
	case proto.HasPorts() && first == last:
		return fmt.Sprintf("%d/%s", first, proto)
	case proto.HasPorts():
		return fmt.Sprintf("%d-%d/%s", first, last, proto)
	case proto != flow.ICMP && proto != flow.ICMPv6 && proto != flow.IGMP:
		return fmt.Sprintf("protocol %d", proto)
	case first == 0 && last == 0xffff:
		return proto.String()
	case first == last:
		return fmt.Sprintf("%s type %d code %d", proto, first>>8, first&0xff)
	}
	return fmt.Sprintf("%s types %d to %d", proto, first>>8, last>>8)
}
