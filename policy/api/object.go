// Package api holds the objects policy is made of: the envelope every object
// travels in, and (in subpackages) the Go types of APIs that publish none we
// can import.
package api

import "github.com/tierwall/tierwall/policy/diag"

// Kind describes one API kind that can be decoded.
type Kind struct {
	Group, Version, Kind string
	Namespaced           bool
	// New returns a pointer to a zero value of the Go type whose JSON form the
	// kind has. Decoding is strict against that type.
	New func() any
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
	// Value is what Kind.New returned, filled in.
	Value any
	// Raw is the decoded document as generic values (map[string]any, []any,
	// string, bool, int64, float64, nil), for the few rules where null and
	// absent differ. Read only.
	Raw map[string]any
	// File is the source path with ":line", "" for objects from an API server.
	File string
}

// Ref returns "Kind namespace/name" ("Kind name" when cluster-scoped), the form
// diagnostics use.
func (o *Object) Ref() string {
	if o.Namespace == "" {
		return o.Kind.Kind + " " + o.Name
	}
	return o.Kind.Kind + " " + o.Namespace + "/" + o.Name
}

// Finding starts a diagnostic about the object.
func (o *Object) Finding(path, message, hint string) diag.Diagnostic {
	return diag.Diagnostic{File: o.File, Object: o.Ref(), Path: path, Message: message, Hint: hint}
}
