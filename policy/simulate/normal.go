package simulate

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/inventory"
)

// line is one rule of the place NetworkPolicy and Cilium's policies share.
type line struct {
	obj     *api.Object
	order   int32
	deny    bool
	auth    bool // needs authentication, which nobody here can do
	index   int
	name    string
	matches answer
}

// normalPolicies answers for NetworkPolicy v1 and Cilium policies together. All
// rules of the policies that select the subject are sorted by order, a
// NetworkPolicy's being 0; at the same order a deny is stronger than an allow
// (S3-10, S3-13, S3-14). The first match decides. Without one, who is isolated
// by any of the policies is cut off.
//
// Of several rules with the same answer the first by policy name and rule index
// is named.
func (s *Simulator) normalPolicies(c *connection, d flow.Direction, subject *inventory.Pod) (o Outcome, done bool) {
	lines, isolating := s.networkPolicies(c, d, subject)
	for i := range s.cilium {
		r := &s.cilium[i]
		if !s.ciliumSubject(r, subject) {
			continue
		}
		if r.isolates[d] {
			isolating = append(isolating, ref(r.obj))
		}
		for _, l := range r.lines[d] {
			matches := c.ask(func(c *connection) bool { return l.matches(c, d, subject) })
			lines = append(lines, line{r.obj, r.order, l.deny, l.auth, l.index, l.name, matches})
		}
	}
	slices.SortStableFunc(lines, func(a, b line) int {
		return cmp.Or(cmp.Compare(a.order, b.order), cmp.Compare(denyFirst(a), denyFirst(b)), strings.Compare(qualified(a.obj), qualified(b.obj)),
			cmp.Compare(a.index, b.index), strings.Compare(ref(a.obj), ref(b.obj)))
	})
	i, a := first(len(lines), func(i int) answer { return lines[i].matches }, func(i int) bool { return !lines[i].deny })
	switch {
	case a == no:
		return isolated(isolating)
	case a == inDoubt:
		return doubted(), true
	case lines[i].deny:
		return decided(classifier.Drop, lines[i].obj, d, lines[i].name, lines[i].index), true
	}
	// Authentication is not a verdict: a rule that asks for it does so for every
	// rule that allows the connection, whatever their order (S3-32, S3-34). Nobody
	// here can authenticate.
	if n := slices.IndexFunc(lines, func(l line) bool { return l.auth && l.matches != no }); n >= 0 {
		if lines[n].matches == inDoubt {
			return doubted(), true
		}
		o = decided(classifier.Drop, lines[n].obj, d, lines[n].name, lines[n].index)
		o.Reason = classifier.ReasonAuthRequired
		return o, true
	}
	return decided(classifier.Allow, lines[i].obj, d, lines[i].name, lines[i].index), true
}

func denyFirst(l line) int {
	if l.deny {
		return 0
	}
	return 1
}

func qualified(o *api.Object) string { return o.Namespace + "/" + o.Name }

// isolated is the answer when no rule matched: dropped by whoever isolates, if
// anybody does. Each policy is named once.
func isolated(by []string) (o Outcome, done bool) {
	if len(by) == 0 {
		return Outcome{}, false
	}
	slices.Sort(by)
	return Outcome{Verdict: classifier.Drop, Reason: classifier.ReasonIsolation, Index: -1, Isolating: slices.Compact(by)}, true
}
