package upstream

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

// Ranked is a policy as far as a conflict is about it.
type Ranked struct {
	Object   *api.Object
	Band     rule.Band
	Rank     float64
	Priority int32 // as written
	Subject  rule.Selector
}

// Conflicts warns about policies of equal rank that select a common pod of the
// inventory (S0-21, S0-22, S0-68), whatever their kinds. The APIs leave their order
// open; here the name decides. Each policy gets one warning, naming the
// ones before it. policies is sorted in place.
func Conflicts(policies []Ranked, inv *inventory.Snapshot) diag.List {
	slices.SortFunc(policies, func(a, b Ranked) int {
		return cmp.Or(compareRank(&a, &b), strings.Compare(a.Object.Name, b.Object.Name),
			strings.Compare(a.Object.Kind.GVK(), b.Object.Kind.GVK()))
	})
	var findings diag.List
	var pods []rule.Endpoint
	for len(policies) > 0 {
		n := 1
		for n < len(policies) && compareRank(&policies[n], &policies[0]) == 0 {
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

func compareRank(a, b *Ranked) int {
	return cmp.Or(cmp.Compare(a.Band, b.Band), cmp.Compare(a.Rank, b.Rank))
}

// conflictsIn compares policies of one rank, sorted by name.
func conflictsIn(group []Ranked, pods []rule.Endpoint, findings *diag.List) {
	type pair struct{ earlier, later int }
	common := map[pair]string{} // → a pod both select
	for i := range pods {
		var selecting []int
		for j := range group {
			if group[j].Subject.Matches(&pods[i]) {
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
		l := &group[later]
		relation := "is also that of"
		var others []string
		for earlier := range later {
			pod, ok := common[pair{earlier, later}]
			if !ok {
				continue
			}
			e := &group[earlier]
			name := e.Object.Name
			if e.Object.Kind.GVK() != l.Object.Kind.GVK() {
				name = e.Object.Kind.Kind + " " + name
			}
			said := ""
			if e.Priority != l.Priority { // a KEP policy and one of another API
				relation = "ranks with"
				said = fmt.Sprintf("priority %d; ", e.Priority)
			}
			others = append(others, fmt.Sprintf("%s (%sboth select pod %s)", name, said, pod))
		}
		if len(others) == 0 {
			continue
		}
		const most = 5
		text := strings.Join(others[:min(len(others), most)], ", ")
		if len(others) > most {
			text += fmt.Sprintf(" and %d more", len(others)-most)
		}
		finding := l.Object.Finding("spec.priority",
			fmt.Sprintf("priority %d %s %s: equal priorities are evaluated in the order of the policies' names",
				l.Priority, relation, text),
			"give each its own priority")
		finding.Code = diag.PriorityConflict
		findings.Warnings = append(findings.Warnings, finding)
	}
}
