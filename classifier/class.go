package classifier

import (
	"encoding/binary"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// match is a rule whose peers match a peer class.
type match struct {
	index     int // into subject.rules
	uncertain bool
}

// matches lists the rules of a subject whose peers match a peer class, in order.
func (s *subject) matches(d flow.Direction, p *peerClass, out []match) []match {
	for i, r := range s.rules[d] {
		if c := r.matchPeers(s, p); c != no {
			out = append(out, match{i, c == maybe})
		}
	}
	return out
}

// matchKey is equal for peers that a subject's rules treat alike: the same rules
// match, and named ports mean the same numbers.
func (s *subject) matchKey(d flow.Direction, p *peerClass, ms []match, key []byte) []byte {
	named := false
	key = binary.AppendUvarint(key, uint64(len(ms)))
	for _, m := range ms {
		n := uint64(m.index) << 1
		if m.uncertain {
			n |= 1
		}
		key = binary.AppendUvarint(key, n)
		if d == flow.Egress {
			named = named || s.rules[d][m.index].named
		}
	}
	if !named {
		return key
	}
	key = append(key, byte(p.kind))
	if rep := p.rep(); rep != nil {
		for _, np := range rep.Ports {
			key = binary.AppendUvarint(key, uint64(len(np.Name)))
			key = append(append(key, np.Name...), byte(np.Proto), byte(np.Port>>8), byte(np.Port))
		}
	}
	return key
}

// candidates resolves the named ports of matching rules.
func (s *subject) candidates(d flow.Direction, p *peerClass, ms []match) []candidate {
	out := make([]candidate, 0, len(ms))
	dst := p.rep() // destination: its named ports count
	if d == flow.Ingress {
		dst = s.rep
	}
	for _, m := range ms {
		r := s.rules[d][m.index]
		c := candidate{id: r.id, rule: r.rule, uncertain: m.uncertain, ports: r.ports, l4: r.l4}
		if r.named {
			c.l4 = nil
			for _, l := range r.otherL4() {
				c.l4 = appendPortMatches(c.l4, &l, dst, d == flow.Egress && p.kind == peerUnknown)
			}
		}
		if c.ports != nil || len(c.l4) > 0 {
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
		for _, proto := range [...]flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
			if l.Proto == flow.AnyProto || l.Proto == proto {
				out = append(out, portMatch{proto: proto, dst: rule.AllPorts, src: l.SrcPorts, uncertain: true})
			}
		}
		return out
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

func (r *ruleEntry) matchPeers(s *subject, p *peerClass) certainty {
	best := no
	for i := range r.rule.Peers {
		peer := &r.rule.Peers[i]
		if peer.Kind == rule.PeerAny {
			return yes
		}
		c := no
		switch {
		case p.kind == peerMasked:
			if peer.Kind != rule.PeerPods || !peer.Pods.None {
				c = maybe
			}
		case peer.Kind == rule.PeerPods:
			c = matchPods(peer, s.rep, p)
		case peer.Kind == rule.PeerBlock:
			c = matchBlock(&peer.Block, p)
		case peer.Kind == rule.PeerSet || peer.Kind == rule.PeerService:
			if _, ok := slices.BinarySearch(p.leaf.sets, r.sets[i]); ok {
				c = yes
			}
		}
		if c == yes {
			return yes
		}
		best = max(best, c)
	}
	return best
}

// matchPods asks a selector. Whether a pod is about to have an unknown address, and
// which labels it has, nobody can say.
func matchPods(peer *rule.Peer, subject *rule.Endpoint, p *peerClass) certainty {
	switch p.kind {
	case peerUnknown:
		if !peer.Pods.None {
			return maybe
		}
	case peerPod:
		if peer.Pods.Matches(p.identity.rep) && peer.Relation.Holds(subject, p.identity.rep) {
			return yes
		}
	}
	return no
}

// matchBlock asks a prefix. The address alone decides, unless the block leaves pods
// out: then an unknown address is in doubt.
func matchBlock(b *rule.IPBlock, p *peerClass) certainty {
	switch {
	case !p.leaf.inBlock(b):
		return no
	case !b.NoPods || p.kind == peerOutside:
		return yes
	case p.kind == peerUnknown:
		return maybe
	}
	return no
}
