package lower

import "github.com/tierwall/tierwall/policy/internal/kube"

// Staged reports whether a policy with these annotations is only recorded, and not
// enforced.
func Staged(annotations map[string]string) bool {
	return annotations[kube.AnnotationStage] == "audit"
}
