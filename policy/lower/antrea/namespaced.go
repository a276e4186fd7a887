package antrea

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
)

// NamespacedTiers checks the tiers of namespaced policies. Whoever may write
// NetworkPolicies of crd.antrea.io in one namespace may name any tier in them, and
// the tiers before band admin are evaluated before the cluster's admin policies.
//
// With allowed, a policy of another tier is an error: its namespace has nothing to
// say there. Without, as in Antrea, a policy that comes before admin, one of the
// cluster's admin policies, gets a warning; admin is nil when there is none.
func NamespacedTiers(objs []*api.Object, allowed []string, admin *api.Object) diag.List {
	var out, ignored diag.List
	all := tiersOf(objs, &ignored) // Lower reports what is wrong with the tiers
	for _, o := range objs {
		p, ok := o.Value.(*antreaapi.NetworkPolicy)
		if !ok {
			continue
		}
		name := all.canonical(p.Spec.Tier)
		priority, exists := all[name]
		f := kube.Findings{Object: o}
		switch {
		case !exists: // Lower reports it
		case len(allowed) > 0 && !slices.ContainsFunc(allowed, func(a string) bool { return all.canonical(a) == name }):
			f.Error("spec.tier", fmt.Sprintf("policies of a namespace may not use tier %q here", name),
				"use "+strings.Join(allowed, " or ")+"; antrea.namespacedTiers of the configuration has the tiers that are allowed")
		case len(allowed) == 0 && admin != nil && Band(priority) == rule.BandAntreaUpper:
			f.Warn("spec.tier", fmt.Sprintf("tier %q comes before %s: this namespace overrides the cluster's admin policies", name, admin.Ref()),
				"use a tier of priority 221 or more, or restrict antrea.namespacedTiers in the configuration")
		}
		out.Add(f.List)
	}
	return out
}

// canonical returns the name of the tier that a policy with this spec.tier is in.
func (t tiers) canonical(name string) string {
	name = cmp.Or(name, DefaultTier)
	if _, exists := t[name]; exists {
		return name
	}
	if static, ok := staticTier(name); ok {
		return static
	}
	return name
}
