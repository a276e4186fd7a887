package upstream

import (
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// RankBaselineANP is where a BaselineAdminNetworkPolicy stands in its band: it has
// no priority and comes behind everything that has one.
const RankBaselineANP = 1002

// RankKEP is the rank of a KEP AdminNetworkPolicy of any priority (S0-16, X-02).
func RankKEP(priority int32) float64 { return float64(1001 - int64(priority)) }

// Policy is one object of any of the APIs.
type Policy struct {
	Object  *api.Object
	Dialect string // rule.Origin.Dialect
	Band    rule.Band
	Rank    float64 // lower is stronger
	Allow   string  // the API's word: "Allow" or "Accept"
	Subject Subject
	Ingress []Rule
	Egress  []Rule
}

// Subject sets exactly one field.
type Subject struct {
	Namespaces *metav1.LabelSelector
	Pods       *Pods
}

// Pods selects by both selectors. A nil selector was not written; whether that
// means all or nothing differs, so the dialect decides before it makes a Pods
// that is to be lowered.
type Pods struct {
	Namespaces *metav1.LabelSelector
	Pods       *metav1.LabelSelector
}

// Rule is one rule of one direction.
type Rule struct {
	Name, Action string // the API's own words
	Peers        []Peer
	L4           []rule.L4 // rule.AnyL4 when not restricted
	// NamedPort reports that one of L4 is a port name.
	NamedPort bool
}

// Peer sets exactly one field. NamespaceSet and PodSet are of v0.1.1 only.
type Peer struct {
	Namespaces   *metav1.LabelSelector
	Pods         *Pods
	Nodes        *metav1.LabelSelector
	Networks     []string
	DomainNames  []string
	NamespaceSet *NamespaceSet
	PodSet       *PodSet
}

// NamespaceSet sets exactly one field; an empty list selects nothing.
type NamespaceSet struct {
	Selector      *metav1.LabelSelector
	SameLabels    []string
	NotSameLabels []string
}

// PodSet needs both fields.
type PodSet struct {
	Namespaces *NamespaceSet
	Pods       *metav1.LabelSelector
}

// fields names the fields that are set, for messages. A list that is there and
// empty is set.
func (p *Peer) fields() []string {
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"namespaces", p.Namespaces != nil || p.NamespaceSet != nil},
		{"pods", p.Pods != nil || p.PodSet != nil},
		{"nodes", p.Nodes != nil},
		{"networks", p.Networks != nil},
		{"domainNames", p.DomainNames != nil},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	return set
}

// Selector lowers the subject. What validation refuses selects nothing.
func (s *Subject) Selector() rule.Selector {
	switch {
	case s.Namespaces != nil && s.Pods == nil:
		return rule.Selector{NamespaceLabels: kube.Labels(s.Namespaces)}
	case s.Namespaces == nil && s.Pods != nil:
		return s.Pods.selector()
	}
	return rule.Selector{None: true}
}

func (p *Pods) selector() rule.Selector {
	if p.Namespaces == nil || p.Pods == nil {
		return rule.Selector{None: true}
	}
	return rule.Selector{NamespaceLabels: kube.Labels(p.Namespaces), PodLabels: kube.Labels(p.Pods)}
}

// Lower translates the policy. f gets a warning for every rule that fails closed
// it may be nil.
func (p *Policy) Lower(f *kube.Findings) rule.Set {
	l := lowering{Policy: p, findings: f, subject: p.Subject.Selector()}
	l.settings = kube.ParseSettings(&kube.Findings{Object: p.Object})
	for i := range p.Ingress {
		l.rule(flow.Ingress, i, &p.Ingress[i])
	}
	for i := range p.Egress {
		l.rule(flow.Egress, i, &p.Egress[i])
	}
	return l.set
}

type lowering struct {
	*Policy
	findings *kube.Findings
	settings kube.Settings
	subject  rule.Selector
	set      rule.Set
}

func (l *lowering) rule(d flow.Direction, index int, in *Rule) {
	o := l.Object
	r := rule.Rule{
		Direction: d,
		Order:     rule.Order{Band: l.Band, Priority: l.Rank, Name: o.Name, Index: int32(index)},
		Subject:   l.subject,
		L4:        in.L4,
		Audit:     l.settings.Audit,
		Stage:     l.settings.Stage,
		Origin: rule.Origin{
			Group: o.Kind.Group, Kind: o.Kind.Kind, Name: o.Name, Rule: in.Name, Index: index,
			Word: in.Action, Dialect: l.Dialect, Generation: o.Generation,
		},
	}
	switch in.Action {
	case l.Allow:
		r.Action = rule.Allow
	case "Deny":
		r.Action = rule.Deny
	case "Pass":
		r.Action, r.Skip = rule.Skip, rule.Bands(l.Band)
	default:
		return // validation has refused it; an unknown action must decide nothing
	}
	for i := range in.Peers {
		peers, ok := in.Peers[i].lower()
		if ok {
			r.Peers = append(r.Peers, peers...)
			continue
		}
		message := "the peer sets no field this version knows: the rule matches nothing"
		if r.Action == rule.Allow {
			r.Peers = nil
		} else {
			message = "the peer sets no field this version knows: the rule denies everything"
			r.Action, r.Skip, r.Origin.Word = rule.Deny, 0, in.Action+" (failed closed)"
			r.Peers, r.L4 = []rule.Peer{{Kind: rule.PeerAny}}, []rule.L4{rule.AnyL4}
		}
		if l.findings != nil {
			l.findings.Warn(kube.At(rulePath(d, index)+"."+side(d), i), message, "update Tierwall, or write the peer with fields it knows")
		}
		break
	}
	l.set.Rules = append(l.set.Rules, r)
}

func rulePath(d flow.Direction, index int) string { return kube.At("spec."+d.String(), index) }

func side(d flow.Direction) string {
	if d == flow.Egress {
		return "to"
	}
	return "from"
}

// lower translates a peer to alternatives. ok is false for one that is not
// understood in full.
func (p *Peer) lower() (peers []rule.Peer, ok bool) {
	if len(p.fields()) != 1 {
		return nil, false
	}
	switch {
	case p.Namespaces != nil:
		peers = append(peers, rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{NamespaceLabels: kube.Labels(p.Namespaces)}})
	case p.Pods != nil:
		if p.Pods.Namespaces == nil || p.Pods.Pods == nil {
			return nil, false
		}
		peers = append(peers, rule.Peer{Kind: rule.PeerPods, Pods: p.Pods.selector()})
	case p.NamespaceSet != nil:
		out := rule.Peer{Kind: rule.PeerPods}
		if !p.NamespaceSet.narrow(&out) {
			return nil, false
		}
		peers = append(peers, out)
	case p.PodSet != nil:
		out := rule.Peer{Kind: rule.PeerPods}
		if p.PodSet.Namespaces == nil || p.PodSet.Pods == nil || !p.PodSet.Namespaces.narrow(&out) {
			return nil, false
		}
		out.Pods.PodLabels = kube.Labels(p.PodSet.Pods)
		peers = append(peers, out)
	case p.Nodes != nil:
		name, ok := inventory.NodeSelectorSet(p.Nodes)
		if !ok {
			return nil, false
		}
		peers = append(peers, rule.Peer{Kind: rule.PeerSet, Set: name})
	case p.Networks != nil:
		for _, s := range p.Networks {
			prefix, err := parseNetwork(s)
			if err != nil {
				return nil, false
			}
			peers = append(peers, rule.Peer{Kind: rule.PeerBlock, Block: rule.IPBlock{Prefix: prefix.Masked()}})
		}
	case p.DomainNames != nil:
		for _, s := range p.DomainNames {
			peers = append(peers, rule.Peer{Kind: rule.PeerSet, Set: inventory.DomainSet(strings.TrimSuffix(s, "."))})
		}
	}
	return peers, len(peers) > 0
}

// narrow restricts a peer to the set; false when the set is not exactly one option.
func (s *NamespaceSet) narrow(p *rule.Peer) bool {
	n := 0
	if s.Selector != nil {
		n++
		p.Pods.NamespaceLabels = kube.Labels(s.Selector)
	}
	if s.SameLabels != nil {
		n++
		p.Relation.NamespaceLabels = rule.LabelRelation{Op: rule.SameLabels, Keys: s.SameLabels}
	}
	if s.NotSameLabels != nil {
		n++
		p.Relation.NamespaceLabels = rule.LabelRelation{Op: rule.NotSameLabelsRelease, Keys: s.NotSameLabels}
	}
	return n == 1
}

// parseNetwork reads a CIDR as the API's isCIDR does, host bits allowed: the
// standard library refuses zones and leading zeros, and IPv4 in mapped form is
// refused here.
func parseNetwork(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err == nil && p.Addr().Is4In6() {
		return netip.Prefix{}, errMapped
	}
	return p, err
}
