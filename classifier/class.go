package classifier

import (
	"encoding/binary"
	"maps"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// subjectClass is what policy can tell about a policed pod in one direction.
type subjectClass struct {
	rules      []RuleID // rules whose Subject selects the class, in order
	isolations []isolationRef
	rep        *rule.Endpoint // any member: all agree on everything rules compare
	staged     bool           // some rule or isolation is audit-only
}

type isolationRef struct {
	index int32
	rule  *rule.Isolation
}

// peerKind separates addresses that selectors can see from those they cannot.
type peerKind uint8

const (
	peerOutside peerKind = iota // nodes and everything outside the cluster
	peerPod
	peerUnknown // inside a pod CIDR, but nobody's
)

// peerClass is what policy can tell about the other side in one direction.
type peerClass struct {
	kind   peerKind
	pods   idSet // pod selectors that select it
	blocks idSet // blocks that contain it
	sets   idSet // address sets that contain it
	rep    *rule.Endpoint
}

// idSet is a sorted list of atom ids. Classes hold few, so a list beats a bitmap.
type idSet []uint32

func (s idSet) has(id uint32) bool {
	_, ok := slices.BinarySearch(s, id)
	return ok
}

func (s idSet) appendKey(b []byte) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	for _, id := range s {
		b = binary.AppendUvarint(b, uint64(id))
	}
	return b
}

// compared lists the label keys (and whether the namespace name) that relative
// peers compare. It decides which label values are part of a class.
type compared struct {
	namespace bool
	nsKeys    map[string]struct{}
	podKeys   map[string]struct{}
}

func (c *compared) add(r *rule.Relation) {
	c.namespace = c.namespace || r.Namespace != rule.AnyNamespace
	addKeys(&c.nsKeys, r.NamespaceLabels.Keys)
	addKeys(&c.podKeys, r.PodLabels.Keys)
}

func (c *compared) merge(o *compared) {
	c.namespace = c.namespace || o.namespace
	addKeys(&c.nsKeys, slices.Collect(maps.Keys(o.nsKeys)))
	addKeys(&c.podKeys, slices.Collect(maps.Keys(o.podKeys)))
}

func addKeys(dst *map[string]struct{}, keys []string) {
	for _, k := range keys {
		if *dst == nil {
			*dst = map[string]struct{}{}
		}
		(*dst)[k] = struct{}{}
	}
}

// appendKey adds the endpoint's compared values to a class key.
func (c *compared) appendKey(b []byte, e *rule.Endpoint) []byte {
	if c.namespace {
		b = append(b, 'n')
		b = appendString(b, e.Namespace)
	}
	b = appendLabels(append(b, 'l'), c.nsKeys, e.NamespaceLabels)
	return appendLabels(append(b, 'p'), c.podKeys, e.Labels)
}

func appendLabels(b []byte, keys map[string]struct{}, labels map[string]string) []byte {
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		if v, ok := labels[k]; ok {
			b = appendString(appendString(b, k), v)
		}
	}
	return b
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// appendPorts adds the named ports that rules of the direction use.
func appendPorts(b []byte, used map[string]struct{}, e *rule.Endpoint) []byte {
	b = append(b, 'N')
	for _, p := range e.Ports {
		if _, ok := used[p.Name]; ok {
			b = append(appendString(b, p.Name), byte(p.Proto), byte(p.Port>>8), byte(p.Port))
		}
	}
	return b
}

// candidates returns the rules of a subject class whose peers match the peer
// class, in order, with named ports resolved.
func (t *Table) candidates(d flow.Direction, s *subjectClass, p *peerClass) []candidate {
	var out []candidate
	dst := p.rep // destination: its named ports count
	if d == flow.Ingress {
		dst = s.rep
	}
	for _, id := range s.rules {
		r := &t.rules[id]
		match := t.matchPeers(d, id, s, p)
		if match == no {
			continue
		}
		c := candidate{id: id, rule: r, uncertain: match == maybe}
		for i := range r.L4 {
			c.l4 = appendPortMatches(c.l4, &r.L4[i], dst, d == flow.Egress && p.kind == peerUnknown)
		}
		if len(c.l4) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// appendPortMatches resolves one L4 for a destination.
func appendPortMatches(out []portMatch, l *rule.L4, dst *rule.Endpoint, unknown bool) []portMatch {
	if l.Name == "" {
		return append(out, portMatch{proto: l.Proto, dst: l.Ports, src: l.SrcPorts})
	}
	if unknown {
		return append(out, portMatch{proto: l.Proto, dst: rule.AllPorts, src: l.SrcPorts, uncertain: true})
	}
	if dst == nil {
		return out // not a pod: no named ports
	}
	for _, np := range dst.Ports {
		if np.Name == l.Name && (l.Proto == flow.AnyProto || l.Proto == np.Proto) {
			out = append(out, portMatch{proto: np.Proto, dst: rule.PortRange{First: np.Port, Last: np.Port}, src: l.SrcPorts})
		}
	}
	return out
}

func (t *Table) matchPeers(d flow.Direction, id RuleID, s *subjectClass, p *peerClass) certainty {
	best := no
	for i, atom := range t.peerAtoms[id] {
		peer := &t.rules[id].Peers[i]
		if peer.Kind == rule.PeerAny {
			return yes
		}
		if p.kind == peerUnknown {
			if peer.Kind != rule.PeerPods || !peer.Pods.None {
				best = maybe
			}
			continue
		}
		var ok bool
		switch peer.Kind {
		case rule.PeerPods:
			ok = p.kind == peerPod && p.pods.has(atom) && peer.Relation.Holds(s.rep, p.rep)
		case rule.PeerBlock:
			ok = p.blocks.has(atom) && (p.kind != peerPod || !peer.Block.NoPods)
		case rule.PeerSet:
			ok = p.sets.has(atom)
		}
		if ok {
			return yes
		}
	}
	return best
}
