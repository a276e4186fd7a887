package antrea_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/lower/antrea"
)

func TestFixtures(t *testing.T) { fixture.Run(t) }

// Every document of these files is one situation, and each is refused on its own.
func TestEverySituationIsRefused(t *testing.T) {
	situations := 0
	for _, name := range []string{"policies", "peers", "l4", "groups", "versions", "fields"} {
		file := filepath.Join("testdata", "refused-"+name+".txtar")
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range ar.Files {
			if !strings.HasSuffix(f.Name, ".yaml") {
				continue
			}
			for _, doc := range strings.Split(string(f.Data), "---\n") {
				situations++
				objs, found := fixture.Objects("", doc)
				for _, o := range objs {
					found.Add(antrea.Dialect{}.Validate(o))
				}
				if len(found.Errors) == 0 {
					t.Errorf("%s: accepted:\n%s", file, doc)
				}
			}
		}
	}
	t.Logf("%d situations of single objects", situations)
	if situations < 117 {
		t.Errorf("only %d situations; Antrea's own tests have 117", situations)
	}
}

// TestFQDNMatchesNothingNoMore: rules by name are enforced, and nothing says
// otherwise; only a refusal by name has a warning, that it can be gone around.
func TestFQDNMatchesNothingNoMore(t *testing.T) {
	w := fixture.MustWorld(t, "namespace x\npod x/a app=a\n")
	for action, want := range map[string]string{"Allow": "", "Drop": "a pod that knows another address of this name still reaches it", "Reject": "still reaches it"} {
		_, found := fixture.MustBuild(t, w, "{apiVersion: crd.antrea.io/v1beta1, kind: ClusterNetworkPolicy, metadata: {name: p}, spec: {priority: 1, "+
			"appliedTo: [{podSelector: {}}], egress: [{action: "+action+", to: [{fqdn: api.example.org}]}]}}")
		switch {
		case want == "" && len(found.Warnings) > 0, want != "" && (len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0].Message, want)):
			t.Errorf("%s: got %v, want %q", action, found.Warnings, want)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func labels(k, v string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{k: v}}
}

func kindOf(kind string) api.Kind {
	for _, k := range (antrea.Dialect{}).Kinds() {
		if k.Kind == kind {
			return k
		}
	}
	panic(kind)
}

// policy returns a valid ClusterNetworkPolicy for all pods.
func policy(name, tier string, priority float64, ingress ...antreaapi.Rule) *api.Object {
	p := &antreaapi.ClusterNetworkPolicy{Spec: antreaapi.PolicySpec{
		Tier: tier, Priority: &priority, AppliedTo: []antreaapi.AppliedTo{{PodSelector: &metav1.LabelSelector{}}}, Ingress: ingress,
	}}
	return &api.Object{Kind: kindOf("ClusterNetworkPolicy"), Name: name, Value: p}
}

func build(t *testing.T, inv *inventory.Snapshot, objs ...*api.Object) rule.Set {
	t.Helper()
	set, found := lower.Build(objs, inv)
	if err := found.Err(); err != nil {
		t.Fatal(err)
	}
	return set
}

// The six tiers count, and so does none that is only named in the manifest again.
func TestTierCount(t *testing.T) {
	for _, c := range []struct {
		custom           int
		errors, warnings int
	}{
		{4, 0, 0},  // S2-16: ten
		{5, 0, 1},  // S2-16: eleven are more than recommended
		{14, 0, 1}, // S2-16: twenty
		{15, 1, 0}, // S2-16: twenty-one
	} {
		yaml := "apiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: platform}\nspec: {priority: 200}\n"
		for i := range c.custom {
			yaml += fmt.Sprintf("---\napiVersion: crd.antrea.io/v1beta1\nkind: Tier\nmetadata: {name: t%02d}\nspec: {priority: %d}\n", i, i+1)
		}
		_, found := antrea.Dialect{}.Lower(fixture.MustObjects(t, yaml), &inventory.Snapshot{})
		if len(found.Errors) != c.errors || len(found.Warnings) != c.warnings {
			t.Errorf("%d tiers of one's own: %v", c.custom, found)
		}
		for _, d := range append(found.Errors, found.Warnings...) {
			if !strings.Contains(d.Message, fmt.Sprint(c.custom+6, " tiers")) {
				t.Errorf("%d tiers of one's own: %s", c.custom, d.Message)
			}
		}
	}
}

// The names Antrea's webhook gives the same rules, so that audit records and dashboards that know them still fit.
func TestGeneratedNames(t *testing.T) {
	from := func(k, v string) []antreaapi.Peer { return []antreaapi.Peer{{PodSelector: labels(k, v)}} }
	for _, c := range []struct {
		d    flow.Direction
		rule antreaapi.Rule
		want string
	}{
		{flow.Ingress, antreaapi.Rule{Action: ptr("Allow"), From: from("foo1", "bar1")}, "ingress-allow-c4f16d3"},
		{flow.Ingress, antreaapi.Rule{Action: ptr("Allow"), From: from("foo2", "bar2")}, "ingress-allow-be87b58"},
		{flow.Egress, antreaapi.Rule{Action: ptr("Allow"), To: from("foo2", "bar2")}, "egress-allow-44b2575"},
		{flow.Egress, antreaapi.Rule{Action: ptr("Drop"), Name: "mine"}, "mine"},
	} {
		if got := antrea.RuleName(c.d, &c.rule); got != c.want { // S2-40, X-38
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}

// Where tiers stand.
func TestBands(t *testing.T) {
	tiers := antrea.StaticTiers()
	for name, want := range map[string]rule.Band{
		"emergency": rule.BandAntreaUpper, "securityops": rule.BandAntreaUpper, "networkops": rule.BandAntreaUpper,
		"platform": rule.BandAntreaUpper, "application": rule.BandAntreaLower, "baseline": rule.BandAntreaBaseline,
	} {
		p, ok := tiers[name]
		if !ok || antrea.Band(p) != want { // S2-09, S2-10, X-30
			t.Errorf("%s: priority %d in %s, want %s", name, p, antrea.Band(p), want)
		}
	}
	if len(tiers) != 6 { // S2-09, X-32
		t.Errorf("%d tiers, want 6", len(tiers))
	}
	for p, want := range map[int32]rule.Band{0: rule.BandAntreaUpper, 219: rule.BandAntreaUpper, 221: rule.BandAntreaLower, 249: rule.BandAntreaLower} {
		if antrea.Band(p) != want { // S2-10, X-33: 220 is between
			t.Errorf("tier priority %d is in %s", p, antrea.Band(p))
		}
	}
}

// The six rows of the documents' listing, in its order.
func TestEffectiveOrder(t *testing.T) {
	r := antreaapi.Rule{Action: ptr("Drop")}
	anp := policy("anp-10", "", 10, r)
	anp.Kind, anp.Namespace = kindOf("NetworkPolicy"), "default"
	anp.Value = &antreaapi.NetworkPolicy{Spec: anp.Value.(*antreaapi.ClusterNetworkPolicy).Spec}
	objs := []*api.Object{policy("baseline", "baseline", 10, r), anp, policy("acnp-2", "", 2, r), policy("acnp-1", "", 1, r)}
	objs = append(objs, fixture.MustObjects(t, `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: test-2, namespace: default}
spec: {podSelector: {}, ingress: [{}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: test-1, namespace: default}
spec: {podSelector: {}, ingress: [{}]}
`)...)
	set := build(t, &inventory.Snapshot{}, objs...)
	var got []string
	for i := range set.Rules {
		o := &set.Rules[i]
		got = append(got, fmt.Sprintf("%s:%s %d %g", o.Origin.Kind, o.Origin.Name, o.Order.Tier, o.Order.Priority))
	}
	want := []string{
		"ClusterNetworkPolicy:acnp-1 250 1",
		"ClusterNetworkPolicy:acnp-2 250 2",
		"NetworkPolicy:anp-10 250 10",
		"NetworkPolicy:test-1 0 0",
		"NetworkPolicy:test-2 0 0",
		"ClusterNetworkPolicy:baseline 253 10",
	}
	if !slices.Equal(got, want) { // S2-66
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// Ten thousand policy priorities and fifty thousand rule priorities
// keep their order, fractions included.
func TestManyPriorities(t *testing.T) {
	actions := []string{"Allow", "Drop", "Reject", "Pass", "Drop"}
	var objs []*api.Object
	for i := range 10_000 {
		var rules []antreaapi.Rule
		for j, a := range actions {
			rules = append(rules, antreaapi.Rule{Action: ptr(a), Name: fmt.Sprint(j)})
		}
		objs = append(objs, policy(fmt.Sprintf("p%05d", i), "", 1+float64(i)/8, rules...))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
	set := build(t, &inventory.Snapshot{}, objs...)
	if len(set.Rules) != 50_000 {
		t.Fatalf("%d rules", len(set.Rules))
	}
	for i := range set.Rules {
		o := &set.Rules[i].Origin
		if want := fmt.Sprintf("p%05d", i/5); o.Name != want || o.Index != i%5 { // S2-67; S2-19: fractions
			t.Fatalf("place %d: %s rule %d, want %s rule %d", i, o.Name, o.Index, want, i%5)
		}
	}
}

// On one step the strictest comes first, then kind, namespace and name,
// whatever the order of the objects.
func TestTies(t *testing.T) {
	mk := func(name, action string) *api.Object { return policy(name, "", 5, antreaapi.Rule{Action: &action}) }
	objs := []*api.Object{mk("a", "Allow"), mk("b", "Pass"), mk("c", "Reject"), mk("d", "Drop"), mk("e", "Allow")}
	ns := mk("0", "Drop")
	ns.Kind, ns.Namespace = kindOf("NetworkPolicy"), "x"
	ns.Value = &antreaapi.NetworkPolicy{Spec: ns.Value.(*antreaapi.ClusterNetworkPolicy).Spec}
	objs = append(objs, ns)
	first := build(t, &inventory.Snapshot{}, objs...)
	var names string
	for i := range first.Rules {
		names += first.Rules[i].Origin.Name
	}
	if names != "cd0bae" { // the strictest, then kind, namespace and name
		t.Errorf("order %s, want cd0bae", names)
	}
	for range 20 {
		rand.Shuffle(len(objs), func(i, j int) { objs[i], objs[j] = objs[j], objs[i] })
		if again := build(t, &inventory.Snapshot{}, objs...); !reflect.DeepEqual(first, again) { // S2-64, X-40
			t.Fatalf("depends on the order of the objects:\n%s\n%s", first.Text(), again.Text())
		}
	}
}

// Groups and Services are followed without touching a policy.
func TestGroupsAreFollowed(t *testing.T) {
	group := &api.Object{Kind: kindOf("ClusterGroup"), Name: "g", Value: &antreaapi.ClusterGroup{Spec: antreaapi.GroupSpec{
		ServiceReference: &antreaapi.NamespacedName{Name: "s", Namespace: "x"},
	}}}
	p := policy("p", "", 5, antreaapi.Rule{Action: ptr("Drop"), From: []antreaapi.Peer{{Group: "g"}}})
	inv := &inventory.Snapshot{Services: []inventory.Service{{Namespace: "x", Name: "s", Selector: map[string]string{"app": "one"}}}}
	one, two := rule.Endpoint{Namespace: "x", Labels: map[string]string{"app": "one"}}, rule.Endpoint{Namespace: "x", Labels: map[string]string{"app": "two"}}
	selects := func(e *rule.Endpoint) bool {
		set := build(t, inv, group, p)
		return slices.ContainsFunc(set.Rules[0].Peers, func(peer rule.Peer) bool { return peer.Pods.Matches(e) })
	}
	if !selects(&one) || selects(&two) {
		t.Error("the Service's pods are not the group's")
	}
	inv.Services[0].Selector = map[string]string{"app": "two"}
	if selects(&one) || !selects(&two) { // S4-24, S2-73
		t.Error("the Service's new selector is not the group's")
	}
	group.Value = &antreaapi.ClusterGroup{Spec: antreaapi.GroupSpec{PodSelector: labels("app", "one")}}
	if !selects(&one) || selects(&two) { // S2-81
		t.Error("the group's new spec does not count")
	}
}

// What Validate refuses may still arrive through another API server's admission:
// it must match nothing, whatever the action.
func TestUncheckedMatchesNothing(t *testing.T) {
	all := &metav1.LabelSelector{}
	for name, peer := range map[string]antreaapi.Peer{
		"empty":           {},
		"bad block":       {IPBlock: &antreaapi.IPBlock{CIDR: "nonsense"}},
		"bad hole":        {IPBlock: &antreaapi.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"nonsense"}}},
		"unknown match":   {Namespaces: &antreaapi.PeerNamespaces{Match: "Other"}},
		"two criteria":    {Namespaces: &antreaapi.PeerNamespaces{Match: "Self", SameLabels: []string{"a"}}},
		"no criterion":    {Namespaces: &antreaapi.PeerNamespaces{}},
		"both namespaces": {Namespaces: &antreaapi.PeerNamespaces{Match: "Self"}, NamespaceSelector: all},
		"half account":    {ServiceAccount: &antreaapi.NamespacedName{Namespace: "x"}},
		"external entity": {ExternalEntitySelector: all},
		"bad operator":    {PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Is"}}}},
		"missing group":   {Group: "g"},
	} {
		o := policy("p", "", 5, antreaapi.Rule{Action: ptr("Allow"), From: []antreaapi.Peer{peer}})
		set, _ := antrea.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		if len(set.Rules) != 1 {
			t.Fatalf("%s: %d rules", name, len(set.Rules))
		}
		e := rule.Endpoint{Namespace: "x", Name: "p"}
		for _, got := range set.Rules[0].Peers {
			if got.Kind != rule.PeerPods || got.Pods.Matches(&e) {
				t.Errorf("%s: selects %s", name, got.String())
			}
		}
		if name == "missing group" {
			continue // only Lower can tell
		}
		if found := (antrea.Dialect{}).Validate(o); len(found.Errors) == 0 {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, change := range map[string]func(*antreaapi.PolicySpec){
		"no priority":    func(s *antreaapi.PolicySpec) { s.Priority = nil },
		"no subject":     func(s *antreaapi.PolicySpec) { s.AppliedTo = nil },
		"empty subject":  func(s *antreaapi.PolicySpec) { s.AppliedTo = []antreaapi.AppliedTo{{}} },
		"node subject":   func(s *antreaapi.PolicySpec) { s.AppliedTo = []antreaapi.AppliedTo{{NodeSelector: all}} },
		"no action":      func(s *antreaapi.PolicySpec) { s.Ingress[0].Action = nil },
		"unknown action": func(s *antreaapi.PolicySpec) { s.Ingress[0].Action = ptr("Log") },
		"missing tier":   func(s *antreaapi.PolicySpec) { s.Tier = "t" },
		"bad port":       func(s *antreaapi.PolicySpec) { s.Ingress[0].Ports = []antreaapi.Port{{EndPort: ptr[int32](1)}} },
		"bad source":     func(s *antreaapi.PolicySpec) { s.Ingress[0].Ports = []antreaapi.Port{{SourcePort: ptr[int32](-1)}} },
		"empty protocol": func(s *antreaapi.PolicySpec) { s.Ingress[0].Protocols = []antreaapi.Protocol{{}} },
	} {
		o := policy("p", "", 5, antreaapi.Rule{Action: ptr("Allow")})
		change(policySpec(o))
		set, _ := antrea.Dialect{}.Lower([]*api.Object{o}, &inventory.Snapshot{})
		e := rule.Endpoint{Namespace: "x", Name: "p"}
		for i := range set.Rules {
			if r := &set.Rules[i]; r.Subject.Matches(&e) && len(r.L4) > 0 {
				t.Errorf("%s: lowered to\n%s", name, set.Text())
			}
		}
	}
}

func policySpec(o *api.Object) *antreaapi.PolicySpec {
	return &o.Value.(*antreaapi.ClusterNetworkPolicy).Spec
}

// What explain and the audit log print of a rule.
func TestKeepsWhatExplainNeeds(t *testing.T) {
	o := policy("p", "", 5,
		antreaapi.Rule{Action: ptr("Reject"), Name: "r", EnableLogging: true, LogLabel: "l"},
		antreaapi.Rule{Action: ptr("Pass")},
		antreaapi.Rule{Action: ptr("Deny")})
	o.Generation = 4
	set := build(t, &inventory.Snapshot{}, o)
	want := rule.Origin{Group: "crd.antrea.io", Kind: "ClusterNetworkPolicy", Name: "p", Rule: "r", Word: "Reject", Label: "l", Generation: 4}
	if got := set.Rules[0]; got.Origin != want || got.Action != rule.Reject || !got.Audit { // X-21, S2-83
		t.Errorf("got %+v", got)
	}
	if got := set.Rules[1]; got.Audit || got.Origin.Word != "Pass" || got.Skip != rule.Bands(rule.BandAntreaUpper, rule.BandAntreaLower) { // S2-43, S2-88: no log unless asked for
		t.Errorf("got %+v", got)
	}
	if got := set.Rules[2]; got.Action != rule.Deny || got.Origin.Word != "Drop" {
		t.Errorf("got %+v", got)
	}
}

// many returns n pods of labels of their own and n policies of one priority.
// app(i) is what the subject of policy i asks for.
func many(n int, app func(i int) *metav1.LabelSelector, peers func(i int) []antreaapi.Peer) ([]*api.Object, *inventory.Snapshot) {
	inv := &inventory.Snapshot{Namespaces: []inventory.Namespace{{Name: "x"}}}
	var objs []*api.Object
	for i := range n {
		inv.Pods = append(inv.Pods, inventory.Pod{
			Namespace: "x", Name: fmt.Sprintf("p%04d", i), Labels: map[string]string{"app": fmt.Sprint(i)},
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		})
		action := []string{"Allow", "Drop"}[i%2]
		o := policy(fmt.Sprintf("p%04d", i), "", 5, antreaapi.Rule{Action: &action, From: peers(i)})
		policySpec(o).AppliedTo[0].PodSelector = app(i)
		objs = append(objs, o)
	}
	return objs, inv
}

// Thousands of policies of one priority must not make a check take minutes. What
// can be compared in time is, and what was not is said.
func TestConflictSearchIsBounded(t *testing.T) {
	own := func(i int) *metav1.LabelSelector { return labels("app", fmt.Sprint(i)) }
	nobody := func(int) []antreaapi.Peer { return nil }
	objs, inv := many(2000, own, nobody)
	policySpec(objs[1999]).AppliedTo[0].PodSelector = labels("app", "0") // the only pair with a common pod
	_, found := antrea.Dialect{}.Lower(objs, inv)
	if len(found.Errors) > 0 || len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0].Message, "p1999 (crd.antrea.io) has the same tier") {
		t.Errorf("2000 disjoint policies and a conflict: got %v", found)
	}
	all := func(int) *metav1.LabelSelector { return &metav1.LabelSelector{} }
	objs, inv = many(1500, all, func(i int) []antreaapi.Peer { return []antreaapi.Peer{{PodSelector: own(i)}} })
	_, found = antrea.Dialect{}.Lower(objs, inv)
	if len(found.Errors) > 0 || len(found.Warnings) != 1 || !strings.Contains(found.Warnings[0].Message, "too many") {
		t.Errorf("1500 policies for all pods: got %d warnings, %v", len(found.Warnings), found.Warnings[0])
	}
	objs, inv = many(60, all, func(i int) []antreaapi.Peer { return []antreaapi.Peer{{PodSelector: own(i)}} })
	if _, found = (antrea.Dialect{}).Lower(objs, inv); len(found.Warnings) > 0 {
		t.Errorf("60 policies without a common peer: got %v", found.Warnings)
	}
}

// BenchmarkLower is 2,000 policies in 20 priorities over 10,000 pods of 400 kinds:
// what one change of policy costs here, the search for conflicts included.
func BenchmarkLower(b *testing.B) {
	inv := &inventory.Snapshot{}
	for n := range 40 {
		inv.Namespaces = append(inv.Namespaces, inventory.Namespace{Name: fmt.Sprintf("n%02d", n), Labels: map[string]string{"n": fmt.Sprint(n)}})
	}
	for i := range 10_000 {
		inv.Pods = append(inv.Pods, inventory.Pod{
			Namespace: fmt.Sprintf("n%02d", i/250), Name: fmt.Sprintf("p%04d", i), Labels: map[string]string{"app": fmt.Sprint(i % 10)},
			IPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})},
		})
	}
	var objs []*api.Object
	for i := range 2000 {
		action := []string{"Allow", "Drop", "Pass"}[i%3]
		o := policy(fmt.Sprintf("p%04d", i), "", float64(1+i%20), antreaapi.Rule{
			Action: &action, From: []antreaapi.Peer{{PodSelector: labels("app", fmt.Sprint(i%7))}, {IPBlock: &antreaapi.IPBlock{CIDR: "192.0.2.0/24"}}},
		})
		policySpec(o).AppliedTo[0] = antreaapi.AppliedTo{NamespaceSelector: labels("n", fmt.Sprint(i%40)), PodSelector: labels("app", fmt.Sprint(i%9))}
		objs = append(objs, o)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, found := (antrea.Dialect{}).Lower(objs, inv); len(found.Errors) > 0 {
			b.Fatal(found)
		}
	}
}
