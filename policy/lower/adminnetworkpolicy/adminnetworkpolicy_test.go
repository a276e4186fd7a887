package adminnetworkpolicy_test

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/adminnetworkpolicy"
)

func TestFixtures(t *testing.T) { fixture.Run(t) }

var all = &metav1.LabelSelector{}

func object(p *kepanp.AdminNetworkPolicy) *api.Object {
	return &api.Object{Kind: adminnetworkpolicy.Dialect{}.Kinds()[0], Name: p.Name, Value: p}
}

// policy returns a valid policy with n ingress and m egress rules.
func policy(name string, priority int32, n, m int) *kepanp.AdminNetworkPolicy {
	yes := true
	p := &kepanp.AdminNetworkPolicy{}
	p.Name = name
	p.Spec.Priority = &priority
	p.Spec.Subject.NamespaceSelector = &metav1.LabelSelector{}
	all := kepanp.L4Selector{AllPorts: &yes}
	peers := []kepanp.Peer{{Namespaces: &kepanp.NamespaceSet{NamespaceSelector: &metav1.LabelSelector{}}}}
	for range n {
		p.Spec.Ingress = append(p.Spec.Ingress, kepanp.IngressRule{Action: "Deny", L4Selector: all, From: peers})
	}
	for range m {
		p.Spec.Egress = append(p.Spec.Egress, kepanp.EgressRule{Action: "Deny", L4Selector: all, To: peers})
	}
	return p
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		name            string
		priority        int32
		ingress, egress int
		errors          int
	}{
		{"lowest priority", 0, 1, 1, 0},     // S0-13
		{"highest priority", 1000, 1, 1, 0}, // S0-13
		{"priority -1", -1, 1, 1, 1},        // S0-13
		{"priority 1001", 1001, 1, 1, 1},    // S0-13
		{"no rules", 1, 0, 0, 0},
		{"100 ingress", 1, 100, 0, 0}, // S0-20
		{"60 and 40", 1, 60, 40, 0},   // S0-20
		{"60 and 41", 1, 60, 41, 1},   // S0-20, X-27: both directions together
		{"101 egress", 1, 0, 101, 1},  // S0-20
		{"far too many of all", 2000, 99, 9, 2},
	} {
		got := adminnetworkpolicy.Dialect{}.Validate(object(policy("p", c.priority, c.ingress, c.egress)))
		if len(got.Errors) != c.errors || len(got.Warnings) != 0 {
			t.Errorf("%s: %d errors, want %d: %v", c.name, len(got.Errors), c.errors, got)
		}
	}
}

// Only validation knows the bounds of priority.
func TestAnyPriorityOrders(t *testing.T) {
	var objs []*api.Object
	priorities := []int32{math.MaxInt32, 100_000, 1001, 1000, 2, 1, 0, -1, math.MinInt32}
	for i, p := range priorities {
		objs = append(objs, object(policy(string(rune('z'-i)), p, 1, 0)))
	}
	slices.Reverse(objs)
	set, found := adminnetworkpolicy.Dialect{}.Lower(objs, &inventory.Snapshot{})
	if len(found.Warnings) > 0 {
		t.Error(found)
	}
	set.Sort()
	for i, p := range priorities {
		band := rule.BandAdmin
		if p <= 0 {
			band = rule.BandBaseline
		}
		got := set.Rules[i]
		if want := string(rune('z' - i)); got.Origin.Name != want || got.Order.Band != band { // S0-16; S0-15: 1000 before 1, 1 before the baseline
			t.Errorf("place %d: got %s in %s, want %s (priority %d) in %s", i, got.Origin.Name, got.Order.Band, want, p, band)
		}
	}
}

// What admission refuses may still arrive through another API server's: it must
// match nothing, whatever the action.
func TestUnknownOptionsMatchNothing(t *testing.T) {
	yes, no := true, false
	self := &kepanp.NamespaceSet{Self: &yes}
	peers := map[string]kepanp.Peer{
		"no option":           {}, // S0-33, X-23
		"two options":         {Namespaces: self, NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: self, Pods: &kepanp.PodSet{PodSelector: all}}},
		"empty namespaces":    {Namespaces: &kepanp.NamespaceSet{}}, // S0-35, X-23
		"two namespaces":      {Namespaces: &kepanp.NamespaceSet{Self: &yes, NamespaceSelector: all}},
		"self: false":         {Namespaces: &kepanp.NamespaceSet{Self: &no}},
		"notSelf: false":      {Namespaces: &kepanp.NamespaceSet{NotSelf: &no}},
		"empty pods":          {NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: self, Pods: &kepanp.PodSet{}}},
		"two pods":            {NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: self, Pods: &kepanp.PodSet{PodSelector: all, SameLabels: []string{"a"}}}},
		"no pods":             {NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: self}},
		"no namespaces":       {NamespacedPods: &kepanp.NamespaceAndPodSet{Pods: &kepanp.PodSet{PodSelector: all}}},
		"pods, no namespaces": {NamespacedPods: &kepanp.NamespaceAndPodSet{Namespaces: &kepanp.NamespaceSet{}, Pods: &kepanp.PodSet{PodSelector: all}}},
	}
	e := rule.Endpoint{Namespace: "x", Name: "p"}
	for name, peer := range peers {
		for _, action := range []string{"Allow", "Deny", "Pass"} {
			p := policy("p", 1, 1, 0)
			p.Spec.Ingress[0].Action, p.Spec.Ingress[0].From = action, []kepanp.Peer{peer}
			if found := (adminnetworkpolicy.Dialect{}).Validate(object(p)); len(found.Errors) == 0 {
				t.Errorf("%s: accepted", name)
			}
			set, _ := adminnetworkpolicy.Dialect{}.Lower([]*api.Object{object(p)}, &inventory.Snapshot{})
			for _, r := range set.Rules {
				for _, got := range r.Peers {
					if got.Kind != rule.PeerPods || got.Pods.Matches(&e) && got.Relation.Holds(&e, &e) { // S0-66
						t.Errorf("%s: %s from %s", name, action, got.String())
					}
				}
			}
		}
	}
	for name, change := range map[string]func(*kepanp.Spec){
		"no priority": func(s *kepanp.Spec) { s.Priority = nil },
		"no subject":  func(s *kepanp.Spec) { s.Subject = kepanp.Subject{} },
		"half a subject": func(s *kepanp.Spec) {
			s.Subject = kepanp.Subject{NamespaceAndPodSelector: &kepanp.NamespaceAndPodSelector{PodSelector: all}}
		},
		"unknown action":    func(s *kepanp.Spec) { s.Ingress[0].Action = "Log" },
		"no l4Selector":     func(s *kepanp.Spec) { s.Ingress[0].L4Selector = kepanp.L4Selector{} },
		"allPorts: false":   func(s *kepanp.Spec) { s.Ingress[0].L4Selector = kepanp.L4Selector{AllPorts: &no} },
		"item without port": func(s *kepanp.Spec) { s.Ingress[0].L4Selector = kepanp.L4Selector{Ports: []kepanp.Port{{}}} },
	} {
		p := policy("p", 1, 1, 0)
		change(&p.Spec)
		if found := (adminnetworkpolicy.Dialect{}).Validate(object(p)); len(found.Errors) == 0 {
			t.Errorf("%s: accepted", name)
		}
		set, _ := adminnetworkpolicy.Dialect{}.Lower([]*api.Object{object(p)}, &inventory.Snapshot{})
		for i := range set.Rules {
			if r := &set.Rules[i]; r.Subject.Matches(&e) && len(r.L4) > 0 { // S0-66
				t.Errorf("%s: lowered to\n%s", name, set.Text())
			}
		}
	}
}

// The dialect of a document is told by its fields, or by the annotation.
func TestSelect(t *testing.T) {
	kinds := adminnetworkpolicy.Dialect{}.Kinds()
	for _, c := range []struct {
		name, raw   string
		admin, base string // dialect, or the path of the problem
		word        string // in the problem's message, of both kinds
	}{
		{"nothing tells", `{"spec": {"ingress": [{"action": "Deny"}]}}`, "v0.1.7", "v0.1.7", ""},
		{"strange", `{"spec": {"subject": 1, "ingress": {"a": 1}, "egress": [null, 1]}}`, "v0.1.7", "v0.1.7", ""},
		{"empty", `{}`, "v0.1.7", "v0.1.7", ""},

		{"kep subject", `{"spec": {"subject": {"namespaceSelector": {}}}}`, "kep", "spec.subject.namespaceSelector", ""},
		{"kep subject 2", `{"spec": {"subject": {"namespaceAndPodSelector": {}}}}`, "kep", "spec.subject.namespaceAndPodSelector", ""},
		{"kep l4", `{"spec": {"ingress": [{}, {"l4Selector": {}}]}}`, "kep", "spec.ingress[1].l4Selector", ""},
		{"kep pods", `{"spec": {"egress": [{"to": [{}, {"namespacedPods": {}}]}]}}`, "kep", "spec.egress[0].to[1].namespacedPods", ""},
		{"kep self", `{"spec": {"egress": [{"to": [{"namespaces": {"self": true}}]}]}}`, "kep", "spec.egress[0].to[0].namespaces.self", ""},
		{"kep notSelf", `{"spec": {"egress": [{"to": [{"namespaces": {"notSelf": false}}]}]}}`, "kep", "spec.egress[0].to[0].namespaces.notSelf", ""},
		{"kep with what v0.1.1 has too", `{"spec": {"subject": {"namespaceSelector": {}}, "ingress": [{"from": [{"namespaces": {"sameLabels": ["a"]}}]}]}}`, "kep", "spec.subject.namespaceSelector", ""},

		{"release subject", `{"spec": {"subject": {"namespaces": {}}}}`, "v0.1.7", "v0.1.7", ""},
		{"release subject 2", `{"spec": {"subject": {"pods": {}}}}`, "v0.1.7", "v0.1.7", ""},
		{"release ports", `{"spec": {"egress": [{}, {"ports": []}]}}`, "v0.1.7", "v0.1.7", ""},
		{"v0.1.1 selector", `{"spec": {"subject": {"namespaces": {}}, "ingress": [{"from": [{"namespaces": {"namespaceSelector": {}}}]}]}}`, "v0.1.1", "v0.1.1", ""},
		{"v0.1.1 sameLabels", `{"spec": {"ingress": [{"from": [{"namespaces": {"sameLabels": ["a"]}}]}]}}`, "v0.1.1", "v0.1.1", ""},
		{"v0.1.1 pods", `{"spec": {"ingress": [{"from": [{"pods": {"namespaces": {"notSameLabels": ["a"]}}}]}]}}`, "v0.1.1", "v0.1.1", ""},
		{"v0.1.7 plain selector", `{"spec": {"ingress": [{"from": [{"namespaces": {"matchExpressions": []}}]}]}}`, "v0.1.7", "v0.1.7", ""},
		{"v0.1.7 pods", `{"spec": {"ingress": [{"from": [{"pods": {"namespaceSelector": {}}}]}]}}`, "v0.1.7", "v0.1.7", ""},

		{"mixed", `{"spec": {"subject": {"namespaceSelector": {}}, "ingress": [{"ports": []}]}}`, "spec.ingress[0].ports", "spec.ingress[0].ports", "spec.subject.namespaceSelector"},
		{"mixed peer", `{"spec": {"subject": {"namespaces": {}}, "ingress": [{"from": [{"namespacedPods": {}}]}]}}`, "spec.subject.namespaces", "spec.subject.namespaces", "spec.ingress[0].from[0].namespacedPods"},
		{"mixed networks", `{"spec": {"egress": [{"l4Selector": {}, "to": [{}, {"networks": []}]}]}}`, "spec.egress[0].to[1].networks", "spec.egress[0].to[1].networks", "spec.egress[0].l4Selector"},
		{"mixed releases", `{"spec": {"egress": [{"to": [{"namespaces": {"sameLabels": ["a"]}}, {"nodes": {}}]}]}}`, "spec.egress[0].to[1].nodes", "spec.egress[0].to[1].nodes", "spec.egress[0].to[0].namespaces.sameLabels"},

		{"forced kep", `{"metadata": {"annotations": {"tierwall.io/dialect": "kep"}}, "spec": {"ingress": [{"ports": []}]}}`, "kep", `metadata.annotations["tierwall.io/dialect"]`, ""},
		{"forced v0.1.1", `{"metadata": {"annotations": {"tierwall.io/dialect": "v0.1.1"}}, "spec": {"subject": {"namespaceSelector": {}}}}`, "v0.1.1", "v0.1.1", ""},
		{"forced v0.1.7", `{"metadata": {"annotations": {"tierwall.io/dialect": "v0.1.7"}}, "spec": {"ingress": [{"from": [{"namespaces": {"sameLabels": ["a"]}}]}]}}`, "v0.1.7", "v0.1.7", ""},
		{"forced nonsense", `{"metadata": {"annotations": {"tierwall.io/dialect": "v1"}}}`, `metadata.annotations["tierwall.io/dialect"]`, `metadata.annotations["tierwall.io/dialect"]`, `"v1"`},
	} {
		var raw map[string]any
		if err := json.Unmarshal([]byte(c.raw), &raw); err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{c.admin, c.base} {
			k, p := kinds[i].Select(raw)
			got := k.Dialect
			if p != nil {
				got = p.Path
				if !strings.Contains(p.Message, c.word) || p.Message == "" || p.Hint == "" {
					t.Errorf("%s: message %q, hint %q, want %q in it", c.name, p.Message, p.Hint, c.word)
				}
			} else if k.Kind != kinds[i].Kind || k.Select != nil || adminnetworkpolicy.DialectOf(&api.Object{Value: k.New()}) != got {
				t.Errorf("%s: chose %s %s with %T", c.name, k.GVK(), got, k.New())
			}
			if got != want {
				t.Errorf("%s: %s: got %s, want %s", c.name, kinds[i].Kind, got, want)
			}
		}
	}
}

func TestKeepsWhatExplainNeeds(t *testing.T) {
	p := policy("p", 5, 1, 0)
	p.Spec.Ingress[0].Name, p.Spec.Ingress[0].Action = "to-np", "Pass"
	o := object(p)
	o.Generation = 4
	set, _ := adminnetworkpolicy.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
	want := rule.Origin{
		Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: "p",
		Rule: "to-np", Word: "Pass", Dialect: "kep", Generation: 4,
	}
	if got := set.Rules[0].Origin; got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := set.Rules[0].Skip; got != rule.Bands(rule.BandAdmin) {
		t.Errorf("Pass skips %s", got)
	}
	other := &api.Object{Kind: o.Kind, Name: "x", Value: "not a policy"}
	if found := (adminnetworkpolicy.Dialect{}).Validate(other); len(found.Errors) != 1 {
		t.Error("took a string for a policy")
	}
}
