package lint

import (
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
)

// overridden: a NetworkPolicy whose pods all are decided about by one stronger
// rule, for every pod at the other side and every port. What it says about
// addresses outside the cluster still counts.
func (c *checker) overridden() {
	var final [2][]int // direction → rules before the NetworkPolicies that may end the search
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		if r.Order.Band < rule.BandNetworkPolicy && r.Stage == rule.Enforce && (r.Action == rule.Skip || everything(r)) {
			final[r.Direction] = append(final[r.Direction], i)
		}
	}
	for i := range c.set.Isolations {
		iso := &c.set.Isolations[i]
		p := c.of(&iso.Origin)
		if p == nil || iso.Band != rule.BandNetworkPolicy || iso.Stage != rule.Enforce {
			continue
		}
		by := c.overrides(final[iso.Direction], c.subjects[c.isolationSubject[i]].pods)
		if by == nil {
			continue
		}
		c.taken[direction{p, iso.Direction}] = true
		c.warn(p.object, subjectPath(p.object),
			fmt.Sprintf("%s between pods is decided by %s %s (%s) for every pod this policy selects",
				iso.Direction, by.Origin.Kind, by.Origin.Name, by.Origin.RuleName(by.Direction)+": "+by.Origin.Word),
			"only what this policy says about addresses outside the cluster has an effect")
	}
}

// overrides returns the rule before the NetworkPolicies that is final for all
// subjects and everything pods may send, nil if there is none. A Skip that
// concerns one of them ends the search: behind it nothing is obvious.
func (c *checker) overrides(rules []int, subjects bits) *rule.Rule {
	if subjects.empty() {
		return nil
	}
	for _, i := range rules {
		r := &c.set.Rules[i]
		switch {
		case r.Action == rule.Skip:
			if subjects.meets(c.podsOf(i)) {
				return nil
			}
		case subjects.within(c.podsOf(i)):
			return r
		}
	}
	return nil
}

// everything reports whether a rule matches all traffic with all pods.
func everything(r *rule.Rule) bool {
	return slices.Contains(r.L4, rule.AnyL4) && slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
		return p.Kind == rule.PeerAny || p.Kind == rule.PeerPods && p.Relation.IsZero() && p.Pods.String() == "{}"
	})
}
