package assess

import (
	"maps"
	"reflect"
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
// for instance. Objects that cause an error together are all taken back to
// older, that is what was in force before. older is nil where nothing has been
// in force yet: then such an error stays among the findings, because to choose a side
// is not Run's. Nothing given is modified.
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

// blame refuses every object in use that has an error of its own. If there is none,
// it takes the objects of errors that several cause together back to what was in force
// before. It reports whether it changed anything: if not, the errors are nobody's.
func (r *run) blame(errs []diag.Diagnostic) bool {
	own, among := map[api.Ref][]diag.Diagnostic{}, map[api.Ref][]diag.Diagnostic{}
	for _, e := range errs {
		if len(e.Among) == 0 {
			own[e.Object] = append(own[e.Object], e)
		}
		for _, ref := range e.Among {
			among[ref] = append(among[ref], e)
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
	if some || r.older == nil {
		return some
	}
	for at, o := range r.use {
		if o == nil {
			continue
		}
		if es := among[o.Ref()]; es != nil && !sameMeaning(o, r.older[o.Ref()]) {
			r.refuse(at, es)
			some = true
		}
	}
	return some
}

// sameMeaning reports whether two versions of an object differ at most in what no
// policy depends on, its status for instance. old may be nil.
func sameMeaning(o, old *api.Object) bool {
	return o == old || old != nil && o.Kind.Version == old.Kind.Version && o.Kind.Dialect == old.Kind.Dialect &&
		maps.Equal(o.Annotations, old.Annotations) && reflect.DeepEqual(o.Value, old.Value) && reflect.DeepEqual(o.Raw["spec"], old.Raw["spec"])
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
