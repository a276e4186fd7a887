package adminnetworkpolicy

import (
	"fmt"
	"strings"

	"github.com/tierwall/tierwall/policy/internal/kube"
)

// markers are the first fields found that only one of the APIs has, as paths; ""
// when there is none.
type markers struct{ kep, release string }

// findMarkers looks for fields that exist in only one of the two shapes.
// Shared ones (namespaceSelector, sameLabels and notSameLabels under a peer's
// namespaces exist in the KEP and in release v0.1.1) say nothing.
func findMarkers(raw map[string]any) markers {
	var m markers
	spec := object(raw["spec"])
	m.look(object(spec["subject"]), "spec.subject",
		[]string{"namespaceSelector", "namespaceAndPodSelector"}, []string{"namespaces", "pods"})
	for _, d := range [][2]string{{"ingress", "from"}, {"egress", "to"}} {
		for i, r := range list(spec[d[0]]) {
			rule, path := object(r), kube.At("spec."+d[0], i)
			m.look(rule, path, []string{"l4Selector"}, []string{"ports"})
			for j, p := range list(rule[d[1]]) {
				peer, path := object(p), kube.At(path+"."+d[1], j)
				m.look(peer, path, []string{"namespacedPods"}, []string{"pods", "nodes", "networks", "domainNames"})
				m.look(object(peer["namespaces"]), path+".namespaces",
					[]string{"self", "notSelf"}, []string{"matchLabels", "matchExpressions"})
			}
		}
	}
	return m
}

func (m *markers) look(o map[string]any, path string, kep, release []string) {
	first := func(found *string, names []string) {
		for _, n := range names {
			if _, ok := o[n]; ok && *found == "" {
				*found = path + "." + n
			}
		}
	}
	first(&m.kep, kep)
	first(&m.release, release)
}

func object(v any) map[string]any { o, _ := v.(map[string]any); return o }

func list(v any) []any { l, _ := v.([]any); return l }

const releaseHint = "this is a field of the released AdminNetworkPolicy; this version enforces only KEP-2091's, " +
	"with subject.namespaceSelector, l4Selector and namespacedPods: there the larger priority is the stronger one"

// refuse says why a document is not a KEP AdminNetworkPolicy. An empty message
// means it may be one: it has a field only the KEP has, or none that tells. It
// matters for documents that were not decoded strictly.
func refuse(raw map[string]any) (path, message, hint string) {
	m := findMarkers(raw)
	switch {
	case m.release == "":
		return "", "", ""
	case m.kep != "":
		return m.release, fmt.Sprintf("mixes two APIs: this field is of the released AdminNetworkPolicy, %s of the KEP's", m.kep),
			"write the whole policy in one of them; for priority they mean the opposite"
	}
	return m.release, "the released AdminNetworkPolicy is not enforced by this version", releaseHint
}

// fieldHint answers an unknown field that the released API has.
func fieldHint(path string) string {
	doc := map[string]any{}
	if !plant(doc, path) || findMarkers(doc).release == "" {
		return ""
	}
	return releaseHint
}

// plant builds the smallest document with a field at path, every list on the way
// having one item; false when path is no path.
func plant(doc map[string]any, path string) bool {
	o := doc
	for {
		name, rest, more := strings.Cut(path, ".")
		name, _, isList := strings.Cut(name, "[")
		if name == "" {
			return false
		}
		child := map[string]any{}
		if o[name] = child; isList {
			o[name] = []any{child}
		}
		if !more {
			return true
		}
		o, path = child, rest
	}
}
