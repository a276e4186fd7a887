package decode

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tierwall/tierwall/policy/api"
)

// clusterKinds are the kinds that describe the world. Every [Decoder] knows them.
var clusterKinds = []api.Kind{
	{Version: "v1", Kind: "Pod", Namespaced: true, New: func() any { return new(corev1.Pod) }},
	{Version: "v1", Kind: "Namespace", New: func() any { return new(corev1.Namespace) }},
	{Version: "v1", Kind: "Node", New: func() any { return new(corev1.Node) }},
	{Version: "v1", Kind: "Service", Namespaced: true, New: func() any { return new(corev1.Service) }},
	{Group: discoveryv1.GroupName, Version: "v1", Kind: "EndpointSlice", Namespaced: true, New: func() any { return new(discoveryv1.EndpointSlice) }},
}

// IsCluster reports whether the object describes the world and is not a policy.
func IsCluster(o *api.Object) bool { return isClusterKind(o.Kind) }

func isClusterKind(k api.Kind) bool {
	return k.Version == "v1" && (k.Group == "" || k.Group == discoveryv1.GroupName)
}

// policyGroups are API groups whose objects decide about packets, with the words
// by which their policy kinds are told from the others; no words: all kinds are.
var policyGroups = map[string][]string{
	"policy.networking.k8s.io": nil,
	"netpol.networking.k8s.io": nil,
	"crd.antrea.io":            {"Policy", "Tier", "Group"},
	"cilium.io":                {"Policy", "Group"},
	"projectcalico.org":        {"Policy", "Tier", "NetworkSet", "HostEndpoint", "Profile"},
}

// enforces reports whether objects of an unknown kind are meant to decide about
// packets. Ignoring one would leave a wall out.
func enforces(group, kind string) bool {
	if strings.Contains(kind, "NetworkPolicy") {
		return true
	}
	for g, words := range policyGroups {
		if group != g && !strings.HasSuffix(group, "."+g) {
			continue
		}
		if len(words) == 0 || slices.ContainsFunc(words, func(w string) bool { return strings.Contains(kind, w) }) {
			return true
		}
	}
	return false
}

// unknownKind judges an object of no known kind: an error with a hint when it is
// or could be meant as one of ours, else a warning.
func (r *reader) unknownKind(group, version, kind string) (p problem, isError bool) {
	gvk := api.Kind{Group: group, Version: version, Kind: kind}.GVK()
	for _, k := range r.kinds {
		same := k.Group == group
		switch {
		case k.Group == discoveryv1.GroupName: // read for explain: another version is no error
		case same && k.Kind == kind:
			return problem{path: "apiVersion", message: "this version does not enforce " + gvk, hint: "use " + k.GVK()}, true
		case same && k.Version == version && strings.EqualFold(k.Kind, kind):
			return problem{path: "kind", message: "unknown kind " + kind, hint: "kinds are case-sensitive: write " + k.Kind}, true
		case same && k.Version == version && distance(k.Kind, kind) <= 2:
			return problem{path: "kind", message: "unknown kind " + kind, hint: "did you mean " + k.Kind + "?"}, true
		}
	}
	for _, k := range r.kinds {
		if strings.EqualFold(k.Kind, kind) && (enforces(group, k.Kind) || group == "") {
			return problem{path: "apiVersion", message: "this version does not enforce " + gvk, hint: "write apiVersion: " + apiVersion(k)}, true
		}
	}
	if enforces(group, kind) {
		return problem{path: "kind", message: "this version does not enforce " + gvk, hint: "remove the object; nothing stands in for it"}, true
	}
	return problem{path: "kind", message: fmt.Sprintf("%s ignored: not used for policy", gvk)}, false
}

func apiVersion(k api.Kind) string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}
