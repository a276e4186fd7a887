package diag

import (
	"slices"
	"testing"
)

func TestEdits(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{
		{"", "", 0},
		{"", "abc", 3},
		{"abc", "", 3},
		{"http", "http", 0},
		{"htp", "http", 1},
		{"htpt", "http", 1},
		{"kitten", "sitting", 3},
		{"shpo", "shop", 1},
		{"x", "y", 1},
		{"ab", "ba", 1},
		{"ca", "abc", 3},
	} {
		if got := Edits(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := Edits(tt.b, tt.a); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	for _, tt := range []struct {
		asked string
		names []string
		want  []string
	}{
		{"fronted", []string{"shop/db", "shop/frontend", "shop/db"}, []string{"shop/frontend", "shop/db"}},
		{"shop/db", []string{"shop/cache", "other/db"}, []string{"other/db", "shop/cache"}},
		{"z", []string{"b", "a"}, []string{"a", "b"}},
	} {
		if got := Nearest(tt.asked, tt.names); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, want %q", tt.asked, got, tt.want)
		}
	}
	if got := Among("x", []string{"x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8"}); got != "; there is x1, x2, x3, x4, x5, x6 and 2 more" {
		t.Error(got)
	}
	if got := Among("x", nil); got != "; there is none at all" {
		t.Error(got)
	}
}
