package antrea

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// conflictBudget bounds the comparisons one call makes, so that thousands of
// policies of one priority cost about a second and no more.
const conflictBudget = 20_000_000

// conflicts warns about rules of two policies that stand on the same step (tier,
// policy priority and rule index, S2-64, S2-68), say different things, and both
// match a connection that can be named (S4-26). The documents leave open which of
// them decides; here the strictest does.
//
// owners has the object of each rule of set. Each pair of policies is reported
// once, at the one that comes later, with the first witness found.
func conflicts(set *rule.Set, owners []*api.Object, inv *inventory.Snapshot) diag.List {
	type step struct {
		direction flow.Direction
		order     rule.Order
	}
	steps := map[step][]int{}
	for i := range set.Rules {
		k := step{set.Rules[i].Direction, set.Rules[i].Order}
		steps[k] = append(steps[k], i)
	}
	var contested []step
	for k, at := range steps {
		if slices.ContainsFunc(at, func(i int) bool { return set.Rules[i].Action != set.Rules[at[0]].Action }) {
			contested = append(contested, k)
		}
	}
	if len(contested) == 0 {
		return diag.List{}
	}
	slices.SortFunc(contested, func(a, b step) int {
		return cmp.Or(rule.Compare(&set.Rules[steps[a][0]], &set.Rules[steps[b][0]]), cmp.Compare(a.direction, b.direction))
	})
	s := newSearch(set, inv)
	seen := map[[2]*api.Object]bool{}
	var findings diag.List
	for _, k := range contested {
		at := steps[k]
		slices.SortStableFunc(at, func(a, b int) int { return rule.Compare(&set.Rules[a], &set.Rules[b]) })
		s.step(set.Rules, at, func(i, j int) bool { // whether the pair still matters
			return owners[i] != owners[j] && !seen[[2]*api.Object{owners[i], owners[j]}] && !seen[[2]*api.Object{owners[j], owners[i]}]
		}, func(i, j int, witness string) {
			a, b := &set.Rules[i], &set.Rules[j]
			seen[[2]*api.Object{owners[i], owners[j]}] = true
			finding := owners[j].Finding("spec.priority", fmt.Sprintf(
				"%s has the same tier and priority, and rules %s (%s) there and %s (%s) here both match %s: %s decides, %s",
				owners[i].Ref(), a.RuleName(), a.Origin.Word, b.RuleName(), b.Origin.Word, witness, a.Origin.Word, why(a, b)),
				"give each policy its own priority")
			finding.Code = diag.PriorityConflict
			findings.Warnings = append(findings.Warnings, finding)
		})
	}
	if s.budget <= 0 {
		findings.Warnings = append(findings.Warnings, diag.Diagnostic{
			Message: "too many Antrea rules of equal priority to compare all of them: conflicts may be missing here",
			Hint:    "give policies different priorities",
		})
	}
	return findings
}

// why says what puts a before b when nothing else tells them apart.
func why(a, b *rule.Rule) string {
	stops := func(r *rule.Rule) bool { return r.Action == rule.Deny || r.Action == rule.Reject }
	if stops(a) && stops(b) {
		return "by kind, namespace and name"
	}
	return "as the stricter one"
}

// search looks for connections two rules both match.
type search struct {
	world  *rule.World
	kinds  []*rule.Endpoint // one endpoint of each kind selectors can tell apart
	kind   []candidate      // two of each kind as peers: one may be the subject
	pods   []candidate      // every endpoint as a peer
	budget int
}

func newSearch(set *rule.Set, inv *inventory.Snapshot) *search {
	s := &search{world: inv.World(""), budget: conflictBudget}
	inv.FillSets(s.world, set)
	seen := map[string]int{}
	for i := range s.world.Endpoints {
		e := &s.world.Endpoints[i]
		// Maps print in the order of their keys. The namespace stands for its labels.
		k := fmt.Sprintf("%q %q %v %v %v", e.Namespace, e.ServiceAccount, e.HostNetwork, e.Labels, e.Ports)
		switch seen[k]++; seen[k] {
		case 1:
			s.kinds = append(s.kinds, e)
			s.kind = append(s.kind, podCandidate(e))
		case 2:
			s.kind = append(s.kind, podCandidate(e))
		}
		s.pods = append(s.pods, podCandidate(e))
	}
	return s
}

// somewhere is an address outside that no cluster uses, for rules that match
// everybody (RFC 5737, RFC 3849).
var somewhere = []netip.Addr{netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")}

// candidate is who a peer could be.
type candidate struct {
	name  string
	pod   *rule.Endpoint // nil for an address outside
	addrs []netip.Addr
}

// contest is a pair of rules under comparison.
type contest struct {
	peers   []candidate // shared; not modified
	outside []candidate
	left    int // subjects still worth trying
}

// step compares the rules of one step, given by index in order of precedence.
// open says whether a pair still needs an answer, report takes one.
func (s *search) step(rules []rule.Rule, at []int, open func(i, j int) bool, report func(i, j int, witness string)) {
	contests := map[[2]int]*contest{}
	var selecting []int
	for _, e := range s.kinds {
		selecting = selecting[:0]
		for _, i := range at {
			if rules[i].Subject.Matches(e) {
				selecting = append(selecting, i)
			}
		}
		s.budget -= len(at)
		for n, j := range selecting {
			for _, i := range selecting[:n] {
				if s.budget--; s.budget <= 0 {
					return
				}
				if rules[i].Action == rules[j].Action || !open(i, j) {
					continue
				}
				c := contests[[2]int{i, j}]
				if c == nil {
					c = s.contest(&rules[i], &rules[j])
					contests[[2]int{i, j}] = c
				}
				if witness, ok := s.witness(&rules[i], &rules[j], e, c); ok {
					report(i, j, witness)
				}
			}
		}
	}
}

func (s *search) contest(a, b *rule.Rule) *contest {
	if !l4Overlap(a, b) {
		return &contest{}
	}
	c := &contest{left: 2}
	c.peers, c.outside = s.candidates(a, b)
	if dependsOnSubject(a) || dependsOnSubject(b) {
		c.left = len(s.kinds)
	}
	return c
}

// dependsOnSubject reports whether who is meant by peers or ports differs from
// subject to subject. Where it does not, a second subject is tried only because
// the first may be the one peer.
func dependsOnSubject(r *rule.Rule) bool {
	return slices.ContainsFunc(r.Peers, func(p rule.Peer) bool { return !p.Relation.IsZero() }) ||
		slices.ContainsFunc(r.L4, func(l rule.L4) bool { return l.Name != "" })
}

// witness names a connection of a subject that both rules match.
func (s *search) witness(a, b *rule.Rule, subject *rule.Endpoint, c *contest) (string, bool) {
	if c.left == 0 {
		return "", false
	}
	c.left--
	for _, peers := range [][]candidate{c.peers, c.outside} {
		for i := range peers {
			if s.budget--; s.budget <= 0 {
				return "", false
			}
			if text, ok := s.connection(a, b, subject, &peers[i]); ok {
				return text, true
			}
		}
	}
	return "", false
}

// candidates lists peers worth asking about: pods, a few of a kind unless addresses
// count, and the first address of every block and set.
func (s *search) candidates(a, b *rule.Rule) (pods, outside []candidate) {
	pods = s.kind
	add := func(x netip.Addr) { outside = append(outside, candidate{name: x.String(), addrs: []netip.Addr{x}}) }
	for _, r := range []*rule.Rule{a, b} {
		for i := range r.Peers {
			switch p := &r.Peers[i]; p.Kind {
			case rule.PeerBlock:
				pods = s.pods
				add(p.Block.Prefix.Addr())
			case rule.PeerSet, rule.PeerService:
				pods = s.pods
				for _, prefix := range s.world.Sets[p.Set] {
					add(prefix.Addr())
				}
			}
		}
	}
	for _, x := range somewhere {
		add(x)
	}
	return pods, outside
}

func podCandidate(e *rule.Endpoint) candidate {
	return candidate{name: e.Namespace + "/" + e.Name, pod: e, addrs: e.Addrs}
}

// connection looks for protocol and ports on which both rules match subject and
// peer.
func (s *search) connection(a, b *rule.Rule, subject *rule.Endpoint, peer *candidate) (string, bool) {
	if peer.pod != nil && (peer.pod.HostNetwork || peer.pod.Namespace == subject.Namespace && peer.pod.Name == subject.Name) {
		return "", false
	}
	dst := subject
	if a.Direction == flow.Egress {
		dst = peer.pod
	}
	for _, mine := range subject.Addrs {
		for _, theirs := range peer.addrs {
			if mine.Is4() != theirs.Is4() || !s.peerMatches(a, subject, peer, theirs) || !s.peerMatches(b, subject, peer, theirs) {
				continue
			}
			for _, k := range keys(a, b, dst) {
				if k.Proto == flow.ICMP && mine.Is6() || k.Proto == flow.ICMPv6 && mine.Is4() {
					continue
				}
				if l4Matches(a, k, dst) && l4Matches(b, k, dst) {
					from, to := peer.name, subject.Namespace+"/"+subject.Name
					if a.Direction == flow.Egress {
						from, to = to, from
					}
					l := rule.L4{Proto: k.Proto, Ports: rule.PortRange{First: k.DstPort, Last: k.DstPort}, SrcPorts: rule.AllPorts}
					if k.SrcPort != 0 {
						l.SrcPorts = rule.PortRange{First: k.SrcPort, Last: k.SrcPort}
					}
					return fmt.Sprintf("%s > %s %s", from, to, l.String()), true
				}
			}
		}
	}
	return "", false
}

func (s *search) peerMatches(r *rule.Rule, subject *rule.Endpoint, peer *candidate, addr netip.Addr) bool {
	for i := range r.Peers {
		switch p := &r.Peers[i]; p.Kind {
		case rule.PeerAny:
			return true
		case rule.PeerPods:
			if peer.pod != nil && p.Pods.Matches(peer.pod) && p.Relation.Holds(subject, peer.pod) {
				return true
			}
		case rule.PeerBlock:
			if p.Block.Contains(addr) {
				return true
			}
		case rule.PeerSet, rule.PeerService:
			if slices.ContainsFunc(s.world.Sets[p.Set], func(x netip.Prefix) bool { return x.Contains(addr) }) {
				return true
			}
		}
	}
	return false
}

// l4Overlap is a quick no: whether any two alternatives share a protocol.
func l4Overlap(a, b *rule.Rule) bool {
	return slices.ContainsFunc(a.L4, func(x rule.L4) bool {
		return slices.ContainsFunc(b.L4, func(y rule.L4) bool {
			return x.Proto == flow.AnyProto || y.Proto == flow.AnyProto || x.Proto == y.Proto
		})
	})
}

// keys lists protocol and ports at which the two could meet: if they do, one of
// them begins there.
func keys(a, b *rule.Rule, dst *rule.Endpoint) []flow.Key {
	var out []flow.Key
	sources := []uint16{0}
	var items []rule.L4
	for _, r := range []*rule.Rule{a, b} {
		items = append(items, r.L4...)
	}
	for _, l := range items {
		if l.SrcPorts != rule.AllPorts {
			sources = append(sources, l.SrcPorts.First)
		}
	}
	add := func(proto flow.Proto, port uint16) {
		for _, src := range sources {
			out = append(out, flow.Key{Proto: proto, DstPort: port, SrcPort: src})
		}
	}
	for _, l := range items {
		proto, port := l.Proto, l.Ports.First
		if proto == flow.AnyProto {
			proto = flow.TCP
		}
		if proto.HasPorts() && l.Ports == rule.AllPorts {
			port = 80 // any will do; this one reads well
		}
		if l.Name == "" {
			add(proto, port)
			continue
		}
		if dst == nil {
			continue
		}
		for _, p := range dst.Ports {
			if p.Name == l.Name {
				add(p.Proto, p.Port)
			}
		}
	}
	return out
}

func l4Matches(r *rule.Rule, k flow.Key, dst *rule.Endpoint) bool {
	return slices.ContainsFunc(r.L4, func(l rule.L4) bool {
		switch {
		case l.Proto != flow.AnyProto && l.Proto != k.Proto, !l.SrcPorts.Contains(k.SrcPort):
			return false
		case l.Name == "":
			return l.Ports.Contains(k.DstPort)
		}
		return dst != nil && slices.ContainsFunc(dst.Ports, func(p rule.NamedPort) bool {
			return p.Name == l.Name && p.Proto == k.Proto && p.Port == k.DstPort
		})
	})
}
