package recommend

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/assure"
)

// Tally compares what policies allow with what was seen.
type Tally struct {
	Opened    float64 `json:"opened"`
	Seen      float64 `json:"seen"`
	NeverSeen float64 `json:"neverSeen"`
	Share     float64 `json:"share"` // NeverSeen of Opened, 0 to 1
}

func (t *Tally) finish() {
	t.NeverSeen = t.Opened - t.Seen
	if t.Opened > 0 {
		t.Share = t.NeverSeen / t.Opened
	}
}

// Opening is a range of connections that policies allow and of which not all were
// seen.
type Opening struct {
	From     string    `json:"from"`
	To       string    `json:"to"`
	Pods     bool      `json:"pods"`             // both ends are pods
	Family   int       `json:"family,omitempty"` // of an end outside
	Protocol string    `json:"protocol"`
	Ports    [2]uint16 `json:"ports"`
	Opened   float64   `json:"opened"` // pairs of pods, or of pods and addresses, times ports
	Seen     float64   `json:"seen"`   // of those
}

// Tightness is what policies open for the pods they select, beside what was seen.
// A connection here is a pair of pods, a protocol and a port, whatever its address
// family: selectors do not tell families apart.
type Tightness struct {
	// Connections are those between pods, Workloads the same between workloads,
	// Outside those with addresses that no pod has.
	Connections Tally     `json:"connections"`
	Workloads   Tally     `json:"workloads"`
	Outside     Tally     `json:"outside"`
	List        []Opening `json:"list"`
	More        int       `json:"more"` // further ranges, not listed
}

// maxOpenings bounds the list.
const maxOpenings = 1000

// families are IPv4 and IPv6, as the question whether it is IPv4.
var families = [2]bool{true, false}

// ends are what a pod is to a table, by family.
type ends struct {
	end [2]classifier.End
	has [2]bool
}

func endsOf(t *classifier.Table, p *rule.Endpoint) (e ends) {
	for i, is4 := range families {
		if a, ok := p.Addr(is4); ok {
			e.end[i], e.has[i] = t.EndOf(a), true
		}
	}
	return e
}

// kind is equal for pods that a table does not tell apart.
type kind struct {
	class [2]classifier.Class
	has   [2]bool
}

func (e *ends) kind(t *classifier.Table) (k kind) {
	for i := range families {
		if e.has[i] {
			k.class[i], k.has[i] = t.Class(e.end[i]), true
		}
	}
	return k
}

// entity is pods of one group that a table does not tell apart.
type entity struct {
	title   string
	ends    ends
	kind    kind
	pods    []*rule.Endpoint
	subject bool
}

type rowKey struct {
	from, to, protocol string
	family             int // 0 between pods
	ports              rule.PortRange
}

type row struct {
	opened, seen float64
	ports        map[uint16]bool // seen
}

type tightener struct {
	seen   *Seen
	table  *classifier.Table
	reach  *assure.Reach
	rows   map[rowKey]*row
	chosen map[*rule.Endpoint]bool
	both   map[[2]kind][]assure.Span
}

// tightness compares what a world allows the pods of units with what was seen.
func (s *Seen) tightness(w *assure.World, units []*group, denied bool) Tightness {
	t := &tightener{
		seen: s, table: w.Table, reach: w.NewReach(), rows: map[rowKey]*row{}, chosen: map[*rule.Endpoint]bool{}, both: map[[2]kind][]assure.Span{},
	}
	for _, u := range units {
		for _, e := range u.matched {
			t.chosen[e] = true
		}
	}
	all := t.entities()
	var regions [2][]assure.Region
	for i, is4 := range families {
		regions[i] = w.Regions(is4)
	}
	t.openPods(all)
	t.openOutside(all, &regions)
	t.subtract(&regions, denied)
	return t.result()
}

func (t *tightener) entities() []*entity {
	type key struct {
		g       *group
		kind    kind
		subject bool
	}
	index := map[key]*entity{}
	var out []*entity
	for _, g := range t.seen.groups.list {
		for _, p := range g.pods {
			if p.HostNetwork {
				continue
			}
			ends := endsOf(t.table, p)
			k := key{g, ends.kind(t.table), t.chosen[p]}
			e := index[k]
			if e == nil {
				e = &entity{title: g.title, ends: ends, kind: k.kind, subject: k.subject}
				index[k] = e
				out = append(out, e)
			}
			e.pods = append(e.pods, p)
		}
	}
	return out
}

// openPods adds what is allowed between subjects and all pods.
func (t *tightener) openPods(all []*entity) {
	for _, e := range all {
		if !e.subject {
			continue
		}
		n := float64(len(e.pods))
		for _, o := range all {
			pairs := n * float64(len(o.pods))
			if o == e {
				pairs = n * (n - 1) // no pod with itself
			}
			t.add(e.title, o.title, 0, t.between(&e.ends, &o.ends), pairs)
			if !o.subject { // else it is added when it is o's turn
				t.add(o.title, e.title, 0, t.between(&o.ends, &e.ends), pairs)
			}
		}
	}
}

// between returns what is allowed between two pods over either family.
func (t *tightener) between(a, b *ends) []assure.Span {
	key := [2]kind{a.kind(t.table), b.kind(t.table)}
	spans, ok := t.both[key]
	if ok {
		return spans
	}
	for i, is4 := range families {
		if a.has[i] && b.has[i] {
			spans = union(spans, t.reach.Allowed(a.end[i], b.end[i], is4))
		}
	}
	t.both[key] = spans
	return spans
}

// union takes two lists of disjoint spans together.
func union(a, b []assure.Span) []assure.Span {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y assure.Span) int {
		return cmp.Or(strings.Compare(x.Protocol, y.Protocol), cmp.Compare(x.Ports.First, y.Ports.First))
	})
	var out []assure.Span
	for _, s := range all {
		if n := len(out); n > 0 && out[n-1].Protocol == s.Protocol && int(s.Ports.First) <= int(out[n-1].Ports.Last)+1 {
			out[n-1].Ports.Last = max(out[n-1].Ports.Last, s.Ports.Last)
			continue
		}
		out = append(out, s)
	}
	return out
}

// openOutside adds what is allowed between subjects and addresses that no pod has.
func (t *tightener) openOutside(all []*entity, regions *[2][]assure.Region) {
	nodes := t.table.World().Nodes
	for f, is4 := range families {
		for _, e := range all {
			if !e.subject || !e.ends.has[f] {
				continue
			}
			n, end := float64(len(e.pods)), e.ends.end[f]
			for i := range regions[f] {
				r := &regions[f][i]
				title := regionTitle(r)
				t.add(e.title, title, family(is4), t.reach.Allowed(end, r.End, is4), n*r.Size)
				t.add(title, e.title, family(is4), t.reach.Allowed(r.End, end, is4), n*r.Size)
			}
			for i := range nodes {
				others := 0.0 // pods of other nodes: a node always reaches its own
				for _, p := range e.pods {
					if p.Node != nodes[i].Name {
						others++
					}
				}
				for _, a := range nodes[i].Addrs {
					if a.Is4() != is4 {
						continue
					}
					node, title := t.table.EndOf(a), a.String()
					t.add(e.title, title, family(is4), t.reach.Allowed(end, node, is4), n)
					t.add(title, e.title, family(is4), t.reach.Allowed(node, end, is4), others)
				}
			}
		}
	}
}

func family(is4 bool) int {
	if is4 {
		return 4
	}
	return 6
}

func regionTitle(r *assure.Region) string {
	if len(r.Prefixes) == 1 {
		return r.Prefixes[0].String()
	}
	return fmt.Sprintf("%s and %d more prefixes", r.Prefixes[0], len(r.Prefixes)-1)
}

func (t *tightener) add(from, to string, family int, spans []assure.Span, pairs float64) {
	if pairs == 0 {
		return
	}
	for _, s := range spans {
		k := rowKey{from, to, s.Protocol, family, s.Ports}
		r := t.rows[k]
		if r == nil {
			r = &row{ports: map[uint16]bool{}}
			t.rows[k] = r
		}
		r.opened += pairs * width(s.Ports)
	}
}

func width(r rule.PortRange) float64 { return float64(r.Last) - float64(r.First) + 1 }

// subtract counts what was seen of it.
func (t *tightener) subtract(regions *[2][]assure.Region, denied bool) {
	type pair struct {
		from, to *rule.Endpoint
		proto    flow.Proto
		port     uint16
	}
	s, counted := t.seen, map[pair]bool{}
	for k, n := range s.conns {
		from, to := &s.ends[k.from], &s.ends[k.to]
		if !denied && !n.passed() || !t.chosen[from.pod] && !t.chosen[to.pod] {
			continue
		}
		if from.pod != nil && to.pod != nil {
			p := pair{from.pod, to.pod, k.proto, k.port}
			if !counted[p] { // over the other family
				counted[p] = true
				a, b := endsOf(t.table, from.pod), endsOf(t.table, to.pod)
				t.found(s.title(from), s.title(to), 0, t.between(&a, &b), k)
			}
			continue
		}
		f := 0
		if !k.is4 {
			f = 1
		}
		a, fromTitle, ok1 := t.end(from, f, regions[f])
		b, toTitle, ok2 := t.end(to, f, regions[f])
		if ok1 && ok2 {
			t.found(fromTitle, toTitle, family(k.is4), t.reach.Allowed(a, b, k.is4), k)
		}
	}
}

// found counts a connection that was seen in the row that it belongs to.
func (t *tightener) found(from, to string, family int, spans []assure.Span, k connKey) {
	for _, span := range spans {
		if !span.Contains(k.proto, k.port, t.reach.Named()) {
			continue
		}
		if r := t.rows[rowKey{from, to, span.Protocol, family, span.Ports}]; r != nil {
			r.seen++
			r.ports[k.port] = true
		}
	}
}

// end finds an end that was seen. ok is false for an address of a pod network that
// no pod has.
func (t *tightener) end(e *seenEnd, f int, regions []assure.Region) (end classifier.End, title string, ok bool) {
	if e.pod != nil {
		ends := endsOf(t.table, e.pod)
		return ends.end[f], t.seen.title(e), ends.has[f]
	}
	a := e.prefix.Addr()
	if t.seen.nodeOf[a] != "" && e.prefix.IsSingleIP() {
		return t.table.EndOf(a), a.String(), true
	}
	for i := range regions {
		if regions[i].Contains(a) {
			return regions[i].End, regionTitle(&regions[i]), true
		}
	}
	return end, "", false
}

func (t *tightener) result() Tightness {
	out := Tightness{List: []Opening{}}
	for k, r := range t.rows {
		sum := &out.Outside
		if k.family == 0 {
			sum = &out.Connections
			out.Workloads.Opened += width(k.ports)
			out.Workloads.Seen += float64(len(r.ports))
		}
		sum.Opened += r.opened
		sum.Seen += r.seen
		if r.seen < r.opened {
			out.List = append(out.List, Opening{k.from, k.to, k.family == 0, k.family, k.protocol, [2]uint16{k.ports.First, k.ports.Last}, r.opened, r.seen})
		}
	}
	out.Connections.finish()
	out.Workloads.finish()
	out.Outside.finish()
	slices.SortFunc(out.List, func(a, b Opening) int {
		some := func(o *Opening) int { return int(min(o.Seen, 1)) } // what was not seen at all comes first
		return cmp.Or(some(&a)-some(&b), strings.Compare(a.From, b.From), strings.Compare(a.To, b.To), a.Family-b.Family,
			strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Ports[0], b.Ports[0]))
	})
	if n := len(out.List); n > maxOpenings {
		out.List, out.More = out.List[:maxOpenings], n-maxOpenings
	}
	return out
}
