package classifier

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Live keeps a policy and its world and turns changes of either into new tables
// at the cost of what changed. Tables it hands out are immutable and share
// everything that did not change, so any number of readers use them without
// locks, each for as long as it likes.
//
// Apply and Sync serialise themselves; Table may be called by anybody.
type Live struct {
	current atomic.Pointer[Table]

	mu    sync.Mutex // guards everything below
	epoch uint64     // what carries it was made since the last table
	s     state      // the next table

	opt      Options
	building bool
	mem      *memory
	limits   serialLimits

	subjectSerial, peerSerial uint32   // last ones given
	named                     [256]int // how many L4s name a protocol

	policies       map[PolicyRef]*policyEntry
	scopes         scopeIndex
	subjects       map[subjectKey]*subjectUse
	subjectIndexes numbers
	subjectsEpoch  uint64   // s.subjects is our own copy in it
	dead           []uint32 // serials of subjects that are no more
	listsStale     bool

	ruleIDs, isolationIDs, setIDs numbers
	toServices                    map[*ruleEntry]struct{} // rules to Services

	namespaces map[string]map[string]*pod
	podCount   int
	localCount int
	podSlots   numbers
	identities identities
	peerCount  int
	nodeSets   map[string]*nodeSet
	contested  map[flow.Addr][]*pod // addresses of more than one pod
	nodes      map[string]*nodeEntry
	nodeSlots  numbers
	nodeClaims map[flow.Addr][]nodeClaim
	podCIDRs   map[netip.Prefix]int
	podBytes   [2][256]int          // how many of them have addresses that begin so, by family
	regions    map[netip.Prefix]int // known addresses by region

	sets        map[string]*addrSet
	uses        map[netip.Prefix]*prefixUse
	touched     map[netip.Prefix]bool // uses changed; true: sets too
	idle        map[netip.Prefix]struct{}
	prefixEpoch uint64 // s.prefixes is our own copy in it
}

// Delta is a change to a policy and its world. All of it comes into force at
// once or not at all. Of several changes to one thing in a list the last counts.
// The zero value changes nothing.
//
// Everything in it is kept and must not change afterwards.
type Delta struct {
	// Generation numbers the resulting table; 0 means the last one plus one.
	Generation uint64
	// Policies replaces everything the objects brought before.
	Policies []PolicyChange
	// Pods are added, or replace the pod of the same namespace and name.
	Pods     []rule.Endpoint
	DropPods []PodName // unknown ones are ignored
	// Namespaces replaces the labels of a namespace in all pods known there
	// before this Delta. Pods of this Delta bring their own.
	Namespaces map[string]map[string]string
	// Nodes are added, or replace the node of the same name.
	Nodes     []rule.Node
	DropNodes []string
	// Sets replaces the prefixes of address sets.
	Sets     map[string][]netip.Prefix
	DropSets []string
	// VIPs replaces all Service addresses if ReplaceVIPs is set.
	VIPs        []netip.Addr
	ReplaceVIPs bool
	// LocalPrefixes replaces all of them if ReplaceLocalPrefixes is set.
	LocalPrefixes        []netip.Prefix
	ReplaceLocalPrefixes bool
}

// PolicyChange is what one policy object means now. An empty Set: it is gone, or
// means nothing.
type PolicyChange struct {
	Ref PolicyRef
	Set rule.Set // every Origin is of Ref
}

// PodName names a pod.
type PodName struct{ Namespace, Name string }

// NewLive is Compile that stays open for changes. Unlike Compile it wants pod
// names to be unique in their namespace.
func NewLive(set rule.Set, world *rule.World, opt Options) (*Live, *Report, error) {
	seen := make(map[PodName]struct{}, len(world.Endpoints))
	for i := range world.Endpoints {
		n := PodName{world.Endpoints[i].Namespace, world.Endpoints[i].Name}
		if _, dup := seen[n]; dup {
			return nil, nil, fmt.Errorf("compile policy: pod %s/%s is listed twice", n.Namespace, n.Name)
		}
		seen[n] = struct{}{}
	}
	return build(set, world, opt)
}

func build(set rule.Set, world *rule.World, opt Options) (*Live, *Report, error) {
	began := time.Now()
	if err := errors.Join(set.Validate(), world.Validate()); err != nil {
		return nil, nil, fmt.Errorf("compile policy: %w", err)
	}
	set.Sort()
	l := &Live{opt: opt, limits: defaultLimits}
	l.fill(&set, world)
	t := l.publish(opt.Generation)
	return l, l.report(nil, t, began), nil
}

// fill starts from nothing. set is sorted.
func (l *Live) fill(set *rule.Set, world *rule.World) {
	l.building = true
	defer func() { l.building = false }()
	l.epoch++
	series := l.s.series + 1
	l.subjectSerial, l.peerSerial, l.peerCount, l.mem, l.named = 0, 0, 0, nil, [256]int{}
	l.policies = make(map[PolicyRef]*policyEntry, len(set.Rules)/2)
	l.scopes = scopeIndex{}
	l.subjects, l.dead, l.subjectIndexes, l.subjectsEpoch = map[subjectKey]*subjectUse{}, nil, numbers{}, l.epoch
	l.ruleIDs, l.isolationIDs, l.setIDs = numbers{}, numbers{}, numbers{}
	l.toServices = map[*ruleEntry]struct{}{}
	l.podSlots, l.nodeSlots = numbers{}, numbers{}
	l.namespaces, l.podCount, l.localCount = map[string]map[string]*pod{}, 0, 0
	l.identities = newIdentities(len(world.Endpoints) / 4)
	l.nodeSets = map[string]*nodeSet{}
	l.contested, l.nodeClaims = map[flow.Addr][]*pod{}, map[flow.Addr][]nodeClaim{}
	l.nodes, l.podCIDRs, l.regions = map[string]*nodeEntry{}, map[netip.Prefix]int{}, map[netip.Prefix]int{}
	l.podBytes = [2][256]int{}
	l.sets, l.uses = map[string]*addrSet{}, map[netip.Prefix]*prefixUse{}
	l.touched, l.idle = map[netip.Prefix]bool{}, map[netip.Prefix]struct{}{}
	l.prefixEpoch = l.epoch

	v4, v6 := 0, 0
	count := func(addrs []netip.Addr) {
		for _, a := range addrs {
			if a.Is4() {
				v4++
			} else {
				v6++
			}
		}
	}
	for i := range world.Nodes {
		count(world.Nodes[i].Addrs)
	}
	for i := range world.Endpoints {
		count(world.Endpoints[i].Addrs)
	}
	l.s = state{
		series: series, node: world.Node, addrs: newAddrTable(v4, v6, l.epoch), prefixes: newPrefixes(), podCIDRs: new(bart.Lite),
		vips: vipSet(world.VIPs), vipList: world.VIPs,
		localPrefixes: world.LocalPrefixes,
	}
	l.s.none = l.newLeaf(netip.Prefix{})
	l.s.masked = newParty(&record{peer: &peerClass{serial: l.newPeerSerial(), kind: peerMasked, leaf: l.s.none}}, false)
	for _, p := range wellKnown {
		l.prefixUse(p)
		l.putLeaf(l.newLeaf(p))
	}
	for name, prefixes := range world.Sets {
		l.changeSet(name, prefixes, true)
	}
	entry := func(o *rule.Origin) *policyEntry {
		ref := RefOf(o)
		p := l.policies[ref]
		if p == nil {
			p = &policyEntry{}
			l.policies[ref] = p
		}
		return p
	}
	for i := range set.Rules {
		l.addRule(entry(&set.Rules[i].Origin), &set.Rules[i])
	}
	for i := range set.Isolations {
		l.addIsolation(entry(&set.Isolations[i].Origin), &set.Isolations[i])
	}
	for _, p := range l.policies {
		for _, s := range p.scopes {
			l.scopes.add(s)
		}
	}
	l.flushPrefixes()
	for i := range world.Nodes {
		l.putNode(&world.Nodes[i])
	}
	for i := range world.Endpoints {
		e := &world.Endpoints[i]
		double := int32(0)
		for l.namespaces[e.Namespace][podKey(e.Name, double)] != nil {
			double++
		}
		l.putPod(e, double)
	}
}

// Table returns the table in force.
func (l *Live) Table() *Table { return l.current.Load() }

// Apply puts a change into force and returns the table that has it. On error
// nothing has changed. The report says which connections may now be decided
// differently.
func (l *Live) Apply(d *Delta) (*Table, *Report, error) {
	began := time.Now()
	if err := d.validate(); err != nil {
		return nil, nil, fmt.Errorf("update policy: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.current.Load()
	gen := d.Generation
	if gen == 0 {
		gen = old.generation + 1
	}
	if gen <= old.generation {
		return nil, nil, fmt.Errorf("update policy: generation %d does not follow %d", gen, old.generation)
	}
	l.epoch++
	l.renumber()
	for i := range d.Policies {
		set := &d.Policies[i].Set
		l.replacePolicy(d.Policies[i].Ref, set)
	}
	for name, prefixes := range d.Sets {
		l.changeSet(name, prefixes, true)
	}
	for _, name := range d.DropSets {
		l.changeSet(name, nil, false)
	}
	l.flushPrefixes()
	for _, name := range d.DropNodes {
		l.dropNode(name)
	}
	for i := range d.Nodes {
		l.putNode(&d.Nodes[i])
	}
	for name, labels := range d.Namespaces {
		for _, p := range l.namespaces[name] {
			e := *p.ep
			e.NamespaceLabels = labels
			l.putPod(&e, p.double)
		}
	}
	for _, n := range d.DropPods {
		l.dropPod(n.Namespace, n.Name)
	}
	for i := range d.Pods {
		l.putPod(&d.Pods[i], 0)
	}
	if d.ReplaceVIPs {
		l.s.vips, l.s.vipList = vipSet(d.VIPs), d.VIPs
	}
	if d.ReplaceLocalPrefixes {
		l.s.localPrefixes = d.LocalPrefixes
	}
	t := l.publish(gen)
	return t, l.report(old, t, began), nil
}

func (d *Delta) validate() error {
	var errs []error
	for i := range d.Policies {
		p := &d.Policies[i]
		errs = append(errs, p.Set.Validate())
		for j := range p.Set.Rules {
			if o := &p.Set.Rules[j].Origin; RefOf(o) != p.Ref {
				errs = append(errs, fmt.Errorf("rule of %s in the change of %+v", o.Ref(), p.Ref))
			}
		}
		for j := range p.Set.Isolations {
			if o := &p.Set.Isolations[j].Origin; RefOf(o) != p.Ref {
				errs = append(errs, fmt.Errorf("isolation of %s in the change of %+v", o.Ref(), p.Ref))
			}
		}
	}
	w := rule.World{Endpoints: d.Pods, LocalPrefixes: d.LocalPrefixes}
	errs = append(errs, w.Validate())
	for i := range d.Nodes { // one by one: a later change of a node is not a duplicate
		w := rule.World{Nodes: d.Nodes[i : i+1]}
		errs = append(errs, w.Validate())
	}
	return errors.Join(errs...)
}

// publish turns the state into a table and puts it in force.
func (l *Live) publish(gen uint64) *Table {
	if l.listsStale || l.s.lists == nil {
		l.s.lists = &addrLists{pods: make([]*pod, 0, l.localCount)}
		for _, u := range l.subjects {
			for p := range u.pods {
				l.s.lists.pods = append(l.s.lists.pods, p)
			}
		}
		l.listsStale = false
	}
	l.s.services, l.s.serviceSets = l.services()
	l.ensureMemory()
	t := &Table{state: l.s, generation: gen, mem: l.mem, known: &lazyWorld{}}
	l.current.Store(t)
	l.mem.forget(l.dead)
	l.dead = l.dead[:0]
	return t
}

// ensureMemory starts a new memory when there is none, when a protocol is named
// for the first time, or when the budget is used up.
func (l *Live) ensureMemory() {
	renew := l.mem == nil
	if !renew {
		for p, n := range l.named {
			renew = renew || p != 0 && n > 0 && l.mem.slots[p] == 0
		}
		l.mem.mu.Lock()
		renew = renew || l.mem.full() || l.mem.bytes() > l.mem.budget
		l.mem.mu.Unlock()
	}
	if renew {
		l.mem = newMemory(l.opt.MemoryBudget, &l.named)
	}
}

// serialLimits say when numbering begins again.
type serialLimits struct{ subject, peer uint32 }

// defaultLimits leave what one Delta may need: a new class for every address and
// for every subject, twice.
var defaultLimits = serialLimits{maxSerial / 2, maxSerial / 2}

// renumber begins a new series of serials when they run low. Tables of the old
// series keep their memory; those of the new one start with an empty one. For
// subjects, of which there are few, that is all. To number the peers again
// everything is built again, once in some four million new classes.
func (l *Live) renumber() {
	if l.peerSerial > l.limits.peer {
		t := l.current.Load()
		set := t.Policy()
		l.fill(&set, t.World())
		l.epoch++
		return
	}
	if l.subjectSerial <= l.limits.subject {
		return
	}
	l.s.series++
	l.subjectSerial, l.mem, l.dead = 0, nil, nil
	for _, u := range l.subjects {
		s := l.ownSubject(u)
		s.serial = [2]uint32{l.newSubjectSerial(), l.newSubjectSerial()}
		u.renewed = [2]uint64{l.epoch, l.epoch}
		l.setSubject(u)
	}
}

func (l *Live) newSubjectSerial() uint32 {
	l.subjectSerial++
	return l.subjectSerial
}

func (l *Live) newPeerSerial() uint32 {
	l.peerSerial++
	return l.peerSerial
}

func (l *Live) retire(serial uint32) { l.dead = append(l.dead, serial) }

func vipSet(vips []netip.Addr) map[flow.Addr]struct{} {
	m := make(map[flow.Addr]struct{}, len(vips))
	for _, a := range vips {
		m[flow.AddrFrom(a)] = struct{}{}
	}
	return m
}
