package assess

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
)

// ID names an object whatever the version it is written in. Comparable.
type ID struct{ Group, Kind, Namespace, Name string }

// IDOf returns an object's ID.
func IDOf(o *api.Object) ID { return ID{o.Kind.Group, o.Kind.Kind, o.Namespace, o.Name} }

// String returns "Kind namespace/name", or "Kind name".
func (id ID) String() string {
	if id.Namespace == "" {
		return id.Kind + " " + id.Name
	}
	return id.Kind + " " + id.Namespace + "/" + id.Name
}

// mark is the object's identity in the place of a file name: findings carry it
// from wherever they are made. The NUL cannot be in a path.
func (id ID) mark() string {
	return "\x00" + id.Group + "\x00" + id.Kind + "\x00" + id.Namespace + "\x00" + id.Name
}

func parseMark(file string) (ID, bool) {
	p := strings.Split(file, "\x00")
	if len(p) != 5 || p[0] != "" {
		return ID{}, false
	}
	return ID{p[1], p[2], p[3], p[4]}, true
}

var decoder = decode.Decoder{Kinds: lower.Kinds()}

// Decode reads one stored object strictly. What a server keeps beside the policy
// (status, managed fields) is no part of it and not looked at. object is nil when
// there are errors; raw is not modified or kept.
func Decode(raw map[string]any) (*api.Object, diag.List) {
	doc := maps.Clone(raw)
	delete(doc, "status")
	if meta, ok := doc["metadata"].(map[string]any); ok {
		meta = maps.Clone(meta)
		delete(meta, "managedFields")
		doc["metadata"] = meta
	}
	data, err := json.Marshal(doc)
	if err != nil {
		return nil, diag.List{Errors: []diag.Diagnostic{{Message: fmt.Sprintf("not JSON: %v", err)}}}
	}
	objs, found := decoder.Decode("", data)
	if len(objs) != 1 || len(found.Errors) > 0 {
		return nil, found
	}
	return objs[0], found
}

// Result is what Run found out.
type Result struct {
	// Objects has the findings of every object that has any.
	Objects map[ID]diag.List
	// Others are findings about no policy object, such as an annotation of a
	// namespace.
	Others diag.List
	// Good are the objects without errors, and Set their rules. A policy that needs
	// what has errors is not good either. Set is empty, and Good nil, when no set
	// without errors was found.
	Good []*api.Object
	Set  rule.Set
}

// rounds bounds how often Run leaves out what has errors and lowers the rest
// again, which can make more errors: a policy in a tier in error, once.
const rounds = 4

// Run validates and lowers objects over a world. Neither is modified.
func Run(opts lower.Options, objs []*api.Object, inv *inventory.Snapshot) Result {
	marked := make([]*api.Object, len(objs))
	original := make(map[string]*api.Object, len(objs))
	for i, o := range objs {
		c := *o
		c.File, c.Lines = IDOf(o).mark(), nil
		marked[i], original[c.File] = &c, o
	}
	r := Result{Objects: map[ID]diag.List{}}
	for round := range rounds {
		set, found := opts.Build(marked, inv)
		if round == 0 {
			r.sort(found)
		}
		if len(found.Errors) == 0 {
			r.Set = set
			r.Good = make([]*api.Object, len(marked))
			for i, o := range marked {
				r.Good[i] = original[o.File]
			}
			return r
		}
		bad := map[string]bool{}
		for i := range found.Errors {
			e := &found.Errors[i]
			if e.Together || e.Code == diag.MixedDialects {
				return r // which of them is wrong cannot be told
			}
			bad[e.File] = true
			if id, ok := parseMark(e.File); ok && round > 0 {
				if l := r.Objects[id]; len(l.Errors) == 0 { // it fell with another
					l.Errors = append(l.Errors, clean(*e))
					r.Objects[id] = l
				}
			}
		}
		kept := marked[:0:0]
		for _, o := range marked {
			if !bad[o.File] {
				kept = append(kept, o)
			}
		}
		if len(kept) == len(marked) {
			return r // an error that is not about an object
		}
		marked = kept
	}
	return r
}

// sort puts findings with the objects they are about.
func (r *Result) sort(found diag.List) {
	add := func(d diag.Diagnostic, isError bool) {
		id, ok := parseMark(d.File)
		l := r.Others
		if ok {
			d = clean(d)
			l = r.Objects[id]
		}
		if isError {
			l.Errors = append(l.Errors, d)
		} else {
			l.Warnings = append(l.Warnings, d)
		}
		if ok {
			r.Objects[id] = l
		} else {
			r.Others = l
		}
	}
	for _, d := range found.Errors {
		add(d, true)
	}
	for _, d := range found.Warnings {
		add(d, false)
	}
}

// clean takes the mark off a finding: off its file, and out of a message that
// says where another object was read.
func clean(d diag.Diagnostic) diag.Diagnostic {
	d.File = ""
	if at := strings.Index(d.Message, " in \x00"); at >= 0 {
		rest := d.Message[at+len(" in \x00"):]
		end := strings.IndexAny(rest, ";\n ")
		if end < 0 {
			end = len(rest)
		}
		d.Message = d.Message[:at] + rest[end:]
	}
	return d
}
