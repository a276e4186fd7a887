package lint

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
)

// shadowed: rules that never decide, because a stronger one matches everything
// they match.
func (c *checker) shadowed() {
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		p := c.of(&r.Origin)
		if p == nil || r.Stage != rule.Enforce || len(r.Peers) == 0 || c.taken[direction{p, r.Direction}] {
			continue
		}
		if q := c.before(i, r); q != nil && !c.lost[lostTo{i, api.RefOf(&q.Origin)}] {
			c.warn(p.object, rulePath(r), fmt.Sprintf("never decides: %s (%s) matches everything this rule matches, and is stronger", ruleRef(q), q.Origin.Word),
				"remove one of them, or change their order")
		}
	}
}

// direction is one policy's ingress or egress.
type direction struct {
	policy    *policy
	direction flow.Direction
}

// before returns the strongest rule before the i-th that keeps r, which has the
// i-th rule's place, from ever deciding. nil when there is none by itself.
func (c *checker) before(i int, r *rule.Rule) *rule.Rule {
	subject := c.ruleSubject[i]
	for _, n := range c.stronger(subject) {
		for _, j := range c.rulesOf[n] {
			if j >= i {
				break
			}
			if q := &c.set.Rules[j]; q.Direction == r.Direction && c.hides(q, j, r) {
				return q
			}
		}
	}
	return nil
}

// hides reports whether q, whose subjects include those of r, keeps r from
// deciding.
func (c *checker) hides(q *rule.Rule, at int, r *rule.Rule) bool {
	switch {
	case q.Stage != rule.Enforce && r.Stage == rule.Enforce:
		return false
	case q.Action == rule.Skip && !q.Skip.Has(r.Order.Band):
		return false
	case q.Order.Band == r.Order.Band && !ordered(q.Order.Band) && q.Action == r.Action:
		return false // they say the same and have no order: nothing to change
	case r.Auth && q.Action == rule.Allow && q.Order.Band == r.Order.Band:
		return false // what q allows, r drops: it needs authentication (S3-32…S3-34)
	case r.ToServices() && !q.ToServices() && !slices.Contains(q.L4, rule.AnyL4):
		return false // the ports of a Service are not those of its pods
	case !coversL4(q.L4, r.L4) || !coversPeers(q.Peers, r.Peers):
		return false
	}
	// A Skip before q that leaves q out and not r takes some flows past q.
	for _, j := range c.skips[r.Direction] {
		if j >= at {
			break
		}
		if s := c.set.Rules[j].Skip; s.Has(q.Order.Band) && !s.Has(r.Order.Band) {
			return false
		}
	}
	return true
}

// ordered reports whether rules of a band come one after the other, rather than
// adding up.
func ordered(b rule.Band) bool {
	switch b {
	case rule.BandClusterEmpower, rule.BandClusterDeny, rule.BandClusterAllow, rule.BandNetworkPolicy, rule.BandClusterDefault:
		return false
	}
	return true
}

// stronger returns the subjects that include subject n, itself among them.
func (c *checker) stronger(n int) []int {
	if c.covering == nil {
		c.covering = make([][]int, len(c.subjects))
		c.rulesOf = make([][]int, len(c.subjects))
		for i, s := range c.ruleSubject {
			c.rulesOf[s] = append(c.rulesOf[s], i)
			if r := &c.set.Rules[i]; r.Action == rule.Skip {
				c.skips[r.Direction] = append(c.skips[r.Direction], i)
			}
		}
	}
	if c.covering[n] == nil {
		for m := range c.subjects {
			if m == n || c.subjects[n].pods.within(c.subjects[m].pods) && coversPods(c.subjects[m].selector, c.subjects[n].selector) {
				c.covering[n] = append(c.covering[n], m)
			}
		}
	}
	return c.covering[n]
}

// coversPods reports whether a selects every pod, of any cluster, that b selects.
// It may miss that it does, never the other way round.
func coversPods(a, b *rule.Selector) bool {
	if b.None {
		return true
	}
	if a.None || a.Namespace != "" && a.Namespace != b.Namespace || a.ServiceAccount != "" && a.ServiceAccount != b.ServiceAccount {
		// An alternative of b may be narrower than b itself.
		return !a.None && len(b.AnyOf) > 0 && eachAlternative(a, b)
	}
	if coversLabels(a.NamespaceLabels, b.NamespaceLabels) && coversLabels(a.PodLabels, b.PodLabels) && coversAnyOf(a, b) {
		return true
	}
	return len(b.AnyOf) > 0 && eachAlternative(a, b)
}

// coversAnyOf looks at the alternatives alone, given that a's own conditions hold.
func coversAnyOf(a, b *rule.Selector) bool {
	if len(a.AnyOf) == 0 {
		return true
	}
	plain := *b
	plain.AnyOf = nil
	return slices.ContainsFunc(a.AnyOf, func(alt rule.Selector) bool { return coversPods(&alt, &plain) })
}

// eachAlternative reports whether a covers every alternative of b by itself.
func eachAlternative(a, b *rule.Selector) bool {
	for i := range b.AnyOf {
		alt := b.AnyOf[i] // narrower with b's own conditions, which only helps a
		if alt.Namespace == "" {
			alt.Namespace = b.Namespace
		}
		if alt.ServiceAccount == "" {
			alt.ServiceAccount = b.ServiceAccount
		}
		alt.NamespaceLabels = slices.Concat(alt.NamespaceLabels, b.NamespaceLabels)
		alt.PodLabels = slices.Concat(alt.PodLabels, b.PodLabels)
		if !coversPods(a, &alt) {
			return false
		}
	}
	return true
}

// coversLabels reports whether every requirement of a follows from one of b.
func coversLabels(a, b rule.Labels) bool {
	for _, want := range a {
		if !slices.ContainsFunc(b, func(have rule.Requirement) bool { return implies(have, want) }) {
			return false
		}
	}
	return true
}

// implies reports whether labels that fulfil have fulfil want.
func implies(have, want rule.Requirement) bool {
	if have.Key != want.Key {
		return false
	}
	among := func(values, list []string) bool {
		return !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(list, v) })
	}
	switch want.Op {
	case rule.In:
		return have.Op == rule.In && among(have.Values, want.Values)
	case rule.Exists:
		return have.Op == rule.In || have.Op == rule.Exists
	case rule.NotExists:
		return have.Op == rule.NotExists
	case rule.NotIn:
		switch have.Op {
		case rule.NotExists:
			return true
		case rule.NotIn:
			return among(want.Values, have.Values)
		case rule.In:
			return !slices.ContainsFunc(have.Values, func(v string) bool { return slices.Contains(want.Values, v) })
		}
	}
	return false
}

func coversPeers(a, b []rule.Peer) bool {
	for i := range b {
		if !slices.ContainsFunc(a, func(p rule.Peer) bool { return coversPeer(&p, &b[i]) }) {
			return false
		}
	}
	return true
}

func coversPeer(a, b *rule.Peer) bool {
	if a.Kind == rule.PeerAny {
		return true
	}
	if a.Kind != b.Kind {
		return false
	}
	switch a.Kind {
	case rule.PeerPods:
		return (a.Relation.IsZero() || a.Relation.String() == b.Relation.String()) && coversPods(&a.Pods, &b.Pods)
	case rule.PeerBlock:
		return coversBlock(a.Block, b.Block)
	case rule.PeerSet, rule.PeerService:
		return a.Set == b.Set
	}
	return false
}

func coversBlock(a, b rule.IPBlock) bool {
	if a.NoPods && !b.NoPods || !inside(b.Prefix, a.Prefix) {
		return false
	}
	for _, hole := range a.Except {
		if hole.Overlaps(b.Prefix) && !slices.ContainsFunc(b.Except, func(e netip.Prefix) bool { return inside(hole, e) }) {
			return false
		}
	}
	return true
}

// inside reports whether every address of p is in o.
func inside(p, o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) }

func coversL4(a, b []rule.L4) bool {
	for i := range b {
		if !slices.ContainsFunc(a, func(l rule.L4) bool { return coversPorts(&l, &b[i]) }) {
			return false
		}
	}
	return true
}

func coversPorts(a, b *rule.L4) bool {
	if a.Proto != flow.AnyProto && a.Proto != b.Proto || !within(b.SrcPorts, a.SrcPorts) {
		return false
	}
	if a.Name != "" {
		return a.Name == b.Name && a.Proto == b.Proto
	}
	if b.Name != "" {
		return a.Ports == rule.AllPorts
	}
	return within(b.Ports, a.Ports)
}

func within(r, o rule.PortRange) bool { return o.First <= r.First && r.Last <= o.Last }
