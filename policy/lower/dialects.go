package lower

import (
	"errors"
	"fmt"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/foreign"
	"github.com/tierwall/tierwall/policy/internal/kube"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower/adminnetworkpolicy"
	"github.com/tierwall/tierwall/policy/lower/antrea"
	"github.com/tierwall/tierwall/policy/lower/cilium"
	"github.com/tierwall/tierwall/policy/lower/clusternetworkpolicy"
	"github.com/tierwall/tierwall/policy/lower/kepclusternetworkpolicy"
	"github.com/tierwall/tierwall/policy/lower/networkpolicy"
)

// All returns every policy language this version enforces, strongest band first.
// The order has no influence on verdicts: bands do that.
func All() []Dialect {
	return []Dialect{
		antrea.Dialect{},
		adminnetworkpolicy.Dialect{},
		clusternetworkpolicy.Dialect{},
		kepclusternetworkpolicy.Dialect{},
		cilium.Dialect{},
		networkpolicy.Dialect{},
	}
}

// Kinds returns the API kinds of all dialects: what a decoder must know.
func Kinds() []api.Kind {
	var out []api.Kind
	for _, d := range All() {
		out = append(out, d.Kinds()...)
	}
	return out
}

// Options tune Build. The zero value is the default.
type Options struct {
	// AllowMixedDialects accepts the KEP's AdminNetworkPolicies together with
	// released ones, which count priority the other way round, with a warning
	// . The order they then have is that of package upstream: a KEP policy
	// of priority p ranks like a released one of 1001 − p.
	AllowMixedDialects bool
	// NamespacedTiers are the tiers that Antrea's NetworkPolicies, which are
	// namespaced, may be in; none means all of them, as in Antrea.
	NamespacedTiers []string
	// Validate stands in for the function [Validate], for callers that remember
	// what it said: it is asked about every object in every call. nil means that
	// function.
	Validate func(*api.Object) diag.List
}

// Build is [Options.Build] with the default options.
func Build(objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List) {
	return Options{}.Build(objs, inv)
}

// Build turns objects into rules: it validates each object, lowers all of them
// and sorts the result, so that the order of objs does not matter.
//
// With an error among the findings the set is empty: no half of a policy is ever
// in force. Warnings leave it usable. Objects of a kind no dialect has are errors.
// Findings are sorted; objs and inv are not modified.
func (opts Options) Build(objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List) {
	return opts.build(All(), objs, inv)
}

func (opts Options) build(dialects []Dialect, objs []*api.Object, inv *inventory.Snapshot) (rule.Set, diag.List) {
	owner := ownersOf(dialects)
	var findings diag.List
	valid := make([][]*api.Object, len(dialects))
	for _, o := range objs {
		var found diag.List
		if opts.Validate != nil {
			found = opts.Validate(o)
		} else {
			found = validate(dialects, owner, o)
		}
		findings.Add(found)
		if len(found.Errors) == 0 {
			i := owner[gvkOf(o)]
			valid[i] = append(valid[i], o)
		}
	}
	// Valid objects are lowered even if others are not, for their findings.
	var set rule.Set
	for i, d := range dialects {
		lowered, found := d.Lower(valid[i], inv)
		set.Add(lowered)
		findings.Add(found)
	}
	findings.Add(opts.across(dialects, valid, inv))
	set.Sort()
	if err := set.Validate(); err != nil {
		for _, e := range unwrap(err) {
			findings.Errors = append(findings.Errors, diag.Diagnostic{
				Message: e.Error(), Hint: kube.InternalHint,
			})
		}
	}
	findings.Sort()
	if len(findings.Errors) > 0 {
		return rule.Set{}, findings
	}
	return set, findings
}

// owners tells which of All has a kind.
var owners = ownersOf(All())

// Validate checks one object alone, as admission does: that this version enforces
// its kind, that it could be decoded, and what its dialect asks for.
func Validate(o *api.Object) diag.List { return validate(All(), owners, o) }

func validate(dialects []Dialect, owner map[gvk]int, o *api.Object) diag.List {
	i, ok := owner[gvkOf(o)]
	switch {
	case len(o.Problems) > 0:
		return diag.List{Errors: o.Problems}
	case !ok:
		return diag.List{Errors: []diag.Diagnostic{
			o.Finding("", fmt.Sprintf("this version does not enforce %s", o.Kind.GVK()), foreign.NoEquivalent),
		}}
	}
	return dialects[i].Validate(o)
}

type gvk struct{ group, version, kind string }

func gvkOf(o *api.Object) gvk { return gvk{o.Kind.Group, o.Kind.Version, o.Kind.Kind} }

// ownersOf tells by kind which of the dialects has it.
func ownersOf(dialects []Dialect) map[gvk]int {
	owner := map[gvk]int{}
	for i, d := range dialects {
		for _, k := range d.Kinds() {
			owner[gvk{k.Group, k.Version, k.Kind}] = i
		}
	}
	return owner
}

func unwrap(err error) []error {
	var joined interface{ Unwrap() []error }
	if errors.As(err, &joined) {
		return joined.Unwrap()
	}
	return []error{err}
}
