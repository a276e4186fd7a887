package kube

import (
	"fmt"

	"github.com/tierwall/tierwall/policy/diag"
)

// DidYouMean returns a hint that names the one of names that want was most likely
// meant to be, "" when none is near.
func DidYouMean(want string, names []string) string {
	best, bestD := "", 4
	for _, n := range names {
		if d := diag.Edits(want, n); d < bestD && d*2 < max(len(want), len(n)) {
			best, bestD = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}
