package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/internal/fixture"
)

// antreaDeny has the kind and the name of deny, and a tier that is not there.
const antreaDeny = `
apiVersion: crd.antrea.io/v1beta1
kind: NetworkPolicy
metadata: {name: deny, namespace: x}
spec: {tier: missing, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}
---
`

// clusterPolicies are the three kinds named ClusterNetworkPolicy, each as it should
// be and with an error.
var clusterPolicies = map[string][2]string{
	"crd.antrea.io": {`
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: same}
spec: {priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}
---
`, `
apiVersion: crd.antrea.io/v1beta1
kind: ClusterNetworkPolicy
metadata: {name: same}
spec: {tier: missing, priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}
---
`},
	"netpol.networking.k8s.io": {`
apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterNetworkPolicy
metadata: {name: same}
spec: {appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {scope: Self}}]}]}
---
`, `
apiVersion: netpol.networking.k8s.io/v1alpha1
kind: ClusterNetworkPolicy
metadata: {name: same}
spec: {appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{}]}]}
---
`},
	"policy.networking.k8s.io": {`
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: same}
spec: {tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
---
`, `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: same}
spec: {tier: Admin, priority: -5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}
---
`},
}

// wantRefusedOf checks that the objects refused are of these groups, none with an
// older version in force, and that logs and findings name the group.
func (r *rig) wantRefusedOf(what string, groups ...string) {
	r.t.Helper()
	var got []string
	for _, f := range r.ctl.Status().Refused {
		got = append(got, f.Object.Kind.Group)
		if f.InForce != nil {
			r.t.Errorf("%s: %s has an older version in force", what, f.Object.Kind.GVK())
		}
		if f.Object.Kind.Group == "networking.k8s.io" {
			continue
		}
		for _, e := range f.Errors {
			if !strings.Contains(e.String(), "("+f.Object.Kind.Group+")") {
				r.t.Errorf("%s: error %q does not name the group", what, e)
			}
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(groups) {
		r.t.Errorf("%s: refused are objects of %q, want %q", what, got, groups)
	}
}

// An object with an error leaves the object alone that has its kind and
// name in another API.
func TestTwoAPIsOneName(t *testing.T) {
	t.Run("NetworkPolicy", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var after []controller.Attempt
			r := start(t, deny, isolated(&after))
			r.want("before", 1, classifier.Drop, 1, 0)
			extra := fixture.MustObjects(t, antreaDeny)
			r.change(func() { r.src.objs = append(r.src.objs[:1:1], extra...) })
			r.want("an Antrea policy of that name comes", 1, classifier.Drop, 1, 0)
			if n := r.ctl.Status().Isolations; n != 1 {
				t.Errorf("%d isolations, want the one of the Kubernetes policy", n)
			}
			r.wantRefusedOf("an Antrea policy of that name comes", "crd.antrea.io")
			if log := r.log.String(); !strings.Contains(log, `object="NetworkPolicy x/deny (crd.antrea.io)"`) {
				t.Errorf("the log does not name the group:\n%s", log)
			}
		})
	})
	for bad := range clusterPolicies {
		t.Run("ClusterNetworkPolicy of "+bad, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				good, all := "", ""
				for group, texts := range clusterPolicies {
					if group == bad {
						all += texts[1]
					} else {
						good, all = good+texts[0], all+texts[0]
					}
				}
				var after []controller.Attempt
				r := start(t, good, isolated(&after))
				before := r.ctl.Status()
				r.set(all)
				now := r.ctl.Status()
				if now.Objects != 2 || now.PolicyHash != before.PolicyHash || before.Objects != 2 || before.Rules < 2 {
					t.Errorf("%d objects (hash %s), before %d (hash %s)", now.Objects, now.PolicyHash, before.Objects, before.PolicyHash)
				}
				r.wantRefusedOf("one is wrong", bad)
			})
		})
	}
}
