package controller

import (
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// Refused is an object that is not in force as the source has it.
type Refused struct {
	// Object is what the source has, InForce the older version of it that is in
	// force instead; nil when nothing of the object is.
	Object, InForce *api.Object
	Errors          []diag.Diagnostic
}

func refOf(o *api.Object) classifier.PolicyRef {
	return classifier.PolicyRef{Group: o.Kind.Group, Kind: o.Kind.Kind, Namespace: o.Namespace, Name: o.Name}
}

// judged remembers what validation says about objects. Sources return the same
// pointer as long as an object is the same, so most are never looked at twice.
type judged struct {
	now, before map[*api.Object]diag.List
}

// next starts a round: what it does not ask about is forgotten after it.
func (j *judged) next() {
	j.before, j.now = j.now, make(map[*api.Object]diag.List, len(j.now))
}

func (j *judged) validate(o *api.Object) diag.List {
	if found, ok := j.now[o]; ok {
		return found
	}
	found, ok := j.before[o]
	if !ok {
		found = lower.Validate(o)
	}
	j.now[o] = found
	return found
}

// isolation builds rules from what can be understood.
type isolation struct {
	judged judged
	good   map[classifier.PolicyRef]*api.Object // in force
}

// built is the result: a set made of objects, without those refused. Errors in
// findings mean that there is no set.
type built struct {
	set      rule.Set
	objects  []*api.Object
	refused  []Refused
	findings diag.List
}

// build lowers objects. One with an error of its own is replaced by the version of
// it that is in force, or left out if none is; so is one that another object makes
// wrong, a policy whose tier is not there for instance. What several objects do
// wrong together is an error of all: nobody can say which of them is meant.
func (i *isolation) build(opts lower.Options, objs []*api.Object, snap *inventory.Snapshot) built {
	i.judged.next()
	opts.Validate = i.judged.validate
	b := built{objects: slices.Clone(objs)}
	for at, o := range objs {
		if found := i.judged.validate(o); len(found.Errors) > 0 {
			b.refuse(i, at, o, found.Errors)
		}
	}
	// Every round refuses at least one object, and going back to what is in force
	// is the only thing that may need another look; a chain is as long as objects
	// refer to each other, which is two for tiers and groups.
	for range 8 {
		use := slices.DeleteFunc(slices.Clone(b.objects), func(o *api.Object) bool { return o == nil })
		set, found := opts.Build(use, snap)
		if len(found.Errors) == 0 {
			b.set, b.objects, b.findings.Warnings = set, use, found.Warnings
			return b
		}
		if !b.blame(i, objs, found.Errors) {
			b.findings = found
			return b
		}
	}
	b.findings.Errors = []diag.Diagnostic{{Message: "refusing wrong objects does not come to an end"}}
	return b
}

// blame refuses the objects that errors are about. false: there is an error that
// is not about one object.
func (b *built) blame(i *isolation, objs []*api.Object, errs []diag.Diagnostic) bool {
	byRef := map[string][]diag.Diagnostic{}
	for _, e := range errs {
		if e.Together || e.Object == "" {
			return false
		}
		byRef[e.Object] = append(byRef[e.Object], e)
	}
	hit := 0
	for at, o := range b.objects {
		if o == nil {
			continue
		}
		es := byRef[o.Ref()]
		if es == nil {
			continue
		}
		hit++
		b.refuse(i, at, objs[at], es)
	}
	return hit > 0
}

// refuse puts the version in force in the place of an object, or nothing when
// there is none or that one has been tried.
func (b *built) refuse(i *isolation, at int, o *api.Object, errs []diag.Diagnostic) {
	r := Refused{Object: o, InForce: i.good[refOf(o)], Errors: errs}
	if r.InForce == b.objects[at] || r.InForce == o {
		r.InForce = nil
	}
	b.objects[at] = r.InForce
	for k := range b.refused {
		if b.refused[k].Object == o {
			b.refused[k].InForce = r.InForce
			return
		}
	}
	b.refused = append(b.refused, r)
}

// accept remembers what is in force now.
func (i *isolation) accept(objs []*api.Object) {
	i.good = make(map[classifier.PolicyRef]*api.Object, len(objs))
	for _, o := range objs {
		i.good[refOf(o)] = o
	}
}

// lastBuild is what was built last, and of what.
type lastBuild struct {
	objects []*api.Object
	view    *inventory.View
	built   built
	hosts   bool // lower.DependsOnHosts
	whole   bool // built.set is what objects mean; else steps have followed
}

// stands reports whether building anew would come to the same rules.
func (l *lastBuild) stands(objs []*api.Object, view *inventory.View) bool {
	if l.view == nil || !l.whole || len(l.built.findings.Errors) > 0 || !slices.Equal(l.objects, objs) {
		return false
	}
	if pods, ok := view.Since(l.view); ok {
		return !l.hosts || !slices.ContainsFunc(pods, changesHosts)
	}
	was, now := l.view.Whole(), view.Whole()
	return was != nil && now != nil && lower.Unaffected(l.built.objects, was, now)
}

// sameSet reports whether two sets are the same lists in memory.
func sameSet(a, b *rule.Set) bool {
	return len(a.Rules) == len(b.Rules) && len(a.Isolations) == len(b.Isolations) &&
		(len(a.Rules) == 0 || &a.Rules[0] == &b.Rules[0]) && (len(a.Isolations) == 0 || &a.Isolations[0] == &b.Isolations[0])
}
