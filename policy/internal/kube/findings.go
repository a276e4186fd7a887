package kube

import (
	"fmt"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// InternalHint is the hint about what no policy can cause.
const InternalHint = "this is a fault of Tierwall, not of the policy: please report it"

// Findings collects what is wrong with one object.
type Findings struct {
	Object *api.Object
	List   diag.List
}

// Error adds an error at a field path. hint says what to write instead and may be empty.
func (f *Findings) Error(path, message, hint string) {
	f.List.Errors = append(f.List.Errors, f.Object.Finding(path, message, hint))
}

// UnknownSelector adds an error about a selector that sets nothing we know.
func (f *Findings) UnknownSelector(path, message, hint string) {
	f.Error(path, message, hint)
	f.List.Errors[len(f.List.Errors)-1].Code = diag.UnknownSelector
}

// Warn adds a warning at a field path.
func (f *Findings) Warn(path, message, hint string) {
	f.List.Warnings = append(f.List.Warnings, f.Object.Finding(path, message, hint))
}

// At returns the path of item i of a list field.
func At(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
