package lower

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	antreaapi "github.com/tierwall/tierwall/policy/api/antrea"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/adminnetworkpolicy"
	"github.com/tierwall/tierwall/policy/lower/antrea"
	"github.com/tierwall/tierwall/policy/lower/internal/upstream"
	"github.com/tierwall/tierwall/policy/lower/kepclusternetworkpolicy"
)

// ranker is a dialect whose policies share the upstream bands with those of
// others and have a priority there.
type ranker interface {
	Ranked(objs []*api.Object) []upstream.Ranked
}

// across reports what only objects of several dialects together can show.
// valid has the objects that passed validation, by dialect. Others do not count:
// a policy without a subject, say, has no field that tells its dialect.
func (opts Options) across(dialects []Dialect, valid [][]*api.Object, inv *inventory.Snapshot) diag.List {
	all := slices.Concat(valid...)
	found := opts.mixed(all)
	var ranked []upstream.Ranked
	for i, d := range dialects {
		if r, ok := d.(ranker); ok {
			ranked = append(ranked, r.Ranked(valid[i])...)
		}
	}
	found.Add(upstream.Conflicts(ranked, inv))
	found.Add(opts.tiers(all, ranked))
	return found
}

// tiers checks which tiers namespaced policies of Antrea are in, against the
// options and against the admin policies of other dialects.
func (opts Options) tiers(objs []*api.Object, ranked []upstream.Ranked) diag.List {
	var tiered, admins []*api.Object
	for _, o := range objs {
		switch {
		case o.Kind.Group == antreaapi.APIGroup:
			tiered = append(tiered, o)
		case o.Kind.Group == kepclusternetworkpolicy.Group && o.Kind.Kind == "ClusterNetworkPolicy":
			admins = append(admins, o)
		}
	}
	for i := range ranked {
		if ranked[i].Band == rule.BandAdmin {
			admins = append(admins, ranked[i].Object)
		}
	}
	var admin *api.Object
	if len(admins) > 0 {
		admin = first(admins)
	}
	return antrea.NamespacedTiers(tiered, opts.NamespacedTiers, admin)
}

// mixed reports KEP AdminNetworkPolicies together with policies that count
// priority the other way round: released ones, which could be mistaken for
// them, are refused; a ClusterNetworkPolicy v1alpha2 only gets a warning. There is
// one finding, about the first of the KEP's.
func (opts Options) mixed(objs []*api.Object) diag.List {
	var kep, released, clusterwide []*api.Object
	for _, o := range objs {
		switch {
		case o.Kind.Group != adminnetworkpolicy.Group:
		case adminnetworkpolicy.DialectOf(o) == adminnetworkpolicy.KEP:
			kep = append(kep, o)
		case o.Kind.Version == adminnetworkpolicy.Version:
			released = append(released, o)
		default:
			clusterwide = append(clusterwide, o)
		}
	}
	var l diag.List
	if len(kep) == 0 {
		return l
	}
	report := func(to *[]diag.Diagnostic, others []*api.Object, hint string) {
		k, o := first(kep), first(others)
		what := o.Ref().String()
		if d := adminnetworkpolicy.DialectOf(o); d != "" {
			what += " (" + d + ")"
		}
		if o.File != "" {
			what += " in " + o.File
		}
		finding := k.Finding("spec.priority", fmt.Sprintf(
			"this AdminNetworkPolicy is of the KEP, where the larger priority is the stronger one; %s is of an API where the smaller one is", what), hint)
		finding.Code, finding.Among = diag.MixedDialects, refs(kep, others)
		*to = append(*to, finding)
	}
	switch {
	case len(released) > 0 && !opts.AllowMixedDialects:
		report(&l.Errors, released, "write all of them in one dialect; allowMixedDialects accepts both and ranks a KEP priority p like 1001-p")
	case len(released) > 0:
		report(&l.Warnings, released, "a KEP priority p ranks like 1001-p of the others")
	case len(clusterwide) > 0:
		report(&l.Warnings, clusterwide, "a KEP priority p ranks like 1001-p of the others")
	}
	return l
}

// refs returns the identities of the objects of both lists, in order.
func refs(a, b []*api.Object) []api.Ref {
	out := make([]api.Ref, 0, len(a)+len(b))
	for _, o := range slices.Concat(a, b) {
		out = append(out, o.Ref())
	}
	slices.SortFunc(out, api.Ref.Compare)
	return out
}

// first returns the object that comes first by kind and name, whatever the order
// of objs.
func first(objs []*api.Object) *api.Object {
	return slices.MinFunc(objs, func(a, b *api.Object) int {
		return cmp.Or(a.Ref().Compare(b.Ref()), strings.Compare(a.File, b.File))
	})
}
