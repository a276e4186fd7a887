package kepclusternetworkpolicy

import (
	"strings"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Group, Version and names of the two kinds this dialect lowers (S1-01).
const (
	Group       = "netpol.networking.k8s.io"
	Version     = "v1alpha1"
	Name        = "ClusterNetworkPolicy"
	DefaultName = "ClusterDefaultNetworkPolicy"
)

// Actions and scopes (S1-03, S1-30).
const (
	actionEmpower = "Empower"
	actionDeny    = "Deny"
	actionAllow   = "Allow"

	scopeSelf       = "Self"
	scopeSelector   = "Selector"
	scopeSameLabels = "SameLabels"
)

// Dialect lowers both kinds. The zero value is ready; it has no state.
type Dialect struct{}

// Name implements the dialect interface.
func (Dialect) Name() string { return "kepclusternetworkpolicy" }

// Kinds lists the two kinds.
func (Dialect) Kinds() []api.Kind {
	return []api.Kind{
		{
			Group: Group, Version: Version, Kind: Name,
			New: func() any { return new(kepcnp.ClusterNetworkPolicy) }, Hint: fieldHint,
		},
		{
			Group: Group, Version: Version, Kind: DefaultName,
			New: func() any { return new(kepcnp.ClusterDefaultNetworkPolicy) }, Hint: defaultHint,
		},
	}
}

// Lower translates objects that Validate accepts.
func (Dialect) Lower(objs []*api.Object, _ *inventory.Snapshot) (rule.Set, diag.List) {
	var set rule.Set
	for _, o := range objs {
		l := lowering{object: o, settings: kube.ParseSettings(&kube.Findings{Object: o})}
		switch p := o.Value.(type) {
		case *kepcnp.ClusterNetworkPolicy:
			l.subject = subject(p.Spec.AppliedTo)
			for i := range p.Spec.Ingress {
				r := &p.Spec.Ingress[i]
				l.rule(flow.Ingress, i, r.Action, r.From, r.Ports)
			}
			for i := range p.Spec.Egress {
				r := &p.Spec.Egress[i]
				l.rule(flow.Egress, i, r.Action, r.To, r.Ports)
			}
		case *kepcnp.ClusterDefaultNetworkPolicy:
			l.subject = subject(p.Spec.AppliedTo)
			if written(o, "ingress", p.Spec.Ingress != nil) {
				l.isolate(flow.Ingress)
			}
			for i := range p.Spec.Ingress {
				l.defaultRule(flow.Ingress, i, p.Spec.Ingress[i].From, p.Spec.Ingress[i].Ports)
			}
			if written(o, "egress", p.Spec.Egress != nil) {
				l.isolate(flow.Egress)
			}
			for i := range p.Spec.Egress {
				l.defaultRule(flow.Egress, i, p.Spec.Egress[i].To, p.Spec.Egress[i].Ports)
			}
		}
		set.Add(l.set)
	}
	return set, diag.List{}
}

// written reports whether a direction's field is in the document, null included
// . An object that was never a document has only its Go value to tell.
func written(o *api.Object, name string, value bool) bool {
	if o.Raw == nil {
		return value
	}
	spec, _ := o.Raw["spec"].(map[string]any)
	_, ok := spec[name]
	return ok
}

// lowering is one policy on its way.
type lowering struct {
	object   *api.Object
	settings kube.Settings
	subject  rule.Selector
	set      rule.Set
}

// subject lowers appliedTo. What Validate refuses selects nothing.
func subject(a *kepcnp.AppliedTo) rule.Selector {
	if a == nil || a.NamespaceSelector == nil {
		return rule.Selector{None: true}
	}
	s := rule.Selector{NamespaceLabels: kube.Labels(a.NamespaceSelector)}
	if a.PodSelector != nil {
		s.PodLabels = kube.Labels(a.PodSelector)
	}
	return s
}

func (l *lowering) origin(index int, word string) rule.Origin {
	return rule.Origin{
		Group: Group, Kind: l.object.Kind.Kind, Name: l.object.Name, Index: index, Word: word,
		Generation: l.object.Generation,
	}
}

func (l *lowering) isolate(d flow.Direction) {
	l.set.Isolations = append(l.set.Isolations, rule.Isolation{
		Direction: d, Band: rule.BandClusterDefault, Subject: l.subject,
		Audit: l.settings.Audit, Stage: l.settings.Stage, Origin: l.origin(-1, ""),
	})
}

func (l *lowering) rule(d flow.Direction, index int, action string, peers []kepcnp.Peer, ports []networkingv1.NetworkPolicyPort) {
	switch action {
	case actionEmpower:
		l.add(d, index, rule.BandClusterEmpower, rule.Skip, action, peers, ports)
	case actionDeny:
		l.add(d, index, rule.BandClusterDeny, rule.Deny, action, peers, ports)
	case actionAllow:
		l.add(d, index, rule.BandClusterAllow, rule.Allow, action, peers, ports)
	}
	// Validate has refused any other; it must decide nothing.
}

func (l *lowering) defaultRule(d flow.Direction, index int, peers []kepcnp.Peer, ports []networkingv1.NetworkPolicyPort) {
	l.add(d, index, rule.BandClusterDefault, rule.Allow, actionAllow, peers, ports)
}

func (l *lowering) add(d flow.Direction, index int, band rule.Band, action rule.Action, word string,
	peers []kepcnp.Peer, ports []networkingv1.NetworkPolicyPort,
) {
	r := rule.Rule{
		Direction: d,
		Order:     rule.Order{Band: band, Name: l.object.Name, Index: int32(index)},
		Subject:   l.subject,
		Action:    action,
		Audit:     l.settings.Audit,
		Stage:     l.settings.Stage,
		Origin:    l.origin(index, word),
	}
	if action == rule.Skip {
		r.Skip = rule.Bands(rule.BandClusterDeny) // S1-07
	}
	if len(peers) == 0 { // S1-26, S1-36
		r.Peers = []rule.Peer{{Kind: rule.PeerPods}}
	}
	for i := range peers {
		r.Peers = append(r.Peers, peer(&peers[i]))
	}
	if len(ports) == 0 {
		r.L4 = []rule.L4{rule.AnyL4}
	}
	for i := range ports {
		if l4, ok := portOf(&ports[i]).L4(); ok {
			r.L4 = append(r.L4, l4)
		}
	}
	l.set.Rules = append(l.set.Rules, r)
}

func portOf(p *networkingv1.NetworkPolicyPort) kube.Port {
	return kube.Port{Protocol: p.Protocol, Port: p.Port, EndPort: p.EndPort}
}

// nothing is a peer that selects no pod: what Validate refuses.
var nothing = rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{None: true}}

func peer(p *kepcnp.Peer) rule.Peer {
	out := rule.Peer{Kind: rule.PeerPods}
	switch {
	case p.NamespaceSelector != nil && p.Namespaces == nil:
		out.Pods.NamespaceLabels = kube.Labels(p.NamespaceSelector)
	case p.NamespaceSelector == nil && p.Namespaces != nil:
		n := p.Namespaces
		switch scope, _ := canonicalScope(n.Scope); {
		case scope == scopeSelf && n.Labels == nil && n.Selector == nil:
			out.Relation.Namespace = rule.SameNamespace
		case scope == scopeSameLabels && n.Selector == nil:
			out.Relation.NamespaceLabels = rule.LabelRelation{Op: rule.SameLabels, Keys: n.Labels}
		case scope == scopeSelector && n.Labels == nil && n.Selector != nil:
			out.Pods.NamespaceLabels = kube.Labels(n.Selector)
		default:
			return nothing
		}
	default:
		return nothing
	}
	if p.PodSelector != nil {
		out.Pods.PodLabels = kube.Labels(p.PodSelector)
	}
	return out
}

// canonicalScope returns the scope as the KEP's constants spell it, "" for none of
// them; exact is false when it was written in another case.
func canonicalScope(s string) (scope string, exact bool) {
	for _, known := range []string{scopeSelf, scopeSelector, scopeSameLabels} {
		if strings.EqualFold(s, known) {
			return known, s == known
		}
	}
	return "", false
}
