package main

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/tierwall/tierwall/policy/api/anpv1"
	"github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/api/kepcnp"
)

// apiPackages are the folders whose documentation describes the fields.
var apiPackages = []string{"policy/api/anpv1", "policy/api/antrea", "policy/api/kepanp", "policy/api/kepcnp"}

// kind is one CustomResourceDefinition.
type kind struct {
	folder        string // below deploy/crds
	group, kind   string
	plural, short string
	namespaced    bool
	versions      []version
	types         []any // one, or the shapes to unite
	rules         []rule
}

// version is one served version. The first of a kind is stored.
type version struct {
	name    string
	columns []v1.CustomResourceColumnDefinition
}

// rule restricts the schema at a path, see edit.
type rule struct {
	path string
	f    func(*schema)
}

const (
	policyGroup = "policy.networking.k8s.io"
	netpolGroup = "netpol.networking.k8s.io"
)

func (k *kind) name() string { return k.plural + "." + k.group }

func column(name, typ, path string) v1.CustomResourceColumnDefinition {
	return v1.CustomResourceColumnDefinition{Name: name, Type: typ, JSONPath: path}
}

type columns = []v1.CustomResourceColumnDefinition

var (
	age       = column("Age", "date", ".metadata.creationTimestamp")
	byAge     = columns{age}
	byRank    = columns{column("Priority", "integer", ".spec.priority"), age}
	antreaOld = columns{column("Tier", "string", ".spec.tier"), column("Priority", "number", ".spec.priority"), age} // S2-44, S2-61
	antreaNow = slices.Insert(slices.Clone(antreaOld), 2,
		column("Desired Nodes", "integer", ".status.desiredNodesRealized"),
		column("Current Nodes", "integer", ".status.currentNodesRealized"))
)

// kinds are the definitions we ship. The kinds of released upstream APIs are
// upstream's to define, except AdminNetworkPolicy: a cluster has room for one
// definition of it, and only the union accepts the KEP's shape beside the
// released ones.
var kinds = []kind{
	{
		folder: "kep", group: policyGroup, kind: "AdminNetworkPolicy", plural: "adminnetworkpolicies", short: "anp",
		versions: []version{{"v1alpha1", byRank}},
		types:    []any{kepanp.AdminNetworkPolicy{}, anpv1.AdminNetworkPolicy{}, anpv1.AdminNetworkPolicy011{}},
		rules: slices.Concat(
			[]rule{
				{"spec", required("priority", "subject")}, // S0-12, S0-24
				{"spec.priority", between(0, 1000)},       // S0-13
				{"spec.subject", oneField},                // S0-24
				{"spec.ingress[].from[]", oneField},       // S0-32, X-23
				{"spec.egress[].to[]", oneField},
			},
			bothWays("spec.%s", atMost(100)), // S0-20, X-27
			bothWays("spec.%s[]", required("action")),
			bothWays("spec.%s[].action", oneOf("Allow", "Deny", "Pass")),                   // S0-03
			bothWays("spec.%s[].l4Selector", oneField),                                     // S0-53
			bothWays("spec.%s[].l4Selector.ports[].protocol", oneOf("TCP", "UDP", "SCTP")), // S0-57
			bothWays("spec.%s[].ports[]", oneField),
		),
	},
	{
		folder: "kep", group: netpolGroup, kind: "ClusterNetworkPolicy", plural: "clusternetworkpolicies",
		versions: []version{{"v1alpha1", byAge}},
		types:    []any{kepcnp.ClusterNetworkPolicy{}},
		rules: slices.Concat(
			[]rule{
				{"spec", required("appliedTo")},                         // S1-23
				{"spec.appliedTo", required("namespaceSelector")},       //
				{"spec.ingress[].from[].namespaces", required("scope")}, // S1-30
				{"spec.egress[].to[].namespaces", required("scope")},
			},
			bothWays("spec.%s[]", required("action")),                       // S1-03
			bothWays("spec.%s[].action", oneOf("Empower", "Deny", "Allow")), //
		),
	},
	{
		folder: "kep", group: netpolGroup, kind: "ClusterDefaultNetworkPolicy", plural: "clusterdefaultnetworkpolicies", short: "cdnp",
		versions: []version{{"v1alpha1", byAge}},
		types:    []any{kepcnp.ClusterDefaultNetworkPolicy{}},
		rules: slices.Concat(
			[]rule{
				{"spec", required("appliedTo")},                   // S1-23
				{"spec.appliedTo", required("namespaceSelector")}, //
				{"spec.ingress[].from[].namespaces", required("scope")},
				{"spec.egress[].to[].namespaces", required("scope")},
			},
			// A direction that is written isolates, null included.
			bothWays("spec.%s", func(s *schema) { s.Nullable = true }),
		),
	},
	{
		folder: "antrea", group: antrea.APIGroup, kind: "Tier", plural: "tiers", short: "tr", // S2-15
		versions: []version{{"v1beta1", byRank}, {"v1alpha1", byRank}},
		types:    []any{antrea.Tier{}},
		rules: []rule{
			{"", required("spec")},
			{"spec", required("priority")},     // S2-01
			{"spec.priority", between(0, 255)},
			{"spec.priority", check("self == oldSelf", "the priority of a Tier cannot change; make another Tier")}, // S2-06
		},
	},
	{
		folder: "antrea", group: antrea.APIGroup, kind: "ClusterNetworkPolicy", plural: "clusternetworkpolicies", short: "acnp",
		versions: []version{{"v1beta1", antreaNow}, {"v1alpha1", antreaOld}},
		types:    []any{antrea.ClusterNetworkPolicy{}},
		rules:    antreaPolicy,
	},
	{
		// Antrea's first short name was "anp", which AdminNetworkPolicy has now.
		folder: "antrea", group: antrea.APIGroup, kind: "NetworkPolicy", plural: "networkpolicies", short: "annp", namespaced: true,
		versions: []version{{"v1beta1", antreaNow}, {"v1alpha1", antreaOld}},
		types:    []any{antrea.NetworkPolicy{}},
		rules:    antreaPolicy,
	},
	{
		folder: "antrea", group: antrea.APIGroup, kind: "ClusterGroup", plural: "clustergroups", short: "cg", // S2-69
		versions: []version{{"v1beta1", byAge}, {"v1alpha3", byAge}, {"v1alpha2", byAge}},
		types:    []any{antrea.ClusterGroup{}},
		rules:    antreaGroup,
	},
	{
		folder: "antrea", group: antrea.APIGroup, kind: "Group", plural: "groups", short: "grp", namespaced: true,
		versions: []version{{"v1beta1", byAge}, {"v1alpha3", byAge}},
		types:    []any{antrea.Group{}},
		rules:    antreaGroup,
	},
}

var antreaPolicy = slices.Concat(
	[]rule{
		{"", required("spec")},
		{"spec", required("priority")},       // S2-19
		{"spec.priority", between(1, 10000)}, //
		// S2-29, S2-30, S2-31
		{"spec", check("has(self.appliedTo) && size(self.appliedTo) > 0 ? "+
			"!(has(self.ingress) && self.ingress.exists(r, has(r.appliedTo) && size(r.appliedTo) > 0) || "+
			"has(self.egress) && self.egress.exists(r, has(r.appliedTo) && size(r.appliedTo) > 0)) : true",
			"appliedTo is set for the policy and for a rule; keep one of them")},
	},
	bothWays("spec.%s[]", required("action")),                                      // S2-20
	bothWays("spec.%s[].action", oneOf("Allow", "Drop", "Reject", "Pass", "Deny")), // Deny: X-13
	[]rule{
		{"spec.egress[]", check("!(has(self.toServices) && size(self.toServices) > 0) || "+
			"!(has(self.to) && size(self.to) > 0) && !(has(self.ports) && size(self.ports) > 0) && "+
			"!(has(self.protocols) && size(self.protocols) > 0)",
			"toServices stands alone, without to, ports and protocols")},
	},
)

var antreaGroup = []rule{
	{"spec", check("[has(self.podSelector) || has(self.namespaceSelector), has(self.serviceReference), has(self.ipBlock), "+ // S2-70
		"has(self.ipBlocks) && size(self.ipBlocks) > 0, has(self.childGroups) && size(self.childGroups) > 0].filter(x, x).size() <= 1",
		"one of selectors, serviceReference, ipBlocks and childGroups at most")},
}

// bothWays is a rule for ingress and egress.
func bothWays(path string, f func(*schema)) []rule {
	return []rule{{fmt.Sprintf(path, "ingress"), f}, {fmt.Sprintf(path, "egress"), f}}
}

func required(names ...string) func(*schema) {
	return func(s *schema) { s.Required = append(s.Required, names...) }
}

func oneOf(values ...string) func(*schema) {
	return func(s *schema) {
		for _, v := range values {
			raw, err := json.Marshal(v)
			if err != nil {
				panic(err)
			}
			s.Enum = append(s.Enum, v1.JSON{Raw: raw})
		}
	}
}

func between(low, high float64) func(*schema) {
	return func(s *schema) { s.Minimum, s.Maximum = &low, &high }
}

func atMost(items int64) func(*schema) { return func(s *schema) { s.MaxItems = &items } }

// oneField wants exactly one field set. Counting properties counts unknown ones,
// too, and costs the API server nothing.
func oneField(s *schema) { s.MinProperties, s.MaxProperties = ptr.To[int64](1), ptr.To[int64](1) }

func check(rule, message string) func(*schema) {
	return func(s *schema) {
		s.XValidations = append(s.XValidations, v1.ValidationRule{Rule: rule, Message: message})
	}
}

// definition builds the CustomResourceDefinition.
func (k *kind) definition(d docs) (*v1.CustomResourceDefinition, error) {
	scope := v1.ClusterScoped
	if k.namespaced {
		scope = v1.NamespaceScoped
	}
	names := v1.CustomResourceDefinitionNames{
		Kind: k.kind, ListKind: k.kind + "List", Plural: k.plural, Singular: strings.ToLower(k.kind),
	}
	if k.short != "" {
		names.ShortNames = []string{k.short}
	}
	crd := &v1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: k.name(), Labels: map[string]string{"app.kubernetes.io/name": "tierwall"}},
		Spec:       v1.CustomResourceDefinitionSpec{Group: k.group, Names: names, Scope: scope},
	}
	if strings.HasSuffix(k.group, ".k8s.io") {
		crd.Annotations = map[string]string{v1.KubeAPIApprovedAnnotation: "unapproved, the API of a design document"}
	}
	for i, ver := range k.versions {
		if i > 0 {
			d = nil // the descriptions of the stored version do
		}
		s, err := k.schema(d)
		if err != nil {
			return nil, err
		}
		cv := v1.CustomResourceDefinitionVersion{
			Name: ver.name, Served: true, Storage: i == 0, AdditionalPrinterColumns: ver.columns,
			Schema:       &v1.CustomResourceValidation{OpenAPIV3Schema: &s},
			Subresources: &v1.CustomResourceSubresources{Status: &v1.CustomResourceSubresourceStatus{}},
		}
		if i > 0 {
			cv.Deprecated = true
			cv.DeprecationWarning = ptr.To(fmt.Sprintf("%s/%s %s is deprecated; use %s/%s", k.group, ver.name, k.kind, k.group, k.versions[0].name))
		}
		crd.Spec.Versions = append(crd.Spec.Versions, cv)
	}
	return crd, nil
}

func (k *kind) schema(d docs) (schema, error) {
	var all schema
	for i, t := range k.types {
		s, err := d.of(reflect.TypeOf(t))
		if err == nil && i > 0 {
			s, err = union(all, s)
		}
		if err != nil {
			return schema{}, err
		}
		all = s
	}
	if err := k.addStatus(d, &all); err != nil {
		return schema{}, err
	}
	for _, r := range k.rules {
		if r.path == "" {
			r.f(&all)
		} else if err := edit(&all, r.path, r.f); err != nil {
			return schema{}, fmt.Errorf("rule for %s: %w", r.path, err)
		}
	}
	return all, nil
}

// addStatus gives kinds whose document has no status the conditions every other
// one has: it is where the controller says that a policy is refused.
func (k *kind) addStatus(d docs, s *schema) error {
	if _, has := s.Properties["status"]; has {
		return nil
	}
	status, err := d.of(reflect.TypeFor[kepanp.Status]())
	if err != nil {
		return err
	}
	s.Properties["status"] = status
	return nil
}
