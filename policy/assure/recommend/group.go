package recommend

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/assure"
)

// group is the pods of a workload and the selector that stands for them. Pods that
// nothing made are grouped by their labels.
type group struct {
	namespace string
	kind      string // "Pod" for pods that nothing made
	name      string // of the workload, or of the first pod
	title     string // how answers name it
	pods      []*rule.Endpoint

	selector metav1.LabelSelector
	exact    bool              // selector matches pods, and no other
	matched  []*rule.Endpoint  // all that it matches
	others   []string          // workloads it matches beside its own
	common   map[string]string // labels that all pods have
}

// groups has the groups of a world.
type groups struct {
	world   *assure.World
	list    []*group
	of      map[*rule.Endpoint]*group
	byNS    map[string][]*rule.Endpoint // pods that policies can select
	reduced map[*group]bool
}

func newGroups(w *assure.World) *groups {
	g := &groups{world: w, of: map[*rule.Endpoint]*group{}, byNS: map[string][]*rule.Endpoint{}, reduced: map[*group]bool{}}
	type podName struct{ namespace, name string }
	made := make(map[podName][2]string, len(w.Snapshot.Pods))
	for i := range w.Snapshot.Pods {
		p := &w.Snapshot.Pods[i]
		made[podName{p.Namespace, p.Name}] = [2]string{p.Workload.Kind, p.Workload.Name}
	}
	type key struct{ namespace, kind, name, labels string }
	index := map[key]*group{}
	for _, e := range w.Pods() {
		if !e.HostNetwork {
			g.byNS[e.Namespace] = append(g.byNS[e.Namespace], e)
		}
		by := made[podName{e.Namespace, e.Name}]
		k := key{e.Namespace, cmp.Or(by[0], "Pod"), cmp.Or(by[1], e.Name), ""}
		if k.kind == "Pod" {
			if k.labels = labels.Set(steady(e.Labels)).String(); k.labels != "" {
				k.name = ""
			}
		}
		if e.HostNetwork {
			k.labels += "/host" // policies do not select it
		}
		u := index[k]
		if u == nil {
			u = &group{namespace: e.Namespace, kind: k.kind, name: cmp.Or(by[1], e.Name), title: w.WorkloadOf(e)}
			index[k] = u
			g.list = append(g.list, u)
		}
		u.pods = append(u.pods, e)
		g.of[e] = u
	}
	for _, u := range g.list {
		if u.kind != "Pod" || len(u.pods) == 1 {
			continue
		}
		// Replicas that nobody owns are called by their best label.
		if keys := rankedKeys(steady(u.pods[0].Labels)); len(keys) > 0 {
			u.name = u.pods[0].Labels[keys[0]]
			u.title = u.namespace + "/" + keys[0] + "=" + u.name
		}
	}
	return g
}

// rankedKeys sorts label keys, those first that describe a workload best.
func rankedKeys(l map[string]string) []string {
	return slices.SortedFunc(maps.Keys(l), func(a, b string) int {
		return cmp.Or(labelRank(a)-labelRank(b), strings.Compare(a, b))
	})
}

// volatile are labels that controllers write anew for each pod or revision.
var volatile = map[string]bool{
	appsv1.DefaultDeploymentUniqueLabelKey: true, appsv1.ControllerRevisionHashLabelKey: true, appsv1.StatefulSetPodNameLabel: true,
	appsv1.PodIndexLabel: true, "pod-template-generation": true, batchv1.ControllerUidLabel: true, "controller-uid": true,
	batchv1.JobCompletionIndexAnnotation: true, batchv1.JobNameLabel: true, "job-name": true,
}

// steady returns the labels that outlive a pod.
func steady(l map[string]string) map[string]string {
	out := make(map[string]string, len(l))
	for k, v := range l {
		if !volatile[k] {
			out[k] = v
		}
	}
	return out
}

// labelRank orders label keys by how well they describe a workload.
func labelRank(key string) int {
	for i, k := range []string{
		"app.kubernetes.io/name", "app", "k8s-app", "app.kubernetes.io/component", "component", "app.kubernetes.io/instance", "name", "role", "tier",
	} {
		if key == k {
			return i
		}
	}
	switch key {
	case "app.kubernetes.io/version", "version", "helm.sh/chart", "chart", "heritage", "app.kubernetes.io/managed-by":
		return 100 // changes with a release, or says nothing
	}
	return 50
}

// maxLabels bounds the labels that combinations are tried of.
const maxLabels = 12

// reduce finds the group's selector: the fewest labels that match its pods and no
// other pod of the namespace, the best known labels first. Where no three labels do,
// it is one label and an expression that excludes the others, at last all labels, with
// such an expression if there is one.
func (g *groups) reduce(u *group) {
	if g.reduced[u] {
		return
	}
	g.reduced[u] = true
	u.common = steady(u.pods[0].Labels)
	own := make(map[*rule.Endpoint]bool, len(u.pods))
	for _, e := range u.pods {
		own[e] = true
		maps.DeleteFunc(u.common, func(k, v string) bool { got, ok := e.Labels[k]; return !ok || got != v })
	}
	keys := rankedKeys(u.common)
	tried := keys[:min(len(keys), maxLabels)]
	others := slices.DeleteFunc(slices.Clone(g.byNS[u.namespace]), func(e *rule.Endpoint) bool { return own[e] })
	exact := func(keys ...string) bool {
		return !slices.ContainsFunc(others, func(e *rule.Endpoint) bool { return hasAll(e.Labels, u.common, keys) })
	}
	chosen := func() []string {
		for _, a := range tried {
			if exact(a) {
				return []string{a}
			}
		}
		for i, a := range tried {
			for _, b := range tried[i+1:] {
				if exact(a, b) {
					return []string{a, b}
				}
			}
		}
		for i, a := range tried {
			for j, b := range tried[i+1:] {
				for _, c := range tried[i+j+2:] {
					if exact(a, b, c) {
						return []string{a, b, c}
					}
				}
			}
		}
		for _, a := range tried {
			if _, ok := excluding(u.pods, matching(others, u.common, a)); ok {
				return []string{a}
			}
		}
		return keys
	}()
	for _, k := range chosen {
		if u.selector.MatchLabels == nil {
			u.selector.MatchLabels = map[string]string{}
		}
		u.selector.MatchLabels[k] = u.common[k]
	}
	foreign := matching(others, u.common, chosen...)
	if len(foreign) > 0 {
		if x, ok := excluding(u.pods, foreign); ok {
			u.selector.MatchExpressions = []metav1.LabelSelectorRequirement{x}
			foreign = nil
		}
	}
	u.exact = len(foreign) == 0
	u.matched = append(slices.Clone(u.pods), foreign...)
	for _, e := range foreign {
		if t := g.of[e].title; !slices.Contains(u.others, t) {
			u.others = append(u.others, t)
		}
	}
}

// excluding finds one expression about a label that all of pods fulfil and none of
// the foreign ones.
func excluding(pods, foreign []*rule.Endpoint) (metav1.LabelSelectorRequirement, bool) {
	for _, k := range rankedKeys(steady(foreign[0].Labels)) {
		ours := map[string]bool{}
		for _, e := range pods {
			if v, ok := e.Labels[k]; ok {
				ours[v] = true
			}
		}
		values := map[string]bool{}
		for _, e := range foreign {
			v, ok := e.Labels[k]
			if !ok || ours[v] {
				values = nil
				break
			}
			values[v] = true
		}
		switch {
		case values == nil:
		case len(ours) == 0:
			return metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpDoesNotExist}, true
		default:
			return metav1.LabelSelectorRequirement{Key: k, Operator: metav1.LabelSelectorOpNotIn, Values: slices.Sorted(maps.Keys(values))}, true
		}
	}
	return metav1.LabelSelectorRequirement{}, false
}

// matching returns the pods that have the wanted values of all keys.
func matching(pods []*rule.Endpoint, want map[string]string, keys ...string) []*rule.Endpoint {
	return slices.DeleteFunc(slices.Clone(pods), func(e *rule.Endpoint) bool { return !hasAll(e.Labels, want, keys) })
}

func hasAll(l, want map[string]string, keys []string) bool {
	for _, k := range keys {
		if v, ok := l[k]; !ok || v != want[k] {
			return false
		}
	}
	return true
}

// selectorText is a selector as people write it.
func selectorText(s *metav1.LabelSelector) string {
	text := metav1.FormatLabelSelector(s)
	if text == "<none>" {
		return "{}"
	}
	return text
}

// note says what the selector matches beyond its workload.
func (u *group) note() string {
	if u.exact {
		return ""
	}
	return fmt.Sprintf("the labels of %s do not tell its pods from those of %s: the selector %s matches them, too",
		u.title, strings.Join(u.others, ", "), selectorText(&u.selector))
}
