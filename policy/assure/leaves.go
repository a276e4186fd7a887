package assure

import (
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// leaf is a selector without alternatives: all that policies can ask of a pod is
// which leaves it matches, beside relations to the other end.
type leaf struct {
	namespace, account  string
	nsLabels, podLabels rule.Labels
	subject, peer       bool // asked of the pod as the policy's subject, as the other end
}

// half is what policies can ask of one end of a claim.
type half struct {
	end      *claimEnd
	leaves   []leaf
	ids      map[string]int
	accounts []string // mentioned
}

// add makes leaves of a selector and returns the number of the first.
func (h *half) add(s *rule.Selector, subject bool) int {
	if s.None {
		return -1
	}
	key := fmt.Sprintf("%q %q %q %q", s.Namespace, s.ServiceAccount, s.NamespaceLabels, s.PodLabels)
	i, ok := h.ids[key]
	if !ok {
		i = len(h.leaves)
		h.ids[key] = i
		h.leaves = append(h.leaves, leaf{namespace: s.Namespace, account: s.ServiceAccount, nsLabels: s.NamespaceLabels, podLabels: s.PodLabels})
		if s.ServiceAccount != "" && !slices.Contains(h.accounts, s.ServiceAccount) {
			h.accounts = append(h.accounts, s.ServiceAccount)
		}
	}
	h.leaves[i].subject = h.leaves[i].subject || subject
	h.leaves[i].peer = h.leaves[i].peer || !subject
	for j := range s.AnyOf {
		h.add(&s.AnyOf[j], subject)
	}
	return i
}

// inNamespace reports whether the leaf may match pods of a namespace.
func (l *leaf) inNamespace(ns *namespaceKind) bool {
	return (l.namespace == "" || l.namespace == ns.name) && l.nsLabels.Matches(ns.labels)
}

// facts are what policies that may decide a claim look at.
type facts struct {
	from, to half

	sameNamespace bool            // some rule asks whether both ends are in one namespace
	nsKeys        map[string]bool // namespace labels that rules compare between the ends
	podKeys       map[string]bool // pod labels, likewise
	names         []string        // named ports
	blocks        []rule.IPBlock
	sets          []string
	services      []string // sets of rules to Services
	backends      []service
	ports         map[flow.Proto][]uint16
}

// mayMatch reports whether a selector may match a pod that an end is about.
// Namespaces are only looked at as far as it is cheap.
func (p *prover) mayMatch(s *rule.Selector, e *claimEnd) bool {
	if s.None || e.outside != nil {
		return false
	}
	if e.pods != nil {
		return slices.ContainsFunc(e.pods, func(pod *rule.Endpoint) bool { return s.Matches(pod) })
	}
	c := &e.selector
	if s.Namespace != "" && c.Namespace != "" && s.Namespace != c.Namespace {
		return false
	}
	if !compatible(s.PodLabels, c.PodLabels) {
		return false
	}
	if p.claim.Rights.Namespaces == AnyNamespaces {
		return compatible(s.NamespaceLabels, c.NamespaceLabels) && p.anyMayMatch(s, e)
	}
	if name := max(s.Namespace, c.Namespace); name != "" {
		l, ok := p.world.namespaces[name]
		return ok && s.NamespaceLabels.Matches(l) && c.NamespaceLabels.Matches(l) && p.anyMayMatch(s, e)
	}
	if len(s.NamespaceLabels)+len(c.NamespaceLabels) > 0 {
		found := false
		for _, l := range p.world.namespaces {
			found = found || s.NamespaceLabels.Matches(l) && c.NamespaceLabels.Matches(l)
		}
		if !found {
			return false
		}
	}
	return p.anyMayMatch(s, e)
}

func (p *prover) anyMayMatch(s *rule.Selector, e *claimEnd) bool {
	if len(s.AnyOf) == 0 {
		return true
	}
	return slices.ContainsFunc(s.AnyOf, func(o rule.Selector) bool { return p.mayMatch(&o, e) })
}

// compatible reports whether some labels match both.
func compatible(a, b rule.Labels) bool {
	if len(a) == 0 || len(b) == 0 {
		return true
	}
	return satisfiable(slices.Concat(a, b))
}

// gather collects the facts about a claim. Rules that cannot match any connection
// between the two ends say nothing about it.
func (p *prover) gather() {
	f := &p.facts
	f.from = half{end: &p.from, ids: map[string]int{}}
	f.to = half{end: &p.to, ids: map[string]int{}}
	f.nsKeys, f.podKeys, f.ports = map[string]bool{}, map[string]bool{}, map[flow.Proto][]uint16{}
	halves := func(d flow.Direction) (subject, peer *half) {
		if d == flow.Egress {
			return &f.from, &f.to
		}
		return &f.to, &f.from
	}
	for _, set := range p.sets {
		for i := range set.Isolations {
			x := &set.Isolations[i]
			if subject, _ := halves(x.Direction); x.Stage == rule.Enforce && p.mayMatch(&x.Subject, subject.end) {
				subject.add(&x.Subject, true)
			}
		}
		for i := range set.Rules {
			x := &set.Rules[i]
			subject, peer := halves(x.Direction)
			if x.Stage != rule.Enforce || !p.mayMatch(&x.Subject, subject.end) {
				continue
			}
			matters := false
			for j := range x.Peers {
				q := &x.Peers[j]
				if q.Kind == rule.PeerPods && !p.mayMatch(&q.Pods, peer.end) {
					continue
				}
				matters = true
				f.peer(q, peer)
			}
			if matters {
				subject.add(&x.Subject, true)
				for j := range x.L4 {
					f.l4(&x.L4[j])
				}
			}
		}
	}
}

func (f *facts) peer(q *rule.Peer, peer *half) {
	switch q.Kind {
	case rule.PeerPods:
		peer.add(&q.Pods, false)
		f.sameNamespace = f.sameNamespace || q.Relation.Namespace != rule.AnyNamespace
		for _, k := range q.Relation.NamespaceLabels.Keys {
			f.nsKeys[k] = true
		}
		for _, k := range q.Relation.PodLabels.Keys {
			f.podKeys[k] = true
		}
	case rule.PeerBlock:
		f.blocks = append(f.blocks, q.Block)
	case rule.PeerSet:
		if !slices.Contains(f.sets, q.Set) {
			f.sets = append(f.sets, q.Set)
		}
	case rule.PeerService:
		if !slices.Contains(f.services, q.Set) {
			f.services = append(f.services, q.Set)
		}
		if !slices.Contains(f.sets, q.Set) {
			f.sets = append(f.sets, q.Set)
		}
	}
}

func (f *facts) l4(l *rule.L4) {
	if l.Name != "" {
		if !slices.Contains(f.names, l.Name) {
			f.names = append(f.names, l.Name)
		}
		return
	}
	f.cut(l.Proto, l.Ports)
}

// cut divides a protocol's ports at the ends of a range.
func (f *facts) cut(proto flow.Proto, r rule.PortRange) {
	for _, q := range [...]flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
		if proto != flow.AnyProto && proto != q {
			continue
		}
		f.ports[q] = append(f.ports[q], r.First)
		if r.Last != 0xffff {
			f.ports[q] = append(f.ports[q], r.Last+1)
		}
	}
}

// starts returns the first port of every interval that policies do not divide.
func (f *facts) starts(proto flow.Proto) []uint16 {
	out := []uint16{1}
	for _, n := range f.ports[proto] {
		if n > 1 {
			out = append(out, n)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
