package diag

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// maxNames bounds the names that Among lists.
const maxNames = 6

// Among lists names there are for an error about one there is not: "; there is
// shop/db, shop/web and 3 more", those most like it first. names is not changed.
func Among(asked string, names []string) string {
	if len(names) == 0 {
		return "; there is none at all"
	}
	near := Nearest(asked, names)
	more := ""
	if len(near) > maxNames {
		more = fmt.Sprintf(" and %d more", len(near)-maxNames)
		near = near[:maxNames]
	}
	return "; there is " + Escape(strings.Join(near, ", ")) + more
}

// Nearest returns each of the names once, those most like the one asked for first.
// Of names with slashes the last part counts by itself too: "db" is like "shop/db".
func Nearest(asked string, names []string) []string {
	type ranked struct {
		name  string
		edits int
	}
	last := func(s string) string { return s[strings.LastIndexByte(s, '/')+1:] }
	list := make([]ranked, len(names))
	for i, name := range names {
		list[i] = ranked{name, min(Edits(asked, name), Edits(last(asked), last(name))+1)}
	}
	slices.SortFunc(list, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(a.edits, b.edits), cmp.Compare(a.name, b.name))
	})
	list = slices.Compact(list)
	out := make([]string, len(list))
	for i := range list {
		out[i] = list[i].name
	}
	return out
}

// Edits counts the insertions, deletions, replacements and swaps of neighbours
// that turn a into b, in bytes (optimal string alignment).
func Edits(a, b string) int {
	before, row, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row, next = row, next, before
	}
	return row[len(b)]
}
