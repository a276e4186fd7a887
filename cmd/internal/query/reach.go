package query

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Groups are the pods of a table, grouped for a matrix of many: by namespace, and
// in a namespace by workload. Pods that no policy tells apart are asked about once.
// It may be shared by goroutines.
type Groups struct {
	now        *kindSet
	before     *kindSet // to compare with; nil = nothing
	namespaces map[string]*Pods
	workloads  map[string]*Pods // by "namespace/name"
}

// Pods are the pods of one group.
type Pods struct {
	Name    string
	Count   int
	classes [2][]alike // IPv4, IPv6: by class
	kinds   [2][]alike // by kind, which is found when it is asked for; guarded by Groups.now
	known   bool       // kinds is there; guarded likewise
}

// alike are pods of one group that no decision tells apart; two of them, so that
// they can be asked about each other.
type alike struct {
	key   alikeKey
	pods  int
	some  [2]*rule.Endpoint
	addrs [2]netip.Addr
}

type alikeKey struct {
	class, before    classifier.Class // of Pods.classes
	kind, kindBefore int32            // of Pods.kinds
	ports            string
	dual             bool       // has addresses of both families
	host             netip.Addr // of a pod of the host network, which shares it
}

// NewGroups groups the pods of a table. before is a table of the same pods to compare
// with, nil for none.
func NewGroups(t *classifier.Table, before *Groups, snap *inventory.Snapshot) *Groups {
	g := &Groups{now: newKindSet(t), namespaces: map[string]*Pods{}, workloads: map[string]*Pods{}}
	var old *classifier.Table
	if before != nil {
		g.before, old = before.now, before.now.table
	}
	workload := map[string]string{}
	for i := range snap.Pods {
		p := &snap.Pods[i]
		if p.Workload.Name != "" {
			workload[p.Namespace+"/"+p.Name] = p.Workload.Name
		}
	}
	pods := t.World().Endpoints
	at := &[2]map[*Pods]map[alikeKey]int{{}, {}}
	for i := range pods {
		e := &pods[i]
		name := cmp.Or(workload[PodName(e)], e.Name)
		for group, in := range map[string]map[string]*Pods{e.Namespace: g.namespaces, e.Namespace + "/" + name: g.workloads} {
			p := in[group]
			if p == nil {
				p = &Pods{Name: group}
				in[group] = p
			}
			p.Count++
			p.add(t, old, e, at)
		}
	}
	return g
}

func (p *Pods) add(t, before *classifier.Table, e *rule.Endpoint, at *[2]map[*Pods]map[alikeKey]int) {
	for family, is4 := range []bool{true, false} {
		a, ok := first(e.Addrs, is4)
		if !ok {
			continue
		}
		_, other := first(e.Addrs, !is4)
		k := alikeKey{class: t.Class(t.EndOf(a)), ports: fmt.Sprint(e.Ports), dual: other}
		if before != nil {
			k.before = before.Class(before.EndOf(a))
		}
		if t.IsNode(flow.AddrFrom(a)) {
			k.host = a
		}
		at := at[family]
		if at[p] == nil {
			at[p] = map[alikeKey]int{}
		}
		i, ok := at[p][k]
		if !ok {
			at[p][k] = len(p.classes[family])
			p.classes[family] = append(p.classes[family], alike{key: k, pods: 1, some: [2]*rule.Endpoint{e}, addrs: [2]netip.Addr{a}})
			continue
		}
		c := &p.classes[family][i]
		if c.pods++; c.pods == 2 {
			c.some[1], c.addrs[1] = e, a
		}
	}
}

// Namespaces lists the groups of all pods by namespace.
func (g *Groups) Namespaces() []*Pods { return sortedPods(g.namespaces) }

// Workloads lists the workloads of a namespace.
func (g *Groups) Workloads(namespace string) []*Pods {
	in := map[string]*Pods{}
	for name, p := range g.workloads {
		if strings.HasPrefix(name, namespace+"/") {
			in[name] = p
		}
	}
	return sortedPods(in)
}

func sortedPods(m map[string]*Pods) []*Pods {
	out := make([]*Pods, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[name])
	}
	return out
}

// Group finds a group: "namespace", or "namespace/workload".
func (g *Groups) Group(name string) (*Pods, error) {
	in := g.namespaces
	if strings.Contains(name, "/") {
		in = g.workloads
	}
	if p := in[name]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no namespace or workload %q", name)
}

// Ports are those that pods have names for, and the names.
func (g *Groups) Ports() []string {
	if g == nil {
		return nil
	}
	seen := map[string]bool{}
	pods := g.now.table.World().Endpoints
	for i := range pods {
		for _, np := range pods[i].Ports {
			seen[fmt.Sprintf("%d/%s", np.Port, np.Proto)] = true
			if np.Name != "" {
				seen[np.Name+"/"+np.Proto.String()] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(seen))
}

// pair is a connection between pods that stands for count of them.
type pair struct {
	a, b     *alike
	family   int // 0 is IPv4
	from, to *rule.Endpoint
	src, dst netip.Addr
	count    int
}

// pairs calls fn for the connections from the pods of one group to those of another
// one, or the same: IPv4 where both have it, else IPv6. A pod is not asked about
// itself. Groups of one level have no pods in common.
func pairs(from, to *[2][]alike, same bool, fn func(*pair)) {
	var one pair
	for family := range from {
		for i := range from[family] {
			a := &from[family][i]
			for j := range to[family] {
				b := &to[family][j]
				if family == 1 && a.key.dual && b.key.dual {
					continue // counted as IPv4
				}
				one = pair{a, b, family, a.some[0], b.some[0], a.addrs[0], b.addrs[0], a.pods * b.pods}
				if same && i == j {
					if a.pods < 2 {
						continue
					}
					one.to, one.dst, one.count = b.some[1], b.addrs[1], a.pods*(a.pods-1)
				}
				fn(&one)
			}
		}
	}
}

// Tally counts connections between the pods of two groups.
type Tally struct {
	Allowed int `json:"allowed"`
	Total   int `json:"total"`
	// Opened and Closed count what a change decides otherwise.
	Opened int `json:"opened,omitempty"`
	Closed int `json:"closed,omitempty"`
}

// Reach counts the connections from one group to another one on a port.
func (g *Groups) Reach(from, to *Pods, p Port) Tally {
	g.now.mu.Lock()
	defer g.now.mu.Unlock()
	if g.before != nil { // its own groups have none before them: the order is the same everywhere
		g.before.mu.Lock()
		defer g.before.mu.Unlock()
	}
	g.sort(from)
	g.sort(to)
	var out Tally
	pairs(&from.kinds, &to.kinds, from == to, func(x *pair) {
		allowed := g.now.allows(x, x.a.key.kind, x.b.key.kind, p)
		out.Total += x.count
		if allowed {
			out.Allowed += x.count
		}
		if g.before != nil {
			switch was := g.before.allows(x, x.a.key.kindBefore, x.b.key.kindBefore, p); {
			case allowed && !was:
				out.Opened += x.count
			case was && !allowed:
				out.Closed += x.count
			}
		}
	})
	return out
}

// Prepare finds the kinds of a group ahead of questions about it.
func (g *Groups) Prepare(p *Pods) {
	g.now.mu.Lock()
	defer g.now.mu.Unlock()
	if g.before != nil {
		g.before.mu.Lock()
		defer g.before.mu.Unlock()
	}
	g.sort(p)
}

// sort sorts the pods of a group by kind.
func (g *Groups) sort(p *Pods) {
	if p.known {
		return
	}
	p.known = true
	for family := range p.classes {
		at := map[alikeKey]int{}
		for _, c := range p.classes[family] {
			c.key.kind = g.now.kindOf(c.key.class, c.addrs[0])
			if g.before != nil {
				c.key.kindBefore = g.before.kindOf(c.key.before, c.addrs[0])
			}
			c.key.class, c.key.before = classifier.Class{}, classifier.Class{}
			i, ok := at[c.key]
			if !ok {
				at[c.key] = len(p.kinds[family])
				p.kinds[family] = append(p.kinds[family], c)
				continue
			}
			k := &p.kinds[family][i]
			if k.pods == 1 {
				k.some[1], k.addrs[1] = c.some[0], c.addrs[0]
			}
			k.pods += c.pods
		}
	}
}

// Decided is one way in which connections between two groups are decided, with one
// of them.
type Decided struct {
	Count   int  `json:"count"`
	Example Flow `json:"example"`
}

// Decisions lists what decides connections between two groups, most connections first.
func (g *Groups) Decisions(from, to *Pods, p Port) []Decided {
	type key struct{ verdict, egress, ingress string }
	by := map[key]*Decided{}
	pairs(&from.classes, &to.classes, from == to, func(x *pair) {
		f := Ask(g.now.table, PodName(x.from), PodName(x.to), x.src, x.dst, p)
		k := key{f.Verdict, fmt.Sprint(f.Egress.Policy, " ", f.Egress.Rule, f.Egress.Reason), fmt.Sprint(f.Ingress.Policy, " ", f.Ingress.Rule, f.Ingress.Reason)}
		if by[k] == nil {
			by[k] = &Decided{Example: f}
		}
		by[k].Count += x.count
	})
	out := []Decided{}
	for _, d := range by {
		out = append(out, *d)
	}
	slices.SortFunc(out, func(a, b Decided) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Example.From, b.Example.From), strings.Compare(a.Example.To, b.Example.To))
	})
	return out
}
