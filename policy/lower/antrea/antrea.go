package antrea

import (
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
)

// Dialect lowers the policies of crd.antrea.io. The zero value is ready; it has
// no state.
type Dialect struct{}

// Name implements the dialect interface.
func (Dialect) Name() string { return "antrea" }

// current is the only version that is still served upstream.
const current = "v1beta1"

// Kinds lists every kind in every version it was served in, newest first: what
// the decoder's hints name.
func (Dialect) Kinds() []api.Kind {
	var out []api.Kind
	add := func(kind string, namespaced bool, make func() any, versions ...string) {
		for _, v := range versions {
			out = append(out, api.Kind{
				Group: antreaapi.APIGroup, Version: v, Kind: kind, Namespaced: namespaced, New: make, Hint: fieldHint,
			})
		}
	}
	add("Tier", false, func() any { return new(antreaapi.Tier) }, current, "v1alpha1")
	add("ClusterNetworkPolicy", false, func() any { return new(antreaapi.ClusterNetworkPolicy) }, current, "v1alpha1")
	add("NetworkPolicy", true, func() any { return new(antreaapi.NetworkPolicy) }, current, "v1alpha1")
	add("ClusterGroup", false, func() any { return new(antreaapi.ClusterGroup) }, current, "v1alpha3", "v1alpha2")
	add("Group", true, func() any { return new(antreaapi.Group) }, current, "v1alpha3")
	return out
}

// policySpec returns the spec of either policy kind, nil for other objects.
func policySpec(o *api.Object) *antreaapi.PolicySpec {
	switch v := o.Value.(type) {
	case *antreaapi.ClusterNetworkPolicy:
		return &v.Spec
	case *antreaapi.NetworkPolicy:
		return &v.Spec
	}
	return nil
}

// groupSpec returns the spec of either group kind, nil for other objects.
func groupSpec(o *api.Object) *antreaapi.GroupSpec {
	switch v := o.Value.(type) {
	case *antreaapi.ClusterGroup:
		return &v.Spec
	case *antreaapi.Group:
		return &v.Spec
	}
	return nil
}

// Lower translates objects that Validate accepts, and reports what only several
// objects together show: a tier or group that is missing, tiers of one priority,
// groups nested too deep, policies of equal priority that disagree.
func (Dialect) Lower(objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List) {
	var findings diag.List
	c := cluster{
		tiers:  tiersOf(objs, &findings),
		groups: groupsOf(objs, inv, &findings),
		inv:    inv,
	}
	var set rule.Set
	var owners []*api.Object // of each rule
	for _, o := range objs {
		s := policySpec(o)
		if s == nil {
			continue
		}
		l := lowering{Findings: &kube.Findings{Object: o}, cluster: &c}
		l.policy(s)
		findings.Add(l.List)
		for range l.set.Rules {
			owners = append(owners, o)
		}
		set.Add(l.set)
	}
	findings.Add(conflicts(&set, owners, inv))
	return set, findings
}

// cluster is what a policy is lowered against.
type cluster struct {
	tiers  tiers
	groups groups
	inv    *inventory.Snapshot
}
