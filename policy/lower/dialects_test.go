package lower_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

const policies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: b, namespace: x}
spec: {podSelector: {}, ingress: [{}], egress: [{}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: x}
spec: {podSelector: {}, ingress: [{}, {ports: [{port: 1}]}]}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: z}
spec:
  priority: 3
  subject: {namespaceSelector: {matchLabels: {env: prod}}}
  ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {self: true}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: y}
spec:
  priority: 3
  subject: {namespaceSelector: {}}
  ingress: [{action: Allow, l4Selector: {allPorts: true}, from: [{namespaces: {self: true}}]}]
`

func TestBuildIgnoresOrder(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x env=prod\npod x/p")
	objs := fixture.MustObjects(t, policies)
	want, wantFound := lower.Build(objs, w.Inventory)
	if len(want.Rules) != 6 || len(want.Isolations) != 3 || len(wantFound.Warnings) != 1 {
		t.Fatalf("%d rules, %d isolations, %v\n%s", len(want.Rules), len(want.Isolations), wantFound, want.Text())
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		r.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
		got, found := lower.Build(objs, w.Inventory)
		if !reflect.DeepEqual(got, want) || !reflect.DeepEqual(found, wantFound) {
			t.Fatalf("another order, other rules:\n%s\n%v", got.Text(), found)
		}
	}
}

// Selectors are kept, not their result, so that namespaces and
// pods come and go without touching a policy.
func TestBuildKeepsSelectors(t *testing.T) {
	objs := fixture.MustObjects(t, policies)
	empty, found := lower.Build(objs, &inventory.Snapshot{})
	if len(found.Errors)+len(found.Warnings) > 0 { // S0-28
		t.Errorf("policies without a world: %v", found)
	}
	full, _ := lower.Build(objs, fixture.MustWorld(t, "namespace x env=prod\npod x/p").Inventory)
	if !reflect.DeepEqual(empty, full) {
		t.Errorf("rules depend on the pods:\n%s\n%s", empty.Text(), full.Text())
	}
	subject := &full.Rules[1].Subject
	e := rule.Endpoint{Namespace: "new", NamespaceLabels: map[string]string{"env": "prod"}}
	if full.Rules[1].Origin.Name != "z" || !subject.Matches(&e) { // S0-27
		t.Errorf("a namespace that gets the label is not a subject: %s", subject)
	}
	e.NamespaceLabels = map[string]string{"env": "test"}
	if subject.Matches(&e) { // S0-27
		t.Error("a namespace that lost the label is still a subject")
	}
}

func TestBuildIsAllOrNothing(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x env=prod\npod x/p")
	objs := fixture.MustObjects(t, policies+`
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: bad, namespace: x}
spec: {podSelector: {}, ingress: [{from: [{}]}]}
`)
	objs = append(objs, &api.Object{Kind: api.Kind{Group: "example.org", Version: "v1", Kind: "Wall"}, Name: "w"})
	set, found := lower.Build(objs, w.Inventory)
	if len(set.Rules)+len(set.Isolations) > 0 {
		t.Errorf("a set in spite of errors:\n%s", set.Text())
	}
	if len(found.Errors) != 2 || len(found.Warnings) != 1 {
		t.Errorf("want the bad peer, the unknown kind, and the conflict of the good ones: %v", found)
	}
	if all := fmt.Sprint(found.Errors); !strings.Contains(all, "example.org/v1 Wall") || !strings.Contains(all, "spec.ingress[0].from[0]") {
		t.Error(all)
	}
}

func TestKinds(t *testing.T) {
	names := map[string]bool{}
	for _, d := range lower.All() {
		if names[d.Name()] {
			t.Errorf("two dialects are called %s", d.Name())
		}
		names[d.Name()] = true
	}
	seen := map[string]bool{}
	for _, k := range lower.Kinds() {
		if seen[k.GVK()] {
			t.Errorf("%s belongs to two dialects", k.GVK())
		}
		seen[k.GVK()] = true
		if v := reflect.ValueOf(k.New()); v.Kind() != reflect.Pointer || v.IsNil() {
			t.Errorf("%s: New returns %v", k.GVK(), v)
		}
	}
}

// objects of one name in two kinds have two texts, so a dialect that brings a
// kind others have, too, has to say so in package diag.
func TestRefsReadDifferently(t *testing.T) {
	text := map[string]api.Ref{}
	for _, k := range lower.Kinds() {
		ref := api.Ref{Group: k.Group, Kind: k.Kind, Name: "n"}
		if other, ok := text[ref.String()]; ok && other != ref {
			t.Errorf("%+v and %+v are both called %q", ref, other, ref)
		}
		text[ref.String()] = ref
	}
	if len(text) < 13 {
		t.Errorf("only %d kinds", len(text))
	}
}
