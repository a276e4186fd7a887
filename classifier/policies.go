package classifier

import (
	"cmp"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// PolicyRef names one policy object: the unit in which rules come and go.
type PolicyRef struct{ Group, Kind, Namespace, Name string }

// RefOf returns the object a rule or isolation comes from.
func RefOf(o *rule.Origin) PolicyRef {
	return PolicyRef{o.Group, o.Kind, o.Namespace, o.Name}
}

// policyEntry is what one object brought.
type policyEntry struct {
	scopes     []*scope
	rules      []*ruleEntry
	isolations []*isolationEntry
}

// scope returns the policy's scope for a selector, making it if needed. Nearly
// all policies have one selector.
func (p *policyEntry) scope(sel *rule.Selector) *scope {
	for _, s := range p.scopes {
		if sameSelector(s.sel, sel) {
			return s
		}
	}
	s := &scope{sel: sel}
	p.scopes = append(p.scopes, s)
	return s
}

// sameSelector reports whether two selectors are written alike.
func sameSelector(a, b *rule.Selector) bool {
	return a == b || a.Namespace == b.Namespace && a.ServiceAccount == b.ServiceAccount && a.None == b.None &&
		sameLabels(a.NamespaceLabels, b.NamespaceLabels) && sameLabels(a.PodLabels, b.PodLabels) &&
		slices.EqualFunc(a.AnyOf, b.AnyOf, func(x, y rule.Selector) bool { return sameSelector(&x, &y) })
}

func sameLabels(a, b rule.Labels) bool {
	return slices.EqualFunc(a, b, func(x, y rule.Requirement) bool {
		return x.Key == y.Key && x.Op == y.Op && slices.Equal(x.Values, y.Values)
	})
}

func compareRules(a, b *ruleEntry) int {
	return cmp.Or(rule.Compare(a.rule, b.rule), cmp.Compare(a.id, b.id))
}

func compareIsolations(a, b *isolationEntry) int {
	return cmp.Or(rule.CompareIsolations(a.rule, b.rule), cmp.Compare(a.index, b.index))
}

// addRule enters a rule of p. The rule is kept.
func (l *Live) addRule(p *policyEntry, r *rule.Rule) {
	e := &ruleEntry{policy: p, id: RuleID(l.ruleIDs.take()), rule: r, ports: indexPorts(r)}
	e.resolvePorts()
	l.s.rules.set(int(e.id), r, l.epoch)
	l.s.ruleCount[r.Direction]++
	p.rules = append(p.rules, e)
	if r.ToServices() {
		l.toServices[e] = struct{}{}
	}
	s := p.scope(&r.Subject)
	s.rules[r.Direction] = append(s.rules[r.Direction], e)
	for i := range r.L4 {
		l.named[r.L4[i].Proto]++
	}
	for i := range r.Peers {
		switch peer := &r.Peers[i]; peer.Kind {
		case rule.PeerBlock:
			l.useBlock(peer.Block.Prefix, 1)
			for _, x := range peer.Block.Except {
				l.useBlock(x, 1)
			}
		case rule.PeerSet, rule.PeerService:
			if e.sets == nil {
				e.sets = make([]uint32, len(r.Peers))
			}
			e.sets[i] = l.useSet(peer.Set)
		}
	}
}

func (l *Live) addIsolation(p *policyEntry, i *rule.Isolation) {
	e := &isolationEntry{policy: p, index: int32(l.isolationIDs.take()), rule: i}
	l.s.isolations.set(int(e.index), i, l.epoch)
	p.isolations = append(p.isolations, e)
	s := p.scope(&i.Subject)
	s.isolations[i.Direction] = append(s.isolations[i.Direction], e)
}

// dropPolicy takes back what addRule and addIsolation did.
func (l *Live) dropPolicy(p *policyEntry) {
	for _, s := range p.scopes {
		l.scopes.remove(s)
	}
	for _, e := range p.rules {
		r := e.rule
		l.s.rules.set(int(e.id), nil, l.epoch)
		l.s.ruleCount[r.Direction]--
		l.ruleIDs.give(int(e.id))
		delete(l.toServices, e)
		for i := range r.L4 {
			l.named[r.L4[i].Proto]--
		}
		for i := range r.Peers {
			switch peer := &r.Peers[i]; peer.Kind {
			case rule.PeerBlock:
				l.useBlock(peer.Block.Prefix, -1)
				for _, x := range peer.Block.Except {
					l.useBlock(x, -1)
				}
			case rule.PeerSet, rule.PeerService:
				l.releaseSet(peer.Set)
			}
		}
	}
	for _, e := range p.isolations {
		l.s.isolations.set(int(e.index), nil, l.epoch)
		l.isolationIDs.give(int(e.index))
	}
}

// replacePolicy puts set in the place of whatever ref had before. Only local
// subjects can notice, and each is asked with its own labels: the cluster is
// never scanned.
func (l *Live) replacePolicy(ref PolicyRef, set *rule.Set) {
	old := l.policies[ref]
	var fresh *policyEntry
	if len(set.Rules)+len(set.Isolations) > 0 {
		fresh = &policyEntry{}
		for i := range set.Rules {
			l.addRule(fresh, &set.Rules[i])
		}
		for i := range set.Isolations {
			l.addIsolation(fresh, &set.Isolations[i])
		}
		for _, s := range fresh.scopes {
			l.scopes.add(s)
		}
		l.policies[ref] = fresh
	} else {
		delete(l.policies, ref)
	}
	for _, u := range l.subjects {
		l.editSubject(u, old, fresh)
	}
	if old != nil {
		l.dropPolicy(old)
	}
}

// editSubject takes one policy out of a subject and puts another in.
func (l *Live) editSubject(u *subjectUse, old, fresh *policyEntry) {
	var hit [2]bool
	mark := func(p *policyEntry) (in []*scope) {
		if p == nil {
			return nil
		}
		for _, s := range p.scopes {
			if s.sel.Matches(u.cur.rep) {
				in = append(in, s)
				for d := range hit {
					hit[d] = hit[d] || len(s.rules[d])+len(s.isolations[d]) > 0
				}
			}
		}
		return in
	}
	mark(old)
	in := mark(fresh)
	for _, d := range flow.Directions {
		if !hit[d] {
			continue
		}
		s := l.ownSubject(u)
		rules := make([]*ruleEntry, 0, len(s.rules[d])+4)
		for _, r := range s.rules[d] {
			if r.policy != old {
				rules = append(rules, r)
			}
		}
		isolations := make([]*isolationEntry, 0, len(s.isolations[d])+1)
		for _, i := range s.isolations[d] {
			if i.policy != old {
				isolations = append(isolations, i)
			}
		}
		for _, sc := range in {
			rules = addSorted(rules, sc.rules[d], compareRules)
			isolations = addSorted(isolations, sc.isolations[d], compareIsolations)
		}
		if u.renewed[d] != l.epoch { // else no table has the serial yet
			l.retire(s.serial[d])
			s.serial[d], u.renewed[d] = l.newSubjectSerial(), l.epoch
		}
		s.rules[d], s.isolations[d] = rules, isolations
		s.setStaged(d)
	}
	if hit[0] || hit[1] {
		l.setSubject(u)
	}
}

// addSorted adds entries to a sorted list: a few by insertion, and many by sorting, so
// that a policy with very many rules costs no square of their number.
func addSorted[E any](list, more []E, compare func(E, E) int) []E {
	if len(more) > 16 {
		list = append(list, more...)
		slices.SortFunc(list, compare)
		return list
	}
	for _, e := range more {
		at, _ := slices.BinarySearchFunc(list, e, compare)
		list = slices.Insert(list, at, e)
	}
	return list
}

// ownSubject returns the use's subject as one that no table has yet.
func (l *Live) ownSubject(u *subjectUse) *subject {
	if u.epoch != l.epoch {
		fresh := *u.cur
		u.cur, u.epoch = &fresh, l.epoch
		l.listsStale = true // it may become selected, or not
	}
	return u.cur
}

// newSubject gathers what selects a pod.
func (l *Live) newSubject(e *rule.Endpoint) *subject {
	s := &subject{rep: e, node: e.Node}
	l.scopes.each(e, func(sc *scope) {
		for _, d := range flow.Directions {
			s.rules[d] = append(s.rules[d], sc.rules[d]...)
			s.isolations[d] = append(s.isolations[d], sc.isolations[d]...)
		}
	})
	for _, d := range flow.Directions {
		slices.SortFunc(s.rules[d], compareRules)
		slices.SortFunc(s.isolations[d], compareIsolations)
		s.rules[d], s.isolations[d] = slices.Clip(s.rules[d]), slices.Clip(s.isolations[d])
		s.serial[d] = l.newSubjectSerial()
		s.setStaged(d)
	}
	return s
}
