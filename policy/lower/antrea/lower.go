package antrea

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// lowering is one policy on its way, with what is found on it.
type lowering struct {
	*kube.Findings
	cluster  *cluster
	settings kube.Settings
	order    rule.Order // without the index
	set      rule.Set
}

// policyAppliedTo is the path of what the whole policy is about.
const policyAppliedTo = "spec.appliedTo"

// passes is what Pass leaves out: all Antrea tiers before NetworkPolicy, and no
// other API's rules (S2-23).
var passes = rule.Bands(rule.BandAntreaUpper, rule.BandAntreaLower)

func (l *lowering) policy(s *antreaapi.PolicySpec) {
	// Validate reports what is wrong with annotations; here it would be twice.
	l.settings = kube.ParseSettings(&kube.Findings{Object: l.Object})
	tier, ok := l.cluster.tiers.find(l.Findings, s.Tier)
	if !ok || s.Priority == nil {
		return
	}
	l.order = rule.Order{Band: Band(tier), Tier: tier, Priority: *s.Priority}
	subject := l.subject(policyAppliedTo, s.AppliedTo)
	for i := range s.Ingress {
		l.rule(flow.Ingress, i, &s.Ingress[i], subject)
	}
	for i := range s.Egress {
		l.rule(flow.Egress, i, &s.Egress[i], subject)
	}
}

// subject lowers appliedTo; entries are alternatives (S2-25). Entries that stand
// for addresses select no pod (S2-28); without a pod left it selects nothing.
func (l *lowering) subject(path string, entries []antreaapi.AppliedTo) rule.Selector {
	var out []rule.Selector
	missing := false
	for i := range entries {
		a, at := &entries[i], kube.At(path, i)
		switch {
		case a.Group != "":
			m := l.cluster.groups.find(l.Findings, at+".group", a.Group)
			if m == nil {
				missing = true
				continue
			}
			if m.otherNamespaces {
				l.Error(at+".group", fmt.Sprintf("Group %s selects pods by namespaceSelector: a NetworkPolicy is about pods of its own namespace", a.Group),
					"use a group with only a podSelector")
			}
			if len(m.blocks) > 0 {
				l.Warn(at+".group", fmt.Sprintf("the addresses in group %s are ignored: a policy is about pods", a.Group), "use the group in from or to, or select pods")
			}
			out = append(out, m.pods...)
		case a.ServiceAccount != nil:
			out = append(out, serviceAccount(a.ServiceAccount))
		case a.PodSelector != nil || a.NamespaceSelector != nil:
			out = append(out, podSelector(l.Object.Namespace, a.PodSelector, a.NamespaceSelector))
		}
	}
	switch len(out) {
	case 0:
		if len(entries) > 0 && !missing {
			what := "policy"
			if path != policyAppliedTo {
				what = "rule"
			}
			l.Warn(path, "no pods are left: the "+what+" has no effect", "give appliedTo a pod selector, or a group that selects pods")
		}
		return rule.Selector{None: true}
	case 1:
		return out[0]
	}
	return rule.Selector{AnyOf: out}
}

func serviceAccount(n *antreaapi.NamespacedName) rule.Selector {
	if n.Name == "" || n.Namespace == "" {
		return rule.Selector{None: true} // Validate has refused it
	}
	return rule.Selector{Namespace: n.Namespace, ServiceAccount: n.Name}
}

// match is one combination of peers and ports; a rule that names Services or
// IGMP groups has several, since there the two belong together.
type match struct {
	peers []rule.Peer
	l4    []rule.L4
}

func (l *lowering) rule(d flow.Direction, index int, r *antreaapi.Rule, subject rule.Selector) {
	if r.Action == nil {
		return // Validate has refused it
	}
	path := kube.At("spec."+d.String(), index)
	if len(r.AppliedTo) > 0 { // S4-28
		subject = l.subject(path+".appliedTo", r.AppliedTo)
	}
	out := rule.Rule{
		Direction: d,
		Order:     l.order,
		Subject:   subject,
		Audit:     r.EnableLogging || l.settings.Audit,
		Stage:     l.settings.Stage,
		Origin: rule.Origin{
			Group: antreaapi.APIGroup, Kind: l.Object.Kind.Kind, Namespace: l.Object.Namespace, Name: l.Object.Name,
			Rule: RuleName(d, r), Index: index, Word: *r.Action, Label: r.LogLabel, Generation: l.Object.Generation,
		},
	}
	out.Order.Index = int32(index)
	switch *r.Action {
	case actionAllow:
		out.Action = rule.Allow
	case actionDrop:
		out.Action = rule.Deny
	case actionDeny:
		out.Action, out.Origin.Word = rule.Deny, actionDrop
	case actionReject:
		out.Action = rule.Reject
	case actionPass:
		out.Action, out.Skip = rule.Skip, passes
	default:
		return // Validate has refused it; an unknown action must decide nothing
	}
	for _, m := range l.matches(d, path, r) {
		out.Peers, out.L4 = m.peers, m.l4
		l.set.Rules = append(l.set.Rules, out)
	}
}

func (l *lowering) matches(d flow.Direction, path string, r *antreaapi.Rule) []match {
	if len(r.ToServices) > 0 {
		return l.services(path+".toServices", r.ToServices)
	}
	var out []match
	other := false // a protocol besides IGMP
	for i := range r.Protocols {
		if g := r.Protocols[i].IGMP; g != nil {
			out = append(out, igmp(d, g))
		} else {
			other = true
		}
	}
	if len(out) > 0 && !other && len(r.Ports) == 0 {
		return out
	}
	side, peers := "from", r.From
	if d == flow.Egress {
		side, peers = "to", r.To
	}
	return append(out, match{l.peers(path+"."+side, r, peers), l4Of(r)})
}

// services makes one match of each Service: its ports belong to its addresses
// (S2-98).
func (l *lowering) services(path string, refs []antreaapi.PeerService) []match {
	var out []match
	for i := range refs {
		at, namespace := kube.At(path, i), cmp.Or(refs[i].Namespace, l.Object.Namespace)
		m := match{peers: []rule.Peer{{Kind: rule.PeerService, Set: inventory.ServiceSet(namespace, refs[i].Name)}}}
		switch svc := l.cluster.inv.Service(namespace, refs[i].Name); {
		case svc == nil:
			l.Warn(at, fmt.Sprintf("there is no Service %s/%s: the entry matches nothing", namespace, refs[i].Name), "create the Service, or correct name and namespace")
		case len(svc.ClusterIPs) == 0: // S2-99
			l.Warn(at, fmt.Sprintf("Service %s/%s is headless: without a ClusterIP the entry matches nothing", namespace, refs[i].Name),
				"use a group with a serviceReference")
		default:
			for _, p := range svc.Ports {
				proto, err := flow.ParseProto(p.Proto)
				if err != nil {
					continue // the inventory knows no others
				}
				m.l4 = append(m.l4, rule.L4{Proto: proto, Ports: rule.PortRange{First: p.Port, Last: p.Port}, SrcPorts: rule.AllPorts})
			}
		}
		out = append(out, m)
	}
	return out
}

// typeRange is every code of an ICMP or IGMP type.
func typeRange(typ uint8) rule.PortRange {
	return rule.PortRange{First: flow.ICMPPort(typ, 0), Last: flow.ICMPPort(typ, 255)}
}

// igmp lowers one IGMP item: without a type every one that can be named in the
// direction (S4-04, S4-08). The code byte of the header, which IGMP uses for
// other things, does not count. A query has no group to match: its destination
// is not the peer.
func igmp(d flow.Direction, g *antreaapi.IGMP) match {
	types := []antreaapi.Number{igmpReportV1, igmpReportV2, igmpReportV3}
	if d == flow.Ingress {
		types = []antreaapi.Number{igmpQuery}
	}
	if g.Type != nil {
		types = []antreaapi.Number{*g.Type}
	}
	m := match{peers: []rule.Peer{{Kind: rule.PeerAny}}}
	for _, t := range types {
		m.l4 = append(m.l4, rule.L4{Proto: flow.IGMP, Ports: typeRange(uint8(t)), SrcPorts: rule.AllPorts})
	}
	if d == flow.Egress && g.GroupAddress != "" {
		a, err := netip.ParseAddr(g.GroupAddress)
		if err != nil {
			return match{} // Validate has refused it
		}
		m.peers = []rule.Peer{{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: netip.PrefixFrom(a, a.BitLen())}}}
	}
	return m
}

// l4Of lowers ports and protocols, which together are one list of alternatives:
// protocols adds what ports cannot name. Without any item it is everything.
func l4Of(r *antreaapi.Rule) []rule.L4 {
	if len(r.Ports) == 0 && len(r.Protocols) == 0 {
		return []rule.L4{rule.AnyL4}
	}
	var out []rule.L4
	for i := range r.Ports {
		p := &r.Ports[i]
		l4, ok := portOf(p).L4()
		if !ok {
			continue // Validate has refused it
		}
		if p.SourcePort != nil {
			last := *p.SourcePort
			if p.SourceEndPort != nil {
				last = *p.SourceEndPort
			}
			if *p.SourcePort < 1 || last > 65535 || last < *p.SourcePort {
				continue
			}
			l4.SrcPorts = rule.PortRange{First: uint16(*p.SourcePort), Last: uint16(last)}
		}
		out = append(out, l4)
	}
	for i := range r.Protocols {
		p := r.Protocols[i].ICMP
		if p == nil {
			continue
		}
		ports := rule.AllPorts // S2-38
		if p.Type != nil {
			ports = typeRange(uint8(*p.Type))
			if p.Code != nil {
				ports.First = flow.ICMPPort(uint8(*p.Type), uint8(*p.Code))
				ports.Last = ports.First
			}
		}
		out = append(out,
			rule.L4{Proto: flow.ICMP, Ports: ports, SrcPorts: rule.AllPorts},
			rule.L4{Proto: flow.ICMPv6, Ports: ports, SrcPorts: rule.AllPorts})
	}
	return out
}

// peers lowers from or to; an empty list is everybody (S2-34, S2-35).
func (l *lowering) peers(path string, r *antreaapi.Rule, peers []antreaapi.Peer) []rule.Peer {
	if len(peers) == 0 {
		return []rule.Peer{{Kind: rule.PeerAny}}
	}
	var out []rule.Peer
	for i := range peers {
		p, at := &peers[i], kube.At(path, i)
		if p.Group != "" {
			out = append(out, l.group(at+".group", r, p.Group)...)
			continue
		}
		out = append(out, l.peer(p))
	}
	return out
}

// group expands a group to its members, which are alternatives (S2-76).
func (l *lowering) group(path string, r *antreaapi.Rule, name string) []rule.Peer {
	m := l.cluster.groups.find(l.Findings, path, name)
	if m == nil {
		return nil
	}
	if m.multicast() && (is(r, actionPass) || is(r, actionReject)) { // S4-02
		l.Error(path, fmt.Sprintf("%s for multicast traffic: group %s has multicast addresses", *r.Action, name), "write Allow or Drop")
	}
	var out []rule.Peer
	for _, s := range m.pods {
		out = append(out, rule.Peer{Kind: rule.PeerPods, Pods: s})
	}
	for _, b := range m.blocks {
		out = append(out, rule.Peer{Kind: rule.PeerBlock, Block: b})
	}
	return out
}

// peer lowers one peer that is no group. What Validate refuses selects nothing.
func (l *lowering) peer(p *antreaapi.Peer) rule.Peer {
	switch {
	case p.IPBlock != nil:
		if b, ok := block(p.IPBlock); ok {
			return rule.Peer{Kind: rule.PeerBlock, Block: b}
		}
	case p.FQDN != "":
		return rule.Peer{Kind: rule.PeerSet, Set: inventory.FQDNSet(p.FQDN)}
	case p.ServiceAccount != nil:
		return rule.Peer{Kind: rule.PeerPods, Pods: serviceAccount(p.ServiceAccount)}
	case p.NodeSelector != nil:
		if name, ok := inventory.NodeSelectorSet(p.NodeSelector); ok {
			return rule.Peer{Kind: rule.PeerSet, Set: name}
		}
	case p.Namespaces != nil && p.NamespaceSelector == nil:
		out := rule.Peer{Kind: rule.PeerPods, Pods: podSelector("", p.PodSelector, nil)}
		switch n := p.Namespaces; {
		case n.Match == "Self" && len(n.SameLabels) == 0:
			out.Relation.Namespace = rule.SameNamespace
			return out
		case n.Match == "" && len(n.SameLabels) > 0:
			out.Relation.NamespaceLabels = rule.LabelRelation{Op: rule.SameLabels, Keys: n.SameLabels}
			return out
		}
	case p.Namespaces == nil && (p.PodSelector != nil || p.NamespaceSelector != nil):
		return rule.Peer{Kind: rule.PeerPods, Pods: podSelector(l.Object.Namespace, p.PodSelector, p.NamespaceSelector)}
	}
	return rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{None: true}}
}
