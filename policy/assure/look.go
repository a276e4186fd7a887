package assure

import (
	"fmt"
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// breach is a range of connections that are not decided as a claim says.
type breach struct {
	cell  cell
	proto int // in programs.protos
	port  uint16
}

// found is a breach with its ends.
type found struct {
	breach
	from, to *party
	policies [2]int // by direction: which of prover.sets
	via      flow.Service
	service  *service
}

// answer returns the number of the answers of one direction.
func (g *grid) answer(d flow.Direction, policies, subject, peer int) int32 {
	if subject == 0 { // an address: policy has no say for it
		policies = 0
	}
	row := &g.answers[d][policies][subject]
	if *row == nil {
		*row = make([]int32, len(g.peers))
	}
	if id := (*row)[peer]; id != 0 {
		return id
	}
	at := policies*g.worlds + g.peers[peer].world
	id := g.programs.of(at, d, g.reps[at][0][subject], g.reps[at][1][peer])
	(*row)[peer] = id
	return id
}

// look asks about all pairs.
func (g *grid) look(cover *Cover) (pairs int, f *found, err error) {
	for i := range g.from {
		s := &g.from[i]
		for j := range g.to {
			d := &g.to[j]
			if !g.meet(s, d) {
				continue
			}
			pairs++
			if f == nil {
				f = g.pair(s, d)
			}
			if f != nil {
				cover.Pairs += pairs
				cover.Ranges += g.ranges
				return pairs, f, nil
			}
		}
	}
	cover.Pairs += pairs
	cover.Ranges += g.ranges
	f, err = g.through()
	return pairs, f, err
}

// meet reports whether two parties can be there at once, and be two.
func (g *grid) meet(s, d *party) bool {
	if s.kind == nil || d.kind == nil {
		return s.outside != d.outside
	}
	if s.kind.only(d.kind) {
		return false
	}
	if g.claim.Rights.Namespaces != AnyNamespaces {
		return true
	}
	_, _, ok := g.together(s.kind, d.kind)
	return ok
}

// together finds namespaces for two kinds that can be there at once: one name has
// one set of labels.
func (g *grid) together(s, d *kind) (from, to int, ok bool) {
	for _, i := range s.members {
		for _, j := range d.members {
			if i == j || g.namespaces[i].name != g.namespaces[j].name {
				return i, j, true
			}
		}
	}
	return 0, 0, false
}

func (g *grid) pair(s, d *party) *found {
	for eg := range g.sets {
		for in := range g.sets {
			ids := [2]int32{
				g.answer(flow.Egress, eg, s.subject, d.peer),
				g.answer(flow.Ingress, in, d.subject, s.peer),
			}
			out := found{from: s, to: d, policies: [2]int{flow.Egress: eg, flow.Ingress: in}}
			if g.claim.Ports.Name == "" {
				if b := g.verdict(ids); b != nil {
					out.breach = *b
					return &out
				}
				continue
			}
			for _, np := range d.ports {
				if np.Name != g.claim.Ports.Name || np.Proto != g.claim.Ports.Proto {
					continue
				}
				if b := g.violation(ids, Ports{Proto: np.Proto, First: np.Port, Last: np.Port}); b != nil {
					out.breach = *b
					return &out
				}
			}
		}
	}
	return nil
}

// nothing stands for no breach among verdicts, where nil is one that nobody asked for.
var nothing = &breach{}

// verdict is violation for the ports of the claim.
func (g *grid) verdict(ids [2]int32) *breach {
	for int(ids[0]) >= len(g.verdicts) {
		g.verdicts = append(g.verdicts, nil)
	}
	row := &g.verdicts[ids[0]]
	for int(ids[1]) >= len(*row) {
		*row = append(*row, nil)
	}
	if (*row)[ids[1]] == nil {
		b := g.violation(ids, g.claim.Ports)
		if b == nil {
			b = nothing
		}
		(*row)[ids[1]] = b
	}
	if (*row)[ids[1]] == nothing {
		return nil
	}
	return (*row)[ids[1]]
}

// violation returns a connection that is not decided as claimed, TCP first.
func (g *grid) violation(ids [2]int32, asked Ports) *breach {
	var best *breach
	g.programs.within(asked, g.addresses.is4, ids[:], func(i int, _ flow.Proto, c *cell) bool {
		g.ranges++
		if g.asClaimed(c.sides[0], c.sides[1]) {
			return true
		}
		if b := (breach{*c, i, c.ports.First}); best == nil || protoRank(g.programs.protos[i]) < protoRank(g.programs.protos[best.proto]) {
			best = &b
		}
		return true
	})
	return best
}

// protoRank orders protocols by how well people know them.
func protoRank(p flow.Proto) int {
	if i := slices.Index([]flow.Proto{flow.TCP, flow.UDP, flow.SCTP, flow.ICMP, flow.ICMPv6}, p); i >= 0 {
		return i
	}
	return int(p) + 5
}

// asClaimed compares what the two directions come to with the claim.
func (g *grid) asClaimed(egress, ingress int32) bool {
	_, id, denied := g.programs.sides.decides(egress, ingress)
	list := g.programs.sides.list
	verdict := list[id].verdict
	switch g.claim.Expect {
	case "allow":
		if denied {
			return false
		}
	case "reject":
		if verdict != classifier.Reject {
			return false
		}
	default:
		if !denied {
			return false
		}
	}
	if g.claim.By == nil {
		return true
	}
	refs := list[id].deciders()
	if !denied {
		refs = append(list[egress].deciders(), refs...)
	}
	return slices.ContainsFunc(refs, g.claim.By)
}

// deciders names the policies behind an outcome.
func (s *side) deciders() []string {
	if s.isolations != "" {
		return s.isolations.List()
	}
	if s.policy == "" {
		return nil
	}
	return []string{s.policy}
}

// through asks about connections that are opened to a Service that rules name: rules
// to Services judge them by the Service.
func (g *grid) through() (*found, error) {
	if g.claim.Expect == "" {
		return nil, nil
	}
	for b := range g.facts.backends {
		svc := &g.facts.backends[b]
		for i := range g.from {
			for j := range g.to {
				s, d := &g.from[i], &g.to[j]
				if s.kind == nil || d.kind == nil || !g.meet(s, d) || svc.leaf >= 0 && !d.kind.matched[svc.leaf] {
					continue
				}
				f := g.serve(svc, s, d)
				if f != nil && svc.leaf < 0 {
					return nil, &errBound{fmt.Sprintf("a policy names Service %s/%s, and where a Service without selector leads to nobody knows", svc.Namespace, svc.Name)}
				}
				if f != nil {
					return f, nil
				}
			}
		}
	}
	return nil, nil
}

// serve asks about connections to a pod that it gets as a backend.
func (g *grid) serve(svc *service, s, d *party) *found {
	for _, sp := range svc.Ports {
		proto, err := flow.ParseProto(sp.Proto)
		if err != nil {
			continue
		}
		var at []uint16
		switch {
		case svc.leaf < 0:
			at = g.facts.starts(proto)
		case sp.TargetName == "":
			at = []uint16{sp.TargetPort}
		}
		for _, np := range d.ports {
			if np.Name == sp.TargetName && np.Proto == proto {
				at = append(at, np.Port)
			}
		}
		for _, a := range svc.ClusterIPs {
			if a.Is4() != g.addresses.is4 {
				continue
			}
			via := flow.Service{Addr: flow.AddrFrom(a), Port: sp.Port}
			for _, port := range at {
				if f := g.opened(s, d, via, proto, port); f != nil {
					f.service = svc
					return f
				}
			}
		}
	}
	return nil
}

func (g *grid) opened(s, d *party, via flow.Service, proto flow.Proto, port uint16) *found {
	q := &g.claim.Ports
	if q.Proto != flow.AnyProto && q.Proto != proto {
		return nil
	}
	if q.Name == "" && q.Proto != flow.AnyProto && (port < q.First || port > q.Last) {
		return nil
	}
	if q.Name != "" && !slices.Contains(d.ports, rule.NamedPort{Name: q.Name, Proto: proto, Port: port}) {
		return nil
	}
	i := slices.Index(g.programs.protos, proto)
	for eg := range g.sets {
		at := eg*g.worlds + g.peers[d.peer].world
		k := flow.Key{
			Src: flow.AddrFrom(g.subjects[s.subject].addr), Dst: flow.AddrFrom(g.peers[d.peer].addr),
			Proto: proto, SrcPort: SourcePort, DstPort: port,
		}
		egress := g.programs.side(at, flow.Egress, g.tables[at].LookupVia(k, via).Egress)
		for in := range g.sets {
			id := g.answer(flow.Ingress, in, d.subject, s.peer)
			for _, c := range g.programs.cells(i, rule.PortRange{First: port, Last: port}, []int32{id}) {
				c.sides[0], c.sides[1] = egress, c.sides[0]
				g.ranges++
				if !g.asClaimed(c.sides[0], c.sides[1]) {
					return &found{breach: breach{c, i, port}, from: s, to: d, policies: [2]int{flow.Egress: eg, flow.Ingress: in}, via: via}
				}
			}
		}
	}
	return nil
}
