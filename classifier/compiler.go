package classifier

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/tierwall/tierwall/classifier/rule"
)

// Compiler is Compile for callers that always have the whole policy and the whole
// world: it finds what changed since its last call and does no more than that.
// The zero value is ready. Its Compile can be used wherever Compile is; calls
// serialise themselves.
//
// Comparing costs a walk over everything, some ten milliseconds for a hundred
// thousand pods that come by namespace and name. Who knows what changed tells
// Update.
type Compiler struct {
	mu   sync.Mutex
	live *Live
	set  rule.Set // of the last successful call: the same lists need no comparing
	// setKnown is false when set is not all of the policy in force.
	setKnown bool
	// pods are those of that call if they were sorted, else nil.
	pods []rule.Endpoint
}

// Compile returns the table of a policy and a world, like the function Compile:
// both are kept, and set is sorted in place. Unlike it it wants the names of pods
// to be unique and opt.Generation to grow with every call. opt.MemoryBudget
// counts in the first call, and whenever world.Node changes, which starts over.
//
// The report's Affects compares with the table of the last successful call. Handing
// in the very lists of rules of that call again saves comparing them.
func (c *Compiler) Compile(set rule.Set, world *rule.World, opt Options) (*Table, *Report, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.live == nil || c.live.s.node != world.Node {
		l, report, err := NewLive(set, world, opt)
		if err != nil {
			return nil, nil, err
		}
		c.live, c.set, c.setKnown = l, set, true
		c.remember(world)
		return l.Table(), report, nil
	}
	if err := world.Validate(); err != nil { // the Delta does not tell about doubles
		return nil, nil, fmt.Errorf("compile policy: %w", err)
	}
	policies := &set
	if c.setKnown && sameList(c.set.Rules, set.Rules) && sameList(c.set.Isolations, set.Isolations) {
		policies = nil
	} else {
		set.Sort()
	}
	d, err := c.live.diff(policies, c.pods, world)
	if err != nil {
		return nil, nil, err
	}
	d.Generation = opt.Generation
	t, report, err := c.live.Apply(d)
	if err == nil {
		c.set, c.setKnown = set, true
		c.remember(world)
	}
	return t, report, err
}

func (c *Compiler) remember(world *rule.World) {
	c.pods = nil
	if sortedPods(world.Endpoints) {
		c.pods = world.Endpoints
	}
}

// sameList reports whether two lists are the same memory.
func sameList[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// diff returns the Delta that leads to a policy and a world. A nil set is the one
// that is in force; pods are the sorted ones in force, or nil.
func (l *Live) diff(set *rule.Set, pods []rule.Endpoint, world *rule.World) (*Delta, error) {
	d := &Delta{}
	l.mu.Lock()
	defer l.mu.Unlock()
	if set != nil {
		l.diffPolicies(set, d)
	}
	if pods != nil && sortedPods(world.Endpoints) {
		diffSorted(pods, world.Endpoints, d)
	} else if err := l.diffPods(world, d); err != nil {
		return nil, err
	}
	l.diffNodes(world, d)
	for name, prefixes := range world.Sets {
		s := l.sets[name]
		if s == nil || !s.present || !slices.Equal(s.prefixes, prefixes) {
			if d.Sets == nil {
				d.Sets = map[string][]netip.Prefix{}
			}
			d.Sets[name] = prefixes
		}
	}
	for name, s := range l.sets {
		if _, there := world.Sets[name]; !there && s.present {
			d.DropSets = append(d.DropSets, name)
		}
	}
	if !slices.Equal(world.VIPs, l.s.vipList) {
		d.VIPs, d.ReplaceVIPs = world.VIPs, true
	}
	if !slices.Equal(world.LocalPrefixes, l.s.localPrefixes) {
		d.LocalPrefixes, d.ReplaceLocalPrefixes = world.LocalPrefixes, true
	}
	return d, nil
}

func (l *Live) diffPolicies(set *rule.Set, d *Delta) {
	// Rules of one object need not stand together in canonical order.
	type parts struct{ rules, isolations []int32 }
	byRef := make(map[PolicyRef]*parts, len(l.policies))
	of := func(o *rule.Origin) *parts {
		ref := RefOf(o)
		p := byRef[ref]
		if p == nil {
			p = &parts{}
			byRef[ref] = p
		}
		return p
	}
	for i := range set.Rules {
		p := of(&set.Rules[i].Origin)
		p.rules = append(p.rules, int32(i))
	}
	for i := range set.Isolations {
		p := of(&set.Isolations[i].Origin)
		p.isolations = append(p.isolations, int32(i))
	}
	for ref, p := range byRef {
		if old := l.policies[ref]; old != nil && old.same(set, p.rules, p.isolations) {
			continue
		}
		c := PolicyChange{Ref: ref}
		for _, i := range p.rules {
			c.Set.Rules = append(c.Set.Rules, set.Rules[i])
		}
		for _, i := range p.isolations {
			c.Set.Isolations = append(c.Set.Isolations, set.Isolations[i])
		}
		d.Policies = append(d.Policies, c)
	}
	for ref := range l.policies {
		if _, there := byRef[ref]; !there {
			d.Policies = append(d.Policies, PolicyChange{Ref: ref})
		}
	}
}

// same reports whether the policy has exactly these rules and isolations of a
// sorted set. Those it has are in canonical order too: they came that way, or
// from whoever made a Delta; if not, they are replaced.
func (p *policyEntry) same(set *rule.Set, rules, isolations []int32) bool {
	if len(rules) != len(p.rules) || len(isolations) != len(p.isolations) {
		return false
	}
	for i, at := range rules {
		if !sameRule(p.rules[i].rule, &set.Rules[at]) {
			return false
		}
	}
	for i, at := range isolations {
		a, b := p.isolations[i].rule, &set.Isolations[at]
		if a.Direction != b.Direction || a.Band != b.Band || a.Audit != b.Audit || a.Stage != b.Stage ||
			a.Origin != b.Origin || !sameSelector(&a.Subject, &b.Subject) {
			return false
		}
	}
	return true
}

func sameRule(a, b *rule.Rule) bool {
	return a.Direction == b.Direction && a.Order == b.Order && a.Action == b.Action && a.Skip == b.Skip &&
		a.Audit == b.Audit && a.Auth == b.Auth &&
		a.Stage == b.Stage && a.Origin == b.Origin && slices.Equal(a.L4, b.L4) &&
		sameSelector(&a.Subject, &b.Subject) && slices.EqualFunc(a.Peers, b.Peers, samePeer)
}

func samePeer(a, b rule.Peer) bool {
	return a.Kind == b.Kind && a.Set == b.Set && a.Block.Prefix == b.Block.Prefix && a.Block.NoPods == b.Block.NoPods &&
		slices.Equal(a.Block.Except, b.Block.Except) && sameSelector(&a.Pods, &b.Pods) &&
		a.Relation.Namespace == b.Relation.Namespace && sameRelation(&a.Relation.NamespaceLabels, &b.Relation.NamespaceLabels) &&
		sameRelation(&a.Relation.PodLabels, &b.Relation.PodLabels)
}

func sameRelation(a, b *rule.LabelRelation) bool { return a.Op == b.Op && slices.Equal(a.Keys, b.Keys) }

func (l *Live) diffPods(world *rule.World, d *Delta) error {
	seen := make(map[PodName]struct{}, len(world.Endpoints))
	known := 0
	for i := range world.Endpoints {
		e := &world.Endpoints[i]
		n := PodName{e.Namespace, e.Name}
		if contains(seen, n) {
			return fmt.Errorf("compile policy: pod %s/%s is listed twice", n.Namespace, n.Name)
		}
		seen[n] = struct{}{}
		p := l.namespaces[e.Namespace][e.Name]
		if p != nil {
			known++
		}
		if p == nil || p.ep.Node != e.Node || !slices.Equal(p.ep.Addrs, e.Addrs) || !alike(p.ep, e) {
			d.Pods = append(d.Pods, *e)
		}
	}
	if known == l.podCount {
		return nil
	}
	for ns, pods := range l.namespaces {
		for _, p := range pods {
			if n := (PodName{ns, p.ep.Name}); !contains(seen, n) {
				d.DropPods = append(d.DropPods, n)
			}
		}
	}
	return nil
}

// diffSorted is diffPods for two lists by namespace and name, old being what is in
// force: it walks them side by side and looks nothing up.
func diffSorted(old, world []rule.Endpoint, d *Delta) {
	for i, j := 0, 0; i < len(old) || j < len(world); {
		c := 1
		switch {
		case j == len(world):
			c = -1
		case i < len(old):
			c = compareEndpoints(&old[i], &world[j])
		}
		switch {
		case c < 0:
			d.DropPods = append(d.DropPods, PodName{old[i].Namespace, old[i].Name})
			i++
			continue
		case c > 0 || old[i].Node != world[j].Node || !slices.Equal(old[i].Addrs, world[j].Addrs) || !alike(&old[i], &world[j]):
			d.Pods = append(d.Pods, world[j])
		}
		if c == 0 {
			i++
		}
		j++
	}
}

// sortedPods reports whether pods come by namespace and name, none of them twice.
func sortedPods(all []rule.Endpoint) bool {
	for i := 1; i < len(all); i++ {
		if compareEndpoints(&all[i-1], &all[i]) >= 0 {
			return false
		}
	}
	return true
}

func compareEndpoints(a, b *rule.Endpoint) int {
	if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

func (l *Live) diffNodes(world *rule.World, d *Delta) {
	seen := make(map[string]struct{}, len(world.Nodes))
	for i := range world.Nodes {
		n := &world.Nodes[i]
		seen[n.Name] = struct{}{}
		if old := l.nodes[n.Name]; old == nil || !slices.Equal(old.node.Addrs, n.Addrs) || !slices.Equal(old.node.PodCIDRs, n.PodCIDRs) {
			d.Nodes = append(d.Nodes, *n)
		}
	}
	for name := range l.nodes {
		if !contains(seen, name) {
			d.DropNodes = append(d.DropNodes, name)
		}
	}
}

func contains[K comparable](m map[K]struct{}, k K) bool {
	_, ok := m[k]
	return ok
}
