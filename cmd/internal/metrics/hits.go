package metrics

import (
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// matches reports hits by rule. A rule that never decided has no series: tens of
// thousands of zeros would take the places of those that do.
func (c *Collector) matches(s sink) {
	rules, err := c.cfg.Hits()
	if err != nil {
		return // a worker is stuck: other metrics say so
	}
	id := func(r *hits.Rule) ruleID {
		p := &r.Policy
		o := rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, Rule: r.Name, Index: r.Index}
		return ruleID{o.Ref(), r.Direction.String(), o.RuleName(r.Direction)}
	}
	weight := map[ruleID]uint64{}
	never := 0
	for i := range rules {
		if rules[i].Hits > 0 {
			weight[id(&rules[i])] += rules[i].Hits
		} else {
			never++
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.matched.admit(weight)
	sums, others := map[[4]string]uint64{}, uint64(0)
	for i := range rules {
		r := &rules[i]
		if r.Hits == 0 {
			continue
		}
		k := id(r)
		if !c.matched.keys[k] {
			others += r.Hits
			continue
		}
		sums[[4]string{k.policy, k.direction, k.rule, r.Stage.String()}] += r.Hits
	}
	// Rules that are removed take their hits with them; a counter must not go back.
	c.others = max(c.others, others)
	if c.others > 0 {
		s.counter(ruleMatches, c.others, other, "", "", "")
	}
	for _, v := range sorted(sums) {
		s.counter(ruleMatches, v.packets, v.labels[:]...)
	}
	s.gauge(unmatched, float64(never))
}
