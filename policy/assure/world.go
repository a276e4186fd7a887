package assure

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/inventory"
)

// World is one state with its table: what questions are asked of. It is read only
// and may be shared.
type World struct {
	Snapshot *inventory.Snapshot
	Table    *classifier.Table

	pods       []rule.Endpoint // those with an address
	workloads  map[workloadKey][]*rule.Endpoint
	names      map[workloadKey]string
	namespaces map[string]map[string]string // labels by name
	ofPod      map[podKey]workloadKey
}

// NewWorld indexes a snapshot. t was compiled for it with every pod local.
func NewWorld(snap *inventory.Snapshot, t *classifier.Table) *World {
	w := &World{Snapshot: snap, Table: t, pods: t.World().Endpoints, namespaces: map[string]map[string]string{}, ofPod: map[podKey]workloadKey{}}
	w.workloads = workloadsOf(snap, w.pods)
	w.names = workloadNames(w.workloads)
	for i := range snap.Namespaces {
		w.namespaces[snap.Namespaces[i].Name] = snap.Namespaces[i].Labels
	}
	for k, pods := range w.workloads {
		for _, e := range pods {
			w.ofPod[keyOf(e)] = k
		}
	}
	return w
}

// Open compiles a state and indexes it.
func Open(s State) (*World, error) {
	world := s.Snapshot.World("")
	s.Snapshot.FillSets(world, &s.Set)
	t, _, err := classifier.Compile(s.Set, world, classifier.Options{})
	if err != nil {
		return nil, err
	}
	return NewWorld(s.Snapshot, t), nil
}

// WorkloadOf names the workload of a pod as answers do; the pod itself where
// nothing made it.
func (w *World) WorkloadOf(e *rule.Endpoint) string { return w.names[w.ofPod[keyOf(e)]] }

// Workloads lists the names of all workloads with a pod that has an address, in
// order.
func (w *World) Workloads() []string { return slices.Sorted(maps.Values(w.names)) }

// Pods returns the pods that have an address, by namespace and name. Read only.
func (w *World) Pods() []*rule.Endpoint {
	out := make([]*rule.Endpoint, len(w.pods))
	for i := range w.pods {
		out[i] = &w.pods[i]
	}
	slices.SortFunc(out, comparePods)
	return out
}

func comparePods(a, b *rule.Endpoint) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
}

// PodName is how answers name a pod.
func PodName(e *rule.Endpoint) string { return e.Namespace + "/" + e.Name }
