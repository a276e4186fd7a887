package decode

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/foreign"
)

// clusterKinds are the kinds that describe the world. Every [Decoder] knows them.
var clusterKinds = []api.Kind{
	{Version: "v1", Kind: "Pod", Namespaced: true, New: func() any { return new(corev1.Pod) }},
	{Version: "v1", Kind: "Namespace", New: func() any { return new(corev1.Namespace) }},
	{Version: "v1", Kind: "Node", New: func() any { return new(corev1.Node) }},
	{Version: "v1", Kind: "Service", Namespaced: true, New: func() any { return new(corev1.Service) }},
	{Group: discoveryv1.GroupName, Version: "v1", Kind: "EndpointSlice", Namespaced: true, New: func() any { return new(discoveryv1.EndpointSlice) }},
}

// workloadKinds are the kinds whose controllers make pods; see [Decoder].Workloads.
var workloadKinds = []api.Kind{
	{Group: "apps", Version: "v1", Kind: "Deployment", Namespaced: true, New: func() any { return new(appsv1.Deployment) }},
	{Group: "apps", Version: "v1", Kind: "StatefulSet", Namespaced: true, New: func() any { return new(appsv1.StatefulSet) }},
	{Group: "apps", Version: "v1", Kind: "DaemonSet", Namespaced: true, New: func() any { return new(appsv1.DaemonSet) }},
	{Group: "apps", Version: "v1", Kind: "ReplicaSet", Namespaced: true, New: func() any { return new(appsv1.ReplicaSet) }},
	{Group: "batch", Version: "v1", Kind: "Job", Namespaced: true, New: func() any { return new(batchv1.Job) }},
	{Group: "batch", Version: "v1", Kind: "CronJob", Namespaced: true, New: func() any { return new(batchv1.CronJob) }},
	{Version: "v1", Kind: "ReplicationController", Namespaced: true, New: func() any { return new(corev1.ReplicationController) }},
	{Version: "v1", Kind: "PodTemplate", Namespaced: true, New: func() any { return new(corev1.PodTemplate) }},
}

// IsCluster reports whether the object describes the world and is not a policy.
func IsCluster(o *api.Object) bool { return isClusterKind(o.Kind) }

func isClusterKind(k api.Kind) bool {
	return k.Version == "v1" && (k.Group == "" || k.Group == discoveryv1.GroupName || k.Group == "apps" || k.Group == "batch")
}

// unknownKind judges an object of no known kind: an error with a hint when it is
// or could be meant as one of ours, else a warning.
func (r *reader) unknownKind(group, version, kind string) (p problem, isError bool) {
	gvk := api.Kind{Group: group, Version: version, Kind: kind}.GVK()
	for _, k := range r.kinds {
		same := k.Group == group
		switch {
		case k.Group == discoveryv1.GroupName: // read for explain: another version is no error
		case same && isClusterKind(k) && k.Group != "" && version != k.Version: // an old version of apps or batch, likewise
		case same && k.Kind == kind:
			return problem{path: "apiVersion", message: "this version does not enforce " + gvk, hint: "use " + k.GVK()}, true
		case same && k.Version == version && strings.EqualFold(k.Kind, kind):
			return problem{path: "kind", message: "unknown kind " + kind, hint: "kinds are case-sensitive: write " + k.Kind}, true
		case same && k.Version == version && distance(k.Kind, kind) <= 2:
			return problem{path: "kind", message: "unknown kind " + kind, hint: "did you mean " + k.Kind + "?"}, true
		}
	}
	notEnforced := "this version does not enforce " + gvk
	match, foreignPolicy := foreign.Find(group, kind)
	hint := match.Hint
	k, like := r.sameName(group, kind)
	switch {
	case match.Project != "" && like:
		return problem{path: "apiVersion", message: notEnforced, hint: hint}, true
	case match.Project != "":
		return problem{path: "kind", message: notEnforced, hint: hint}, true
	case like:
		hint = "write apiVersion: " + apiVersion(k)
		if group != "" && distance(k.Group, group) > 3 {
			hint += " if you mean that " + k.Kind + "; if not, Tierwall has no equivalent: remove the object"
		}
		return problem{path: "apiVersion", message: notEnforced, hint: hint}, true
	case foreignPolicy:
		return problem{path: "kind", message: notEnforced, hint: hint}, true
	}
	return problem{path: "kind", message: gvk + ignored}, false
}

// ignored ends the message about an object that policies have no use for.
const ignored = " ignored: not used for policy"

// SumIgnored puts one warning in the place of those about objects that policies have no
// use for: of a dump of a cluster they are most.
func SumIgnored(l *diag.List) {
	count, files := map[string]int{}, map[string]bool{}
	total := 0
	l.Warnings = slices.DeleteFunc(l.Warnings, func(d diag.Diagnostic) bool {
		if !strings.HasSuffix(d.Message, ignored) {
			return false
		}
		file, _ := diag.SplitLine(d.File)
		files[file] = true
		count[d.Object.Kind]++
		total++
		return true
	})
	if total == 0 {
		return
	}
	kinds := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(count[b]-count[a], strings.Compare(a, b))
	})
	const most = 8
	var parts []string
	for _, k := range kinds[:min(len(kinds), most)] {
		parts = append(parts, fmt.Sprintf("%d %s", count[k], k))
	}
	if len(kinds) > most {
		parts = append(parts, fmt.Sprintf("%d other kinds", len(kinds)-most))
	}
	objects := "objects"
	if total == 1 {
		objects = "object"
	}
	d := diag.Diagnostic{Message: fmt.Sprintf("%d %s ignored, not used for policy: %s", total, objects, strings.Join(parts, ", "))}
	if len(files) == 1 {
		for file := range files {
			d.File = file
		}
	}
	l.Warnings = append(l.Warnings, d)
}

// sameName returns the policy kind of a name in the group that is most like the one
// given, and of those Kubernetes' own before others.
func (r *reader) sameName(group, kind string) (best api.Kind, ok bool) {
	bestD := 0
	for _, k := range r.kinds {
		_, policy := foreign.Find(k.Group, k.Kind)
		if !strings.EqualFold(k.Kind, kind) || !policy && group != "" {
			continue
		}
		d := min(distance(k.Group, group), 4) * 2 // what is further off is all the same
		if !strings.HasSuffix(k.Group, "networking.k8s.io") {
			d++
		}
		if !ok || d < bestD {
			best, bestD, ok = k, d, true
		}
	}
	return best, ok
}

func apiVersion(k api.Kind) string {
	if k.Group == "" {
		return k.Version
	}
	return k.Group + "/" + k.Version
}
