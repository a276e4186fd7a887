package classifier

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/gaissmai/bart"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Table is an immutable compiled policy. Any number of goroutines may use it.
type Table struct {
	state
	generation uint64
	mem        *memory // shared with tables before and after
	known      *lazyWorld
}

// state is what tables and the writer have in common: persistent values of which
// a version is made by copying the struct.
type state struct {
	series      uint64 // serials of different series do not compare
	node        string
	addrs       addrTable          // pods and nodes, exact
	prefixes    *bart.Table[*leaf] // prefixes that policies mention
	none        *leaf              // matched by no prefix
	podCIDRs    *bart.Lite         // addresses in here without a slot are unknown
	podBytes    [2][4]uint64       // first bytes of addresses in podCIDRs, by family
	masked      party              // the client that LookupMasked is about
	vips        map[flow.Addr]struct{}
	vipList     []netip.Addr
	services    []ServicePort             // that rules name, sorted
	serviceSets map[string][]netip.Prefix // by which rules name Services
	// localPrefixes are rule.World.LocalPrefixes: one or two, so they are walked.
	localPrefixes []netip.Prefix

	rules      chunks[*rule.Rule]
	ruleCount  [2]int
	isolations chunks[*rule.Isolation]
	pods       chunks[*rule.Endpoint]
	nodes      chunks[*rule.Node]
	sets       chunks[namedSet]
	subjects   []subjectRef
	lists      *addrLists
}

// addrLists are sorted lists that few callers want, made on demand.
type addrLists struct {
	pods             []*pod // all local ones
	once             sync.Once
	selected, locals []netip.Addr
}

// lazyWorld is the world as one value, made on demand unless it was given.
type lazyWorld struct {
	once  sync.Once
	world *rule.World
}

// Lookup decides a connection. k is in the direction the connection was opened;
// an invalid key is decided like an address nobody has, never allowed by
// accident. No allocation once the cells involved are there.
func (t *Table) Lookup(k flow.Key) Decision {
	src, dst := t.resolve(&k.Src), t.resolve(&k.Dst)
	eg, in := outcomeNotLocal, outcomeNotLocal
	if src.local() {
		eg = t.decide(flow.Egress, src, dst, &k)
	}
	if dst.local() {
		in = t.decide(flow.Ingress, dst, src, &k)
	}
	v := eg.verdict()
	if v == Allow {
		v = in.verdict()
	}
	return Decision{Verdict: v, Egress: eg, Ingress: in, Audit: (eg|in)&outcomeAudit != 0}
}

// NodeLocal is the decision about a connection that this node itself opened to one
// of its pods. Lookup says so for the addresses the world lists; who knows
// that the node sent a packet needs no list.
var NodeLocal = Decision{Verdict: Allow, Egress: outcomeNotLocal, Ingress: outcomeNodeLocal}

// LookupMasked decides a connection whose source address is not its client's:
// somebody has put another one in its place. What any policy of the destination
// could say about the client counts against it, addresses included.
func (t *Table) LookupMasked(k flow.Key) Decision {
	in := outcomeNotLocal
	if dst := t.resolve(&k.Dst); dst.local() {
		in = t.decide(flow.Ingress, dst, t.masked, &k)
	}
	return Decision{Verdict: in.verdict(), Egress: outcomeNotLocal, Ingress: in, Audit: in&outcomeAudit != 0}
}

func (t *Table) decide(d flow.Direction, subject, peer party, k *flow.Key) OutcomeID {
	if subject.rec == peer.rec {
		return outcomeSelf // a record is of one address
	}
	m, s := t.mem, &t.subjects[subject.rec.subject]
	c, key := m.cells.Load(), cellKey(s.serial[d], peer.serial())
	// The first probe nearly always finds it; the loop is left to get.
	w := c.words[c.start(key)].Load()
	id := uint32(w & (maxPrograms - 1))
	if w>>programBits != key {
		if id = c.get(key); id == 0 {
			return t.fill(d, s.subject, peer.rec.peer, k)
		}
	}
	p := (*m.programs.Load())[id]
	if len(p) == 1 {
		return OutcomeID(p[0])
	}
	return p.lookup(m.slots[k.Proto], k.DstPort, k.SrcPort)
}

// resolve maps an address to its party: exact, or by prefix.
func (t *Table) resolve(a *flow.Addr) party {
	if p := t.addrs.get(a); p.rec != nil {
		return p
	}
	return t.resolveFar(a)
}

func (t *Table) resolveFar(a *flow.Addr) party {
	var ip netip.Addr
	v4, is4 := to4(a)
	family, first := 0, uint32(v4)>>24
	if is4 {
		ip = netip.AddrFrom4([4]byte{byte(v4 >> 24), byte(v4 >> 16), byte(v4 >> 8), byte(v4)})
	} else {
		ip = netip.AddrFrom16(*a)
		family, first = 1, uint32(a[0])
	}
	leaf, ok := t.prefixes.Lookup(ip)
	if !ok {
		leaf = t.none
	}
	if t.podBytes[family][first/64]&(1<<(first%64)) != 0 && t.podCIDRs.Lookup(ip) {
		return leaf.nobody
	}
	return leaf.party
}

// Generation returns Options.Generation or Delta.Generation.
func (t *Table) Generation() uint64 { return t.generation }

// World returns the world the table was compiled for. Read only. The first call
// on a table of a Live puts it together, pods and nodes in the order of their
// names.
func (t *Table) World() *rule.World {
	t.known.once.Do(func() {
		if t.known.world == nil {
			t.known.world = t.makeWorld()
		}
	})
	return t.known.world
}

func (t *Table) makeWorld() *rule.World {
	w := &rule.World{Node: t.node, VIPs: t.vipList, LocalPrefixes: t.localPrefixes, Sets: map[string][]netip.Prefix{}}
	t.pods.each(func(e **rule.Endpoint) {
		if *e != nil {
			w.Endpoints = append(w.Endpoints, **e)
		}
	})
	t.nodes.each(func(n **rule.Node) {
		if *n != nil {
			w.Nodes = append(w.Nodes, **n)
		}
	})
	t.sets.each(func(s *namedSet) {
		if s.present {
			w.Sets[s.name] = s.prefixes
		}
	})
	slices.SortFunc(w.Endpoints, func(a, b rule.Endpoint) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	slices.SortFunc(w.Nodes, func(a, b rule.Node) int { return strings.Compare(a.Name, b.Name) })
	return w
}

// Policy returns the rules and isolations of the table in canonical order. They
// are copies; what they point to is read only.
func (t *Table) Policy() rule.Set {
	var set rule.Set
	t.rules.each(func(r **rule.Rule) {
		if *r != nil {
			set.Rules = append(set.Rules, **r)
		}
	})
	t.isolations.each(func(i **rule.Isolation) {
		if *i != nil {
			set.Isolations = append(set.Isolations, **i)
		}
	})
	set.Sort()
	return set
}

// EachRule calls f with every rule of the table, in no order. Read only: the pointer
// stays the same from table to table while the rule does.
func (t *Table) EachRule(f func(*rule.Rule)) {
	t.rules.each(func(r **rule.Rule) {
		if *r != nil {
			f(*r)
		}
	})
}

// EachIsolation is as EachRule.
func (t *Table) EachIsolation(f func(*rule.Isolation)) {
	t.isolations.each(func(i **rule.Isolation) {
		if *i != nil {
			f(*i)
		}
	})
}

// StagedPolicies counts the policies with a rule or isolation that is evaluated
// and recorded, and not enforced. It looks at all of them.
func (t *Table) StagedPolicies() int {
	staged := map[PolicyRef]struct{}{}
	t.rules.each(func(r **rule.Rule) {
		if *r != nil && (*r).Stage == rule.AuditOnly {
			staged[RefOf(&(*r).Origin)] = struct{}{}
		}
	})
	t.isolations.each(func(i **rule.Isolation) {
		if *i != nil && (*i).Stage == rule.AuditOnly {
			staged[RefOf(&(*i).Origin)] = struct{}{}
		}
	})
	return len(staged)
}

// Outcome resolves an id from a Decision of this table. Zero yields nil.
func (t *Table) Outcome(id OutcomeID) *Outcome {
	if id == 0 {
		return nil
	}
	return (*t.mem.outcomes.Load())[id.index()]
}

// Rule resolves a rule id of this table. The result is read only.
func (t *Table) Rule(id RuleID) *rule.Rule { return *t.rules.at(int(id)) }

// Isolation resolves an isolation index of this table. The result is read only.
func (t *Table) Isolation(i int32) *rule.Isolation { return *t.isolations.at(int(i)) }

// Endpoint returns the pod that has the address as its own, or nil. Addresses
// shared by host-network pods belong to the node and yield nil.
func (t *Table) Endpoint(a flow.Addr) *rule.Endpoint {
	if rec := t.addrs.get(&a).rec; rec != nil && rec.pod != nil {
		return rec.pod.ep
	}
	return nil
}

// IsPod reports whether a known pod, of whatever node, has the address as its own.
func (t *Table) IsPod(a flow.Addr) bool { return t.Endpoint(a) != nil }

// IsNode reports whether a node of the cluster has the address.
func (t *Table) IsNode(a flow.Addr) bool { return t.NodeOf(a) != nil }

// NodeOf returns the node that has the address, or nil.
func (t *Table) NodeOf(a flow.Addr) *rule.Node {
	if rec := t.addrs.get(&a).rec; rec != nil {
		return rec.node
	}
	return nil
}

// IsVIP reports whether a is a Service address (see rule.World.VIPs).
func (t *Table) IsVIP(a flow.Addr) bool {
	_, ok := t.vips[a]
	return ok
}

// UnknownLocal reports which ends of a connection are addresses of this node's
// pods that belong to none it knows (rule.World.LocalPrefixes): a pod that runs
// already but was not heard of yet, or one that is gone. Nobody's policy was
// asked about such an end, so whoever closes on doubt denies.
//
// Addresses of nodes are never unknown, and what the node itself opens needs no
// policy: with a source that is the node's own dst is false. Bridges may
// give the node an address from its pod prefix that the world does not list; who
// sees packets knows those.
func (t *Table) UnknownLocal(k flow.Key) (src, dst bool) {
	if len(t.localPrefixes) == 0 {
		return false, false
	}
	return t.unknownLocal(&k.Src), t.unknownLocal(&k.Dst) && !t.ownNode(&k.Src)
}

func (t *Table) unknownLocal(a *flow.Addr) bool {
	ip := netip.AddrFrom16(*a).Unmap()
	for _, p := range t.localPrefixes {
		if p.Contains(ip) {
			q := t.addrs.get(a)
			return q.rec == nil || q.rec.pod != nil && !q.local()
		}
	}
	return false
}

func (t *Table) ownNode(a *flow.Addr) bool {
	rec := t.addrs.get(a).rec
	return rec != nil && rec.node != nil && rec.node.Name == t.node
}

// LocalPrefixes returns rule.World.LocalPrefixes. Read only.
func (t *Table) LocalPrefixes() []netip.Prefix { return t.localPrefixes }

// Selected returns the addresses of local pods that at least one rule or
// isolation selects in either direction, sorted. Only their traffic needs
// judging. The result is read only.
func (t *Table) Selected() []netip.Addr {
	t.makeLists()
	return t.lists.selected
}

// Locals returns the addresses of all local pods, sorted. The result is read
// only.
func (t *Table) Locals() []netip.Addr {
	t.makeLists()
	return t.lists.locals
}

func (t *Table) makeLists() {
	t.lists.once.Do(func() {
		for _, p := range t.lists.pods {
			for _, a := range p.ep.Addrs {
				key := flow.AddrFrom(a)
				rec := t.addrs.get(&key).rec
				if rec == nil || rec.pod != p {
					continue // another pod has it
				}
				t.lists.locals = append(t.lists.locals, a)
				if t.subjects[rec.subject].selected() {
					t.lists.selected = append(t.lists.selected, a)
				}
			}
		}
		t.lists.pods = nil
		for _, list := range []*[]netip.Addr{&t.lists.locals, &t.lists.selected} {
			slices.SortFunc(*list, netip.Addr.Compare)
			*list = slices.Compact(*list)
		}
	})
}
