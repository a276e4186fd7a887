package adminnetworkpolicy

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/internal/upstream"
)

// Group, Version and names of the two kinds.
const (
	Group        = "policy.networking.k8s.io"
	Version      = "v1alpha1"
	Name         = "AdminNetworkPolicy"
	BaselineName = "BaselineAdminNetworkPolicy"
)

// Dialect lowers AdminNetworkPolicy and BaselineAdminNetworkPolicy in all their
// shapes. The zero value is ready; it has no state.
type Dialect struct{}

// Name implements the dialect interface.
func (Dialect) Name() string { return "adminnetworkpolicy" }

// Kinds lists the two kinds. Each chooses its shape document by document.
func (Dialect) Kinds() []api.Kind {
	admin, baseline := adminKind(V017), baselineKind(V017)
	admin.Dialect, admin.Select = "", selectAdmin
	baseline.Dialect, baseline.Select = "", selectBaseline
	return []api.Kind{admin, baseline}
}

// Lower translates objects that Validate accepts. It warns about rules that fail
// closed, of which Validate leaves none.
func (Dialect) Lower(objs []*api.Object, _ *inventory.Snapshot) (rule.Set, diag.List) {
	var set rule.Set
	var findings diag.List
	for _, o := range objs {
		if r, ok := releasedOf(o); ok {
			if r.baseline || r.priority != nil {
				f := &kube.Findings{Object: o}
				set.Add(r.Lower(f))
				findings.Add(f.List)
			}
			continue
		}
		p, ok := o.Value.(*kepanp.AdminNetworkPolicy)
		if !ok || p.Spec.Priority == nil {
			continue // Validate has refused it
		}
		l := newLowering(o, &p.Spec)
		for i := range p.Spec.Ingress {
			r := &p.Spec.Ingress[i]
			l.rule(flow.Ingress, i, r.Name, r.Action, &r.L4Selector, r.From)
		}
		for i := range p.Spec.Egress {
			r := &p.Spec.Egress[i]
			l.rule(flow.Egress, i, r.Name, r.Action, &r.L4Selector, r.To)
		}
		set.Add(l.set)
	}
	return set, findings
}

// Ranked returns the objects that have a priority, for [upstream.Conflicts].
func (Dialect) Ranked(objs []*api.Object) []upstream.Ranked {
	var out []upstream.Ranked
	for _, o := range objs {
		if r, ok := releasedOf(o); ok {
			if r.priority != nil {
				out = append(out, upstream.Ranked{
					Object: o, Band: r.Band, Rank: r.Rank, Priority: *r.priority, Subject: r.Subject.Selector(),
				})
			}
		} else if p, ok := o.Value.(*kepanp.AdminNetworkPolicy); ok && p.Spec.Priority != nil {
			l := newLowering(o, &p.Spec)
			out = append(out, upstream.Ranked{
				Object: o, Band: l.band, Rank: l.priority, Priority: *p.Spec.Priority, Subject: l.subject,
			})
		}
	}
	return out
}

// lowering is one policy on its way.
type lowering struct {
	object   *api.Object
	settings kube.Settings
	subject  rule.Selector
	band     rule.Band
	priority float64 // rank: lower is stronger
	set      rule.Set
}

func newLowering(o *api.Object, s *kepanp.Spec) *lowering {
	l := &lowering{
		object: o, settings: kube.ParseSettings(&kube.Findings{Object: o}), subject: subject(&s.Subject),
		band: rule.BandAdmin, priority: upstream.RankKEP(*s.Priority),
	}
	if *s.Priority <= 0 {
		l.band = rule.BandBaseline
	}
	return l
}

// subject lowers what the policy is about. What Validate refuses selects nothing.
func subject(s *kepanp.Subject) rule.Selector {
	both := s.NamespaceAndPodSelector
	switch {
	case s.NamespaceSelector != nil && both == nil:
		return rule.Selector{NamespaceLabels: kube.Labels(s.NamespaceSelector)}
	case s.NamespaceSelector == nil && both != nil && both.NamespaceSelector != nil && both.PodSelector != nil:
		return rule.Selector{
			NamespaceLabels: kube.Labels(both.NamespaceSelector),
			PodLabels:       kube.Labels(both.PodSelector),
		}
	}
	return rule.Selector{None: true}
}

func (l *lowering) rule(d flow.Direction, index int, name, action string, l4 *kepanp.L4Selector, peers []kepanp.Peer) {
	r := rule.Rule{
		Direction: d,
		Order:     rule.Order{Band: l.band, Priority: l.priority, Name: l.object.Name, Index: int32(index)},
		Subject:   l.subject,
		L4:        l4Of(l4),
		Audit:     l.settings.Audit,
		Stage:     l.settings.Stage,
		Origin: rule.Origin{
			Group: Group, Kind: Name, Name: l.object.Name, Rule: name, Index: index,
			Word: action, Dialect: KEP, Generation: l.object.Generation,
		},
	}
	switch action {
	case actionAllow:
		r.Action = rule.Allow
	case actionDeny:
		r.Action = rule.Deny
	case actionPass:
		r.Action, r.Skip = rule.Skip, rule.Bands(l.band)
	default:
		return // Validate has refused it; an unknown action must decide nothing
	}
	for i := range peers {
		r.Peers = append(r.Peers, peer(&peers[i]))
	}
	l.set.Rules = append(l.set.Rules, r)
}

func l4Of(s *kepanp.L4Selector) []rule.L4 {
	if s.AllPorts != nil {
		if *s.AllPorts && len(s.Ports) == 0 {
			return []rule.L4{rule.AnyL4}
		}
		return nil
	}
	var out []rule.L4
	for i := range s.Ports {
		if s.Ports[i].Port == nil {
			continue // matches no port
		}
		if l4, ok := portOf(&s.Ports[i]).L4(); ok {
			out = append(out, l4)
		}
	}
	return out
}

func portOf(p *kepanp.Port) kube.Port {
	return kube.Port{Protocol: p.Protocol, Port: p.Port, EndPort: p.EndPort}
}

// nothing is a peer that selects no pod: an option this version does not know
// (S0-33, S0-35).
var nothing = rule.Peer{Kind: rule.PeerPods, Pods: rule.Selector{None: true}}

func peer(p *kepanp.Peer) rule.Peer {
	out := rule.Peer{Kind: rule.PeerPods}
	switch {
	case p.Namespaces != nil && p.NamespacedPods == nil:
		if !namespaces(p.Namespaces, &out) {
			return nothing
		}
	case p.Namespaces == nil && p.NamespacedPods != nil:
		both := p.NamespacedPods
		if both.Namespaces == nil || both.Pods == nil || !namespaces(both.Namespaces, &out) || !pods(both.Pods, &out) {
			return nothing
		}
	default:
		return nothing
	}
	return out
}

// namespaces narrows p to the set; false when the set is not exactly one option.
func namespaces(s *kepanp.NamespaceSet, p *rule.Peer) bool {
	n := 0
	if s.Self != nil {
		n++
		p.Relation.Namespace = rule.SameNamespace
		if !*s.Self {
			return false
		}
	}
	if s.NotSelf != nil {
		n++
		p.Relation.Namespace = rule.OtherNamespace
		if !*s.NotSelf {
			return false
		}
	}
	if s.NamespaceSelector != nil {
		n++
		p.Pods.NamespaceLabels = kube.Labels(s.NamespaceSelector)
	}
	n += relate(s.SameLabels, s.NotSameLabels, &p.Relation.NamespaceLabels)
	return n == 1
}

// pods narrows p to the set; false when the set is not exactly one option.
func pods(s *kepanp.PodSet, p *rule.Peer) bool {
	n := 0
	if s.PodSelector != nil {
		n++
		p.Pods.PodLabels = kube.Labels(s.PodSelector)
	}
	n += relate(s.SameLabels, s.NotSameLabels, &p.Relation.PodLabels)
	return n == 1
}

// relate fills the comparison and returns how many of the two lists are given.
func relate(same, notSame []string, r *rule.LabelRelation) (n int) {
	if same != nil {
		n++
		*r = rule.LabelRelation{Op: rule.SameLabels, Keys: same}
	}
	if notSame != nil {
		n++
		*r = rule.LabelRelation{Op: rule.NotSameLabelsKEP, Keys: notSame}
	}
	return n
}
