package universe

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
)

// Random draws a world and a rule set over it. The set is in canonical order
// ([rule.Set.Sort]) and every rule and isolation has an Origin of its own, so
// two evaluators can be compared by Origin.
func Random(r *rand.Rand) (rule.Set, *rule.World) {
	w := randomWorld(r)
	bands := []rule.Band{}
	for range 1 + r.IntN(4) { // few bands at a time, so that ties inside one are common
		bands = append(bands, rule.Band(r.IntN(rule.NumBands)))
	}
	var s rule.Set
	for i, n := 0, r.IntN(16); i < n; i++ {
		s.Rules = append(s.Rules, randomRule(r, pick(r, bands), i))
	}
	for i, n := 0, r.IntN(5); i < n; i++ {
		d := pick(r, flow.Directions[:])
		s.Isolations = append(s.Isolations, rule.Isolation{
			Direction: d,
			Band:      pick(r, bands),
			Subject:   randomSelector(r, 1),
			Audit:     chance(r, 3),
			Stage:     randomStage(r),
			Origin:    rule.Origin{Group: "test", Kind: "Isolation", Name: fmt.Sprint("i", i), Index: -1},
		})
	}
	s.Sort()
	return s, w
}

func randomRule(r *rand.Rand, band rule.Band, i int) rule.Rule {
	d := pick(r, flow.Directions[:])
	ru := rule.Rule{
		Direction: d,
		Order: rule.Order{
			Band:     band,
			Tier:     int32(r.IntN(2)),
			Priority: pick(r, []float64{-1, 0, 0, 1.5}),
			Class:    int32(r.IntN(2)),
			Name:     pick(r, []string{"", "a"}),
			Index:    int32(r.IntN(2)),
		},
		Subject: randomSelector(r, 1),
		Action:  pick(r, []rule.Action{rule.Allow, rule.Allow, rule.Deny, rule.Reject, rule.Skip, rule.Skip, rule.Skip}),
		Audit:   chance(r, 3),
		Stage:   randomStage(r),
		Origin: rule.Origin{
			Group: "test", Kind: "Rule", Namespace: pick(r, namespaces), Name: fmt.Sprint("r", i),
			Rule: pick(r, []string{"", "named"}), Index: i,
		},
	}
	ru.Auth = ru.Action == rule.Allow && chance(r, 5)
	if ru.Action == rule.Skip {
		ru.Audit = chance(r, 2)
		ru.Skip = rule.Bands(band) // Pass, as the KEP has it
		switch r.IntN(4) {
		case 0: // some bands further down, this one goes on (Empower)
			ru.Skip = rule.BandSet(r.Uint32()) &^ rule.Bands(band)
		case 1: // anything, earlier bands included
			ru.Skip |= rule.BandSet(r.Uint32())
		}
		ru.Skip &= 1<<rule.NumBands - 1
		if ru.Skip == 0 {
			ru.Skip = rule.Bands(band) // a Skip of nothing is not a rule
		}
	}
	for range r.IntN(8) / 2 { // none, too
		ru.Peers = append(ru.Peers, randomPeer(r))
	}
	for range r.IntN(9) / 3 {
		ru.L4 = append(ru.L4, randomL4(r))
	}
	if len(ru.L4) == 0 && !chance(r, 8) {
		ru.L4 = []rule.L4{rule.AnyL4}
	}
	if d == flow.Egress && chance(r, 5) {
		toServices(r, &ru)
	}
	return ru
}

// toServices makes a rule one to Services.
func toServices(r *rand.Rand, ru *rule.Rule) {
	ru.Peers, ru.L4 = nil, nil
	for range 1 + r.IntN(2) {
		ru.Peers = append(ru.Peers, rule.Peer{Kind: rule.PeerService, Set: pick(r, []string{"service", "service", "mixed", "missing"})})
	}
	for range r.IntN(8) / 2 { // none, too
		port := pick(r, portNums)
		ru.L4 = append(ru.L4, rule.L4{Proto: pick(r, protos[:2]), Ports: rule.PortRange{First: port, Last: port}, SrcPorts: rule.AllPorts})
	}
}

func randomStage(r *rand.Rand) rule.Stage {
	if chance(r, 6) {
		return rule.AuditOnly
	}
	return rule.Enforce
}

func randomRequirements(r *rand.Rand) rule.Labels {
	var l rule.Labels
	for range r.IntN(5) / 2 {
		q := rule.Requirement{Key: pick(r, labelKeys), Op: rule.In + rule.Op(r.IntN(4))}
		if q.Op == rule.In || q.Op == rule.NotIn {
			q.Values = []string{pick(r, labelVals)}
			if chance(r, 4) {
				q.Values = slices.Clone(labelVals)
			}
		}
		l = append(l, q)
	}
	return l
}

// randomSelector selects a good part of the pods on average; depth bounds AnyOf.
func randomSelector(r *rand.Rand, depth int) rule.Selector {
	var s rule.Selector
	switch r.IntN(6) {
	case 0: // every pod
	case 1:
		s.Namespace = pick(r, namespaces)
		s.PodLabels = randomRequirements(r)
	case 2:
		s.NamespaceLabels = randomRequirements(r)
	case 3:
		s.PodLabels = randomRequirements(r)
	case 4:
		s.NamespaceLabels = randomRequirements(r)
		s.PodLabels = randomRequirements(r)
	case 5:
		s.ServiceAccount = pick(r, accounts)
	}
	if depth > 0 && chance(r, 5) {
		for range 1 + r.IntN(3) {
			s.AnyOf = append(s.AnyOf, randomSelector(r, depth-1))
		}
	}
	s.None = chance(r, 20)
	return s
}

func randomPeer(r *rand.Rand) rule.Peer {
	switch r.IntN(10) {
	case 0:
		return rule.Peer{Kind: rule.PeerAny}
	case 1, 2, 3:
		p := rule.Peer{Kind: rule.PeerBlock}
		p.Block.Prefix = pick(r, blocks)
		p.Block.NoPods = chance(r, 3)
		var inside []netip.Prefix
		for _, b := range blocks {
			if b.Bits() > p.Block.Prefix.Bits() && p.Block.Prefix.Contains(b.Addr()) {
				inside = append(inside, b)
			}
		}
		for range r.IntN(3) {
			if len(inside) > 0 {
				p.Block.Except = append(p.Block.Except, pick(r, inside))
			}
		}
		return p
	case 4:
		return rule.Peer{Kind: rule.PeerSet, Set: pick(r, setNames)}
	}
	p := rule.Peer{Kind: rule.PeerPods, Pods: randomSelector(r, 1)}
	if chance(r, 2) {
		p.Relation = rule.Relation{
			Namespace:       rule.NamespaceRelation(r.IntN(3)),
			NamespaceLabels: randomRelation(r),
			PodLabels:       randomRelation(r),
		}
	}
	return p
}

func randomRelation(r *rand.Rand) rule.LabelRelation {
	l := rule.LabelRelation{Op: rule.RelationOp(max(0, r.IntN(6)-2))}
	if l.Op == rule.NoRelation {
		return l
	}
	n := r.IntN(len(labelKeys) + 1)
	if n == 0 && !chance(r, 4) {
		n = 1
	}
	l.Keys = slices.Clone(labelKeys[:n])
	if n == 1 {
		l.Keys[0] = pick(r, labelKeys)
	}
	return l
}

func randomL4(r *rand.Rand) rule.L4 {
	l := rule.AnyL4
	switch r.IntN(9) {
	case 0:
	case 1: // one protocol, with or without ports
		l.Proto = pick(r, protos)
	case 2, 8: // an ICMP or IGMP type, any code or one
		l.Proto = pick(r, protos[3:6])
		t := icmpType(r, l.Proto)
		l.Ports = rule.PortRange{First: flow.ICMPPort(t, 0), Last: flow.ICMPPort(t, 255)}
		if chance(r, 3) {
			l.Ports.Last = l.Ports.First
		}
	case 3, 4: // a name
		l.Name = pick(r, portNames)
		l.Ports = rule.PortRange{}
		if !chance(r, 3) {
			l.Proto = pick(r, protos[:3])
		}
	default:
		l.Proto = pick(r, protos[:3])
		l.Ports = randomRange(r, portNums)
	}
	if l.Proto.HasPorts() && chance(r, 6) {
		l.SrcPorts = randomRange(r, srcPorts)
	}
	return l
}

func randomRange(r *rand.Rand, ports []uint16) rule.PortRange {
	a, b := pick(r, ports), pick(r, ports)
	switch r.IntN(5) {
	case 0:
		return rule.PortRange{First: a, Last: 0xffff}
	case 1:
		return rule.PortRange{First: 0, Last: a}
	case 2:
		return rule.PortRange{First: min(a, b), Last: max(a, b)}
	}
	return rule.PortRange{First: a, Last: a}
}
