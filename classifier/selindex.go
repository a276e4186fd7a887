package classifier

import (
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
)

// scope is one subject selector of a policy with everything the policy says
// about the pods it selects, by direction. Immutable.
type scope struct {
	sel        *rule.Selector
	rules      [2][]*ruleEntry
	isolations [2][]*isolationEntry
}

// scopeIndex finds the scopes that select a pod without asking all of them. A
// scope is filed under its exact namespace, if it has one, and under the first
// equality it requires of pod labels or, failing that, of namespace labels. A
// pod asks for its own namespace and labels only.
type scopeIndex map[scopeKey][]*scope

type scopeKey struct {
	namespace  string // "" for selectors of many namespaces
	of         labelsOf
	key, value string
}

type labelsOf uint8

const (
	ofNothing labelsOf = iota
	ofPod
	ofNamespace
)

// keysOf lists where a scope is filed: one place per value of the equality.
func keysOf(sel *rule.Selector) []scopeKey {
	k := scopeKey{namespace: sel.Namespace}
	for _, l := range [2]struct {
		of     labelsOf
		labels rule.Labels
	}{{ofPod, sel.PodLabels}, {ofNamespace, sel.NamespaceLabels}} {
		best := -1
		for i := range l.labels {
			if l.labels[i].Op == rule.In && (best < 0 || len(l.labels[i].Values) < len(l.labels[best].Values)) {
				best = i
			}
		}
		if best < 0 {
			continue
		}
		r := &l.labels[best]
		var keys []scopeKey
		for _, v := range r.Values {
			k := scopeKey{namespace: sel.Namespace, of: l.of, key: r.Key, value: v}
			if !slices.Contains(keys, k) {
				keys = append(keys, k)
			}
		}
		return keys
	}
	return []scopeKey{k}
}

func (x scopeIndex) add(s *scope) {
	if s.sel.None {
		return
	}
	for _, k := range keysOf(s.sel) {
		x[k] = append(x[k], s)
	}
}

func (x scopeIndex) remove(s *scope) {
	if s.sel.None {
		return
	}
	for _, k := range keysOf(s.sel) {
		list := x[k]
		if i := slices.Index(list, s); i >= 0 {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
		}
		if len(list) == 0 {
			delete(x, k)
		} else {
			x[k] = list
		}
	}
}

// each calls f for every scope that selects the pod.
func (x scopeIndex) each(e *rule.Endpoint, f func(*scope)) {
	ask := func(k scopeKey) {
		for _, s := range x[k] {
			if s.sel.Matches(e) {
				f(s)
			}
		}
	}
	for i, ns := range [2]string{"", e.Namespace} {
		if i == 1 && ns == "" {
			break
		}
		ask(scopeKey{namespace: ns})
		for k, v := range e.Labels {
			ask(scopeKey{ns, ofPod, k, v})
		}
		for k, v := range e.NamespaceLabels {
			ask(scopeKey{ns, ofNamespace, k, v})
		}
	}
}
