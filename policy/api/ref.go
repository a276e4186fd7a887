package api

import (
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/diag"
)

// Ref is the identity of an object: group, kind, namespace and name. Whatever asks
// whether two objects are the same one compares Refs, never their text.
type Ref = diag.Ref

// RefOf returns the object that a rule or isolation comes from.
func RefOf(o *rule.Origin) Ref {
	return Ref{Group: o.Group, Kind: o.Kind, Namespace: o.Namespace, Name: o.Name}
}
