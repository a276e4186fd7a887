package cilium

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/cilium"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Group, Version and the names of the two kinds this dialect lowers.
const (
	Group           = "cilium.io"
	Version         = "v2"
	Name            = "CiliumNetworkPolicy"
	NameClusterwide = "CiliumClusterwideNetworkPolicy"
)

// The words of rule.Origin.Word.
const (
	WordAllow = "Allow"
	WordDeny  = "Deny"
	// WordAuth is an allow rule that asks for authentication, which nothing here
	// can provide: what it matches is dropped, whichever rule allows it (S3-32).
	WordAuth = "Allow (auth required)"
)

// classDeny puts deny before the allow rules of the same order, NetworkPolicy's
// included, which have class 0 (S3-14).
const classDeny = -1

// Dialect lowers both kinds. The zero value is ready; it has no state.
type Dialect struct{}

// Name implements the dialect interface.
func (Dialect) Name() string { return "cilium" }

// Kinds lists the two kinds; their objects' values are *cilium.Policy.
func (Dialect) Kinds() []api.Kind {
	k := api.Kind{Group: Group, Version: Version, New: func() any { return new(cilium.Policy) }, Hint: fieldHint}
	namespaced, clusterwide := k, k
	namespaced.Kind, namespaced.Namespaced = Name, true
	clusterwide.Kind = NameClusterwide
	return []api.Kind{namespaced, clusterwide}
}

// Lower translates objects that Validate accepts. It warns about Services that
// the inventory does not have, or whose backends it cannot know.
func (Dialect) Lower(objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List) {
	var set rule.Set
	var findings diag.List
	blocks := newBlocks(inv)
	for _, o := range objs {
		p, ok := o.Value.(*cilium.Policy)
		if !ok {
			continue // Validate has refused it
		}
		f := &kube.Findings{Object: o}
		l := lowering{
			object: o, inv: inv, blocks: blocks,
			settings: kube.ParseSettings(&kube.Findings{Object: o}),
			warn:     f.Warn,
		}
		for _, s := range specsOf(p) {
			l.spec(s)
		}
		set.Add(l.set)
		findings.Add(f.List)
	}
	return set, findings
}

// lowering is one policy on its way.
type lowering struct {
	object   *api.Object
	inv      *inventory.Snapshot
	blocks   *blocks
	settings kube.Settings
	warn     func(path, message, hint string)
	index    [2]int32 // rules so far, by direction
	merged   [2]bool  // the direction's isolation is of several specs
	set      rule.Set
}

func (l *lowering) spec(s spec) {
	subject := subjectOf(s.EndpointSelector, l.object.Namespace)
	if s.NodeSelector != nil {
		subject = rule.Selector{None: true}
	}
	for _, d := range flow.Directions {
		if isolates(s.Rule, d) {
			l.isolate(d, s, subject)
		}
	}
	for _, ln := range linesOf(s) {
		l.line(s, subject, ln)
	}
}

// isolate isolates the subjects of a spec. All specs of a policy make one
// isolation, so that a decision names the policy once.
func (l *lowering) isolate(d flow.Direction, s spec, subject rule.Selector) {
	for i := range l.set.Isolations {
		if iso := &l.set.Isolations[i]; iso.Direction == d {
			if len(iso.Subject.AnyOf) == 0 || !l.merged[d] {
				iso.Subject = rule.Selector{AnyOf: []rule.Selector{iso.Subject}}
				l.merged[d] = true
			}
			iso.Subject.AnyOf = append(iso.Subject.AnyOf, subject)
			return
		}
	}
	o := l.origin(s, "")
	o.Index = -1
	l.set.Isolations = append(l.set.Isolations, rule.Isolation{
		Direction: d, Band: rule.BandNetworkPolicy, Subject: subject,
		Audit: l.settings.Audit, Stage: l.settings.Stage, Origin: o,
	})
}

// isolates applies the defaults of enableDefaultDeny.
func isolates(s *cilium.Rule, d flow.Direction) bool {
	isolate := len(s.Ingress)+len(s.IngressDeny) > 0
	if d == flow.Egress {
		isolate = len(s.Egress)+len(s.EgressDeny) > 0
	}
	if e := s.EnableDefaultDeny; e != nil {
		said := e.Ingress
		if d == flow.Egress {
			said = e.Egress
		}
		if said != nil {
			return *said
		}
	}
	return isolate
}

func (l *lowering) origin(s spec, word string) rule.Origin {
	o := rule.Origin{
		Group: Group, Kind: l.object.Kind.Kind, Namespace: l.object.Namespace, Name: l.object.Name,
		Word: word, Generation: l.object.Generation,
	}
	if s.Log != nil {
		o.Label = s.Log.Value
	}
	return o
}

func (l *lowering) line(s spec, subject rule.Selector, ln line) {
	r := rule.Rule{
		Direction: ln.direction,
		Order: rule.Order{
			Band: rule.BandNetworkPolicy, Priority: float64(orderOf(s.Rule)),
			Name: l.object.Namespace + "/" + l.object.Name, Index: l.index[ln.direction],
		},
		Subject: subject,
		Peers:   l.peers(&ln),
		L4:      ln.l4(),
		Action:  rule.Allow,
		Audit:   l.settings.Audit,
		Stage:   l.settings.Stage,
		Origin:  l.origin(s, WordAllow),
	}
	// Every rule of a policy and direction has a number of its own; a rule that
	// is not the number's item of spec.ingress or spec.egress is called by its
	// place.
	r.Origin.Index, r.Origin.Rule = int(r.Order.Index), ln.name
	l.index[ln.direction]++
	switch {
	case ln.deny:
		r.Action, r.Order.Class, r.Origin.Word = rule.Deny, classDeny, WordDeny
	case needsAuth(ln.auth):
		r.Auth, r.Origin.Word = true, WordAuth
	}
	l.set.Rules = append(l.set.Rules, r)
}

// orderOf returns the order of a spec, under whichever of its names.
func orderOf(s *cilium.Rule) int32 {
	switch {
	case s.Order != nil:
		return *s.Order
	case s.Priority != nil:
		return *s.Priority
	}
	return 0
}

// The modes of authentication.
const (
	authRequired   = "required"
	authDisabled   = "disabled"
	authAlwaysFail = "test-always-fail"
)

// needsAuth reports whether connections have to be authenticated. A mode nobody
// knows asks for something that cannot be given.
func needsAuth(a *cilium.Authentication) bool { return a != nil && a.Mode != authDisabled }

// subjectOf lowers an endpointSelector. What Validate refuses selects nothing.
func subjectOf(s *metav1.LabelSelector, namespace string) rule.Selector {
	if s == nil {
		return rule.Selector{None: true}
	}
	out := podSelector(s, namespace)
	if namespace != "" && out.Namespace != namespace {
		// A namespaced policy never reaches into another namespace.
		if out.Namespace != "" {
			return rule.Selector{None: true}
		}
		out.Namespace = namespace
	}
	return out
}
