package classifier

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Options tune Compile. The zero value is what the daemon uses.
type Options struct {
	// Generation numbers the table; it appears in events and records.
	Generation uint64
}

// Report says what a compile did.
type Report struct {
	Rules, Isolations int
	Endpoints         int // pods known
	Locals            int // pods policed here
	SubjectClasses    [2]int
	PeerClasses       [2]int
	Prefixes          int // distinct prefixes of blocks, holes and sets
	Elapsed           time.Duration
}

// Compile builds a table from a policy and the world it is about. Both are kept
// and must not change afterwards; set's slices are sorted in place. The error
// joins everything that is wrong with the input.
func Compile(set rule.Set, world *rule.World, opt Options) (*Table, *Report, error) {
	began := time.Now()
	if err := errors.Join(set.Validate(), world.Validate()); err != nil {
		return nil, nil, fmt.Errorf("compile policy: %w", err)
	}
	set.Sort()
	t := &Table{
		generation: opt.Generation, world: world,
		rules: set.Rules, isolations: set.Isolations,
		vips:    map[flow.Addr]struct{}{},
		consing: consing{outcomes: map[string]OutcomeID{}, programs: map[string]uint32{}},
	}
	outcomes := slices.Clone(fixedOutcomes)
	t.outcomes.Store(&outcomes)
	t.programs.Store(new([]*program))
	for _, a := range world.VIPs {
		t.vips[flow.AddrFrom(a)] = struct{}{}
	}
	t.assignSlots()
	b := newBuilder(t)
	b.internPeers()
	b.indexSubjects()
	b.indexPrefixes()
	b.classifyAddresses()
	b.finish()
	return t, &Report{
		Rules: len(t.rules), Isolations: len(t.isolations),
		Endpoints: len(world.Endpoints), Locals: len(t.locals),
		SubjectClasses: [2]int{len(t.dirs[0].subjects), len(t.dirs[1].subjects)},
		PeerClasses:    [2]int{len(t.dirs[0].peers), len(t.dirs[1].peers)},
		Prefixes:       len(t.leaves) - 1,
		Elapsed:        time.Since(began),
	}, nil
}

// assignSlots gives every protocol that rules name, and those packets usually
// have, a program slot of its own. Slot 0 serves all others; it is computed for
// a protocol number that no rule names.
func (t *Table) assignSlots() {
	named := [256]bool{flow.TCP: true, flow.UDP: true, flow.SCTP: true, flow.ICMP: true, flow.ICMPv6: true, flow.IGMP: true}
	for i := range t.rules {
		for j := range t.rules[i].L4 {
			named[t.rules[i].L4[j].Proto] = true
		}
	}
	named[flow.AnyProto] = false
	t.protos = []flow.Proto{flow.AnyProto}
	for p := 1; p < 256; p++ {
		if named[p] {
			t.slots[p] = uint8(len(t.protos))
			t.protos = append(t.protos, flow.Proto(p))
		} else {
			t.protos[0] = flow.Proto(p)
		}
	}
}

// builder holds what only Compile needs.
type builder struct {
	t       *Table
	dirs    [2]dirBuilder
	prefix  map[netip.Prefix][]prefixUse
	nodes   map[string]int32 // node name → index
	blockOf map[string]uint32
	setOf   map[string]uint32
}

// dirBuilder is the per-direction part of a builder.
type dirBuilder struct {
	podAtoms   []podAtom           // distinct peer selectors
	podAtomOf  map[string]uint32   // selector text → index
	nsAtoms    map[string][]uint32 // atoms tied to one namespace by name
	anyNSAtoms []uint32            // the others
	subjects   []subjectAtom
	usedPorts  map[string]struct{} // named ports that rules use
	peerIDs    map[string]uint32   // class key → index
	subjectIDs map[string]uint32
	memo       map[string][]uint32 // same for all pods that look alike to selectors
}

type podAtom struct {
	sel      rule.Selector
	compared compared // what relative peers using the selector compare
}

// subjectAtom is one distinct subject selector with everything it brings.
type subjectAtom struct {
	sel        rule.Selector
	rules      []RuleID
	isolations []int32
	compared   compared
}

// prefixUse says what a prefix means to a block or set.
type prefixUse struct {
	id   uint32
	kind uint8 // useBlock, useHole, useSet
}

const (
	useBlock = iota
	useHole
	useSet
)

func newBuilder(t *Table) *builder {
	b := &builder{
		t: t, prefix: map[netip.Prefix][]prefixUse{}, nodes: map[string]int32{},
		blockOf: map[string]uint32{}, setOf: map[string]uint32{},
	}
	for i := range b.dirs {
		b.dirs[i] = dirBuilder{
			podAtomOf: map[string]uint32{}, nsAtoms: map[string][]uint32{},
			usedPorts: map[string]struct{}{}, peerIDs: map[string]uint32{},
			subjectIDs: map[string]uint32{}, memo: map[string][]uint32{},
		}
	}
	for i := range t.world.Nodes {
		b.nodes[t.world.Nodes[i].Name] = int32(i)
	}
	return b
}

// internPeers numbers every distinct peer selector, block and set, so that a
// class is a list of numbers.
func (b *builder) internPeers() {
	t := b.t
	t.peerAtoms = make([][]uint32, len(t.rules))
	for i := range t.rules {
		r := &t.rules[i]
		db := &b.dirs[r.Direction]
		for j := range r.L4 {
			if n := r.L4[j].Name; n != "" {
				db.usedPorts[n] = struct{}{}
			}
		}
		atoms := make([]uint32, len(r.Peers))
		for j := range r.Peers {
			switch p := &r.Peers[j]; p.Kind {
			case rule.PeerPods:
				atoms[j] = db.internPods(p)
			case rule.PeerBlock:
				atoms[j] = b.internBlock(&p.Block)
			case rule.PeerSet:
				atoms[j] = b.internSet(p.Set)
			}
		}
		t.peerAtoms[i] = atoms
	}
}

func (db *dirBuilder) internPods(p *rule.Peer) uint32 {
	key := p.Pods.String()
	id, ok := db.podAtomOf[key]
	if !ok {
		id = uint32(len(db.podAtoms))
		db.podAtomOf[key] = id
		db.podAtoms = append(db.podAtoms, podAtom{sel: p.Pods})
		if ns := p.Pods.Namespace; ns != "" {
			db.nsAtoms[ns] = append(db.nsAtoms[ns], id)
		} else {
			db.anyNSAtoms = append(db.anyNSAtoms, id)
		}
	}
	db.podAtoms[id].compared.add(&p.Relation)
	return id
}

func (b *builder) internBlock(blk *rule.IPBlock) uint32 {
	key := blk.String()
	id, ok := b.blockOf[key]
	if !ok {
		id = uint32(len(b.blockOf))
		b.blockOf[key] = id
		b.use(blk.Prefix, prefixUse{id, useBlock})
		for _, e := range blk.Except {
			b.use(e, prefixUse{id, useHole})
		}
	}
	return id
}

func (b *builder) internSet(name string) uint32 {
	id, ok := b.setOf[name]
	if !ok {
		id = uint32(len(b.setOf))
		b.setOf[name] = id
		for _, p := range b.t.world.Sets[name] {
			b.use(p, prefixUse{id, useSet})
		}
	}
	return id
}

func (b *builder) use(p netip.Prefix, u prefixUse) {
	p = p.Masked()
	b.prefix[p] = append(b.prefix[p], u)
}

// indexSubjects groups rules and isolations by their subject selector.
func (b *builder) indexSubjects() {
	t := b.t
	var ids [2]map[string]int
	atom := func(d flow.Direction, sel *rule.Selector) *subjectAtom {
		if ids[d] == nil {
			ids[d] = map[string]int{}
		}
		key := sel.String()
		i, ok := ids[d][key]
		if !ok {
			i = len(b.dirs[d].subjects)
			ids[d][key] = i
			b.dirs[d].subjects = append(b.dirs[d].subjects, subjectAtom{sel: *sel})
		}
		return &b.dirs[d].subjects[i]
	}
	for i := range t.rules {
		r := &t.rules[i]
		a := atom(r.Direction, &r.Subject)
		a.rules = append(a.rules, RuleID(i))
		for j := range r.Peers {
			a.compared.add(&r.Peers[j].Relation)
		}
	}
	for i := range t.isolations {
		a := atom(t.isolations[i].Direction, &t.isolations[i].Subject)
		a.isolations = append(a.isolations, int32(i))
	}
}

// indexPrefixes computes, for every prefix policies mention, which blocks and
// sets contain the addresses whose longest match it is. The prefixes that cover
// it decide: no boundary of a block runs through the region of one leaf.
func (b *builder) indexPrefixes() {
	t := b.t
	order := slices.SortedFunc(maps.Keys(b.prefix), func(x, y netip.Prefix) int { return strings.Compare(x.String(), y.String()) })
	none := record{endpoint: -1, node: -1, runsOn: -1}
	for _, d := range flow.Directions {
		none.peer[d] = b.internPeer(d, peerClass{kind: peerOutside})
	}
	t.leaves = []record{none}
	for i, p := range order {
		t.prefixes.Insert(p, uint32(i+1))
	}
	for _, p := range order {
		blocks, sets := b.covering(p)
		leaf := none
		for _, d := range flow.Directions {
			leaf.peer[d] = b.internPeer(d, peerClass{kind: peerOutside, blocks: blocks, sets: sets})
		}
		t.leaves = append(t.leaves, leaf)
	}
	t.unknown = none
	for _, d := range flow.Directions {
		t.unknown.peer[d] = b.internPeer(d, peerClass{kind: peerUnknown})
	}
	for i := range t.world.Nodes {
		for _, c := range t.world.Nodes[i].PodCIDRs {
			t.podCIDRs.Insert(c.Masked())
		}
	}
}

// covering returns the blocks and sets that contain the addresses of p.
func (b *builder) covering(p netip.Prefix) (blocks, sets idSet) {
	in, out := map[uint32]struct{}{}, map[uint32]struct{}{}
	for q := range b.t.prefixes.Supernets(p) {
		for _, u := range b.prefix[q] {
			switch u.kind {
			case useBlock:
				in[u.id] = struct{}{}
			case useHole:
				out[u.id] = struct{}{}
			case useSet:
				sets = append(sets, u.id)
			}
		}
	}
	for id := range in {
		if _, hole := out[id]; !hole {
			blocks = append(blocks, id)
		}
	}
	slices.Sort(blocks)
	slices.Sort(sets)
	return blocks, slices.Compact(sets)
}

// classifyAddresses makes a record for every address of a node or pod.
func (b *builder) classifyAddresses() {
	t, w := b.t, b.t.world
	n := 0
	for i := range w.Nodes {
		n += len(w.Nodes[i].Addrs)
	}
	for i := range w.Endpoints {
		n += len(w.Endpoints[i].Addrs)
	}
	t.addrs = newAddrTable(n)
	for i := range w.Nodes {
		for _, a := range w.Nodes[i].Addrs {
			b.addNodeAddr(a, int32(i))
		}
	}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		runsOn, known := b.nodes[e.Node]
		if !known {
			runsOn = -1
		}
		if e.HostNetwork {
			for _, a := range e.Addrs {
				b.addNodeAddr(a, runsOn)
			}
			continue
		}
		b.addPod(int32(i), e, runsOn)
	}
}

// addNodeAddr records an address shared by a node and its host-network pods.
// A pod's own record for the same address is never replaced.
func (b *builder) addNodeAddr(a netip.Addr, node int32) {
	key := flow.AddrFrom(a)
	if r := b.t.addrs.get(&key); r != nil && (r.endpoint >= 0 || node < 0) {
		return
	}
	rec := record{endpoint: -1, node: node, runsOn: -1}
	leaf := b.leafOf(a)
	rec.peer = leaf.peer
	b.t.addrs.put(key, rec)
}

func (b *builder) leafOf(a netip.Addr) *record {
	if leaf, ok := b.t.prefixes.Lookup(a); ok {
		return &b.t.leaves[leaf]
	}
	return &b.t.leaves[0]
}

func (b *builder) addPod(index int32, e *rule.Endpoint, runsOn int32) {
	t := b.t
	base := record{endpoint: index, node: -1, runsOn: runsOn, local: t.world.Local(e)}
	selected := false
	if base.local {
		for _, d := range flow.Directions {
			id := b.subjectClass(d, e)
			base.subject[d] = id
			s := &t.dirs[d].subjects[id]
			selected = selected || len(s.rules) > 0 || len(s.isolations) > 0
		}
	}
	for _, a := range e.Addrs {
		rec := base
		leaf := b.leafOf(a)
		for _, d := range flow.Directions {
			outside := &t.dirs[d].peers[leaf.peer[d]]
			rec.peer[d] = b.internPeer(d, peerClass{
				kind: peerPod, pods: b.podAtoms(d, e), blocks: outside.blocks, sets: outside.sets, rep: e,
			})
		}
		key := flow.AddrFrom(a)
		if r := t.addrs.get(&key); r != nil && r.endpoint >= 0 {
			continue // two pods with one address: the first one has it
		}
		t.addrs.put(key, rec)
		if base.local {
			t.locals = append(t.locals, a)
			if selected {
				t.selected = append(t.selected, a)
			}
		}
	}
}

// podAtoms returns the peer selectors of a direction that select the endpoint.
func (b *builder) podAtoms(d flow.Direction, e *rule.Endpoint) idSet {
	db := &b.dirs[d]
	key := endpointKey(e)
	if ids, ok := db.memo[key]; ok {
		return ids
	}
	var ids idSet
	for _, list := range [2][]uint32{db.nsAtoms[e.Namespace], db.anyNSAtoms} {
		for _, id := range list {
			if db.podAtoms[id].sel.Matches(e) {
				ids = append(ids, id)
			}
		}
	}
	slices.Sort(ids)
	db.memo[key] = ids
	return ids
}

// endpointKey is equal for endpoints that no selector can tell apart.
func endpointKey(e *rule.Endpoint) string {
	b := appendString(nil, e.Namespace)
	b = appendString(b, e.ServiceAccount)
	for _, m := range [2]map[string]string{e.NamespaceLabels, e.Labels} {
		b = append(b, '|')
		for _, k := range slices.Sorted(maps.Keys(m)) {
			b = appendString(appendString(b, k), m[k])
		}
	}
	return string(b)
}

func (b *builder) internPeer(d flow.Direction, p peerClass) uint32 {
	db := &b.dirs[d]
	key := []byte{byte(p.kind)}
	key = p.sets.appendKey(p.blocks.appendKey(p.pods.appendKey(key)))
	if p.rep != nil {
		var cmp compared
		for _, id := range p.pods {
			cmp.merge(&db.podAtoms[id].compared)
		}
		key = cmp.appendKey(key, p.rep)
		if d == flow.Egress {
			key = appendPorts(key, db.usedPorts, p.rep)
		}
	}
	id, ok := db.peerIDs[string(key)]
	if !ok {
		id = uint32(len(b.t.dirs[d].peers))
		db.peerIDs[string(key)] = id
		b.t.dirs[d].peers = append(b.t.dirs[d].peers, p)
	}
	return id
}

// subjectClass returns the class of a policed pod in a direction.
func (b *builder) subjectClass(d flow.Direction, e *rule.Endpoint) uint32 {
	db := &b.dirs[d]
	var s subjectClass
	var cmp compared
	var atoms idSet
	for i := range db.subjects {
		a := &db.subjects[i]
		if !a.sel.Matches(e) {
			continue
		}
		atoms = append(atoms, uint32(i))
		s.rules = append(s.rules, a.rules...)
		for _, iso := range a.isolations {
			s.isolations = append(s.isolations, isolationRef{iso, &b.t.isolations[iso]})
		}
		cmp.merge(&a.compared)
	}
	key := cmp.appendKey(atoms.appendKey(nil), e)
	if d == flow.Ingress {
		key = appendPorts(key, db.usedPorts, e)
	}
	if id, ok := db.subjectIDs[string(key)]; ok {
		return id
	}
	slices.Sort(s.rules)
	slices.SortFunc(s.isolations, func(x, y isolationRef) int { return int(x.index - y.index) })
	s.rep = e
	for _, id := range s.rules {
		s.staged = s.staged || b.t.rules[id].Stage == rule.AuditOnly
	}
	for _, iso := range s.isolations {
		s.staged = s.staged || iso.rule.Stage == rule.AuditOnly
	}
	id := uint32(len(b.t.dirs[d].subjects))
	db.subjectIDs[string(key)] = id
	b.t.dirs[d].subjects = append(b.t.dirs[d].subjects, s)
	return id
}

func (b *builder) finish() {
	t := b.t
	for d := range t.dirs {
		t.dirs[d].rows = make([]row, len(t.dirs[d].subjects))
		for i := range t.dirs[d].rows {
			t.dirs[d].rows[i] = make(row, len(t.dirs[d].peers))
		}
	}
	slices.SortFunc(t.locals, netip.Addr.Compare)
	slices.SortFunc(t.selected, netip.Addr.Compare)
	t.locals, t.selected = slices.Compact(t.locals), slices.Compact(t.selected)
}
