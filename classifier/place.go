package classifier

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// pod is one version of a pod. A change makes another one.
type pod struct {
	ep       *rule.Endpoint
	identity *identity
	use      *subjectUse // nil unless policed here and not on the host network
	slot     int32       // in state.pods
	double   int32       // counts pods of one name, which only Compile allows
}

// key is the pod's name, made unique if it is not.
func (p *pod) key() string { return podKey(p.ep.Name, p.double) }

func podKey(name string, double int32) string {
	if double > 0 {
		name += "\x00" + strconv.Itoa(int(double))
	}
	return name
}

// compare orders pods that claim one address: the first one has it.
func (p *pod) compare(o *pod) int {
	return cmp.Or(strings.Compare(p.ep.Namespace, o.ep.Namespace), strings.Compare(p.key(), o.key()))
}

// subjectUse holds the current subject of the local pods of one identity.
type subjectUse struct {
	key   subjectKey
	cur   *subject
	index int    // in state.subjects
	epoch uint64 // cur was made in it
	pods  map[*pod]struct{}

	renewed [2]uint64 // epochs in which cur's serials were given
}

type subjectKey struct {
	identity *identity
	node     string
}

// nodeClaim is a node or host-network pod that has an address.
type nodeClaim struct {
	node string // "" if not scheduled
	pod  string // namespace/name of a host-network pod, "" for the node itself
}

// putPod adds a pod or replaces the one of its name. double is not 0 for one
// whose name is another's.
func (l *Live) putPod(e *rule.Endpoint, double int32) {
	key := podKey(e.Name, double)
	ns := l.namespaces[e.Namespace]
	if ns == nil {
		ns = map[string]*pod{}
		l.namespaces[e.Namespace] = ns
	}
	old := ns[key]
	p := &pod{ep: e, double: double, identity: l.identities.take(e)}
	if old != nil {
		p.slot = old.slot
	} else {
		p.slot = int32(l.podSlots.take())
		l.podCount++
	}
	l.s.pods.set(int(p.slot), e, l.epoch)
	ns[key] = p
	if l.local(e) {
		p.use = l.takeSubject(p)
	}
	l.claim(p, old)
	l.releasePod(old)
}

func (l *Live) dropPod(namespace, key string) {
	old := l.namespaces[namespace][key]
	if old == nil {
		return
	}
	delete(l.namespaces[namespace], key)
	if len(l.namespaces[namespace]) == 0 {
		delete(l.namespaces, namespace)
	}
	l.claim(nil, old)
	l.s.pods.set(int(old.slot), nil, l.epoch)
	l.podSlots.give(int(old.slot))
	l.podCount--
	l.releasePod(old)
}

// claim moves the addresses of old to p; either may be nil.
func (l *Live) claim(p, old *pod) {
	if old != nil {
		for _, a := range old.ep.Addrs {
			if p != nil && p.ep.HostNetwork == old.ep.HostNetwork && slices.Contains(p.ep.Addrs, a) {
				continue // taken over below
			}
			if old.ep.HostNetwork {
				l.claimNode(a, nodeClaim{old.ep.Node, podID(old)}, false)
			} else {
				l.claimPod(a, old, nil)
			}
		}
	}
	if p == nil {
		return
	}
	for _, a := range p.ep.Addrs {
		switch {
		case !p.ep.HostNetwork && (old == nil || old.ep.HostNetwork):
			l.claimPod(a, nil, p)
		case !p.ep.HostNetwork:
			l.claimPod(a, old, p)
		default:
			if old != nil && old.ep.HostNetwork && slices.Contains(old.ep.Addrs, a) {
				l.claimNode(a, nodeClaim{old.ep.Node, podID(old)}, false)
			}
			l.claimNode(a, nodeClaim{p.ep.Node, podID(p)}, true)
		}
	}
}

func podID(p *pod) string { return p.ep.Namespace + "/" + p.key() }

// releasePod gives back what a version of a pod held. nil is allowed.
func (l *Live) releasePod(p *pod) {
	if p == nil {
		return
	}
	if u := p.use; u != nil {
		delete(u.pods, p)
		l.localCount--
		l.listsStale = true
		if len(u.pods) == 0 {
			delete(l.subjects, u.key)
			l.ownSubjects()[u.index] = subjectRef{}
			l.subjectIndexes.give(u.index)
			l.retire(u.cur.serial[0])
			l.retire(u.cur.serial[1])
		}
	}
	l.identities.drop(p.identity)
}

func (l *Live) local(e *rule.Endpoint) bool {
	return !e.HostNetwork && (l.s.node == "" || e.Node == l.s.node)
}

func (l *Live) takeSubject(p *pod) *subjectUse {
	k := subjectKey{p.identity, p.ep.Node}
	u := l.subjects[k]
	if u == nil {
		u = &subjectUse{key: k, cur: l.newSubject(p.ep), epoch: l.epoch, pods: map[*pod]struct{}{}, renewed: [2]uint64{l.epoch, l.epoch}}
		l.subjects[k] = u
		u.index = l.subjectIndexes.take()
		l.setSubject(u)
	}
	u.pods[p] = struct{}{}
	l.localCount++
	l.listsStale = true
	return u
}

// setSubject makes the next table see a use's subject.
func (l *Live) setSubject(u *subjectUse) {
	refs := l.ownSubjects()
	if u.index == len(refs) {
		l.s.subjects = append(refs, subjectRef{})
	}
	l.s.subjects[u.index] = subjectRef{u.cur.serial, u.cur}
}

// ownSubjects returns the subjects of the next table, ready to be written.
func (l *Live) ownSubjects() []subjectRef {
	if l.subjectsEpoch != l.epoch {
		l.s.subjects = append(make([]subjectRef, 0, len(l.s.subjects)+8), l.s.subjects...)
		l.subjectsEpoch = l.epoch
	}
	return l.s.subjects
}

// claimPod changes who claims an address as a pod's own and settles it.
func (l *Live) claimPod(a netip.Addr, remove, add *pod) {
	key := flow.AddrFrom(a)
	list := l.contested[key]
	contested := len(list) > 0
	if rec := l.s.addrs.get(&key).rec; !contested && rec != nil && rec.pod != nil {
		list = []*pod{rec.pod}
	}
	list = slices.DeleteFunc(slices.Clone(list), func(p *pod) bool { return p == remove || p == add })
	if add != nil {
		at, _ := slices.BinarySearchFunc(list, add, (*pod).compare)
		list = slices.Insert(list, at, add)
	}
	if len(list) > 1 {
		l.contested[key] = list
	} else if contested {
		delete(l.contested, key)
	}
	if len(list) == 0 {
		l.place(key, nil)
		return
	}
	l.place(key, list[0])
}

func (l *Live) claimNode(a netip.Addr, c nodeClaim, add bool) {
	key := flow.AddrFrom(a)
	list := l.nodeClaims[key]
	i := slices.Index(list, c)
	switch {
	case add && i < 0:
		list = append(list, c)
	case !add && i >= 0:
		list = slices.Delete(list, i, i+1)
	}
	if len(list) > 0 {
		l.nodeClaims[key] = list
	} else {
		delete(l.nodeClaims, key)
	}
	if rec := l.s.addrs.get(&key).rec; rec == nil || rec.pod == nil {
		l.place(key, nil)
	}
}

// place writes the slot of an address for the pod that has it, or for the nodes
// that claim it, or takes the slot out if nobody does.
func (l *Live) place(a flow.Addr, p *pod) {
	before := l.s.addrs.get(&a).rec
	l.listsStale = l.listsStale || before != nil && before.pod != nil && before.pod.use != nil || p != nil && p.use != nil
	claims := l.nodeClaims[a]
	if p == nil && len(claims) == 0 {
		if before != nil {
			l.s.addrs.delete(a, l.epoch)
			l.countRegion(a, -1)
			l.dropPeer(before.peer)
		}
		return
	}
	rec := &record{pod: p}
	if p != nil {
		rec.peer = l.takePeer(&p.identity.peers, peerClass{kind: peerPod, identity: p.identity, leaf: l.leafOf(a)})
		if p.use != nil {
			rec.subject = int32(p.use.index)
		}
	} else {
		node, nodes := l.nodesOf(claims)
		rec.node = node
		rec.peer = l.takePeer(&nodes.peers, peerClass{kind: peerOutside, leaf: l.leafOf(a), nodes: nodes})
	}
	l.s.addrs.put(a, newParty(rec, p != nil && p.use != nil), l.epoch)
	if before != nil {
		l.dropPeer(before.peer)
	} else {
		l.countRegion(a, 1)
	}
}

func (l *Live) countRegion(a flow.Addr, n int) {
	r := region(a.Netip())
	if l.regions[r] += n; l.regions[r] == 0 {
		delete(l.regions, r)
	}
}

// nodesOf returns the node to name for an address and the names that matter to
// subjects: all of them offline, this node's otherwise.
func (l *Live) nodesOf(claims []nodeClaim) (node *rule.Node, set *nodeSet) {
	var names []string
	best := ""
	for _, c := range claims {
		if n := l.nodes[c.node]; n != nil && (node == nil || c.node < best) {
			node, best = n.node, c.node
		}
		if c.node != "" && (l.s.node == "" || c.node == l.s.node) {
			names = append(names, c.node)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	key := strings.Join(names, "\x00")
	if set = l.nodeSets[key]; set == nil {
		set = &nodeSet{names: names}
		l.nodeSets[key] = set
	}
	return node, set
}

// takePeer finds a class in a list or adds it, and counts one more address.
func (l *Live) takePeer(list **peerClass, want peerClass) *peerClass {
	for c := *list; c != nil; c = c.next {
		if c.leaf == want.leaf {
			c.refs++
			return c
		}
	}
	want.serial, want.refs, want.next = l.newPeerSerial(), 1, *list
	c := &want
	*list = c
	l.peerCount++
	return c
}

func (l *Live) dropPeer(c *peerClass) {
	if c.refs--; c.refs > 0 {
		return
	}
	l.peerCount--
	var at **peerClass
	if c.identity != nil {
		at = &c.identity.peers
	} else {
		at = &c.nodes.peers
	}
	for ; *at != nil; at = &(*at).next {
		if *at == c {
			*at = c.next
			return
		}
	}
}

// nodeEntry is a node with its place in state.nodes.
type nodeEntry struct {
	node *rule.Node
	slot int
}

func (l *Live) putNode(n *rule.Node) {
	old := l.nodes[n.Name]
	e := &nodeEntry{node: n}
	if old != nil {
		e.slot = old.slot
	} else {
		e.slot = l.nodeSlots.take()
	}
	l.s.nodes.set(e.slot, n, l.epoch)
	l.nodes[n.Name] = e
	for _, c := range n.PodCIDRs {
		l.usePodCIDR(c, 1)
	}
	for _, a := range n.Addrs {
		l.claimNode(a, nodeClaim{node: n.Name}, true)
	}
	if old != nil {
		l.releaseNode(old, n.Addrs)
	}
	l.renameHosts(n.Name)
}

func (l *Live) dropNode(name string) {
	old := l.nodes[name]
	if old == nil {
		return
	}
	delete(l.nodes, name)
	l.s.nodes.set(old.slot, nil, l.epoch)
	l.nodeSlots.give(old.slot)
	l.releaseNode(old, nil)
	l.renameHosts(name)
}

func (l *Live) releaseNode(old *nodeEntry, keep []netip.Addr) {
	for _, c := range old.node.PodCIDRs {
		l.usePodCIDR(c, -1)
	}
	for _, a := range old.node.Addrs {
		if !slices.Contains(keep, a) {
			l.claimNode(a, nodeClaim{node: old.node.Name}, false)
		}
	}
}

// renameHosts settles addresses of host-network pods anew whose node has come,
// changed or gone.
func (l *Live) renameHosts(node string) {
	if l.building {
		return // host-network pods come after nodes
	}
	for _, a := range slices.Collect(maps.Keys(l.nodeClaims)) {
		for _, c := range l.nodeClaims[a] {
			if c.node == node && c.pod != "" {
				if rec := l.s.addrs.get(&a).rec; rec == nil || rec.pod == nil {
					l.place(a, nil)
				}
				break
			}
		}
	}
}

func (l *Live) usePodCIDR(c netip.Prefix, n int) {
	c = c.Masked()
	before := l.podCIDRs[c]
	l.podCIDRs[c] += n
	if after := l.podCIDRs[c]; (before == 0) != (after == 0) {
		family, first := 0, int(c.Addr().AsSlice()[0])
		if c.Addr().Is6() {
			family = 1
		}
		last := first
		if c.Bits() < 8 {
			last += 1<<(8-c.Bits()) - 1
		}
		for b := first; b <= last; b++ {
			l.podBytes[family][b] += n
			bit := uint64(1) << (b % 64)
			if l.podBytes[family][b] > 0 {
				l.s.podBytes[family][b/64] |= bit
			} else {
				l.s.podBytes[family][b/64] &^= bit
			}
		}
	}
	switch after := l.podCIDRs[c]; {
	case after == 0:
		delete(l.podCIDRs, c)
		l.s.podCIDRs = l.s.podCIDRs.DeletePersist(c)
	case before == 0 && l.building:
		l.s.podCIDRs.Insert(c)
	case before == 0:
		l.s.podCIDRs = l.s.podCIDRs.InsertPersist(c)
	}
}
