package classifier

import (
	"hash/maphash"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// identity is everything selectors, relations and named ports can see of a pod.
// Pods of one identity are indistinguishable to any policy, also to one that is
// written tomorrow, so no change of policy ever touches identities. Immutable
// but for what the writer counts.
type identity struct {
	rep  *rule.Endpoint // any pod of the identity
	hash uint64
	next *identity // same hash
	refs int
	// peers are the classes of the identity, one for each leaf that has an
	// address of such a pod: hardly ever more than one a family.
	peers *peerClass
}

// identities finds the identity of a pod. Writer only.
type identities struct {
	byHash map[uint64]*identity
	seed   maphash.Seed
	count  int
}

func newIdentities(n int) identities {
	return identities{byHash: make(map[uint64]*identity, n), seed: maphash.MakeSeed()}
}

// take returns the identity of a pod and counts one more user.
func (t *identities) take(e *rule.Endpoint) *identity {
	h := t.hash(e)
	for i := t.byHash[h]; i != nil; i = i.next {
		if alike(i.rep, e) {
			i.refs++
			return i
		}
	}
	i := &identity{rep: e, hash: h, next: t.byHash[h], refs: 1}
	t.byHash[h] = i
	t.count++
	return i
}

// drop takes back one use.
func (t *identities) drop(i *identity) {
	if i.refs--; i.refs > 0 {
		return
	}
	t.count--
	if t.byHash[i.hash] == i {
		if i.next == nil {
			delete(t.byHash, i.hash)
		} else {
			t.byHash[i.hash] = i.next
		}
		return
	}
	for p := t.byHash[i.hash]; p != nil; p = p.next {
		if p.next == i {
			p.next = i.next
			return
		}
	}
}

func (t *identities) hash(e *rule.Endpoint) uint64 {
	h := t.text(e.Namespace)*3 + t.text(e.ServiceAccount)*5
	for k, v := range e.Labels { // addition: order does not matter
		h += mix(t.text(k)*7 + t.text(v)*11)
	}
	for k, v := range e.NamespaceLabels {
		h += mix(t.text(k)*13 + t.text(v)*17)
	}
	for i := range e.Ports {
		h = mix(h + t.text(e.Ports[i].Name) + uint64(e.Ports[i].Port)<<8 + uint64(e.Ports[i].Proto))
	}
	return h
}

func (t *identities) text(s string) uint64 { return maphash.String(t.seed, s) }

func mix(h uint64) uint64 {
	h *= 0x9e3779b97f4a7c15
	return h ^ h>>32
}

// alike reports whether no policy can tell the pods apart.
func alike(a, b *rule.Endpoint) bool {
	return a.Namespace == b.Namespace && a.ServiceAccount == b.ServiceAccount && a.HostNetwork == b.HostNetwork &&
		slices.Equal(a.Ports, b.Ports) && sameMap(a.Labels, b.Labels) && sameMap(a.NamespaceLabels, b.NamespaceLabels)
}

// sameMap is maps.Equal that knows a map from itself: worlds that follow each
// other share most.
func sameMap(a, b map[string]string) bool {
	return len(a) == len(b) && (reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b))
}

// peerKind separates addresses that selectors can see from those they cannot.
type peerKind uint8

const (
	peerOutside peerKind = iota // nodes and everything outside the cluster
	peerPod
	peerUnknown // inside a pod CIDR, but nobody's: a device's, or a pod's about to start
	peerMasked  // hidden behind an address of somebody else, see Table.LookupMasked
)

// peerClass is what policy can tell about the other side of a connection: who
// it is and which prefixes contain it. Immutable but for next and refs, which are
// the writer's. No second class gets its serial while a memory lasts.
type peerClass struct {
	serial   uint32
	kind     peerKind
	refs     int32     // addresses; 0 for the classes of leaves
	identity *identity // peerPod only
	leaf     *leaf     // longest prefix of the policies that contains it
	nodes    *nodeSet  // nodes that have the address; nil if none
	next     *peerClass
}

// rep returns any member that is a pod, nil if the class is not of pods.
func (c *peerClass) rep() *rule.Endpoint {
	if c.identity == nil {
		return nil
	}
	return c.identity.rep
}

// nodeSet is a set of node names, made once per set.
type nodeSet struct {
	names []string // sorted
	peers *peerClass
}

func (n *nodeSet) has(name string) bool {
	if n == nil || name == "" {
		return false
	}
	_, ok := slices.BinarySearch(n.names, name)
	return ok
}

// leaf stands for the addresses whose longest match among the prefixes of the
// policies is prefix. No boundary of a block or set runs through them, so the
// prefixes that cover this one tell which blocks contain them all. Immutable.
type leaf struct {
	prefix netip.Prefix // invalid: matched by no prefix
	sets   []uint32     // sets that contain the addresses, sorted
	party  party        // what addresses outside the pod networks resolve to
	nobody party        // what addresses inside them that no pod has resolve to
}

// in reports whether the leaf's addresses lie in p. Either none or all do if
// some policy mentions p.
func (l *leaf) in(p netip.Prefix) bool {
	return l.prefix.IsValid() && p.Bits() <= l.prefix.Bits() && p.Contains(l.prefix.Addr())
}

func (l *leaf) inBlock(b *rule.IPBlock) bool {
	if !l.in(b.Prefix) {
		return false
	}
	for _, e := range b.Except {
		if l.in(e) {
			return false
		}
	}
	return true
}

// record is what is known about one address of a pod or node. Immutable.
type record struct {
	peer    *peerClass
	subject int32      // index into state.subjects if the party is local
	pod     *pod       // nil for addresses of nodes
	node    *rule.Node // for addresses of nodes, where known
}

// subject is what policies ask of a policed pod: the rules and isolations that
// select it, by direction. Immutable: a change of policy makes another subject.
type subject struct {
	serial     [2]uint32 // like peerClass.serial; another one for every list of rules
	rules      [2][]*ruleEntry
	isolations [2][]*isolationEntry
	staged     [2]bool        // some rule or isolation is audit-only
	services   bool           // some egress rule is to Services
	rep        *rule.Endpoint // any member
	node       string         // the node its members run on
}

// subjectRef is how a table keeps a subject. The serials are copies, to spare a
// lookup one load.
type subjectRef struct {
	serial [2]uint32
	*subject
}

// ruleEntry is a rule with its number. Immutable.
type ruleEntry struct {
	policy *policyEntry // writer only
	id     RuleID
	rule   *rule.Rule
	sets   []uint32    // parallel to rule.Peers; nil if no peer is a set
	ports  *portIndex  // nil where the rule has few L4s
	l4     []portMatch // of the L4s that ports does not have, unless named is set
	named  bool        // some port is a name: what it means depends on the destination
}

type isolationEntry struct {
	policy *policyEntry // writer only
	index  int32
	rule   *rule.Isolation
}

func (s *subject) selected() bool {
	for _, d := range flow.Directions {
		if len(s.rules[d]) > 0 || len(s.isolations[d]) > 0 {
			return true
		}
	}
	return false
}

// setStaged recomputes staged, and services, for one direction.
func (s *subject) setStaged(d flow.Direction) {
	if d == flow.Egress {
		s.services = slices.ContainsFunc(s.rules[d], func(r *ruleEntry) bool { return r.rule.ToServices() })
	}
	s.staged[d] = slices.ContainsFunc(s.rules[d], func(r *ruleEntry) bool { return r.rule.Stage == rule.AuditOnly }) ||
		slices.ContainsFunc(s.isolations[d], func(i *isolationEntry) bool { return i.rule.Stage == rule.AuditOnly })
}
