package status

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tierwall/tierwall/policy/api/antrea"
)

const antreaGroup = antrea.APIGroup

// HasStatus reports whether objects of a resource have a status to write to. The
// NetworkPolicy of Kubernetes has none, nor has a Tier.
func HasStatus(group, resource string) bool {
	return group != "networking.k8s.io" && (group != antreaGroup || resource != "tiers")
}

// phases of Antrea's policies.
const (
	phaseRealizing = "Realizing"
	phaseRealized  = "Realized"
	phaseFailed    = "Failed"
)

// plan is a status that is to be written.
type plan struct {
	diff  difference
	patch []byte // JSON merge patch of the object
	state map[string]any
}

// Status returns what the status of an object should be, as a merge patch that
// only applies to the version at hand; diff is same when it is that already.
func status(o *Object, v *Verdict, c Count, silent []string, now time.Time) (plan, error) {
	stored, _, _ := unstructured.NestedSlice(o.Stored.Object, "status", "conditions")
	list, diff := merge(stored, conditions(o, v, c, silent), now)
	state := map[string]any{"conditions": list}
	if o.Resource.Group == antreaGroup && !isGroup(o) {
		phase := phaseRealizing
		switch {
		case len(v.Errors) > 0 || v.Mixed || c.Refused > 0:
			phase = phaseFailed
		case c.Desired > 0 && c.Enforced == c.Desired:
			phase = phaseRealized
		}
		state["phase"] = phase
		state["observedGeneration"] = o.Stored.GetGeneration()
		state["currentNodesRealized"] = int64(c.Enforced)
		state["desiredNodesRealized"] = int64(c.Desired)
		old, _, _ := unstructured.NestedMap(o.Stored.Object, "status")
		for _, k := range []string{"phase", "observedGeneration"} {
			if old[k] != state[k] {
				diff = news
			}
		}
		for _, k := range []string{"currentNodesRealized", "desiredNodesRealized"} {
			if old[k] != state[k] {
				diff = max(diff, wording)
			}
		}
	}
	if diff == same {
		return plan{}, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": o.Stored.GetResourceVersion(), "uid": string(o.Stored.GetUID())},
		"status":   state,
	})
	if err != nil {
		return plan{}, fmt.Errorf("status of %s %s: %w", o.Resource.GroupResource(), o.Stored.GetName(), err)
	}
	return plan{diff, patch, state}, nil
}

// words is a status without its times, to compare what was written with what is
// wanted where an API server keeps only a part.
func (p *plan) words() string {
	state := map[string]any{}
	for k, v := range p.state {
		state[k] = v
	}
	list, _ := state["conditions"].([]any)
	list = slices.Clone(list)
	for i, item := range list {
		if m, ok := item.(map[string]any); ok {
			c := map[string]any{}
			for k, v := range m {
				if k != "lastTransitionTime" {
					c[k] = v
				}
			}
			list[i] = c
		}
	}
	state["conditions"] = list
	b, err := json.Marshal(state)
	if err != nil {
		return ""
	}
	return string(b)
}
