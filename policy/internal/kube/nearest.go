package kube

import "fmt"

// DidYouMean returns a hint that names the one of names that want was most likely
// meant to be, "" when none is near.
func DidYouMean(want string, names []string) string {
	best, bestD := "", 4
	for _, n := range names {
		if d := edits(want, n); d < bestD && d*2 < max(len(want), len(n)) {
			best, bestD = n, d
		}
	}
	if best == "" {
		return ""
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// edits is the Levenshtein distance of two strings, in bytes.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(row[j+1]+1, row[j]+1, cost)
		}
	}
	return row[len(b)]
}
