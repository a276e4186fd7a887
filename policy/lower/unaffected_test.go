package lower_test

import (
	"reflect"
	"testing"

	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lower"
)

const (
	kubernetesPolicy = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a, namespace: x}
spec: {podSelector: {}, ingress: [{from: [{podSelector: {}}]}]}
---
`
	ciliumPolicy = `
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: b, namespace: x}
spec: {endpointSelector: {}, egress: [{toCIDRSet: [{cidr: 192.0.2.0/24}]}]}
---
`
)

// Pods alone do not change rules; what does change them is never taken for
// harmless.
func TestUnaffected(t *testing.T) {
	const world = "namespace x\nnode n1 192.0.2.1\npod x/a"
	for _, c := range []struct {
		what, policies, more string
		pods, want           bool
	}{
		{"a pod", kubernetesPolicy, "\npod x/b app=b", true, true},
		{"a pod, with Cilium", kubernetesPolicy + ciliumPolicy, "\npod x/b app=b", true, true},
		{"a namespace", kubernetesPolicy, "\nnamespace y", false, false},
		{"a node", ciliumPolicy, "\nnode n2 192.0.2.2", false, false},
	} {
		objs := fixture.MustObjects(t, c.policies)
		a := fixture.MustWorld(t, world).Inventory
		b := fixture.MustWorld(t, world+c.more).Inventory
		if c.pods {
			only := *a
			only.Pods = b.Pods
			b = &only
		}
		if got := lower.Unaffected(objs, a, b); got != c.want {
			t.Errorf("%s: %t, want %t", c.what, got, c.want)
		}
		before, _ := lower.Build(objs, a)
		after, _ := lower.Build(objs, b)
		if c.want && !reflect.DeepEqual(before, after) {
			t.Errorf("%s: the rules are others", c.what)
		}
	}
	objs := fixture.MustObjects(t, ciliumPolicy)
	a := fixture.MustWorld(t, world).Inventory
	b := *a
	b.Pods = append(b.Pods[:len(b.Pods):len(b.Pods)], b.Pods[0])
	b.Pods[1].Name, b.Pods[1].HostNetwork = "host", true
	if lower.Unaffected(objs, a, &b) {
		t.Error("a new address of a host-network pod is taken for harmless")
	}
	if !lower.Unaffected(fixture.MustObjects(t, kubernetesPolicy), a, &b) {
		t.Error("it matters to Cilium's blocks only")
	}
}
