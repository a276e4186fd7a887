package lint_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
)

// noHint are findings that need nobody to do anything.
var noHint = []string{" ignored: not used for policy", " ignored, not used for policy: ", " is not known to this version and ignored"}

// TestFindingsWithoutAHint: every finding of every test case of the decoder and the
// dialects says what to do.
func TestFindingsWithoutAHint(t *testing.T) {
	var files []string
	for _, pattern := range []string{filepath.Join("..", "lower", "*", "testdata", "*.txtar"), filepath.Join("..", "decode", "testdata", "*.txtar")} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	seen := 0
	check := func(file string, found diag.List) {
		for _, d := range slices.Concat(found.Errors, found.Warnings, found.Notes) {
			seen++
			if d.Hint == "" && !slices.ContainsFunc(noHint, func(s string) bool { return strings.Contains(d.Message, s) }) {
				t.Errorf("%s: no hint: %s", file, d)
			}
		}
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var objs []*api.Object
		world := ""
		for _, f := range txtar.Parse(data).Files {
			switch {
			case f.Name == "world":
				world = string(f.Data)
			case strings.HasSuffix(f.Name, ".yaml"), strings.HasSuffix(f.Name, ".json"):
				o, found := fixture.Objects(f.Name, string(f.Data))
				objs = append(objs, o...)
				check(file, found)
			}
		}
		if strings.Contains(file, "decode") {
			continue
		}
		w := fixture.MustWorld(t, world)
		set, found := lower.Build(objs, w.Inventory)
		check(file, found)
		if len(found.Errors) == 0 {
			check(file, lint.Check(objs, &set, w.Inventory))
		}
	}
	if seen < 900 {
		t.Errorf("only %d findings", seen)
	}
}
