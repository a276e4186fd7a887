package controller

import (
	"slices"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

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

// isolation keeps errors to the objects they are about.
type isolation struct {
	judged judged
	good   map[api.Ref]*api.Object // in force
}

// build lowers what can be understood; the versions in force stand in for the rest.
func (i *isolation) build(opts lower.Options, objs []*api.Object, snap *inventory.Snapshot) assess.Result {
	i.judged.next()
	opts.Validate = i.judged.validate
	return assess.Run(opts, objs, snap, i.good)
}

// accept remembers what is in force now.
func (i *isolation) accept(objs []*api.Object) {
	i.good = make(map[api.Ref]*api.Object, len(objs))
	for _, o := range objs {
		i.good[o.Ref()] = o
	}
}

// lastBuild is what was built last, and of what.
type lastBuild struct {
	objects []*api.Object
	view    *inventory.View
	built   assess.Result
	hosts   bool // lower.DependsOnHosts
	whole   bool // built.Set is what objects mean; else steps have followed
}

// stands reports whether building anew would come to the same rules.
func (l *lastBuild) stands(objs []*api.Object, view *inventory.View) bool {
	if l.view == nil || !l.whole || len(l.built.Findings.Errors) > 0 || !slices.Equal(l.objects, objs) {
		return false
	}
	if pods, ok := view.Since(l.view); ok {
		return !l.hosts || !slices.ContainsFunc(pods, changesHosts)
	}
	was, now := l.view.Whole(), view.Whole()
	return was != nil && now != nil && lower.Unaffected(l.built.Objects, was, now)
}

// sameSet reports whether two sets are the same lists in memory.
func sameSet(a, b *rule.Set) bool {
	return len(a.Rules) == len(b.Rules) && len(a.Isolations) == len(b.Isolations) &&
		(len(a.Rules) == 0 || &a.Rules[0] == &b.Rules[0]) && (len(a.Isolations) == 0 || &a.Isolations[0] == &b.Isolations[0])
}
