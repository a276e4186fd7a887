package kepclusternetworkpolicy_test

import (
	"math/rand/v2"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/kepclusternetworkpolicy"
)

func TestFixtures(t *testing.T) { fixture.Run(t) }

var all = &metav1.LabelSelector{}

func object(name string, value any) *api.Object {
	kinds := kepclusternetworkpolicy.Dialect{}.Kinds()
	k := kinds[0]
	if _, ok := value.(*kepcnp.ClusterDefaultNetworkPolicy); ok {
		k = kinds[1]
	}
	return &api.Object{Kind: k, Name: name, Value: value, Generation: 7}
}

// Neither the order of rules nor that of objects changes a verdict.
// Rules are renamed by the shuffle, so only verdicts and bands are compared.
func TestOrderDoesNotMatter(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x\nnamespace y\npod x/a app=a\npod x/b app=b\npod y/a app=a\npod y/b app=b\n")
	world := w.Inventory.World("")
	r := rand.New(rand.NewPCG(3, 7))
	app := func(v string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": v}}
	}
	pick := func() *metav1.LabelSelector { return []*metav1.LabelSelector{all, app("a"), app("b")}[r.IntN(3)] }
	actions := []string{"Empower", "Deny", "Allow"}
	changed := 0
	for range 200 {
		var rules []kepcnp.IngressRule
		for range 2 + r.IntN(6) {
			rules = append(rules, kepcnp.IngressRule{
				Action: actions[r.IntN(3)], From: []kepcnp.Peer{{NamespaceSelector: all, PodSelector: pick()}},
			})
		}
		lowered := func() rule.Set {
			var objs []*api.Object
			cut := r.IntN(len(rules) + 1)
			for i, part := range [][]kepcnp.IngressRule{rules[:cut], rules[cut:]} {
				p := &kepcnp.ClusterNetworkPolicy{Spec: kepcnp.Spec{
					AppliedTo: &kepcnp.AppliedTo{NamespaceSelector: all}, Ingress: append([]kepcnp.IngressRule(nil), part...),
				}}
				objs = append(objs, object([]string{"m", "n"}[i], p))
			}
			set, _ := kepclusternetworkpolicy.Dialect{}.Lower(objs, w.Inventory)
			set.Sort()
			return set
		}
		first := lowered()
		r.Shuffle(len(rules), func(i, j int) { rules[i], rules[j] = rules[j], rules[i] })
		second := lowered()
		for _, from := range w.Parties {
			for _, to := range w.Parties {
				for _, k := range (&fixture.Probe{From: from, To: to, Proto: flow.TCP, Port: 80}).Keys() {
					a, b := oracle.Evaluate(&first, world, k), oracle.Evaluate(&second, world, k)
					if a.Verdict != b.Verdict || a.Ingress.Band != b.Ingress.Band { // S1-05, S1-06
						t.Fatalf("%s: %s in %s, then %s in %s\n%s\n%s", k, a.Verdict, a.Ingress.Band, b.Verdict, b.Ingress.Band, first.Text(), second.Text())
					}
					if a.Ingress.Band != rule.BandDefault {
						changed++
					}
				}
			}
		}
	}
	if changed == 0 {
		t.Error("no rule ever decided")
	}
}

// Selectors are kept, not their result.
func TestKeepsSelectors(t *testing.T) {
	p := &kepcnp.ClusterNetworkPolicy{Spec: kepcnp.Spec{
		AppliedTo: &kepcnp.AppliedTo{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"type": "tenant"}}},
		Ingress:   []kepcnp.IngressRule{{Action: "Deny", From: []kepcnp.Peer{{NamespaceSelector: all}}}},
	}}
	set, _ := kepclusternetworkpolicy.Dialect{}.Lower([]*api.Object{object("p", p)}, &inventory.Snapshot{})
	e := rule.Endpoint{Namespace: "later", NamespaceLabels: map[string]string{"type": "tenant"}}
	if s := &set.Rules[0].Subject; !s.Matches(&e) { // S1-37
		t.Errorf("a namespace created later is not covered: %s", s)
	}
	e.NamespaceLabels = nil
	if s := &set.Rules[0].Subject; s.Matches(&e) {
		t.Errorf("a namespace without the label is covered: %s", s)
	}
}

// X-29 for objects that were never a document: nil is absent, [] is there.
func TestIsolationWithoutDocument(t *testing.T) {
	p := &kepcnp.ClusterDefaultNetworkPolicy{Spec: kepcnp.DefaultSpec{
		AppliedTo: &kepcnp.AppliedTo{NamespaceSelector: all}, Egress: []kepcnp.DefaultEgressRule{},
	}}
	set, _ := kepclusternetworkpolicy.Dialect{}.Lower([]*api.Object{object("p", p)}, &inventory.Snapshot{})
	if len(set.Isolations) != 1 || set.Isolations[0].Direction != flow.Egress || set.Isolations[0].Band != rule.BandClusterDefault {
		t.Errorf("isolations: %+v", set.Isolations)
	}
}

// What admission refuses selects nothing and decides nothing.
func TestUncheckedSelectsLess(t *testing.T) {
	e := rule.Endpoint{Namespace: "x", Name: "p"}
	for name, change := range map[string]func(*kepcnp.Spec){
		"nothing wrong":  nil,
		"no appliedTo":   func(s *kepcnp.Spec) { s.AppliedTo = nil },
		"pods only":      func(s *kepcnp.Spec) { s.AppliedTo = &kepcnp.AppliedTo{PodSelector: all} },
		"no action":      func(s *kepcnp.Spec) { s.Ingress[0].Action = "" },
		"other action":   func(s *kepcnp.Spec) { s.Ingress[0].Action = "Pass" },
		"empty peer":     func(s *kepcnp.Spec) { s.Ingress[0].From = []kepcnp.Peer{{}} },
		"pod peer":       func(s *kepcnp.Spec) { s.Ingress[0].From = []kepcnp.Peer{{PodSelector: all}} },
		"both selectors": func(s *kepcnp.Spec) { s.Ingress[0].From[0].Namespaces = &kepcnp.Namespaces{Scope: "Self"} },
		"no scope":       func(s *kepcnp.Spec) { s.Ingress[0].From = []kepcnp.Peer{{Namespaces: &kepcnp.Namespaces{}}} },
		"other scope": func(s *kepcnp.Spec) {
			s.Ingress[0].From = []kepcnp.Peer{{Namespaces: &kepcnp.Namespaces{Scope: "NotSelf"}}}
		},
		"self and selector": func(s *kepcnp.Spec) {
			s.Ingress[0].From = []kepcnp.Peer{{Namespaces: &kepcnp.Namespaces{Scope: "Self", Selector: all}}}
		},
		"selector and labels": func(s *kepcnp.Spec) {
			s.Ingress[0].From = []kepcnp.Peer{{Namespaces: &kepcnp.Namespaces{Scope: "Selector", Selector: all, Labels: []string{"a"}}}}
		},
		"no selector": func(s *kepcnp.Spec) {
			s.Ingress[0].From = []kepcnp.Peer{{Namespaces: &kepcnp.Namespaces{Scope: "Selector"}}}
		},
		"no labels": func(s *kepcnp.Spec) {
			s.Ingress[0].From = []kepcnp.Peer{{Namespaces: &kepcnp.Namespaces{Scope: "SameLabels"}}}
		},
		"bad port": func(s *kepcnp.Spec) {
			end := int32(2)
			s.Ingress[0].Ports = []networkingv1.NetworkPolicyPort{{EndPort: &end}}
		},
	} {
		p := &kepcnp.ClusterNetworkPolicy{Spec: kepcnp.Spec{
			AppliedTo: &kepcnp.AppliedTo{NamespaceSelector: all},
			Ingress:   []kepcnp.IngressRule{{Action: "Deny", From: []kepcnp.Peer{{NamespaceSelector: all}}}},
		}}
		if change != nil {
			change(&p.Spec)
		}
		o := object("p", p)
		if found := (kepclusternetworkpolicy.Dialect{}).Validate(o); (len(found.Errors) == 0) != (change == nil) {
			t.Errorf("%s: %v", name, found)
		}
		set, _ := kepclusternetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		decides := false
		for i := range set.Rules {
			r := &set.Rules[i]
			for _, peer := range r.Peers {
				decides = decides || r.Subject.Matches(&e) && len(r.L4) > 0 && peer.Pods.Matches(&e) && peer.Relation.Holds(&e, &e)
			}
		}
		if decides != (change == nil) {
			t.Errorf("%s: decides: %v\n%s", name, decides, set.Text())
		}
	}
}

func TestKeepsWhatExplainNeeds(t *testing.T) {
	p := &kepcnp.ClusterNetworkPolicy{Spec: kepcnp.Spec{
		AppliedTo: &kepcnp.AppliedTo{NamespaceSelector: all}, Egress: []kepcnp.EgressRule{{Action: "Empower"}},
	}}
	set, _ := kepclusternetworkpolicy.Dialect{}.Lower([]*api.Object{object("p", p)}, &inventory.Snapshot{})
	r := set.Rules[0]
	want := rule.Origin{Group: "netpol.networking.k8s.io", Kind: "ClusterNetworkPolicy", Name: "p", Word: "Empower", Generation: 7}
	if r.Origin != want {
		t.Errorf("got %+v, want %+v", r.Origin, want)
	}
	if r.Skip != rule.Bands(rule.BandClusterDeny) { // S1-07
		t.Errorf("Empower skips %s", r.Skip)
	}
	if len(r.Peers) != 1 || r.Peers[0].Kind != rule.PeerPods { // S1-36
		t.Errorf("no `to` is %v", r.Peers)
	}
	if found := (kepclusternetworkpolicy.Dialect{}).Validate(object("x", "not a policy")); len(found.Errors) != 1 {
		t.Error("took a string for a policy")
	}
}
