package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/deploy/crds"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/lower"
)

const root = "../../.."

// What is embedded is what is on disk: the pattern misses no folder.
func TestEmbedded(t *testing.T) {
	for _, k := range kinds {
		if _, err := crds.FS.Open(k.folder + "/" + k.name() + ".yaml"); err != nil {
			t.Error(err)
		}
	}
}

func TestFilesAreCurrent(t *testing.T) {
	want, err := files(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range want {
		have, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Error(err)
			continue
		}
		if d := cmp.Diff(string(data), string(have)); d != "" {
			t.Errorf("%s is not what the types say; run go generate ./deploy/crds\n%s", name, d)
		}
	}
	on, err := filepath.Glob("../*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	on = slices.DeleteFunc(on, func(f string) bool { return filepath.Base(f) == "kustomization.yaml" })
	charts, err := filepath.Glob(filepath.Join("..", chartFolder, "*"))
	if err != nil {
		t.Fatal(err)
	}
	on = append(on, charts...)
	if len(on) != len(want) {
		t.Errorf("%d files are there, %d are generated: %v", len(on), len(want), on)
	}
}

// server is what an API server does with objects of one version of a kind.
type server struct {
	crd       *v1.CustomResourceDefinition
	schema    *structural.Structural
	validator validation.SchemaValidator
	rules     *cel.Validator
}

// servers returns one server for each version of each definition.
func servers(t *testing.T) map[string]*server {
	t.Helper()
	all, err := files(root)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]*server{}
	for name, data := range all {
		crd := new(v1.CustomResourceDefinition)
		if err := yaml.UnmarshalStrict(data, crd); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, v := range crd.Spec.Versions {
			var internal apiextensions.CustomResourceValidation
			if err := v1.Convert_v1_CustomResourceValidation_To_apiextensions_CustomResourceValidation(v.Schema, &internal, nil); err != nil {
				t.Fatal(err)
			}
			s, err := structural.NewStructural(internal.OpenAPIV3Schema)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if errs := structural.ValidateStructural(nil, s); len(errs) > 0 {
				t.Fatalf("%s: not structural: %v", name, errs.ToAggregate())
			}
			val, _, err := validation.NewSchemaValidator(internal.OpenAPIV3Schema)
			if err != nil {
				t.Fatal(err)
			}
			key := api.Kind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Spec.Names.Kind}.GVK()
			out[key] = &server{crd, s, val, cel.NewValidator(s, true, celconfig.PerCallLimit)}
		}
	}
	return out
}

// check returns what the schema has against an object; old is nil for a new one.
func (s *server) check(obj, old map[string]any) []string {
	var out []string
	for _, e := range validation.ValidateCustomResource(nil, obj, s.validator) {
		out = append(out, e.Error())
	}
	if s.rules != nil {
		var before any
		if old != nil {
			before = old
		}
		errs, _ := s.rules.Validate(context.Background(), nil, s.schema, obj, before, celconfig.RuntimeCELCostBudget)
		for _, e := range errs {
			out = append(out, e.Error())
		}
	}
	return out
}

// fixtures calls f with every object of the dialects' test cases whose kind has a
// definition here; good says whether the daemon accepts the object alone.
func fixtures(t *testing.T, f func(where string, s *server, o *api.Object, good bool)) {
	t.Helper()
	all := servers(t)
	cases, err := filepath.Glob(filepath.Join(root, "policy/lower/*/testdata/*.txtar"))
	if err != nil || len(cases) < 50 {
		t.Fatalf("%d fixtures, %v", len(cases), err)
	}
	dialects := lower.All()
	for _, file := range cases {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range archive.Files {
			if !strings.HasSuffix(part.Name, ".yaml") {
				continue
			}
			d := decode.Decoder{Kinds: lower.Kinds()}
			objs, _ := d.Decode(part.Name, part.Data)
			for _, o := range objs {
				s := all[o.Kind.GVK()]
				if s == nil || o.Value == nil {
					continue
				}
				good := slices.ContainsFunc(dialects, func(d lower.Dialect) bool {
					mine := slices.ContainsFunc(d.Kinds(), func(k api.Kind) bool { return k.GVK() == o.Kind.GVK() })
					return mine && len(d.Validate(o).Errors) == 0
				})
				f(filepath.Base(file)+" "+o.Ref().String(), s, o, good)
			}
		}
	}
}

// A schema must not refuse what the daemon accepts: the documents' samples among
// it.
func TestAcceptsWhatTheDaemonAccepts(t *testing.T) {
	n := 0
	fixtures(t, func(where string, s *server, o *api.Object, good bool) {
		if !good {
			return
		}
		n++
		for _, problem := range s.check(o.Raw, nil) {
			t.Errorf("%s: %s", where, problem)
		}
	})
	if n < 150 {
		t.Errorf("only %d objects tried", n)
	}
}

// What a schema drops, the daemon cannot refuse: nothing is dropped, typos and
// misplaced fields included (S0-66, X-08).
func TestKeepsEverything(t *testing.T) {
	n := 0
	fixtures(t, func(where string, s *server, o *api.Object, _ bool) {
		n++
		obj := runtime.DeepCopyJSON(o.Raw)
		misspell(obj["spec"])
		want := runtime.DeepCopyJSON(obj)
		pruning.Prune(obj, s.schema, true)
		if d := cmp.Diff(want, obj); d != "" {
			t.Errorf("%s: %s", where, d)
		}
	})
	if n < 200 {
		t.Errorf("only %d objects tried", n)
	}
}

// misspell adds a field nobody knows to every object.
func misspell(v any) {
	switch v := v.(type) {
	case map[string]any:
		labels := false
		for k, inner := range v {
			misspell(inner)
			_, text := inner.(string)
			labels = labels || text && strings.ContainsAny(k, "./") // the labels of a selector
		}
		if !labels {
			v["podSelektor"] = "x"
		}
	case []any:
		for _, inner := range v {
			misspell(inner)
		}
	}
}

func TestRefuses(t *testing.T) {
	all := servers(t)
	for _, tt := range []struct{ name, object, want string }{
		{"S0-03 unknown action", kepANP("priority: 1, subject: {namespaceSelector: {}}, ingress: [{action: Log, l4Selector: {allPorts: true}}]"), "spec.ingress[0].action"},
		{"S0-03 no action", kepANP("priority: 1, subject: {namespaceSelector: {}}, egress: [{l4Selector: {allPorts: true}}]"), "spec.egress[0].action"},
		{"S0-12 no priority", kepANP("subject: {namespaceSelector: {}}"), "spec.priority"},
		{"S0-13 priority 1001", kepANP("priority: 1001, subject: {namespaceSelector: {}}"), "spec.priority"},
		{"S0-13 priority -1", kepANP("priority: -1, subject: {namespaceSelector: {}}"), "spec.priority"},
		{"S0-24 two subjects", kepANP("priority: 1, subject: {namespaceSelector: {}, namespaceAndPodSelector: {namespaceSelector: {}, podSelector: {}}}"), "spec.subject"},
		{"S0-24 no subject", kepANP("priority: 1, subject: {}"), "spec.subject"},
		{"S0-32 two peers in one", kepANP("priority: 1, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true}, from: [{namespaces: {self: true}, namespacedPods: {}}]}]"), "spec.ingress[0].from[0]"},
		{"X-23 empty peer", kepANP("priority: 1, subject: {namespaceSelector: {}}, egress: [{action: Deny, l4Selector: {allPorts: true}, to: [{}]}]"), "spec.egress[0].to[0]"},
		{"S0-53 both l4 selectors", kepANP("priority: 1, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {allPorts: true, ports: []}}]"), "spec.ingress[0].l4Selector"},
		{"S0-57 protocol", kepANP("priority: 1, subject: {namespaceSelector: {}}, ingress: [{action: Deny, l4Selector: {ports: [{protocol: ICMP, port: 1}]}}]"), "protocol"},
		{"X-07 matchExpressions is a map", kepANP("priority: 1, subject: {namespaceSelector: {matchExpressions: {key: tenant, operator: Exists}}}"), "matchExpressions"},
		{"S1-03 action", kepCNP("appliedTo: {namespaceSelector: {}}, ingress: [{action: Pass}]"), "spec.ingress[0].action"},
		{"S1-23 no namespaceSelector", kepCNP("appliedTo: {podSelector: {}}"), "spec.appliedTo.namespaceSelector"},
		{"S2-01 no priority", antreaTier("description: x"), "spec.priority"},
		{"X-33 priority 256", antreaTier("priority: 256"), "spec.priority"},
		{"S2-19 priority 0.9", antreaPolicyOf("priority: 0.9, appliedTo: [{podSelector: {}}]"), "spec.priority"},
		{"S2-19 priority 10000.1", antreaPolicyOf("priority: 10000.1, appliedTo: [{podSelector: {}}]"), "spec.priority"},
		{"S2-20 action", antreaPolicyOf("priority: 1, appliedTo: [{podSelector: {}}], ingress: [{action: Log}]"), "spec.ingress[0].action"},
		{"S2-29 two places", antreaPolicyOf("priority: 1, appliedTo: [{podSelector: {}}], egress: [{action: Drop, appliedTo: [{podSelector: {}}]}]"), "appliedTo is set for the policy and for a rule"},
		{"X-55 toServices and ports", antreaPolicyOf("priority: 1, appliedTo: [{podSelector: {}}], egress: [{action: Drop, toServices: [{name: x}], ports: [{port: 1}]}]"), "toServices stands alone"},
		{"S2-70 two members", antreaGroupOf("podSelector: {}, childGroups: [x]"), "at most"},
	} {
		obj := map[string]any{}
		if err := yaml.Unmarshal([]byte(tt.object), &obj); err != nil {
			t.Fatal(err)
		}
		gv := strings.SplitN(obj["apiVersion"].(string), "/", 2)
		got := all[api.Kind{Group: gv[0], Version: gv[1], Kind: obj["kind"].(string)}.GVK()].check(obj, nil)
		if len(got) == 0 || !strings.Contains(strings.Join(got, "\n"), tt.want) {
			t.Errorf("%s: got %q, want one about %s", tt.name, got, tt.want)
		}
	}
}

// S2-06: a Tier keeps its priority, its description may change.
func TestTierPriorityStays(t *testing.T) {
	s := servers(t)[api.Kind{Group: "crd.antrea.io", Version: "v1beta1", Kind: "Tier"}.GVK()]
	tier := func(priority int64, description string) map[string]any {
		return map[string]any{
			"apiVersion": "crd.antrea.io/v1beta1", "kind": "Tier", "metadata": map[string]any{"name": "x"},
			"spec": map[string]any{"priority": priority, "description": description},
		}
	}
	if got := s.check(tier(10, "new"), tier(10, "old")); len(got) > 0 {
		t.Errorf("description changed: %v", got)
	}
	if got := s.check(tier(11, "x"), tier(10, "x")); len(got) == 0 {
		t.Error("priority changed: accepted")
	}
}

// null isolates a direction, so it must survive.
func TestNullDirectionSurvives(t *testing.T) {
	s := servers(t)[api.Kind{Group: netpolGroup, Version: "v1alpha1", Kind: "ClusterDefaultNetworkPolicy"}.GVK()]
	obj := map[string]any{
		"apiVersion": netpolGroup + "/v1alpha1", "kind": "ClusterDefaultNetworkPolicy", "metadata": map[string]any{"name": "x"},
		"spec": map[string]any{"appliedTo": map[string]any{"namespaceSelector": map[string]any{}}, "ingress": nil},
	}
	if got := s.check(obj, nil); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
	pruning.Prune(obj, s.schema, true)
	if v, ok := obj["spec"].(map[string]any)["ingress"]; !ok || v != nil {
		t.Errorf("ingress is %v, there: %v", v, ok)
	}
}

// What the daemon decodes and what is defined are the same kinds, versions and
// scopes; upstream defines the others.
func TestKindsAreThoseDecoded(t *testing.T) {
	upstream := map[string]bool{
		"networking.k8s.io/v1 NetworkPolicy": true, "policy.networking.k8s.io/v1alpha2 ClusterNetworkPolicy": true,
		"policy.networking.k8s.io/v1alpha1 BaselineAdminNetworkPolicy": true,
		"cilium.io/v2 CiliumNetworkPolicy":                             true, "cilium.io/v2 CiliumClusterwideNetworkPolicy": true,
	}
	defined := servers(t)
	for _, k := range lower.Kinds() {
		s := defined[k.GVK()]
		switch {
		case upstream[k.GVK()] && s != nil:
			t.Errorf("%s is upstream's to define", k.GVK())
		case upstream[k.GVK()]:
		case s == nil:
			t.Errorf("%s has no definition", k.GVK())
		case k.Namespaced != (s.crd.Spec.Scope == v1.NamespaceScoped):
			t.Errorf("%s: scope %s", k.GVK(), s.crd.Spec.Scope)
		default:
			delete(defined, k.GVK())
		}
	}
	for gvk := range defined {
		t.Errorf("%s is defined and not decoded", gvk)
	}
}

// Short names do not collide with each other or with those of the APIs that
// are likely to be installed beside ours.
func TestShortNames(t *testing.T) {
	want := map[string]string{
		"AdminNetworkPolicy.policy.networking.k8s.io": "anp", "ClusterDefaultNetworkPolicy.netpol.networking.k8s.io": "cdnp",
		"Tier.crd.antrea.io": "tr", "ClusterNetworkPolicy.crd.antrea.io": "acnp", "NetworkPolicy.crd.antrea.io": "annp",
		"ClusterGroup.crd.antrea.io": "cg", "Group.crd.antrea.io": "grp",
	}
	taken := map[string]string{"netpol": "networking.k8s.io", "cnp": "ClusterNetworkPolicy v1alpha2", "banp": "BaselineAdminNetworkPolicy", "ccnp": "cilium.io"}
	got := map[string]string{}
	for _, k := range kinds {
		if k.short == "" {
			continue
		}
		if by := taken[k.short]; by != "" {
			t.Errorf("%s: %s has the short name of %s", k.name(), k.short, by)
		}
		taken[k.short] = k.name()
		got[k.kind+"."+k.group] = k.short
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// What kubectl prints, as Antrea's documents show it, and by which names it asks.
func TestListing(t *testing.T) {
	for _, tt := range []struct{ no, kind, version, plural, short, columns string }{
		{"S2-15", "Tier", "v1alpha1", "tiers", "tr", "Priority Age"},
		{"S2-15", "Tier", "v1beta1", "tiers", "tr", "Priority Age"},
		{"S2-44", "ClusterNetworkPolicy", "v1alpha1", "clusternetworkpolicies", "acnp", "Tier Priority Age"},
		{"S2-61, X-06", "NetworkPolicy", "v1alpha1", "networkpolicies", "annp", "Tier Priority Age"},
		{"S2-69", "ClusterGroup", "v1alpha3", "clustergroups", "cg", "Age"},
	} {
		i := slices.IndexFunc(kinds, func(k kind) bool { return k.kind == tt.kind && k.group == "crd.antrea.io" })
		k := &kinds[i]
		if k.plural != tt.plural || k.short != tt.short {
			t.Errorf("%s: %s is %s, short %s", tt.no, tt.kind, k.plural, k.short)
		}
		v := slices.IndexFunc(k.versions, func(v version) bool { return v.name == tt.version })
		if v < 0 {
			t.Errorf("%s: %s has no %s", tt.no, tt.kind, tt.version)
			continue
		}
		var columns []string
		for _, c := range k.versions[v].columns {
			columns = append(columns, c.Name)
			if c.Name == "Priority" && c.JSONPath != ".spec.priority" {
				t.Errorf("%s: %s is sorted by %s", tt.no, tt.kind, c.JSONPath)
			}
		}
		if got := strings.Join(columns, " "); got != tt.columns {
			t.Errorf("%s: columns of %s: %s", tt.no, tt.kind, got)
		}
	}
}

// kubectl apply keeps a copy of the object in an annotation, whose size is bounded.
func TestSize(t *testing.T) {
	all, err := files(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range all {
		asJSON, err := yaml.YAMLToJSON(data)
		if err != nil {
			t.Fatal(err)
		}
		if len(asJSON) > 200<<10 {
			t.Errorf("%s: %d bytes", name, len(asJSON))
		}
	}
}

func object(apiVersion, kind, spec string) string {
	return "{apiVersion: " + apiVersion + ", kind: " + kind + ", metadata: {name: x}, spec: {" + spec + "}}"
}

func kepANP(spec string) string {
	return object("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", spec)
}

func kepCNP(spec string) string {
	return object("netpol.networking.k8s.io/v1alpha1", "ClusterNetworkPolicy", spec)
}
func antreaTier(spec string) string { return object("crd.antrea.io/v1beta1", "Tier", spec) }
func antreaPolicyOf(spec string) string {
	return object("crd.antrea.io/v1beta1", "ClusterNetworkPolicy", spec)
}

func antreaGroupOf(spec string) string { return object("crd.antrea.io/v1beta1", "ClusterGroup", spec) }
