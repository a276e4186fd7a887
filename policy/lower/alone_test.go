package lower_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// What an object brings alone is what it brings among others.
func TestAlone(t *testing.T) {
	inv := fixture.MustWorld(t, "namespace x\nnamespace y\nnode n1 192.0.2.1\npod x/a\npod x/h").Inventory
	inv.Namespaces[0].Annotations = map[string]string{"networkpolicy.antrea.io/enable-logging": "true"}
	inv.Pods[1].HostNetwork, inv.Pods[1].IPs = true, append(inv.Pods[1].IPs[:0], inv.Pods[1].IPs[0].Next().Next())
	objs := fixture.MustObjects(t, kubernetesPolicy+strings.Replace(kubernetesPolicy, "name: a", "name: c", 1)+
		strings.ReplaceAll(ciliumPolicy, "192.0.2.0/24", "0.0.0.0/0")+ciliumPolicy[:strings.Index(ciliumPolicy, "metadata")]+
		"metadata: {name: d, namespace: y}\nspec: {endpointSelector: {}, ingress: [{fromEntities: [remote-node, host]}]}\n---\n")
	all, found := lower.Build(objs, inv)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	view := inventory.ViewOf(inv)
	rules, isolations := 0, 0
	for _, o := range objs {
		set, found := lower.Alone(o, view)
		if len(found.Errors)+len(found.Warnings) > 0 || !lower.StandsAlone(o) {
			t.Errorf("%s: %+v", o.Ref(), found)
		}
		want := all
		want.Rules, want.Isolations = nil, nil
		for _, r := range all.Rules {
			if r.Origin.Namespace == o.Namespace && r.Origin.Name == o.Name {
				want.Rules = append(want.Rules, r)
			}
		}
		for _, i := range all.Isolations {
			if i.Origin.Namespace == o.Namespace && i.Origin.Name == o.Name {
				want.Isolations = append(want.Isolations, i)
			}
		}
		if !reflect.DeepEqual(set, want) {
			t.Errorf("%s:\nalone  %+v\namong others %+v", o.Ref(), set, want)
		}
		rules, isolations = rules+len(set.Rules), isolations+len(set.Isolations)
	}
	if rules != len(all.Rules) || isolations != len(all.Isolations) || rules < 4 {
		t.Errorf("%d rules and %d isolations, want %d and %d", rules, isolations, len(all.Rules), len(all.Isolations))
	}
	tier := fixture.MustObjects(t, "apiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: t}\nspec: {priority: 10}")[0]
	if _, found := lower.Alone(tier, view); lower.StandsAlone(tier) || len(found.Errors) == 0 {
		t.Error("a tier stands alone")
	}
}
