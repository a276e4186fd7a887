package status

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assess"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/lower/adminnetworkpolicy"
)

// Object is a policy object as the API server has it. Read only.
type Object struct {
	Resource schema.GroupVersionResource
	Stored   *unstructured.Unstructured
}

func (o *Object) ref() api.Ref {
	return api.Ref{
		Group: o.Resource.Group, Kind: o.Stored.GetKind(),
		Namespace: o.Stored.GetNamespace(), Name: o.Stored.GetName(),
	}
}

// Verdict is what an object is worth by itself and among the others, whatever
// nodes do. Findings name field paths; lists are empty where there is nothing to
// say.
type Verdict struct {
	// Errors keep this version of the object from being enforced.
	Errors []diag.Diagnostic
	// Warnings are what only several objects together show, and what validation
	// wonders about.
	Warnings []diag.Diagnostic
	// Dialect is that of an AdminNetworkPolicy or BaselineAdminNetworkPolicy, ""
	// for others and where it cannot be told.
	Dialect string
	// Mixed is set while the dialects in the cluster exclude each other.
	Mixed bool
	// Overridden is set on a NetworkPolicy whose say about pods is taken away by a
	// stronger policy; it is a sentence each (S0-67, S0-69).
	Overridden []diag.Diagnostic
}

// find returns the findings with a code, errors first.
func (v *Verdict) find(code diag.Code) []diag.Diagnostic {
	var out []diag.Diagnostic
	for _, l := range [][]diag.Diagnostic{v.Errors, v.Warnings} {
		for _, d := range l {
			if d.Code == code {
				out = append(out, d)
			}
		}
	}
	return out
}

// Judge decides about all objects of a cluster. It remembers how objects decode,
// so use one for a cluster; it is not safe for concurrent use. The zero value
// works with default options.
type Judge struct {
	Options lower.Options
	// MaxOverrideRules bounds the search for overridden NetworkPolicies: with more
	// rules it is left out. 0 means DefaultMaxOverrideRules.
	MaxOverrideRules int

	decoded map[types.UID]decoded
}

// DefaultMaxOverrideRules is where looking for overridden policies begins to take
// a minute of a core.
const DefaultMaxOverrideRules = 50_000

type decoded struct {
	version string
	object  *api.Object
	found   diag.List
}

// decode reads an object, or remembers how it was read.
func (j *Judge) decode(o *Object) decoded {
	uid, version := o.Stored.GetUID(), o.Stored.GetResourceVersion()
	if d, ok := j.decoded[uid]; ok && d.version == version && version != "" {
		return d
	}
	d := decoded{version: version}
	d.object, d.found = assess.Decode(o.Stored.Object)
	return d
}

// Judge returns the verdict on each object, in the order of objects.
func (j *Judge) Judge(objects []Object, world *inventory.Snapshot) []Verdict {
	out := make([]Verdict, len(objects))
	seen := make(map[types.UID]decoded, len(objects))
	var good []*api.Object
	at := make(map[api.Ref]int, len(objects))
	for i := range objects {
		o := &objects[i]
		d := j.decode(o)
		seen[o.Stored.GetUID()] = d
		at[o.ref()] = i
		out[i].Errors, out[i].Warnings = slices.Clone(d.found.Errors), slices.Clone(d.found.Warnings)
		if d.object != nil {
			out[i].Dialect = adminnetworkpolicy.DialectOf(d.object)
			good = append(good, d.object)
		}
	}
	j.decoded = seen
	r := assess.Run(j.Options, good, world, nil)
	mixed := slices.ContainsFunc(r.Findings.Errors, func(d diag.Diagnostic) bool { return d.Code == diag.MixedDialects })
	for ref, l := range r.ByObject() {
		i, ok := at[ref]
		if !ok {
			continue
		}
		out[i].Errors = append(out[i].Errors, l.Errors...)
		out[i].Warnings = append(out[i].Warnings, l.Warnings...)
	}
	for i := range out {
		out[i].Mixed = mixed && out[i].Dialect != ""
	}
	limit := j.MaxOverrideRules
	if limit == 0 {
		limit = DefaultMaxOverrideRules
	}
	if n := len(r.Set.Rules); n > 0 && n <= limit {
		for _, d := range lint.Overridden(r.Objects, &r.Set, world).Warnings {
			if i, ok := at[d.Object]; ok {
				out[i].Overridden = append(out[i].Overridden, d)
			}
		}
	}
	return out
}

// content is what an object asks for, as text: it changes when a node has to do
// something about it, and not when its status does.
func content(o *unstructured.Unstructured) string {
	var b strings.Builder
	b.WriteString(string(o.GetUID()))
	b.WriteByte(0)
	b.WriteString(itoa(o.GetGeneration()))
	annotations := o.GetAnnotations()
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		if k == "kubectl.kubernetes.io/last-applied-configuration" {
			continue
		}
		b.WriteByte(0)
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(annotations[k])
	}
	return b.String()
}
