package lint_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
)

// The samples of every document get only the findings that are true of them: that
// of, where they cut DNS, rules the fixture's author wrote to be in
// vain, a NetworkPolicy that is overridden on purpose. testdata/samples.txt has
// them; -update writes it, and each new line wants a reason to be there.
func TestSamples(t *testing.T) {
	var files []string
	for _, pattern := range []string{"s[0-4]-*.txtar", "kubernetes-docs.txtar"} {
		found, err := filepath.Glob(filepath.Join("..", "lower", "*", "testdata", pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 40 {
		t.Fatalf("only %d samples", len(files))
	}
	var got strings.Builder
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var objs []*api.Object
		world, positive := "", false
		for _, f := range txtar.Parse(data).Files {
			switch {
			case f.Name == "world":
				world = string(f.Data)
			case f.Name == "expect":
				positive = true
			case strings.HasSuffix(f.Name, ".yaml"):
				o, _ := fixture.Objects(f.Name, string(f.Data))
				objs = append(objs, o...)
			}
		}
		if !positive {
			continue // a sample that is refused
		}
		w := fixture.MustWorld(t, world)
		set, found := lower.Build(objs, w.Inventory)
		if err := found.Err(); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, d := range lint.Check(objs, &set, w.Inventory).Warnings {
			got.WriteString(strings.TrimSuffix(filepath.Base(file), ".txtar") + ": " + d.Object.String() + ": " + d.Path + ": " + d.Message + "\n")
		}
	}
	golden := filepath.Join("testdata", "samples.txt")
	if flag.Lookup("update").Value.String() == "true" {
		if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got.String() != string(want) {
		t.Errorf("%s differs (go test -update rewrites)\n--- got\n%s--- want\n%s", golden, got.String(), want)
	}
}
