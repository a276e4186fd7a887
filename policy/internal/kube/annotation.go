package kube

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier/rule"
)

// AnnotationPrefix starts every annotation key Tierwall reads on a policy. A key
// with the prefix that no version knows is an error: a misspelt audit switch
// must not be silent.
const AnnotationPrefix = "tierwall.io/"

// Annotations on policy objects.
const (
	// AnnotationAudit is "true" or "false" (the default): every connection one of
	// the policy's rules decides leaves an audit record (S0-72).
	AnnotationAudit = AnnotationPrefix + "audit"
	// AnnotationStage is "enforce" (the default) or "audit": evaluate the policy
	// and record what it would do, without doing it.
	AnnotationStage = AnnotationPrefix + "stage"
	// AnnotationDialect names the shape a policy is written in, on kinds of which
	// there are several, instead of letting its fields tell.
	AnnotationDialect = AnnotationPrefix + "dialect"
)

// Settings is what the annotations of one policy say.
type Settings struct {
	Audit bool
	Stage rule.Stage
}

// ParseSettings reads the annotations of f's object and reports keys and values
// it does not know. What it does not know counts as not given.
func ParseSettings(f *Findings) Settings {
	var s Settings
	for _, k := range slices.Sorted(maps.Keys(f.Object.Annotations)) {
		if !strings.HasPrefix(k, AnnotationPrefix) {
			continue
		}
		v := f.Object.Annotations[k]
		path := fmt.Sprintf("metadata.annotations[%q]", k)
		switch k {
		case AnnotationAudit:
			switch v {
			case "true":
				s.Audit = true
			case "false":
			default:
				f.Error(path, fmt.Sprintf("unknown value %q", v), `write "true" or "false"`)
			}
		case AnnotationStage:
			switch v {
			case "audit":
				s.Stage = rule.AuditOnly
			case "enforce":
			default:
				f.Error(path, fmt.Sprintf("unknown value %q", v), `write "enforce", or "audit" to record without enforcing`)
			}
		case AnnotationDialect:
			if f.Object.Kind.Dialect == "" {
				f.Error(path, "there is only one dialect of "+f.Object.Kind.GVK(), "remove the annotation")
			}
		default:
			f.Error(path, "unknown annotation", "Tierwall knows "+AnnotationAudit+" and "+AnnotationStage)
		}
	}
	return s
}
