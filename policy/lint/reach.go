package lint

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// overridden: what NetworkPolicies and Cilium's policies say about connections that
// stronger policies decide (S0-67, S0-69). Three findings, with a connection for
// which it is so:
//
//	wholly   one rule decides all connections with pods, for all subjects
//	taken    other policies refuse connections that a rule allows
//	opened   other policies allow connections that the policy's isolation refuses: a
//	         note, since administrators' Allow rules are often written for that
func (c *checker) overridden() {
	if !slices.ContainsFunc(c.set.Rules, func(r rule.Rule) bool {
		return r.Order.Band < rule.BandNetworkPolicy || r.Order.Band == rule.BandNetworkPolicy && r.Action != rule.Allow
	}) {
		return
	}
	world := c.inv.World("")
	c.inv.FillSets(world, c.set)
	t := newTaker(c.set, world)
	whole := c.wholly()
	examples := map[direction]take{}
	// partOf reports whether a connection belongs to what is overridden as a whole.
	partOf := func(d direction, w take) bool {
		by, ok := whole[d]
		if ok = ok && api.RefOf(&c.set.Rules[by].Origin) == api.RefOf(&c.set.Rules[w.by].Origin); ok {
			if _, have := examples[d]; !have {
				w.by = by
				examples[d] = w
			}
		}
		return ok
	}
	c.takenRules(t, partOf)
	c.openedIsolations(t, partOf)
	for d, by := range whole {
		c.taken[d] = true
		w, example := examples[d], ""
		if w.from == nil {
			w.by = by
		} else {
			example = ", for example " + w.String()
		}
		c.tellOverride(d.policy, subjectPath(d.policy.object), fmt.Sprintf("%s between pods is decided by %s for every pod this policy selects%s",
			d.direction, strongerRef(&c.set.Rules[by]), example),
			"only what this policy says about addresses outside the cluster has an effect", w, &c.found.Warnings)
	}
	if t.cut {
		c.found.Warnings = append(c.found.Warnings, diag.Diagnostic{
			Message: "the search for overridden rules was ended early: not all of them are listed",
			Hint:    "check the policies of fewer namespaces at a time",
		})
	}
}

// wholly finds the directions of policies that one rule decides about completely,
// and that rule.
func (c *checker) wholly() map[direction]int {
	var final [2][]int // direction → rules before the NetworkPolicies that may end the search
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		if r.Order.Band < rule.BandNetworkPolicy && r.Stage == rule.Enforce && (r.Action == rule.Skip || everything(r)) {
			final[r.Direction] = append(final[r.Direction], i)
		}
	}
	out := map[direction]int{}
	for i := range c.set.Isolations {
		iso := &c.set.Isolations[i]
		p := c.of(&iso.Origin)
		if p == nil || iso.Band != rule.BandNetworkPolicy || iso.Stage != rule.Enforce {
			continue
		}
		if by := c.overrides(final[iso.Direction], c.subjects[c.isolationSubject[i]].pods); by >= 0 {
			out[direction{p, iso.Direction}] = by
		}
	}
	return out
}

// takenRules: rules that allow connections which stronger ones refuse.
func (c *checker) takenRules(t *taker, partOf func(direction, take) bool) {
	for i := range c.set.Rules {
		r := &c.set.Rules[i]
		p := c.of(&r.Origin)
		if p == nil || r.Order.Band != rule.BandNetworkPolicy || r.Action != rule.Allow || r.Stage != rule.Enforce {
			continue
		}
		found, all := t.taken(i)
		for _, w := range found {
			if partOf(direction{p, r.Direction}, w) {
				continue
			}
			by := &c.set.Rules[w.by]
			c.lost[lostTo{i, api.RefOf(&by.Origin)}] = true
			what, hint := "part of what this rule allows", "the stronger policy decides first: change it, or remove from this rule what it denies"
			if all && len(found) == 1 {
				what, hint = "everything this rule allows", "the stronger policy decides first: change it, or remove this rule"
			}
			c.tellOverride(p, rulePath(r), fmt.Sprintf("%s is denied by %s, for example %s", what, strongerRef(by), w), hint, w, &c.found.Warnings)
		}
	}
}

// openedIsolations: directions in which a policy isolates pods, and stronger rules
// allow what it refuses.
func (c *checker) openedIsolations(t *taker, partOf func(direction, take) bool) {
	for i := range c.set.Isolations {
		iso := &c.set.Isolations[i]
		p := c.of(&iso.Origin)
		if p == nil || iso.Band != rule.BandNetworkPolicy || iso.Stage != rule.Enforce {
			continue
		}
		seen := map[api.Ref]bool{}
		t.subjectsOf(&iso.Subject).each(func(k int) {
			for _, w := range t.opened(k, iso.Direction) {
				by := &c.set.Rules[w.by]
				if other := api.RefOf(&by.Origin); !seen[other] && !partOf(direction{p, iso.Direction}, w) {
					seen[other] = true
					c.tellOverride(p, subjectPath(p.object), fmt.Sprintf("some %s that this policy denies is allowed by %s, for example %s", iso.Direction, strongerRef(by), w),
						"the stronger policy decides first: change it if these connections must be denied", w, &c.found.Notes)
				}
			}
		})
	}
}

// lostTo is a rule, by its index, and a policy that refuses what it allows.
type lostTo struct {
	rule int
	to   api.Ref
}

// tellOverride adds a finding about an override to a list and says in it, for
// programs, by whom and which connection.
func (c *checker) tellOverride(p *policy, path, message, hint string, w take, list *[]diag.Diagnostic) {
	by := &c.set.Rules[w.by]
	d := p.object.Finding(path, message, hint)
	d.Override = diag.Override{By: api.RefOf(&by.Origin), Rule: by.RuleName(), Action: by.Origin.Word}
	if w.from != nil {
		d.Override.From, d.Override.To = w.from.String(), w.to.String()
		d.Override.Port, d.Override.ICMP, d.Override.SourcePort = w.port()
	}
	*list = append(*list, d)
}

// strongerRef names a rule that overrides others.
func strongerRef(r *rule.Rule) string {
	return fmt.Sprintf("%s (%s: %s)", api.RefOf(&r.Origin), r.RuleName(), r.Origin.Word)
}

// port describes the connection as the flags --port, --icmp and --source-port of
// "tierwall explain" do; what they need not say is empty.
func (w take) port() (port, icmp string, source uint16) {
	k := w.key
	switch {
	case k.Proto.HasPorts():
		if k.SrcPort != sourcePort {
			source = k.SrcPort
		}
		return fmt.Sprintf("%d/%s", k.DstPort, k.Proto), "", source
	case k.Proto == flow.ICMP || k.Proto == flow.ICMPv6:
		return "0/ICMP", fmt.Sprintf("%d/%d", k.DstPort>>8, k.DstPort&0xff), 0
	}
	return "0/" + strconv.Itoa(int(k.Proto)), "", 0
}

// String is "80/TCP from x/a to x/b".
func (w take) String() string {
	port, icmp, source := w.port()
	switch {
	case icmp != "":
		port = "ICMP " + icmp
	case source != 0:
		port += fmt.Sprintf(" with source port %d", source)
	}
	return fmt.Sprintf("%s from %s to %s", port, w.from, w.to)
}

// overrides returns the rule before the NetworkPolicies that is final for all
// subjects and everything pods may send, -1 if there is none. A Skip that
// concerns one of them ends the search: behind it nothing is obvious.
func (c *checker) overrides(rules []int, subjects bits) int {
	if subjects.empty() {
		return -1
	}
	for _, i := range rules {
		r := &c.set.Rules[i]
		switch {
		case r.Action == rule.Skip:
			if subjects.meets(c.podsOf(i)) {
				return -1
			}
		case subjects.within(c.podsOf(i)):
			return i
		}
	}
	return -1
}

// everything reports whether a rule matches all traffic with all pods.
func everything(r *rule.Rule) bool {
	return slices.Contains(r.L4, rule.AnyL4) && slices.ContainsFunc(r.Peers, func(p rule.Peer) bool {
		return p.Kind == rule.PeerAny || p.Kind == rule.PeerPods && p.Relation.IsZero() && p.Pods.String() == "{}"
	})
}
