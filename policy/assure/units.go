package assure

import (
	"cmp"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// State is one side of a comparison: a policy and the cluster it is about. Both
// are kept and must not change afterwards.
type State struct {
	Snapshot *inventory.Snapshot
	Set      rule.Set

	world *rule.World
}

// unit is an end that answers name: a pod, a workload, a node, or outside
// addresses.
type unit struct {
	name  string
	slots []slot
}

// slot is a pod of a unit as it is on both sides: what is compared with what.
type slot struct{ old, now *rule.Endpoint }

// podKey names a pod.
type podKey struct{ namespace, name string }

func keyOf(e *rule.Endpoint) podKey { return podKey{e.Namespace, e.Name} }

// pairPods makes a unit for every pod that both worlds have, and lists the names
// of the others.
func pairPods(old, now []rule.Endpoint) (units []unit, added, removed []string) {
	before := make(map[podKey]*rule.Endpoint, len(old))
	for i := range old {
		before[keyOf(&old[i])] = &old[i]
	}
	for i := range now {
		e := &now[i]
		name := e.Namespace + "/" + e.Name
		was, ok := before[keyOf(e)]
		if !ok {
			added = append(added, name)
			continue
		}
		delete(before, keyOf(e))
		units = append(units, unit{name, []slot{{was, e}}})
	}
	for k := range before {
		removed = append(removed, k.namespace+"/"+k.name)
	}
	slices.Sort(added)
	slices.Sort(removed)
	sortUnits(units)
	return units, added, removed
}

func sortUnits(units []unit) {
	slices.SortFunc(units, func(a, b unit) int { return strings.Compare(a.name, b.name) })
}

// workloadKey names a workload.
type workloadKey struct{ namespace, kind, name string }

// workloadsOf groups the pods of a world by what made them. A pod the snapshot
// does not have is its own workload.
func workloadsOf(snap *inventory.Snapshot, pods []rule.Endpoint) map[workloadKey][]*rule.Endpoint {
	made := make(map[podKey]inventory.Workload, len(snap.Pods))
	for i := range snap.Pods {
		p := &snap.Pods[i]
		made[podKey{p.Namespace, p.Name}] = p.Workload
	}
	out := map[workloadKey][]*rule.Endpoint{}
	for i := range pods {
		e := &pods[i]
		w := made[keyOf(e)]
		k := workloadKey{e.Namespace, cmp.Or(w.Kind, "Pod"), cmp.Or(w.Name, e.Name)}
		out[k] = append(out[k], e)
	}
	for _, list := range out {
		slices.SortFunc(list, func(a, b *rule.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	}
	return out
}

// pairWorkloads makes a unit for every workload that both worlds have. Pods are
// paired by name; what is left, such as new replicas, is compared in order with
// what is left on the other side, or with the workload's first pod there.
func pairWorkloads(old, now map[workloadKey][]*rule.Endpoint) (units []unit, added, removed []string) {
	names := workloadNames(old, now)
	for k, pods := range now {
		was := old[k]
		if len(was) == 0 {
			added = append(added, names[k])
			continue
		}
		u := unit{name: names[k]}
		before := make(map[string]*rule.Endpoint, len(was))
		for _, e := range was {
			before[e.Name] = e
		}
		var rest []*rule.Endpoint
		for _, e := range pods {
			if w := before[e.Name]; w != nil {
				u.slots = append(u.slots, slot{w, e})
				delete(before, e.Name)
			} else {
				rest = append(rest, e)
			}
		}
		i := 0
		for _, w := range was {
			if before[w.Name] == nil {
				continue
			}
			if i < len(rest) {
				u.slots = append(u.slots, slot{w, rest[i]})
			} else {
				u.slots = append(u.slots, slot{w, pods[0]})
			}
			i++
		}
		for ; i < len(rest); i++ {
			u.slots = append(u.slots, slot{was[0], rest[i]})
		}
		units = append(units, u)
	}
	for k := range old {
		if len(now[k]) == 0 {
			removed = append(removed, names[k])
		}
	}
	slices.Sort(added)
	slices.Sort(removed)
	sortUnits(units)
	return units, added, removed
}

// workloadNames calls a workload NAMESPACE/NAME, or where several kinds have the
// name, KIND/NAMESPACE/NAME with kubectl's short word for the kind.
func workloadNames(worlds ...map[workloadKey][]*rule.Endpoint) map[workloadKey]string {
	kinds := map[podKey]string{}
	names := map[workloadKey]string{}
	ambiguous := map[podKey]bool{}
	for _, w := range worlds {
		for k := range w {
			short := podKey{k.namespace, k.name}
			if kind, ok := kinds[short]; ok && kind != k.kind {
				ambiguous[short] = true
			}
			kinds[short] = k.kind
		}
	}
	for _, w := range worlds {
		for k := range w {
			names[k] = k.namespace + "/" + k.name
			if ambiguous[podKey{k.namespace, k.name}] {
				names[k] = ShortKind(k.kind) + "/" + names[k]
			}
		}
	}
	return names
}

// shortKinds are kubectl's short words for kinds.
var shortKinds = map[string]string{
	"Deployment": "deploy", "StatefulSet": "sts", "DaemonSet": "ds", "ReplicaSet": "rs", "Job": "job", "CronJob": "cj",
	"ReplicationController": "rc", "Pod": "pod", "PodTemplate": "podtemplate",
}

// ShortKind returns kubectl's short word for a kind of workload.
func ShortKind(kind string) string {
	if s, ok := shortKinds[kind]; ok {
		return s
	}
	return strings.ToLower(kind)
}
