package oracle

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// party is one side of a connection, resolved. At most one of pod, nodes and
// unknown is set; none of them means an external address.
type party struct {
	addr    netip.Addr
	pod     *rule.Endpoint
	nodes   []string // names of the nodes that have the address
	unknown bool
}

func resolve(w *rule.World, a flow.Addr) party {
	p := party{addr: a.Netip()}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		if e.HostNetwork || !slices.Contains(e.Addrs, p.addr) {
			continue
		}
		// Of pods that claim one address the first by name has it.
		if p.pod == nil || cmp.Or(strings.Compare(e.Namespace, p.pod.Namespace), strings.Compare(e.Name, p.pod.Name)) < 0 {
			p.pod = e
		}
	}
	if p.pod != nil {
		return p
	}
	isNode := false
	for i := range w.Nodes {
		if slices.Contains(w.Nodes[i].Addrs, p.addr) {
			isNode = true
			p.nodes = append(p.nodes, w.Nodes[i].Name)
		}
	}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		if e.HostNetwork && slices.Contains(e.Addrs, p.addr) {
			isNode = true
			if e.Node != "" { // not scheduled: some node's address, but we cannot say whose
				p.nodes = append(p.nodes, e.Node)
			}
		}
	}
	if isNode {
		return p
	}
	for i := range w.Nodes {
		for _, c := range w.Nodes[i].PodCIDRs {
			p.unknown = p.unknown || c.Contains(p.addr)
		}
	}
	return p
}

// answer is whether a rule matches. inDoubt is the answer for a rule that would
// match or not depending on who an unknown peer is. Of alternatives the largest
// answer counts, of conditions the smallest.
type answer int

const (
	no answer = iota
	inDoubt
	yes
)

// match asks one rule about the connection.
func (q *question) match(r *rule.Rule) answer {
	if !r.Subject.Matches(q.subject) {
		return no
	}
	if r.ToServices() && !q.via.IsZero() {
		return answerOf(q.matchService(r))
	}
	l4, peer := no, no
	for i := range r.L4 {
		l4 = max(l4, q.matchL4(&r.L4[i]))
	}
	for i := range r.Peers {
		peer = max(peer, q.matchPeer(&r.Peers[i]))
	}
	return min(l4, peer)
}

// matchService asks a rule to Services about where the connection was opened to.
// Who the backend is does not matter, so it may be unknown.
func (q *question) matchService(r *rule.Rule) bool {
	named := func(p rule.Peer) bool {
		return slices.ContainsFunc(q.world.Sets[p.Set], func(x netip.Prefix) bool { return x.Contains(q.via.Addr.Netip()) })
	}
	port := func(l rule.L4) bool { return l.Proto == q.key.Proto && l.Ports.Contains(q.via.Port) }
	return slices.ContainsFunc(r.Peers, named) && slices.ContainsFunc(r.L4, port)
}

func (q *question) matchL4(l *rule.L4) answer {
	k := q.key
	if l.Proto != flow.AnyProto && l.Proto != k.Proto {
		return no
	}
	if l.SrcPorts != rule.AllPorts && (!k.Proto.HasPorts() || !l.SrcPorts.Contains(k.SrcPort)) {
		return no
	}
	if l.Name == "" {
		return answerOf(l.Ports.Contains(k.DstPort))
	}
	if q.dstUnknown && k.Proto.HasPorts() {
		return inDoubt
	}
	return answerOf(q.dst != nil && slices.Contains(q.dst.Ports, rule.NamedPort{Name: l.Name, Proto: k.Proto, Port: k.DstPort}))
}

func (q *question) matchPeer(p *rule.Peer) answer {
	match := false
	switch p.Kind {
	case rule.PeerAny:
		match = true
	case rule.PeerPods:
		if q.peer.unknown && !p.Pods.None {
			return inDoubt
		}
		match = q.peer.pod != nil && p.Pods.Matches(q.peer.pod) && p.Relation.Holds(q.subject, q.peer.pod)
	case rule.PeerBlock:
		if q.peer.unknown && p.Block.NoPods && p.Block.Contains(q.peer.addr) {
			return inDoubt
		}
		match = p.Block.Contains(q.peer.addr) && (!p.Block.NoPods || q.peer.pod == nil)
	case rule.PeerSet, rule.PeerService:
		for _, prefix := range q.world.Sets[p.Set] {
			match = match || prefix.Contains(q.peer.addr)
		}
	}
	return answerOf(match)
}

func answerOf(match bool) answer {
	if match {
		return yes
	}
	return no
}
