// Package api holds the objects policy is made of: the envelope every object
// travels in, and (in subpackages) the Go types of APIs that publish none we
// can import.
package api

import (
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/policy/diag"
)

// Kind describes one API kind that can be decoded.
type Kind struct {
	Group, Version, Kind string
	Namespaced           bool
	// New returns a pointer to a zero value of the Go type whose JSON form the
	// kind has. Decoding is strict against that type.
	New func() any
	// Hint, when set, is asked about a field New's type does not have, before the
	// decoder makes its own guess. path is the field's full path with indexes,
	// "spec.subject.pods". It returns what to do instead, "" for no opinion. A
	// kind whose name other APIs share with another shape uses it.
	Hint func(path string) string
	// Dialect tells kinds of one group, version and name apart that have different
	// shapes: "kep", "v0.1.7", …. It is "" where the API has one meaning,
	// and before Select has chosen.
	Dialect string
	// Select, when set, chooses the shape of one document from its fields and
	// annotations: the Kind it returns, of the same group, version and name, takes
	// the place of this one. raw is as in [Object].Raw. A document it cannot
	// choose for has a problem and is not decoded.
	Select func(raw map[string]any) (Kind, *Problem)
}

// Problem is what is wrong with a document before it is an object.
type Problem struct {
	Path    string // field path, as in findings
	Message string
	Hint    string
}

// GVK returns "group/version Kind" as used in messages.
func (k Kind) GVK() string {
	if k.Group == "" {
		return k.Version + " " + k.Kind
	}
	return k.Group + "/" + k.Version + " " + k.Kind
}

// Object is one decoded object of a known policy kind.
type Object struct {
	Kind            Kind
	Namespace, Name string
	Annotations     map[string]string
	Generation      int64
	UID             string // "" for objects that no API server has stored
	// Value is what Kind.New returned, filled in.
	Value any
	// Raw is the decoded document as generic values (map[string]any, []any,
	// string, bool, int64, float64, nil), for the few rules where null and
	// absent differ. Read only.
	Raw map[string]any
	// Problems say why the object could not be decoded; Value is nil then. Only
	// sources that keep going without such an object return it, see
	// controller.Config.Isolate.
	Problems []diag.Diagnostic
	// File is the source path with ":line", "" for objects from an API server.
	File string
	// Lines has the line of each field path, so that findings point at the field
	// and not only at the object. nil where there is no file. Read only.
	Lines map[string]int
}

// Ref returns the object's identity.
func (o *Object) Ref() Ref {
	return Ref{Group: o.Kind.Group, Kind: o.Kind.Kind, Namespace: o.Namespace, Name: o.Name}
}

// Finding starts a diagnostic about the object. File names the line of path, or
// of the nearest enclosing field that was written.
func (o *Object) Finding(path, message, hint string) diag.Diagnostic {
	return diag.Diagnostic{File: o.at(path), Object: o.Ref(), Path: path, Message: message, Hint: hint}
}

// at returns File with its line replaced by the line of path.
func (o *Object) at(path string) string {
	for p := path; p != ""; p = p[:max(0, strings.LastIndexAny(p, ".["))] {
		line, ok := o.Lines[p]
		if !ok {
			continue
		}
		if i := strings.LastIndexByte(o.File, ':'); i >= 0 {
			return o.File[:i+1] + strconv.Itoa(line)
		}
	}
	return o.File
}
