package lower_test

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lower"
)

const mixedDialects = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: kep-b}
spec:
  priority: 900
  subject: {namespaceSelector: {}}
  ingress: [{name: k, action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {namespaceSelector: {}}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: kep-a}
spec: {priority: 10, subject: {namespaceSelector: {}}}
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: released}
spec:
  priority: 100
  subject: {namespaces: {}}
  ingress: [{name: r, action: Allow, from: [{namespaces: {}}]}]
---
apiVersion: policy.networking.k8s.io/v1alpha1
kind: BaselineAdminNetworkPolicy
metadata: {name: default}
spec: {subject: {namespaces: {}}}
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: c}
spec: {tier: Admin, priority: 102, subject: {namespaces: {}}, ingress: [{name: c, action: Deny, from: [{namespaces: {}}]}]}
`

// refused by default; with the option a KEP priority p ranks like 1001 − p.
func TestMixedDialects(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x\npod x/p")
	objs := fixture.MustObjects(t, mixedDialects)
	set, refused := lower.Build(objs, w.Inventory)
	if len(refused.Errors) != 1 || len(set.Rules) != 0 {
		t.Fatalf("%v\n%s", refused, set.Text())
	}
	const want = "AdminNetworkPolicy kep-a: spec.priority: this AdminNetworkPolicy is of the KEP, where the larger " +
		"priority is the stronger one; AdminNetworkPolicy released (v0.1.7) is of an API where the smaller one is"
	if got := refused.Errors[0].String(); !strings.HasPrefix(got, want) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	mixed, accepted := lower.Options{AllowMixedDialects: true}.Build(objs, w.Inventory)
	if len(accepted.Errors) != 0 || len(accepted.Warnings) != 1 || !strings.HasPrefix(accepted.Warnings[0].String(), want) {
		t.Errorf("%v", accepted)
	}
	var order []string
	for i := range mixed.Rules {
		order = append(order, mixed.Rules[i].Origin.Rule)
	}
	if got := strings.Join(order, " "); got != "r k c" { // 100, 1001 − 900, 102
		t.Errorf("order %s\n%s", got, mixed.Text())
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		r.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
		if _, found := lower.Build(objs, w.Inventory); !reflect.DeepEqual(found, refused) {
			t.Fatalf("another order, other findings: %v", found)
		}
	}
	// Not mixed: one dialect at a time, the releases among themselves.
	for name, docs := range map[string]string{
		"kep":      "policy.networking.k8s.io/v1alpha1 kep",
		"releases": "released default c",
	} {
		some := objs[:0:0]
		for _, o := range objs {
			if isKEP := strings.HasPrefix(o.Name, "kep"); isKEP == strings.Contains(docs, "kep") {
				some = append(some, o)
			}
		}
		if _, found := lower.Build(some, w.Inventory); len(found.Errors)+len(found.Warnings) > 0 {
			t.Errorf("%s: %v", name, found)
		}
	}
}

// A baseline of the released API beside the KEP's is a mixture too: the KEP has
// another way to write it.
func TestMixedBaseline(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x\npod x/p")
	for _, o := range [][2]int{{0, 3}, {1, 3}} {
		objs := fixture.MustObjects(t, mixedDialects)
		_, found := lower.Build(append(objs[o[0]:o[0]+1:o[0]+1], objs[o[1]]), w.Inventory)
		if len(found.Errors) != 1 || !strings.Contains(found.Errors[0].Message, "BaselineAdminNetworkPolicy default") {
			t.Errorf("%v", found)
		}
	}
}

const tieredPolicies = `
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: upper, namespace: x}
spec: {tier: SecurityOps, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Allow, from: [{podSelector: {}}]}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: own, namespace: x}
spec: {tier: late, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Allow, from: [{podSelector: {}}]}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: unnamed, namespace: x}
spec: {priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Allow, from: [{podSelector: {}}]}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: cluster}
spec: {tier: emergency, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}
---
apiVersion: crd.antrea.io/v1beta1
kind: Tier
metadata: {name: late}
spec: {priority: 221}
`

const baselinePolicy = `
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: c}
spec: {tier: Baseline, priority: 102, subject: {namespaces: {}}, ingress: [{name: c, action: Deny, from: [{namespaces: {}}]}]}
`

// A namespace's policy before the cluster's admin policies gets a warning, and is
// refused where the configuration does not have its tier.
func TestNamespacedTiers(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x\npod x/p")
	admin := strings.Replace(baselinePolicy, "Baseline", "Admin", 1)
	const before = "NetworkPolicy x/upper (crd.antrea.io): spec.tier: tier \"securityops\" comes before ClusterNetworkPolicy c (policy.networking.k8s.io): "
	const refused = "NetworkPolicy x/upper (crd.antrea.io): spec.tier: policies of a namespace may not use tier \"securityops\" here"
	for name, tc := range map[string]struct {
		more            string
		allowed         []string
		errors, warning string // how the only one begins; "" = none
	}{
		"no admin policy":      {"", nil, "", ""},
		"a baseline policy":    {baselinePolicy, nil, "", ""},
		"an admin policy":      {admin, nil, "", before},
		"allowed":              {admin, []string{"late", "application", "securityops"}, "", ""},
		"allowed, other form":  {admin, []string{"late", "Application", "SecurityOps"}, "", ""},
		"not allowed":          {admin, []string{"late", "application"}, refused, ""},
		"not allowed, nothing": {"", []string{"late", "application"}, refused, ""},
		"none is application":  {"", []string{"late", "securityops"}, "NetworkPolicy x/unnamed (crd.antrea.io): spec.tier: policies of a namespace may not use tier \"application\" here", ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, found := lower.Options{NamespacedTiers: tc.allowed}.Build(fixture.MustObjects(t, tieredPolicies+tc.more), w.Inventory)
			check := func(list []diag.Diagnostic, want string) {
				var got []string
				for _, d := range list {
					if strings.Contains(d.Path, "tier") && !strings.Contains(d.Message, "is the tier") {
						got = append(got, d.String())
					}
				}
				if want == "" && len(got) > 0 || want != "" && (len(got) != 1 || !strings.HasPrefix(got[0], want)) {
					t.Errorf("got %q, want %q", got, want)
				}
			}
			check(found.Errors, tc.errors)
			check(found.Warnings, tc.warning)
		})
	}
}
