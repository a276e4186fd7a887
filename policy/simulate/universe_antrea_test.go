package simulate

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/policy/api/antrea"
)

// Random Antrea objects: tiers of one's own, groups, and policies of both kinds
// in the versions that were ever served.

const (
	antreaOld = "crd.antrea.io/v1alpha1"
	antreaNew = "crd.antrea.io/v1beta1"
)

func (u *draft) antrea() {
	r := u.r
	tiers := []string{"", "emergency", "securityops", "networkops", "platform", "application", "baseline", "baseline"}
	numbers := []int32{10, 120, 219, 221, 240, 249}
	r.Shuffle(len(numbers), func(i, j int) { numbers[i], numbers[j] = numbers[j], numbers[i] })
	for i := range r.IntN(3) {
		name := fmt.Sprint("tier", i)
		u.add(pick(r, []string{antreaOld, antreaNew}), "Tier", "", name, antrea.TierSpec{Priority: &numbers[i]}, nil)
		tiers = append(tiers, name, name)
	}
	u.groups("")
	for _, ns := range u.inv.Namespaces {
		u.groups(ns.Name)
	}
	for range r.IntN(5) {
		u.antreaPolicy("", pick(r, tiers))
	}
	for range r.IntN(4) {
		u.antreaPolicy(pick(r, u.inv.Namespaces).Name, pick(r, tiers))
	}
}

// Groups of a scope: three leaves, of which the third selects namespaces and
// stays out of appliedTo (a Group may not, X-51), and a parent of some of them.
var leaves = []string{"g1", "g2", "g3"}

func (u *draft) groups(ns string) {
	r := u.r
	kind := "Group"
	if ns == "" {
		kind = "ClusterGroup"
	}
	for _, name := range leaves {
		var g antrea.GroupSpec
		version := antreaNew
		if ns == "" {
			version = pick(r, []string{antreaNew, antreaNew, "crd.antrea.io/v1alpha3", "crd.antrea.io/v1alpha2"})
		}
		switch r.IntN(5) {
		case 0:
			if version != antreaNew { // S2-72
				g.IPBlock = ptr(randomBlock(r, false))
				break
			}
			g.IPBlocks = []antrea.IPBlock{randomBlock(r, true)}
			if chance(r, 2) {
				g.IPBlocks = append(g.IPBlocks, randomBlock(r, true))
			}
		case 1:
			svc := pick(r, u.inv.Namespaces).Name
			if ns != "" {
				svc = ns
			}
			g.ServiceReference = &antrea.NamespacedName{Namespace: svc, Name: "svc"}
		default:
			g.PodSelector = randomSelector(r, podKeys)
			if name == "g3" || ns == "" && chance(r, 3) {
				g.NamespaceSelector = randomNsSelector(r)
			}
		}
		u.add(version, kind, ns, name, g, nil)
	}
	children := slices.Clone(leaves[:1+r.IntN(2)])
	u.add(antreaNew, kind, ns, "parent", antrea.GroupSpec{ChildGroups: children}, nil)
}

// antreaPolicy draws a policy; ns is "" for a ClusterNetworkPolicy.
func (u *draft) antreaPolicy(ns, tier string) {
	r := u.r
	a := antreaDraft{r: r, u: u, ns: ns, tier: tier, old: chance(r, 4), seen: map[string]bool{}}
	a.byGroup = !(a.old && ns != "") && chance(r, 2)
	spec := antrea.PolicySpec{Tier: tier, Priority: ptr(pick(r, []float64{1, 1, 5, 5, 5.5, 10000}))}
	perRule := chance(r, 4)
	if !perRule {
		spec.AppliedTo = a.appliedTo()
	}
	add := func(rules *[]antrea.Rule, egress bool) {
		for i := range r.IntN(4) {
			rule := a.rule(egress)
			if perRule {
				rule.AppliedTo = a.appliedTo()
			}
			b, err := json.Marshal(rule)
			if err != nil {
				u.t.Fatal(err)
			}
			// Two alike would be given one name (S2-41).
			if key := fmt.Sprint(egress, string(b)); a.seen[key] || chance(r, 3) || *rule.Action == "Deny" {
				rule.Name = fmt.Sprintf("rule-%t-%d", egress, i)
			} else {
				a.seen[key] = true
			}
			*rules = append(*rules, rule)
		}
	}
	add(&spec.Ingress, false)
	add(&spec.Egress, true)
	if len(spec.Ingress)+len(spec.Egress) == 0 && perRule {
		spec.AppliedTo = a.appliedTo()
	}
	version, kind := antreaNew, "NetworkPolicy"
	if a.old {
		version = antreaOld
	}
	if ns == "" {
		kind = "ClusterNetworkPolicy"
	}
	u.add(version, kind, ns, pick(r, names), spec, nil)
}

type antreaDraft struct {
	r        *rand.Rand
	u        *draft
	ns, tier string
	old      bool // v1alpha1
	byGroup  bool // groups instead of selectors
	seen     map[string]bool
}

func (a *antreaDraft) appliedTo() (out []antrea.AppliedTo) {
	r := a.r
	for range 1 + r.IntN(2) {
		var t antrea.AppliedTo
		switch {
		case a.byGroup:
			t.Group = pick(r, []string{"g1", "g2", "parent"})
		case a.ns == "" && chance(r, 6):
			t.ServiceAccount = a.serviceAccount()
		case a.ns == "" && chance(r, 3):
			t.NamespaceSelector = randomNsSelector(r)
		case a.ns == "" && chance(r, 3):
			t.NamespaceSelector, t.PodSelector = randomNsSelector(r), randomSelector(r, podKeys)
		default:
			t.PodSelector = randomSelector(r, podKeys)
		}
		out = append(out, t)
	}
	return out
}

func (a *antreaDraft) serviceAccount() *antrea.NamespacedName {
	return &antrea.NamespacedName{Namespace: pick(a.r, a.u.inv.Namespaces).Name, Name: pick(a.r, accounts)}
}

func (a *antreaDraft) rule(egress bool) antrea.Rule {
	r := a.r
	action := pick(r, []string{"Allow", "Drop", "Reject", "Pass", "Allow", "Drop", "Reject", "Pass", "Deny"})
	if a.tier == "baseline" && action == "Pass" { // S2-24
		action = "Drop"
	}
	rule := antrea.Rule{Action: &action, EnableLogging: chance(r, 3)}
	if rule.EnableLogging && !a.old && chance(r, 2) {
		rule.LogLabel = "label"
	}
	final := action == "Allow" || action == "Drop" || action == "Deny"
	switch {
	case chance(r, 8) && final && !a.byGroup:
		// S4-03…S4-10: nothing beside it
		igmp := &antrea.IGMP{Type: ptr(antrea.Number(17)), GroupAddress: "224.0.0.1"}
		if egress {
			igmp = &antrea.IGMP{}
			if chance(r, 2) {
				igmp.Type = ptr(antrea.Number(pick(r, igmpTypes[1:])))
			}
			if chance(r, 2) {
				igmp.GroupAddress = "225.1.2.3"
			}
		}
		rule.Protocols = []antrea.Protocol{{IGMP: igmp}}
		return rule
	case egress && chance(r, 12) && final && !a.byGroup:
		rule.To = []antrea.Peer{{IPBlock: &antrea.IPBlock{CIDR: "225.1.2.3/32"}}}
		return rule
	case egress && chance(r, 2):
		for range 1 + r.IntN(2) {
			rule.ToServices = append(rule.ToServices, antrea.PeerService{Namespace: pick(r, a.u.inv.Namespaces).Name, Name: "svc"})
		}
		return rule
	}
	for range r.IntN(3) {
		p := a.peer(egress, action)
		if egress {
			rule.To = append(rule.To, p)
		} else {
			rule.From = append(rule.From, p)
		}
	}
	if chance(r, 2) {
		return rule
	}
	if chance(r, 3) {
		for range 1 + r.IntN(2) {
			icmp := &antrea.ICMP{}
			if !chance(r, 3) {
				icmp.Type = ptr(pick(r, icmpTypes))
				if !chance(r, 3) {
					icmp.Code = ptr(int32(r.IntN(2)))
				}
			}
			rule.Protocols = append(rule.Protocols, antrea.Protocol{ICMP: icmp})
		}
		if chance(r, 2) {
			return rule
		}
	}
	for range 1 + r.IntN(2) {
		rule.Ports = append(rule.Ports, a.port())
	}
	return rule
}

func (a *antreaDraft) port() (p antrea.Port) {
	r := a.r
	p.Protocol, p.Port, p.EndPort = randomPort(r)
	if p.Protocol != nil && chance(r, 4) {
		p.Port, p.EndPort = nil, nil
	}
	if !a.old && chance(r, 4) {
		p.SourcePort = ptr(sources[r.IntN(2)])
		if chance(r, 2) {
			p.SourceEndPort = ptr(sources[1])
		}
	}
	if p.Port != nil && p.Port.Type == intstr.String {
		p.EndPort = nil
	}
	return p
}

func (a *antreaDraft) peer(egress bool, action string) (p antrea.Peer) {
	r := a.r
	if a.byGroup {
		p.Group = pick(r, []string{"g1", "g2", "g3", "parent"})
		return p
	}
	switch r.IntN(9) {
	case 0:
		p.IPBlock = ptr(randomBlock(r, !a.old))
	case 1:
		p.NodeSelector = randomSelector(r, nodeKeys)
	case 2:
		p.ServiceAccount = a.serviceAccount()
	case 3:
		if egress && action != "Pass" {
			p.FQDN = pick(r, []string{"*foobar.com", "*.foobar.com", "foobar.com"})
			break
		}
		p.NamespaceSelector = randomNsSelector(r)
	case 4, 5:
		if a.ns != "" {
			p.NamespaceSelector, p.PodSelector = randomNsSelector(r), randomSelector(r, podKeys)
			break
		}
		p.Namespaces = &antrea.PeerNamespaces{Match: "Self"}
		if !a.old && chance(r, 2) {
			p.Namespaces = &antrea.PeerNamespaces{SameLabels: randomFewKeys(r, nsKeys)}
		}
		if chance(r, 2) {
			p.PodSelector = randomSelector(r, podKeys)
		}
	case 6:
		p.NamespaceSelector = randomNsSelector(r)
	default:
		p.PodSelector = randomSelector(r, podKeys)
	}
	return p
}

func randomBlock(r *rand.Rand, holes bool) antrea.IPBlock {
	c := pick(r, cidrs)
	b := antrea.IPBlock{CIDR: c[0]}
	for _, e := range c[1:] {
		if holes && chance(r, 3) {
			b.Except = append(b.Except, e)
		}
	}
	return b
}
