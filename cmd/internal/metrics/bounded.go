package metrics

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// other is the policy of what has no series of its own.
const other = "other"

// series is one line of a metric with four labels.
type series struct {
	labels  [4]string
	packets uint64
}

// policyLabel names the policy of a hit as matrix and explain do; of a default deny
// all policies that isolate; "" for none.
func policyLabel(h *audit.Hit) string {
	p := &h.Policy
	if p.Kind == "" {
		return h.Isolating
	}
	o := rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}
	return o.Ref()
}

// named are the keys that have series of their own: the first most that were
// seen, at first sight those with the most packets. A key keeps its place for
// good, because a counter that moves between two series is wrong in both.
type named[K comparable] struct {
	most int
	keys map[K]bool
}

// admit gives places to keys that have none while there are places. Names
// decide ties, so that equal daemons choose alike.
func (n *named[K]) admit(weight map[K]uint64) {
	if len(n.keys) >= n.most {
		return
	}
	var list []K
	for k := range weight {
		if !n.keys[k] {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b K) int {
		return cmp.Or(cmp.Compare(weight[b], weight[a]), cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)))
	})
	for _, k := range list[:min(n.most-len(n.keys), len(list))] {
		n.keys[k] = true
	}
}

// ruleID names a rule in labels.
type ruleID struct{ policy, direction, rule string }

// verdictsOf adds hits up by verdict, direction, band and policy.
func verdictsOf(hits []audit.Hit, known *named[string]) []series {
	weight := map[string]uint64{}
	for i := range hits {
		if name := policyLabel(&hits[i]); name != "" {
			weight[name] += hits[i].Packets
		}
	}
	known.admit(weight)
	sums := map[[4]string]uint64{}
	for i := range hits {
		h := &hits[i]
		policy := policyLabel(h)
		if (policy != "" && !known.keys[policy]) || h.Reason == other {
			policy = other
		}
		sums[[4]string{h.Verdict, h.Direction, h.Band, policy}] += h.Packets
	}
	return sorted(sums)
}

// rulesOf is the same for rules. Hits without a rule are not counted.
func rulesOf(hits []audit.Hit, known *named[ruleID]) []series {
	id := func(h *audit.Hit) ruleID {
		name := h.Rule
		if name == "" {
			name = fmt.Sprintf("%s[%d]", h.Direction, h.Index)
		}
		return ruleID{policyLabel(h), h.Direction, name}
	}
	weight := map[ruleID]uint64{}
	for i := range hits {
		if hits[i].Index >= 0 {
			weight[id(&hits[i])] += hits[i].Packets
		}
	}
	known.admit(weight)
	sums := map[[4]string]uint64{}
	for i := range hits {
		h := &hits[i]
		if h.Index < 0 {
			continue
		}
		r := id(h)
		if !known.keys[r] {
			r = ruleID{policy: other, direction: h.Direction}
		}
		sums[[4]string{r.policy, r.direction, r.rule, h.Verdict}] += h.Packets
	}
	return sorted(sums)
}

func sorted(sums map[[4]string]uint64) []series {
	out := make([]series, 0, len(sums))
	for labels, n := range sums {
		out = append(out, series{labels, n})
	}
	slices.SortFunc(out, func(a, b series) int { return slices.Compare(a.labels[:], b.labels[:]) })
	return out
}
