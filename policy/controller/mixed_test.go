package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/internal/fixture"
)

const releasedANP = `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: released}
spec: {priority: 5, subject: {namespaces: {}}, ingress: [{action: Allow, from: [{namespaces: {}}]}]}
---
`

// kepANPs are n AdminNetworkPolicies of the KEP.
func kepANPs(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `
apiVersion: policy.networking.k8s.io/v1alpha1
kind: AdminNetworkPolicy
metadata: {name: kep-%d}
spec:
  priority: %d
  subject: {namespaceSelector: {}}
  ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {namespaceSelector: {}}}]}]
---
`, i, i+1)
	}
	return b.String()
}

// isolateA lets nothing in to pods that the other policies here are not about.
const isolateA = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: isolate-a, namespace: x}
spec: {podSelector: {matchLabels: {app: a}}, policyTypes: [Ingress]}
---
`

// Dialects that exclude each other keep all policies as they are, on
// both sides, however many there are.
func TestMixedDialectsKeepThePolicies(t *testing.T) {
	for _, n := range []int{1, 9} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var after []controller.Attempt
				r := start(t, kepANPs(n), isolated(&after))
				r.want("before", 1, classifier.Drop, 1, 0)
				for _, objs := range [][]*api.Object{
					append(fixture.MustObjects(t, releasedANP), r.src.objs...),
					append(r.src.objs[:n:n], fixture.MustObjects(t, releasedANP)...),
				} {
					r.change(func() { r.src.objs = objs })
					r.want("a released one comes", 1, classifier.Drop, 1, 0)
					r.wantRefused("a released one comes", "released")
				}
				st := r.ctl.Status()
				if st.Objects != n || len(st.Refused) != 1 { // all stay as they were
					t.Fatalf("%d objects in force, want %d; %d refused", st.Objects, n, len(st.Refused))
				}
				if e := st.Refused[0].Errors[0].String(); !strings.Contains(e, "AdminNetworkPolicy kep-0") || !strings.Contains(e, "AdminNetworkPolicy released") {
					t.Errorf("error %q does not name both sides", e)
				}
				r.change(func() { r.src.objs = append(r.src.objs[:n+1:n+1], fixture.MustObjects(t, isolateA)...) })
				r.want("a NetworkPolicy comes", 2, classifier.Drop, 2, 0)
				if got := r.ctl.Status().Isolations; got != 1 {
					t.Errorf("%d isolations: the mixture keeps a NetworkPolicy out", got)
				}
				r.set(releasedANP)
				r.want("all are of one dialect again", 3, classifier.Allow, 3, 0)
			})
		})
	}
}

// With no older state there is no table, whoever is first in the list: no side of
// the mixture is in force, and nothing else as if the other side did not exist.
func TestMixedDialectsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, text := range []string{kepANPs(9) + releasedANP + deny, deny + releasedANP + kepANPs(9)} {
			var after []controller.Attempt
			r := start(t, text, isolated(&after))
			r.want("mixed from the start", 0, classifier.Drop, 0, 1)
			r.set(kepANPs(2))
			r.want("mended", 1, classifier.Drop, 1, 0)
		}
	})
}
