package adminnetworkpolicy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// ranked is what a conflict is about.
type ranked struct {
	object   *api.Object
	priority int32
	subject  rule.Selector
}

// conflicts warns about policies of equal priority that select a common pod of
// the inventory (S0-21, S0-22, S0-68). The KEP leaves their order open; here the
// name decides. Each policy gets one warning, naming the ones before it.
func conflicts(policies []ranked, inv *inventory.Snapshot) diag.List {
	slices.SortFunc(policies, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.priority, b.priority), strings.Compare(a.object.Name, b.object.Name))
	})
	var findings diag.List
	var pods []rule.Endpoint
	for len(policies) > 0 {
		n := 1
		for n < len(policies) && policies[n].priority == policies[0].priority {
			n++
		}
		group := policies[:n]
		policies = policies[n:]
		if n < 2 {
			continue
		}
		if pods == nil {
			pods = kube.Endpoints(inv)
		}
		conflictsIn(group, pods, &findings)
	}
	return findings
}

// conflictsIn compares policies of one priority, sorted by name.
func conflictsIn(group []ranked, pods []rule.Endpoint, findings *diag.List) {
	type pair struct{ earlier, later int }
	common := map[pair]string{} // → a pod both select
	for i := range pods {
		var selecting []int
		for j := range group {
			if group[j].subject.Matches(&pods[i]) {
				selecting = append(selecting, j)
			}
		}
		for k, later := range selecting {
			for _, earlier := range selecting[:k] {
				if _, ok := common[pair{earlier, later}]; !ok {
					common[pair{earlier, later}] = pods[i].Namespace + "/" + pods[i].Name
				}
			}
		}
	}
	for later := range group {
		var others []string
		for earlier := range later {
			if pod, ok := common[pair{earlier, later}]; ok {
				others = append(others, fmt.Sprintf("%s (both select pod %s)", group[earlier].object.Name, pod))
			}
		}
		if len(others) == 0 {
			continue
		}
		const most = 5
		text := strings.Join(others[:min(len(others), most)], ", ")
		if len(others) > most {
			text += fmt.Sprintf(" and %d more", len(others)-most)
		}
		o := group[later].object
		findings.Warnings = append(findings.Warnings, o.Finding("spec.priority",
			fmt.Sprintf("priority %d is also that of %s: equal priorities are evaluated in the order of the policies' names",
				group[later].priority, text),
			"give each its own priority"))
	}
}
