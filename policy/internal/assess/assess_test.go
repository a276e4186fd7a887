package assess_test

import (
	"fmt"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/assess"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

func decoded(t *testing.T, texts ...string) []*api.Object {
	t.Helper()
	var out []*api.Object
	for _, text := range texts {
		var raw map[string]any
		if err := yaml.Unmarshal([]byte(text), &raw); err != nil {
			t.Fatal(err)
		}
		o, found := assess.Decode(raw)
		if o == nil {
			t.Fatal(found.Err())
		}
		out = append(out, o)
	}
	return out
}

func tier(name string, priority int) string {
	return fmt.Sprintf("{apiVersion: crd.antrea.io/v1beta1, kind: Tier, metadata: {name: %s}, spec: {priority: %d}}", name, priority)
}

func acnp(name, tier string) string {
	return fmt.Sprintf(`{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: %s},
  spec: {tier: %s, priority: 5, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}}`, name, tier)
}

// objects of equal kind and name in different groups keep their findings
// apart.
func TestFindingsByGroup(t *testing.T) {
	kep := `{apiVersion: netpol.networking.k8s.io/v1alpha1, kind: ClusterNetworkPolicy, metadata: {name: x},
  spec: {appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {scope: Self}}]}]}}`
	r := assess.Run(lower.Options{}, decoded(t, acnp("x", "nowhere"), kep), &inventory.Snapshot{})
	antrea := assess.ID{Group: "crd.antrea.io", Kind: "ClusterNetworkPolicy", Name: "x"}
	other := assess.ID{Group: "netpol.networking.k8s.io", Kind: "ClusterNetworkPolicy", Name: "x"}
	if e := r.Objects[antrea].Errors; len(e) != 1 || e[0].Path != "spec.tier" || e[0].File != "" {
		t.Errorf("the policy in a tier that is not there has %v", e)
	}
	if e := r.Objects[other].Errors; len(e) != 0 {
		t.Errorf("the other policy of that name has %v", e)
	}
	if len(r.Good) != 1 || assess.IDOf(r.Good[0]) != other || len(r.Set.Rules) == 0 {
		t.Errorf("good: %v, %d rules", r.Good, len(r.Set.Rules))
	}
}

// A tier in error takes the policies in it with it, and nothing else (S2-04).
func TestFallsWithAnother(t *testing.T) {
	r := assess.Run(lower.Options{}, decoded(t, tier("late", 255), acnp("a", "late"), acnp("b", "platform")), &inventory.Snapshot{})
	a := assess.ID{Group: "crd.antrea.io", Kind: "ClusterNetworkPolicy", Name: "a"}
	if len(r.Objects[a].Errors) == 0 {
		t.Error("the policy whose tier is in error has no error")
	}
	if len(r.Good) != 1 || r.Good[0].Name != "b" {
		t.Errorf("good: %v", r.Good)
	}
}

// mixed dialects are an error with a code, and no identity shows in texts.
func TestMixed(t *testing.T) {
	kep := `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: kep},
  spec: {priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {}}}], l4Selector: {allPorts: true}}]}}`
	released := `{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: released},
  spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}}`
	r := assess.Run(lower.Options{}, decoded(t, kep, released), &inventory.Snapshot{})
	l := r.Objects[assess.ID{Group: "policy.networking.k8s.io", Kind: "AdminNetworkPolicy", Name: "kep"}]
	if len(l.Errors) != 1 || l.Errors[0].Code != diag.MixedDialects {
		t.Fatalf("findings: %+v", l)
	}
	if s := l.Errors[0].String(); strings.ContainsRune(s, 0) || !strings.Contains(s, "AdminNetworkPolicy released") {
		t.Errorf("message %q", s)
	}
	if len(r.Good) != 0 || len(r.Set.Rules) != 0 {
		t.Error("mixed dialects give rules")
	}
}

// What the server keeps beside the policy does not count; an unknown field does.
func TestDecode(t *testing.T) {
	var raw map[string]any
	text := tier("t", 5) + "\n"
	if err := yaml.Unmarshal([]byte(text), &raw); err != nil {
		t.Fatal(err)
	}
	raw["status"] = map[string]any{"of": "another implementation"}
	raw["metadata"].(map[string]any)["managedFields"] = []any{map[string]any{"manager": "x", "surprise": true}}
	if o, found := assess.Decode(raw); o == nil {
		t.Error(found.Err())
	}
	raw["spec"].(map[string]any)["prio"] = int64(3)
	o, found := assess.Decode(raw)
	if o != nil || len(found.Errors) != 1 || found.Errors[0].Code != diag.UnknownField || found.Errors[0].Path != "spec.prio" {
		t.Errorf("unknown field: %+v", found)
	}
	if _, ok := raw["status"]; !ok {
		t.Error("the input was changed")
	}
}
