package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// CheckSelector reports what an API server refuses in a label selector: keys and
// values that no label can have, unknown operators, values missing or given where
// the operator takes none. A nil selector has nothing to report.
func CheckSelector(f *Findings, path string, s *metav1.LabelSelector) {
	if s == nil {
		return
	}
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		at := fmt.Sprintf("%s.matchLabels[%q]", path, k)
		CheckLabelKey(f, at, k)
		checkValue(f, at, s.MatchLabels[k])
	}
	for i := range s.MatchExpressions {
		checkRequirement(f, At(path+".matchExpressions", i), &s.MatchExpressions[i])
	}
}

func checkRequirement(f *Findings, path string, r *metav1.LabelSelectorRequirement) {
	CheckLabelKey(f, path+".key", r.Key)
	switch r.Operator {
	case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
		if len(r.Values) == 0 {
			f.Error(path+".values", fmt.Sprintf("operator %s needs at least one value", r.Operator),
				"list the values, or use Exists or DoesNotExist to ask only about the key")
		}
	case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
		if len(r.Values) > 0 {
			f.Error(path+".values", fmt.Sprintf("operator %s takes no values", r.Operator),
				"remove `values`, or use In or NotIn")
		}
	case "":
		f.Error(path+".operator", "operator is missing", "write In, NotIn, Exists or DoesNotExist")
	default:
		f.Error(path+".operator", fmt.Sprintf("unknown operator %q", r.Operator), operatorHint(string(r.Operator)))
	}
	for i, v := range r.Values {
		checkValue(f, At(path+".values", i), v)
	}
}

func operatorHint(got string) string {
	for _, op := range []metav1.LabelSelectorOperator{
		metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn,
		metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
	} {
		if strings.EqualFold(got, string(op)) {
			return "write " + string(op) + ": operators are case-sensitive"
		}
	}
	if strings.EqualFold(got, "NotExists") {
		return "write DoesNotExist"
	}
	return "write In, NotIn, Exists or DoesNotExist"
}

// CheckLabelKey reports a string that no label can have as its key.
func CheckLabelKey(f *Findings, path, key string) {
	if key == "" {
		f.Error(path, "label key is missing", "write `key: …`")
		return
	}
	for _, msg := range validation.IsQualifiedName(key) {
		f.Error(path, fmt.Sprintf("%q is not a label key: %s", key, brief(msg)), "write `name` or `example.com/name`")
	}
}

func checkValue(f *Findings, path, value string) {
	for _, msg := range validation.IsValidLabelValue(value) {
		f.Error(path, fmt.Sprintf("%q is not a label value: %s", value, brief(msg)), "no object can have such a label: write the value that pods or namespaces have")
	}
}

// brief leaves out the examples and the regular expression an API server adds.
func brief(msg string) string {
	msg, _, _ = strings.Cut(msg, " (e.g. ")
	return msg
}

// Labels converts a checked label selector. The empty selector becomes empty
// Labels, which match everything; nil must be handled by the caller, for whom it
// means something else. Requirements come sorted by key, values sorted and unique.
func Labels(s *metav1.LabelSelector) rule.Labels {
	var out rule.Labels
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		out = append(out, rule.Requirement{Key: k, Op: rule.In, Values: []string{s.MatchLabels[k]}})
	}
	for i := range s.MatchExpressions {
		e := &s.MatchExpressions[i]
		r := rule.Requirement{Key: e.Key}
		switch e.Operator {
		case metav1.LabelSelectorOpIn:
			r.Op = rule.In
		case metav1.LabelSelectorOpNotIn:
			r.Op = rule.NotIn
		case metav1.LabelSelectorOpExists:
			r.Op = rule.Exists
		case metav1.LabelSelectorOpDoesNotExist:
			r.Op = rule.NotExists
		}
		// An operator nobody checked keeps Op 0, which never matches.
		if r.Op == rule.In || r.Op == rule.NotIn {
			r.Values = slices.Compact(slices.Sorted(slices.Values(e.Values)))
		}
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(a, b rule.Requirement) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// LabelsOf converts a plain label map, as Services select with.
func LabelsOf(m map[string]string) rule.Labels {
	return Labels(&metav1.LabelSelector{MatchLabels: m})
}

// Endpoints returns the inventory's pods as the selectors see them, in the
// inventory's order: what a dialect needs to compare subjects. Addresses and
// ports are left out.
func Endpoints(inv *inventory.Snapshot) []rule.Endpoint {
	namespaces := make(map[string]map[string]string, len(inv.Namespaces))
	for i := range inv.Namespaces {
		namespaces[inv.Namespaces[i].Name] = inv.Namespaces[i].Labels
	}
	out := make([]rule.Endpoint, len(inv.Pods))
	for i := range inv.Pods {
		p := &inv.Pods[i]
		out[i] = rule.Endpoint{
			Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, NamespaceLabels: namespaces[p.Namespace],
			ServiceAccount: p.ServiceAccount, Node: p.Node, HostNetwork: p.HostNetwork,
		}
	}
	return out
}
