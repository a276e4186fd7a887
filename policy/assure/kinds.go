package assure

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// namespaceKind is a namespace that is there, or one that could be.
type namespaceKind struct {
	name   string
	labels map[string]string
	given  bool // there is one of this name
	free   bool // pods may be created and relabelled in it
}

// kind stands for all pods that policies treat alike in everything but ports,
// address and node.
type kind struct {
	namespace, account string
	labels, nsLabels   map[string]string
	matched            []bool         // by leaf
	related            string         // what relations compare
	members            []int          // of prover.namespaces: where such pods may be
	pod, other         *rule.Endpoint // pods there are, if it is about such; two are enough
	relabelled         bool           // pod with other labels
}

// only reports whether both kinds are the same single pod.
func (k *kind) only(o *kind) bool {
	return k.pod != nil && k.other == nil && k.pod == o.pod && o.other == nil
}

// errBound says that a claim has more cases than may be looked at.
type errBound struct{ what string }

func (e *errBound) Error() string { return e.what }

// choice is an assignment of labels on its way: keys are decided one by one, and
// assignments that the leaves cannot tell apart become one.
type choice struct {
	alive []bool
	prev  *choice
	key   string
	value *string
	rel   string
}

func (c *choice) labels() map[string]string {
	out := map[string]string{}
	for ; c != nil; c = c.prev {
		if c.value != nil {
			out[c.key] = *c.value
		}
	}
	return out
}

// labelSpace asks for every assignment of labels that some requirements can tell
// apart.
type labelSpace struct {
	needs []rule.Labels   // of each leaf; nil entries for leaves that ask nothing
	must  rule.Labels     // of the claim
	keys  map[string]bool // compared between the ends: their values count by themselves
	pool  func(key string) []*string
	fixed func(key string) (value *string, ok bool)
}

// assign returns one assignment of each sort that starts with these leaves alive.
func (p *prover) assign(s *labelSpace, alive []bool) ([]*choice, error) {
	keys := maps.Clone(s.keys)
	if keys == nil {
		keys = map[string]bool{}
	}
	for i, l := range s.needs {
		if alive[i] {
			for _, r := range l {
				keys[r.Key] = true
			}
		}
	}
	for _, r := range s.must {
		keys[r.Key] = true
	}
	states := []*choice{{alive: alive}}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		values := []*string{nil}
		if v, ok := s.fixed(key); ok {
			values = []*string{v}
		} else {
			said := mentioned(s.must, key)
			for i, l := range s.needs {
				if alive[i] {
					said = append(said, mentioned(l, key)...)
				}
			}
			if s.keys[key] {
				said = append(said, s.pool(key)...)
				values = append(values, fresh(said, "-a"), fresh(said, "-b"))
			} else {
				values = append(values, fresh(said, ""))
			}
			slices.SortFunc(said, func(a, b *string) int { return strings.Compare(*a, *b) })
			values = append(values, slices.CompactFunc(said, func(a, b *string) bool { return *a == *b })...)
		}
		seen := map[string]bool{}
		var next []*choice
		for _, st := range states {
			for _, v := range values {
				if !matchesValue(s.must, key, v) {
					continue
				}
				if p.states++; p.states > p.limit {
					return nil, &errBound{fmt.Sprintf("more than %d combinations of labels matter to policies", p.limit)}
				}
				c := &choice{alive: slices.Clone(st.alive), prev: st, key: key, value: v, rel: st.rel}
				for i, l := range s.needs {
					c.alive[i] = c.alive[i] && matchesValue(l, key, v)
				}
				if s.keys[key] {
					c.rel += fmt.Sprintf("%q=", key)
					if v != nil {
						c.rel += fmt.Sprintf("%q", *v)
					}
				}
				id := bitKey(c.alive) + c.rel
				if !seen[id] {
					seen[id] = true
					next = append(next, c)
				}
			}
		}
		states = next
	}
	return states, nil
}

func bitKey(bits []bool) string {
	b := make([]byte, (len(bits)+7)/8)
	for i, x := range bits {
		if x {
			b[i/8] |= 1 << (i % 8)
		}
	}
	return string(b)
}

// namespaceKinds lists the namespaces there are, or all sorts that could be.
func (p *prover) namespaceKinds() error {
	free := func(n *namespaceKind) bool {
		return slices.ContainsFunc(p.free, func(s rule.Selector) bool {
			return (s.Namespace == "" || s.Namespace == n.name) && s.NamespaceLabels.Matches(n.labels)
		})
	}
	add := func(n namespaceKind) {
		n.free = free(&n)
		p.namespaces = append(p.namespaces, n)
	}
	given := slices.Sorted(maps.Keys(p.world.namespaces))
	if p.claim.Rights.Namespaces != AnyNamespaces {
		for _, name := range given {
			add(namespaceKind{name: name, labels: p.world.namespaces[name], given: true})
		}
		return nil
	}
	// What can be told of a namespace: the leaves of both ends, the two ends
	// themselves, and where rights apply.
	asked := slices.Concat(p.facts.from.leaves, p.facts.to.leaves)
	for _, s := range slices.Concat([]rule.Selector{p.from.selector, p.to.selector}, p.free) {
		asked = append(asked, leaf{namespace: s.Namespace, nsLabels: s.NamespaceLabels})
	}
	names := map[string]bool{}
	for i := range asked {
		if asked[i].namespace != "" {
			names[asked[i].namespace] = true
		}
		for _, v := range mentioned(asked[i].nsLabels, metadataName) {
			names[*v] = true
		}
	}
	for _, e := range []*claimEnd{&p.from, &p.to} {
		for _, pod := range e.pods {
			names[pod.Namespace] = true
		}
	}
	keep := p.claim.Rights.KeepNamespaceLabels
	for _, name := range given {
		// Others are like new ones, unless something of theirs stays or they have
		// pods that matter.
		if len(keep) > 0 || p.facts.sameNamespace || len(p.free) != 1 || p.free[0].Namespace != "" || len(p.free[0].NamespaceLabels) > 0 ||
			len(p.claim.Rights.KeepLabels) > 0 || p.hasHostPods[name] {
			names[name] = true
		}
	}
	list := slices.Sorted(maps.Keys(names))
	newName := *fresh(pointers(list, given), "")
	newName = "new-" + newName
	for _, name := range append([]string{""}, list...) { // a new one first: a witness is clearer with it
		count := 1
		if name == "" && p.facts.sameNamespace {
			count = 2 // one for each end
		}
		labels, isGiven := p.world.namespaces[name]
		alive := make([]bool, len(asked))
		needs := make([]rule.Labels, len(asked))
		for i := range asked {
			alive[i] = asked[i].namespace == "" || asked[i].namespace == name
			needs[i] = asked[i].nsLabels
		}
		own := name
		if name == "" {
			own = newName
		}
		states, err := p.assign(&labelSpace{
			needs: needs, keys: p.facts.nsKeys,
			pool: func(key string) []*string { return p.poolOf(key, true) },
			fixed: func(key string) (*string, bool) {
				switch {
				case key == metadataName:
					return &own, true
				case !slices.Contains(keep, key):
					return nil, false
				}
				if v, ok := labels[key]; ok {
					return &v, true
				}
				return nil, true
			},
		}, alive)
		if err != nil {
			return err
		}
		for i, c := range states {
			for twin := range count {
				n := namespaceKind{name: name, labels: c.labels(), given: isGiven}
				for _, key := range keep { // what nobody asks about stays, too
					if v, ok := labels[key]; ok {
						n.labels[key] = v
					}
				}
				if name == "" {
					n.name = newName
					if i > 0 || twin > 0 {
						n.name = fmt.Sprintf("%s-%d", newName, i*count+twin+1)
					}
				}
				n.labels[metadataName] = n.name
				add(n)
			}
		}
	}
	return nil
}

func pointers(lists ...[]string) []*string {
	var out []*string
	for _, l := range lists {
		for i := range l {
			out = append(out, &l[i])
		}
	}
	return out
}

// poolOf lists the values of a compared key that some pod or namespace keeps, and
// those that anybody mentions: each end may need the value of the other.
func (p *prover) poolOf(key string, namespace bool) []*string {
	var out []*string
	add := func(l map[string]string) {
		if v, ok := l[key]; ok {
			out = append(out, &v)
		}
	}
	selectors := []rule.Selector{p.from.selector, p.to.selector}
	if namespace {
		for _, l := range p.world.namespaces {
			add(l)
		}
		for _, s := range slices.Concat(selectors, p.free) {
			out = append(out, mentioned(s.NamespaceLabels, key)...)
		}
	} else {
		for i := range p.world.pods {
			if e := &p.world.pods[i]; slices.Contains(p.claim.Rights.KeepLabels, key) || !p.allFree {
				add(e.Labels)
			}
		}
		for _, s := range selectors {
			out = append(out, mentioned(s.PodLabels, key)...)
		}
	}
	for _, e := range []*claimEnd{&p.from, &p.to} {
		for _, pod := range e.pods {
			if !namespace {
				add(pod.Labels)
			}
		}
	}
	for _, h := range []*half{&p.facts.from, &p.facts.to} {
		for i := range h.leaves {
			if namespace {
				out = append(out, mentioned(h.leaves[i].nsLabels, key)...)
			} else {
				out = append(out, mentioned(h.leaves[i].podLabels, key)...)
			}
		}
	}
	slices.SortFunc(out, func(a, b *string) int { return strings.Compare(*a, *b) })
	return slices.CompactFunc(out, func(a, b *string) bool { return *a == *b })
}

// kindsOf lists the kinds of pods that an end may be.
func (p *prover) kindsOf(h *half) ([]kind, error) {
	b := kindBuilder{prover: p, half: h, ids: map[string]int{}}
	if h.end.outside != nil {
		return nil, nil
	}
	for i := range p.namespaces {
		if err := b.namespace(i); err != nil {
			return nil, err
		}
	}
	return b.kinds, nil
}

type kindBuilder struct {
	*prover
	half  *half
	kinds []kind
	ids   map[string]int
}

func (b *kindBuilder) namespace(at int) error {
	ns := &b.namespaces[at]
	e := b.half.end
	if e.pods != nil {
		for _, pod := range e.pods {
			if pod.Namespace == ns.name && !pod.HostNetwork {
				b.existing(at, pod)
			}
		}
		return nil
	}
	if e.selector.Namespace != "" && e.selector.Namespace != ns.name || !e.selector.NamespaceLabels.Matches(ns.labels) {
		return nil
	}
	if !ns.free {
		for _, pod := range b.podsIn[ns.name] {
			if !pod.HostNetwork && e.selector.PodLabels.Matches(pod.Labels) {
				b.existing(at, pod)
			}
		}
		return nil
	}
	if err := b.free(at, nil); err != nil {
		return err
	}
	keep := b.claim.Rights.KeepLabels
	if len(keep) == 0 {
		return nil
	}
	for _, pod := range b.podsIn[ns.name] {
		has := func(key string) bool { _, ok := pod.Labels[key]; return ok }
		if pod.HostNetwork || !slices.ContainsFunc(keep, has) {
			continue // like a new one
		}
		if err := b.free(at, pod); err != nil {
			return err
		}
	}
	return nil
}

// free adds the kinds of pods that may be created in a namespace, or that a pod can
// be made by relabelling it.
func (b *kindBuilder) free(at int, pod *rule.Endpoint) error {
	ns := &b.namespaces[at]
	leaves := b.half.leaves
	// Only leaves that may match here are told apart, so that namespaces do not add
	// up in the combinations.
	var local []int
	var needs []rule.Labels
	for i := range leaves {
		if leaves[i].inNamespace(ns) {
			local = append(local, i)
			needs = append(needs, leaves[i].podLabels)
		}
	}
	alive := make([]bool, len(local))
	for i := range alive {
		alive[i] = true
	}
	keep := b.claim.Rights.KeepLabels
	states, err := b.assign(&labelSpace{
		needs: needs, must: b.half.end.selector.PodLabels, keys: b.facts.podKeys,
		pool: func(key string) []*string { return b.poolOf(key, false) },
		fixed: func(key string) (*string, bool) {
			if !slices.Contains(keep, key) {
				return nil, false
			}
			if pod != nil {
				if v, ok := pod.Labels[key]; ok {
					return &v, true
				}
			}
			return nil, true
		},
	}, alive)
	if err != nil {
		return err
	}
	accounts := append([]string{*freshAccount(b.half.accounts)}, b.half.accounts...)
	if pod != nil {
		accounts = []string{pod.ServiceAccount}
	}
	for _, c := range states {
		for _, account := range accounts {
			matched := make([]bool, len(leaves))
			for i, id := range local {
				matched[id] = c.alive[i] && (leaves[id].account == "" || leaves[id].account == account)
			}
			l := c.labels()
			if pod != nil {
				for _, k := range keep {
					if v, ok := pod.Labels[k]; ok {
						l[k] = v
					}
				}
			}
			b.add(at, kind{account: account, labels: l, matched: matched, related: c.rel, pod: pod, relabelled: pod != nil})
		}
	}
	return nil
}

func freshAccount(mentioned []string) *string {
	if !slices.Contains(mentioned, "default") {
		name := "default"
		return &name
	}
	return fresh(pointers(mentioned), "")
}

// existing adds a pod as it is.
func (b *kindBuilder) existing(at int, pod *rule.Endpoint) {
	ns := &b.namespaces[at]
	k := kind{account: pod.ServiceAccount, labels: pod.Labels, matched: make([]bool, len(b.half.leaves)), pod: pod}
	for i := range b.half.leaves {
		l := &b.half.leaves[i]
		k.matched[i] = l.inNamespace(ns) && (l.account == "" || l.account == pod.ServiceAccount) && l.podLabels.Matches(pod.Labels)
	}
	for _, key := range slices.Sorted(maps.Keys(b.facts.podKeys)) {
		k.related += fmt.Sprintf("%q=", key)
		if v, ok := pod.Labels[key]; ok {
			k.related += fmt.Sprintf("%q", v)
		}
	}
	b.add(at, k)
}

// add joins a kind with an equal one, or adds it.
func (b *kindBuilder) add(at int, k kind) {
	ns := &b.namespaces[at]
	k.namespace, k.nsLabels = ns.name, ns.labels
	if b.facts.sameNamespace {
		k.related += fmt.Sprintf("in %q ", ns.name)
	}
	for _, key := range slices.Sorted(maps.Keys(b.facts.nsKeys)) {
		k.related += fmt.Sprintf("ns %q=", key)
		if v, ok := ns.labels[key]; ok {
			k.related += fmt.Sprintf("%q", v)
		}
	}
	id := bitKey(k.matched) + k.related
	if k.pod != nil {
		id += b.looks(k.pod)
	}
	i, ok := b.ids[id]
	if !ok {
		i = len(b.kinds)
		b.ids[id] = i
		b.kinds = append(b.kinds, k)
	}
	x := &b.kinds[i]
	if ok && x.other == nil && x.pod != k.pod {
		x.other = k.pod
	}
	if n := len(x.members); n == 0 || x.members[n-1] != at { // they come in order
		x.members = append(x.members, at)
	}
}
