package assess_test

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// object makes one object of "GROUP/VERSION KIND NAMESPACE/NAME" (or "… NAME") and
// its spec.
func object(t *testing.T, id, spec string) *api.Object {
	t.Helper()
	f := strings.Fields(id)
	meta := "{name: " + f[2] + "}"
	if namespace, name, ok := strings.Cut(f[2], "/"); ok {
		meta = "{namespace: " + namespace + ", name: " + name + "}"
	}
	return fixture.MustObjects(t, "{apiVersion: "+f[0]+", kind: "+f[1]+", metadata: "+meta+", spec: "+spec+"}")[0]
}

const (
	k8sNP      = "networking.k8s.io/v1 NetworkPolicy "
	antreaNP   = "crd.antrea.io/v1beta1 NetworkPolicy "
	antreaCNP  = "crd.antrea.io/v1beta1 ClusterNetworkPolicy "
	antreaTier = "crd.antrea.io/v1beta1 Tier "
	antreaCG   = "crd.antrea.io/v1beta1 ClusterGroup "
	antreaG    = "crd.antrea.io/v1beta1 Group "
	kepCNP     = "netpol.networking.k8s.io/v1alpha1 ClusterNetworkPolicy "
	cnp        = "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy "
	anp        = "policy.networking.k8s.io/v1alpha1 AdminNetworkPolicy "
	banp       = "policy.networking.k8s.io/v1alpha1 BaselineAdminNetworkPolicy "
	ciliumNP   = "cilium.io/v2 CiliumNetworkPolicy "
	ciliumCNP  = "cilium.io/v2 CiliumClusterwideNetworkPolicy "
)

// rules is an Antrea policy's spec, in a tier and about a group, "" for neither.
func rules(tier, group string) string {
	spec, to := "priority: 5", "podSelector: {}"
	if tier != "" {
		spec += ", tier: " + tier
	}
	if group != "" {
		to = "group: " + group
	}
	return "{" + spec + ", appliedTo: [{" + to + "}], ingress: [{action: Drop, from: [{podSelector: {}}]}]}"
}

const (
	kepRules      = "{priority: 5, subject: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {namespaceSelector: {}}}], l4Selector: {allPorts: true}}]}"
	releasedRules = "{priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}"
	baselineRules = "{subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}"
	denied        = "{priority: 2000, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}"
)

// sort is a kind of object in the random universe: specs that are right, and specs
// that are wrong by themselves or for the want of another object. Kinds are the same
// in several APIs and names are few, so they collide; a right object refers only to
// right ones.
type sort struct {
	kind       string
	names      []string
	right, bad []string
}

var universe = []sort{
	{kind: k8sNP, names: []string{"x/a", "x/b", "y/a"}, right: []string{"{podSelector: {}}", "{podSelector: {}, ingress: [{}]}"}, bad: []string{"{podSelector: {}, ingress: [{from: [{}]}]}"}},
	{kind: antreaNP, names: []string{"x/a", "x/b", "y/a"}, right: []string{rules("", ""), rules("platform", "")}, bad: []string{rules("missing", ""), rules("", "missing"), rules("wrong", ""), rules("", "wrong"), rules("", "fallen")}},
	{kind: antreaCNP, names: []string{"a", "b"}, right: []string{rules("", ""), rules("baseline", "")}, bad: []string{rules("missing", ""), rules("", "missing"), rules("wrong", ""), rules("", "wrong"), rules("", "fallen")}},
	{kind: kepCNP, names: []string{"a", "b"}, right: []string{"{appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{namespaces: {scope: Self}}]}]}"}, bad: []string{"{appliedTo: {namespaceSelector: {}}, ingress: [{action: Deny, from: [{}]}]}"}},
	{kind: cnp, names: []string{"a", "b"}, right: []string{"{tier: Admin, priority: 5, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]}"}, bad: []string{"{tier: Admin, priority: -5, subject: {namespaces: {}}}"}},
	{kind: anp, names: []string{"a", "b"}, right: []string{releasedRules}, bad: []string{denied}},
	{kind: banp, names: []string{"default"}, right: []string{baselineRules}, bad: nil},
	{kind: ciliumNP, names: []string{"x/a", "x/b"}, right: []string{"{endpointSelector: {}, ingress: [{}]}"}, bad: []string{"{endpointSelector: {}, ingress: [{fromEntities: [nobody]}]}"}},
	{kind: ciliumCNP, names: []string{"a", "b"}, right: []string{"{endpointSelector: {}, ingress: [{}]}"}, bad: []string{"{endpointSelector: {}, ingress: [{fromEntities: [nobody]}]}"}},
	{kind: antreaTier, names: []string{"a"}, right: []string{"{priority: 10}"}, bad: []string{"{priority: 255}"}},
	{kind: antreaTier, names: []string{"wrong"}, bad: []string{"{priority: 999}"}},
	{kind: antreaCG, names: []string{"a"}, right: []string{"{podSelector: {}}"}, bad: []string{"{podSelector: {}, ipBlocks: [{cidr: 10.0.0.0/8}]}"}},
	{kind: antreaCG, names: []string{"wrong"}, bad: []string{"{podSelector: {}, ipBlocks: [{cidr: 10.0.0.0/8}]}"}},
	{kind: antreaCG, names: []string{"fallen"}, bad: []string{"{childGroups: [wrong]}", "{childGroups: [missing]}"}},
	{kind: antreaG, names: []string{"x/a"}, right: []string{"{podSelector: {}}"}},
	{kind: antreaG, names: []string{"x/wrong"}, bad: []string{"{podSelector: {}, ipBlocks: [{cidr: 10.0.0.0/8}]}"}},
	{kind: antreaG, names: []string{"x/fallen"}, bad: []string{"{childGroups: [wrong]}"}},
}

// random returns objects that are right and objects that are not, no two of one
// identity.
func random(t *testing.T, r *rand.Rand) (right, bad []*api.Object) {
	for _, s := range universe {
		for _, name := range s.names {
			switch n := r.IntN(3); {
			case n == 0 && len(s.right) > 0:
				right = append(right, object(t, s.kind+name, s.right[r.IntN(len(s.right))]))
			case n == 1 && len(s.bad) > 0:
				bad = append(bad, object(t, s.kind+name, s.bad[r.IntN(len(s.bad))]))
			}
		}
	}
	return right, bad
}

func shuffled(r *rand.Rand, lists ...[]*api.Object) []*api.Object {
	out := slices.Concat(lists...)
	r.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	return out
}

// refs names the refused objects, and those among them of which an older version is
// in use.
func refs(refused []assess.Refused) string {
	var out []string
	for i := range refused {
		s := refused[i].Object.Kind.Group + " " + refused[i].Object.Ref().String()
		if refused[i].InForce != nil {
			s += " (older)"
		}
		out = append(out, s)
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// Whatever objects with errors there are, the rules are those of the other
// objects alone.
func TestWrongObjectsChangeNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 20))
	inv := fixture.MustWorld(t, "namespace x\nnamespace y\nnode n1 192.0.2.1\npod x/a\npod y/b").Inventory
	wrong, ruled, collided := 0, 0, 0
	for range 150 {
		right, bad := random(t, r)
		want, found := lower.Build(right, inv)
		if err := found.Err(); err != nil {
			t.Fatalf("the right objects are not right: %v", err)
		}
		for range 3 {
			objs := shuffled(r, right, bad)
			got := assess.Run(lower.Options{}, objs, inv, nil)
			if len(got.Findings.Errors) > 0 || !reflect.DeepEqual(got.Set, want) {
				t.Fatalf("%v: %v\nrules\n%s\nwant\n%s", names(objs), got.Findings.Errors, got.Set.Text(), want.Text())
			}
			if names(got.Objects) != names(right) || len(got.Refused) != len(bad) {
				t.Fatalf("in use are %v, want %v; refused are %v", names(got.Objects), names(right), refs(got.Refused))
			}
			for _, f := range got.Refused {
				if len(f.Errors) == 0 || f.InForce != nil || slices.ContainsFunc(f.Errors, func(d diag.Diagnostic) bool { return d.Object != f.Object.Ref() }) {
					t.Fatalf("refused %+v", f)
				}
			}
			if !reflect.DeepEqual(got.Findings, found) {
				t.Fatalf("warnings %v, without the wrong objects %v", got.Findings, found)
			}
		}
		wrong, ruled = wrong+len(bad), ruled+len(want.Rules)
		for _, o := range bad {
			if slices.ContainsFunc(right, func(p *api.Object) bool {
				return p.Kind.Group != o.Kind.Group && p.Kind.Kind == o.Kind.Kind && p.Namespace == o.Namespace && p.Name == o.Name
			}) {
				collided++
			}
		}
	}
	if wrong < 400 || ruled < 400 || collided < 100 {
		t.Errorf("the test tests too little: %d wrong objects, %d rules, %d collisions", wrong, ruled, collided)
	}
}

// names lists objects with their groups, sorted.
func names(objs []*api.Object) string {
	var out []string
	for _, o := range objs {
		out = append(out, o.Kind.Group+" "+o.Ref().String())
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// With older versions, right or not, Run ends, does not depend on the order, and
// uses nothing that has an error.
func TestOlderVersions(t *testing.T) {
	r := rand.New(rand.NewPCG(67, 4))
	inv := fixture.MustWorld(t, "namespace x\nnamespace y\nnode n1 192.0.2.1\npod x/a\npod y/b").Inventory
	stood, fell := 0, 0
	for range 150 {
		older := map[api.Ref]*api.Object{}
		was, wasBad := random(t, r)
		for _, o := range slices.Concat(was, wasBad) {
			older[o.Ref()] = o
		}
		right, bad := random(t, r)
		objs := shuffled(r, right, bad)
		first := assess.Run(lower.Options{}, objs, inv, older)
		if len(first.Findings.Errors) > 0 {
			t.Fatalf("%s, older %s: %v", names(objs), names(was), first.Findings.Errors)
		}
		if _, found := lower.Build(first.Objects, inv); len(found.Errors) > 0 {
			t.Fatalf("in use are objects with errors: %v", found.Errors)
		}
		for _, o := range right { // what is right is in use as it is
			if !slices.Contains(first.Objects, o) {
				t.Fatalf("%s is not in use", o.Ref())
			}
		}
		for i := range first.Refused {
			f := &first.Refused[i]
			switch old := older[f.Object.Ref()]; {
			case f.InForce != nil && f.InForce != old:
				t.Fatalf("%s: an older version from nowhere", f.Object.Ref())
			case f.InForce != nil:
				stood++
			case old != nil:
				fell++
				if slices.Contains(was, old) && old.Kind.Kind != "Tier" && !strings.HasSuffix(old.Kind.Kind, "Group") {
					t.Fatalf("%s: the older version is right and not used", f.Object.Ref())
				}
			}
		}
		for range 3 {
			again := assess.Run(lower.Options{}, shuffled(r, objs), inv, older)
			if !reflect.DeepEqual(again.Set, first.Set) || names(again.Objects) != names(first.Objects) || refs(again.Refused) != refs(first.Refused) {
				t.Fatalf("another order, another result: %s and %s", refs(again.Refused), refs(first.Refused))
			}
		}
	}
	if stood < 100 || fell < 100 {
		t.Errorf("the test tests too little: %d older versions used, %d not", stood, fell)
	}
}

// S2-05: what several objects do wrong together is an error of all of
// them, in every order, and whatever else is wrong.
func TestErrorsTogether(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 5))
	inv := fixture.MustWorld(t, "namespace x\nnamespace y\nnode n1 192.0.2.1\npod x/a\npod y/b").Inventory
	for what, together := range map[string][]*api.Object{
		"dialects": {object(t, anp+"k", kepRules), object(t, anp+"r", releasedRules)},
		"tiers":    {object(t, antreaTier+"t", "{priority: 33}"), object(t, antreaTier+"u", "{priority: 33}")},
	} {
		for range 50 {
			right, bad := random(t, r)
			if what == "dialects" {
				for i := range 9 {
					together = append(together[:2:2], object(t, fmt.Sprint(anp, "k", i), kepRules))
				}
			}
			got := assess.Run(lower.Options{}, shuffled(r, right, bad, together), inv, nil)
			if len(got.Findings.Errors) != 1 || len(got.Findings.Errors[0].Among) < 2 || len(got.Set.Rules)+len(got.Set.Isolations) > 0 || len(got.Refused) != len(bad) {
				t.Fatalf("%s: errors %v, %d rules, refused %s", what, got.Findings.Errors, len(got.Set.Rules), refs(got.Refused))
			}
			for _, o := range together {
				if !slices.Contains(got.Objects, o) {
					t.Fatalf("%s: %s is refused", what, o.Ref())
				}
			}
			again := assess.Run(lower.Options{}, shuffled(r, right, bad, together), inv, nil)
			if !reflect.DeepEqual(again.Findings, got.Findings) {
				t.Fatalf("%s: another order, another error: %v and %v", what, again.Findings, got.Findings)
			}
		}
		// An object that is wrong by itself takes no part in it.
		wrong := object(t, anp+"r", denied)
		if what == "tiers" {
			wrong = object(t, antreaTier+"u", "{priority: 999}")
		}
		got := assess.Run(lower.Options{}, []*api.Object{together[0], wrong}, inv, nil)
		if len(got.Findings.Errors) > 0 || len(got.Refused) != 1 || got.Refused[0].Object != wrong {
			t.Errorf("%s: errors %v, refused %s", what, got.Findings.Errors, refs(got.Refused))
		}
	}
}

// objects of equal kind and name in different groups keep their findings
// apart.
func TestTwoAPIsOneName(t *testing.T) {
	objs := []*api.Object{object(t, antreaCNP+"x", rules("nowhere", "")), object(t, kepCNP+"x", universe[3].right[0]), object(t, cnp+"x", universe[4].bad[0])}
	r := assess.Run(lower.Options{}, objs, &inventory.Snapshot{}, nil)
	by := r.ByObject()
	for i, want := range []string{"ClusterNetworkPolicy x (crd.antrea.io): spec.tier: ", "", "ClusterNetworkPolicy x (policy.networking.k8s.io): spec.priority: "} {
		switch e := by[objs[i].Ref()].Errors; {
		case want == "" && len(e) != 0, want != "" && (len(e) != 1 || !strings.HasPrefix(e[0].String(), want)):
			t.Errorf("%s: errors %v, want %q", objs[i].Kind.GVK(), e, want)
		}
	}
	if len(r.Objects) != 1 || r.Objects[0] != objs[1] || len(r.Set.Rules) == 0 {
		t.Errorf("in use: %s, %d rules", names(r.Objects), len(r.Set.Rules))
	}
}

// A tier in error takes the policies in it with it, and nothing else (S2-04).
func TestFallsWithAnother(t *testing.T) {
	objs := []*api.Object{object(t, antreaTier+"late", "{priority: 255}"), object(t, antreaCNP+"a", rules("late", "")), object(t, antreaCNP+"b", rules("platform", ""))}
	r := assess.Run(lower.Options{}, objs, &inventory.Snapshot{}, nil)
	if len(r.ByObject()[objs[1].Ref()].Errors) == 0 {
		t.Error("the policy whose tier is in error has no error")
	}
	if len(r.Objects) != 1 || r.Objects[0].Name != "b" {
		t.Errorf("in use: %s", names(r.Objects))
	}
}

// mixed dialects are an error with a code that names both sides.
func TestMixed(t *testing.T) {
	objs := []*api.Object{object(t, anp+"kep", kepRules), object(t, anp+"released", releasedRules)}
	r := assess.Run(lower.Options{}, objs, &inventory.Snapshot{}, nil)
	l := r.ByObject()[objs[0].Ref()]
	if len(l.Errors) != 1 || l.Errors[0].Code != diag.MixedDialects || !strings.Contains(l.Errors[0].String(), "AdminNetworkPolicy released") {
		t.Fatalf("findings: %+v", l)
	}
	if len(r.Set.Rules) != 0 {
		t.Error("mixed dialects give rules")
	}
}
