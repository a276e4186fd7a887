package assess

import (
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// Refused is an object that is not in force as it is written.
type Refused struct {
	// Object is what is written, InForce the older version of it that Run uses
	// instead; nil when nothing of the object is in force.
	Object, InForce *api.Object
	// Errors are never empty. Warnings are those of the object's validation.
	Errors, Warnings []diag.Diagnostic
}

// Result is what Run found out.
type Result struct {
	// Objects are what Set was lowered from: those without errors, and older
	// versions of others. Both are of no use if Findings has errors.
	Objects []*api.Object
	Set     rule.Set
	// Refused are in the order of the objects given to Run.
	Refused []Refused
	// Findings are warnings about Objects, and errors that no single object is to
	// blame for. With such errors Set is empty.
	Findings diag.List
}

// Run validates and lowers objects in a world. An object with an error is replaced
// by its version in older, or left out if there is none or that one does not do
// either; so is one that another object makes wrong, a policy whose tier is refused
// for instance. older may be nil. Nothing given is modified.
//
// It costs one lowering of all objects, and another one for every link of a chain of
// objects that make each other wrong.
func Run(opts lower.Options, objs []*api.Object, inv *inventory.Snapshot, older map[api.Ref]*api.Object) Result {
	if opts.Validate == nil {
		opts.Validate = remember(lower.Validate)
	}
	r := run{given: objs, use: slices.Clone(objs), older: older, refused: make([]*Refused, len(objs))}
	for at, o := range objs {
		if found := opts.Validate(o); len(found.Errors) > 0 {
			r.refuse(at, found.Errors)
			r.refused[at].Warnings = found.Warnings
		}
	}
	for {
		result := r.result()
		result.Set, result.Findings = opts.Build(result.Objects, inv)
		if len(result.Findings.Errors) == 0 || !r.blame(result.Findings.Errors) {
			return result
		}
	}
}

// remember returns check, which then looks at every object once.
func remember(check func(*api.Object) diag.List) func(*api.Object) diag.List {
	known := map[*api.Object]diag.List{}
	return func(o *api.Object) diag.List {
		found, ok := known[o]
		if !ok {
			found = check(o)
			known[o] = found
		}
		return found
	}
}

// run is one call of Run. Lists are parallel to given.
type run struct {
	given   []*api.Object
	use     []*api.Object // given, an older version, or nil
	refused []*Refused    // nil where use is given
	older   map[api.Ref]*api.Object
}

// blame refuses every object in use that has an error of its own, and reports
// whether there was one. Errors of several objects together, and errors about no
// object, come up again in the next round unless the refused objects caused them.
func (r *run) blame(errs []diag.Diagnostic) bool {
	own := map[api.Ref][]diag.Diagnostic{}
	for _, e := range errs {
		if !e.Together {
			own[e.Object] = append(own[e.Object], e)
		}
	}
	some := false
	for at, o := range r.use {
		if o == nil {
			continue
		}
		if es := own[o.Ref()]; es != nil {
			r.refuse(at, es)
			some = true
		}
	}
	return some
}

// refuse puts the older version in the place of an object, or nothing when there is
// none or that one has been tried. An object keeps the errors it was first refused
// for.
func (r *run) refuse(at int, errs []diag.Diagnostic) {
	given := r.given[at]
	older := r.older[given.Ref()]
	if older == given || older == r.use[at] {
		older = nil
	}
	r.use[at] = older
	if r.refused[at] == nil {
		r.refused[at] = &Refused{Object: given, Errors: errs}
	}
	r.refused[at].InForce = older
}

// result returns the objects in use and the refused ones.
func (r *run) result() Result {
	out := Result{Objects: make([]*api.Object, 0, len(r.use))}
	for at, o := range r.use {
		if o != nil {
			out.Objects = append(out.Objects, o)
		}
		if f := r.refused[at]; f != nil {
			out.Refused = append(out.Refused, *f)
		}
	}
	return out
}

// ByObject returns all findings by the object they are about. Those about none are
// under the zero Ref.
func (r *Result) ByObject() map[api.Ref]diag.List {
	out := map[api.Ref]diag.List{}
	add := func(l diag.List) {
		for _, d := range l.Errors {
			of := out[d.Object]
			of.Errors = append(of.Errors, d)
			out[d.Object] = of
		}
		for _, d := range l.Warnings {
			of := out[d.Object]
			of.Warnings = append(of.Warnings, d)
			out[d.Object] = of
		}
	}
	for i := range r.Refused {
		add(diag.List{Errors: r.Refused[i].Errors, Warnings: r.Refused[i].Warnings})
	}
	add(r.Findings)
	return out
}
