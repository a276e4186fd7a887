package simulate

import (
	"cmp"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/inventory"
)

// antreaPlace is where a tier stands among the other APIs.
type antreaPlace uint8

const (
	antreaUpper    antreaPlace = iota // before the upstream admin policies
	antreaLower                       // after them, before NetworkPolicy
	antreaBaseline                    // after NetworkPolicy
	antreaPlaces
)

// upstreamAdminTier is the tier number upstream admin policies take in Antrea's
// own placement, and baselineTier the one of the tier behind NetworkPolicy.
const (
	upstreamAdminTier = 220
	baselineTier      = 253
)

// staticTiers exist in every cluster (S2-09).
var staticTiers = map[string]int32{
	"emergency": 50, "securityops": 100, "networkops": 150, "platform": 200, "application": 250, "baseline": baselineTier,
}

// antreaRule is one rule of one policy, with everything that orders it.
type antreaRule struct {
	obj      *api.Object
	tier     int32
	priority float64
	index    int
	name     string
	cluster  bool // of a ClusterNetworkPolicy
	spec     *antrea.Rule
	subjects []antrea.AppliedTo
}

func (r *antreaRule) place() antreaPlace {
	switch {
	case r.tier == baselineTier:
		return antreaBaseline
	case r.tier < upstreamAdminTier:
		return antreaUpper
	}
	return antreaLower
}

// action is the rule's action; Deny is another word for Drop.
func (r *antreaRule) action() string {
	if *r.spec.Action == "Deny" {
		return "Drop"
	}
	return *r.spec.Action
}

func (r *antreaRule) strictness() int {
	switch r.action() {
	case "Drop", "Reject":
		return 0
	case "Pass":
		return 1
	}
	return 2
}

// antreaPolicies is what [New] found of the API: rules by direction in their one
// order, groups by name.
type antreaPolicies struct {
	rules         [2][]antreaRule
	clusterGroups map[string]*antrea.GroupSpec
	groups        map[[2]string]*antrea.GroupSpec // namespace, name
}

func newAntrea(objs []*api.Object) (*antreaPolicies, error) {
	a := &antreaPolicies{clusterGroups: map[string]*antrea.GroupSpec{}, groups: map[[2]string]*antrea.GroupSpec{}}
	tiers := map[string]int32{}
	for name, p := range staticTiers {
		tiers[name] = p
	}
	for _, o := range objs {
		switch v := o.Value.(type) {
		case *antrea.Tier:
			tiers[o.Name] = *v.Spec.Priority
		case *antrea.ClusterGroup:
			a.clusterGroups[o.Name] = &v.Spec
		case *antrea.Group:
			a.groups[[2]string{o.Namespace, o.Name}] = &v.Spec
		}
	}
	for _, o := range objs {
		var spec *antrea.PolicySpec
		cluster := false
		switch v := o.Value.(type) {
		case *antrea.ClusterNetworkPolicy:
			spec, cluster = &v.Spec, true
		case *antrea.NetworkPolicy:
			spec = &v.Spec
		default:
			continue
		}
		if staged(o) {
			continue
		}
		name := cmp.Or(spec.Tier, "application") // S2-11
		tier, ok := tiers[name]
		if !ok || spec.Priority == nil {
			return nil, fmt.Errorf("%s: no tier %q or no priority", o.Ref(), name) // S2-04, S2-19
		}
		for d, rules := range map[flow.Direction][]antrea.Rule{flow.Ingress: spec.Ingress, flow.Egress: spec.Egress} {
			for i := range rules {
				r := antreaRule{
					obj: o, tier: tier, priority: *spec.Priority, index: i, cluster: cluster,
					spec: &rules[i], name: rules[i].Name, subjects: spec.AppliedTo,
				}
				if r.name == "" {
					r.name = generatedName(d, r.spec)
				}
				if len(rules[i].AppliedTo) > 0 { // S4-28
					r.subjects = rules[i].AppliedTo
				}
				a.rules[d] = append(a.rules[d], r)
			}
		}
	}
	for _, d := range flow.Directions {
		// S2-62, then X-40.
		slices.SortFunc(a.rules[d], func(x, y antreaRule) int {
			return cmp.Or(cmp.Compare(x.tier, y.tier), cmp.Compare(x.priority, y.priority), cmp.Compare(x.index, y.index),
				cmp.Compare(x.strictness(), y.strictness()), strings.Compare(x.obj.Kind.Kind, y.obj.Kind.Kind),
				strings.Compare(x.obj.Namespace, y.obj.Namespace), strings.Compare(x.obj.Name, y.obj.Name))
		})
	}
	return a, nil
}

// generatedName names a rule that has no name: direction, action and seven hex
// digits of a SHA-1 over the rule as JSON (S2-40, X-38).
func generatedName(d flow.Direction, r *antrea.Rule) string {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // plain data
	}
	sum := sha1.Sum(b)
	return fmt.Sprintf("%s-%s-%s", d, strings.ToLower(*r.Action), hex.EncodeToString(sum[:])[:7])
}

// antrea answers for the tiers of a place. done is false when evaluation goes on
// behind it; passed reports that a Pass matched, which leaves out every tier but
// the baseline (S2-23).
func (s *Simulator) antrea(c *connection, d flow.Direction, subject *inventory.Pod, place antreaPlace) (o Outcome, done, passed bool) {
	var rules []*antreaRule
	for i := range s.antreaPolicies.rules[d] {
		if r := &s.antreaPolicies.rules[d][i]; r.place() == place && s.antreaSubject(r, subject) {
			rules = append(rules, r)
		}
	}
	i, a := first(len(rules), func(i int) answer {
		return c.ask(func(c *connection) bool { return s.antreaPeers(c, d, subject, rules[i]) && s.antreaL4(c, d, rules[i]) })
	}, func(i int) bool { return rules[i].action() == "Allow" })
	switch a {
	case inDoubt:
		return doubted(), true, false
	case yes:
		r := rules[i]
		switch r.action() {
		case "Allow":
			return decided(classifier.Allow, r.obj, d, r.name, r.index), true, false
		case "Drop":
			return decided(classifier.Drop, r.obj, d, r.name, r.index), true, false
		case "Reject": // S2-21, S2-22
			return decided(classifier.Reject, r.obj, d, r.name, r.index), true, false
		case "Pass":
			return Outcome{}, false, true
		}
	}
	return Outcome{}, false, false
}

// antreaSubject: entries are OR-ed (S2-25).
func (s *Simulator) antreaSubject(r *antreaRule, pod *inventory.Pod) bool {
	return slices.ContainsFunc(r.subjects, func(a antrea.AppliedTo) bool {
		switch {
		case a.Group != "": // address ranges among the members are no subjects (S2-28)
			return s.groupHasPod(r, a.Group, pod)
		case a.ServiceAccount != nil:
			return hasServiceAccount(pod, a.ServiceAccount)
		}
		return s.antreaPods(r.cluster, r.obj.Namespace, antrea.Peer{PodSelector: a.PodSelector, NamespaceSelector: a.NamespaceSelector}, pod)
	})
}

func hasServiceAccount(pod *inventory.Pod, sa *antrea.NamespacedName) bool {
	return pod.Namespace == sa.Namespace && pod.ServiceAccount == sa.Name
}

// antreaPods applies a pair of selectors: without one for namespaces, a
// cluster-scoped object means all of them (S2-26, S2-46), a namespaced one its
// own (S2-57). A pair of nothing selects nothing.
func (s *Simulator) antreaPods(cluster bool, own string, p antrea.Peer, pod *inventory.Pod) bool {
	switch {
	case p.PodSelector == nil && p.NamespaceSelector == nil:
		return false
	case p.NamespaceSelector != nil:
		if !s.selects(p.NamespaceSelector, s.nsLabels[pod.Namespace]) {
			return false
		}
	case !cluster:
		if pod.Namespace != own {
			return false
		}
	}
	return p.PodSelector == nil || s.selects(p.PodSelector, pod.Labels)
}

// group finds the group a rule names: a ClusterGroup for cluster policies, a
// Group of the same namespace for namespaced ones (S2-80, X-51).
func (s *Simulator) group(r *antreaRule, name string) *antrea.GroupSpec {
	if r.cluster {
		return s.antreaPolicies.clusterGroups[name]
	}
	return s.antreaPolicies.groups[[2]string{r.obj.Namespace, name}]
}

// groupHasPod: members that are pods, of the group or its children (S2-76).
func (s *Simulator) groupHasPod(r *antreaRule, name string, pod *inventory.Pod) bool {
	g := s.group(r, name)
	switch {
	case g == nil:
		return false
	case len(g.ChildGroups) > 0:
		return slices.ContainsFunc(g.ChildGroups, func(child string) bool { return s.groupHasPod(r, child, pod) })
	case g.ServiceReference != nil: // S2-73, S2-74
		for _, svc := range s.inv.Services {
			if svc.Namespace == g.ServiceReference.Namespace && svc.Name == g.ServiceReference.Name && len(svc.Selector) > 0 {
				for k, v := range svc.Selector {
					if got, ok := pod.Labels[k]; !ok || got != v {
						return false
					}
				}
				return pod.Namespace == svc.Namespace
			}
		}
		return false
	}
	return s.antreaPods(r.cluster, r.obj.Namespace, antrea.Peer{PodSelector: g.PodSelector, NamespaceSelector: g.NamespaceSelector}, pod)
}

// groupOfPods: a group, or a child of it, that may have pods.
func (s *Simulator) groupOfPods(r *antreaRule, name string) bool {
	g := s.group(r, name)
	switch {
	case g == nil:
		return false
	case len(g.ChildGroups) > 0:
		return slices.ContainsFunc(g.ChildGroups, func(child string) bool { return s.groupOfPods(r, child) })
	case g.ServiceReference != nil: // S2-74
		return slices.ContainsFunc(s.inv.Services, func(svc inventory.Service) bool {
			return svc.Namespace == g.ServiceReference.Namespace && svc.Name == g.ServiceReference.Name && len(svc.Selector) > 0
		})
	}
	return g.PodSelector != nil || g.NamespaceSelector != nil
}

// groupHasAddr: members that are address ranges.
func (s *Simulator) groupHasAddr(r *antreaRule, name string, peer *party) bool {
	g := s.group(r, name)
	if g == nil {
		return false
	}
	blocks := g.IPBlocks
	if g.IPBlock != nil {
		blocks = append(slices.Clone(blocks), *g.IPBlock)
	}
	return slices.ContainsFunc(blocks, func(b antrea.IPBlock) bool { return antreaBlock(&b, peer) }) ||
		slices.ContainsFunc(g.ChildGroups, func(child string) bool { return s.groupHasAddr(r, child, peer) })
}

// antreaBlock: pod addresses match too (S2-52); a hole does not.
func antreaBlock(b *antrea.IPBlock, peer *party) bool {
	return contains(b.CIDR, peer.addr) && !slices.ContainsFunc(b.Except, func(e string) bool { return contains(e, peer.addr) })
}

// antreaPeers asks from, to and toServices; all of them empty is everybody
// (S2-34, S2-35).
func (s *Simulator) antreaPeers(c *connection, d flow.Direction, subject *inventory.Pod, r *antreaRule) bool {
	peers := r.spec.From
	if d == flow.Egress {
		peers = r.spec.To
		if len(r.spec.ToServices) > 0 {
			return slices.ContainsFunc(r.spec.ToServices, func(t antrea.PeerService) bool { return s.antreaService(c, r, &t) })
		}
	}
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p antrea.Peer) bool { return s.antreaPeer(c.peer(d), subject, r, &p) })
}

// antreaService: ClusterIP, port and protocol of the Service (S2-98, S2-101), by
// where the connection was opened to.
func (s *Simulator) antreaService(c *connection, r *antreaRule, t *antrea.PeerService) bool {
	namespace := t.Namespace
	if namespace == "" && !r.cluster {
		namespace = r.obj.Namespace
	}
	for _, svc := range s.inv.Services {
		if svc.Namespace != namespace || svc.Name != t.Name || !slices.Contains(svc.ClusterIPs, c.openedTo) {
			continue
		}
		for _, p := range svc.Ports {
			if cmp.Or(p.Proto, "TCP") == c.key.Proto.String() && p.Port == c.openedPort {
				return true
			}
		}
	}
	return false
}

func (s *Simulator) antreaPeer(peer *party, subject *inventory.Pod, r *antreaRule, p *antrea.Peer) bool {
	switch {
	case p.IPBlock != nil:
		return antreaBlock(p.IPBlock, peer)
	case p.Group != "":
		if peer.pod == nil {
			return peer.guess && s.groupOfPods(r, p.Group) || s.groupHasAddr(r, p.Group, peer)
		}
		return s.groupHasPod(r, p.Group, peer.pod) || s.groupHasAddr(r, p.Group, peer)
	case p.FQDN != "": // S4-23
		return s.resolved(antreaName(p.FQDN), peer.addr)
	case p.NodeSelector != nil: // S2-49, S2-95
		return s.nodeSelected(p.NodeSelector, peer)
	case peer.pod == nil:
		return peer.guess
	case p.ServiceAccount != nil:
		return hasServiceAccount(peer.pod, p.ServiceAccount)
	case p.Namespaces != nil:
		ours, theirs := s.nsLabels[subject.Namespace], s.nsLabels[peer.pod.Namespace]
		if p.Namespaces.Match == "Self" { // S2-50
			if subject.Namespace != peer.pod.Namespace {
				return false
			}
		} else if !sameLabels(p.Namespaces.SameLabels, ours, theirs) {
			return false
		}
		return p.PodSelector == nil || s.selects(p.PodSelector, peer.pod.Labels)
	}
	return s.antreaPods(r.cluster, r.obj.Namespace, *p, peer.pod)
}

// antreaL4 asks ports and protocols. The second is for what the first cannot
// say, so either of them may match; without both nothing is restricted.
func (s *Simulator) antreaL4(c *connection, d flow.Direction, r *antreaRule) bool {
	if len(r.spec.Ports) == 0 && len(r.spec.Protocols) == 0 {
		return true
	}
	return slices.ContainsFunc(r.spec.Ports, func(p antrea.Port) bool {
		if !portMatches(c, p.Protocol, p.Port, p.EndPort) {
			return false
		}
		if p.SourcePort == nil {
			return true
		}
		last := *p.SourcePort
		if p.SourceEndPort != nil {
			last = *p.SourceEndPort
		}
		n := int32(c.key.SrcPort)
		return *p.SourcePort <= n && n <= last
	}) || slices.ContainsFunc(r.spec.Protocols, func(p antrea.Protocol) bool {
		// The type is the high byte of the destination port, the code the low one.
		typ, code := int32(c.key.DstPort>>8), int32(c.key.DstPort&0xff)
		switch {
		case p.ICMP != nil: // of the family at hand (S2-38)
			return (c.key.Proto == flow.ICMP || c.key.Proto == flow.ICMPv6) &&
				(p.ICMP.Type == nil || *p.ICMP.Type == typ && (p.ICMP.Code == nil || *p.ICMP.Code == code))
		case p.IGMP != nil: // S4-03, S4-08
			// Without a type: what the direction supports, queries in, reports out
			// (S4-04, S4-07).
			supported := map[flow.Direction][]int32{flow.Ingress: {17}, flow.Egress: {18, 22, 34}}[d]
			if p.IGMP.Type != nil {
				supported = []int32{int32(*p.IGMP.Type)}
			}
			return c.key.Proto == flow.IGMP && slices.Contains(supported, typ) &&
				(p.IGMP.GroupAddress == "" || p.IGMP.GroupAddress == c.dst.addr.String())
		}
		return false
	})
}
