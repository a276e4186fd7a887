package clusternetworkpolicy_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/internal/fixture"
	"github.com/tierwall/tierwall/policy/lower"
)

// TestTableAgrees asks the compiled table what the fixtures of the upstream
// dialects ask the oracle, for every pair, port and family: port names of any
// protocol, address sets and the bands of the KEP are not in every universe of the
// classifier's own tests.
func TestTableAgrees(t *testing.T) {
	var files []string
	for _, d := range []string{"adminnetworkpolicy", "clusternetworkpolicy", "kepclusternetworkpolicy"} {
		found, _ := filepath.Glob(filepath.Join("..", d, "testdata", "*.txtar"))
		files = append(files, found...)
	}
	compiled, asked := 0, 0
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var objs []*api.Object
		var world, expect string
		for _, f := range ar.Files {
			switch {
			case f.Name == "world":
				world = string(f.Data)
			case f.Name == "expect":
				expect = string(f.Data)
			case strings.HasSuffix(f.Name, ".yaml"):
				o, _ := fixture.Objects(f.Name, string(f.Data))
				objs = append(objs, o...)
			}
		}
		if expect == "" {
			continue
		}
		w := fixture.MustWorld(t, world)
		set, found := lower.Build(objs, w.Inventory)
		if err := found.Err(); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		view := w.Inventory.World("")
		w.Inventory.FillSets(view, &set)
		table, _, err := classifier.Compile(set, view, classifier.Options{})
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		compiled++
		var ports []string
		for _, line := range strings.Split(expect, "\n") {
			if f := strings.Fields(line); len(f) > 3 && !slices.Contains(ports, f[3]) {
				ports = append(ports, f[3])
			}
		}
		for _, port := range ports {
			proto, n, err := fixture.ParsePort(port)
			if err != nil {
				t.Fatal(err)
			}
			for _, from := range w.Parties {
				for _, to := range w.Parties {
					p := fixture.Probe{From: from, To: to, Proto: proto, Port: n}
					for _, k := range p.Keys() {
						asked++
						want, got := oracle.Evaluate(&set, view, k), table.Lookup(k)
						in, out := table.Outcome(got.Ingress), table.Outcome(got.Egress)
						if got.Verdict != want.Verdict || !same(table, in, &want.Ingress) || !same(table, out, &want.Egress) {
							t.Errorf("%s: %s: table %s, oracle %s", file, k, got.Verdict, want.Verdict)
						}
					}
				}
			}
		}
	}
	if compiled < 20 || asked < 1000 {
		t.Errorf("%d fixtures, %d questions", compiled, asked)
	}
}

func same(table *classifier.Table, got *classifier.Outcome, want *oracle.Outcome) bool {
	if got.Verdict != want.Verdict || got.Reason != want.Reason || got.Band != want.Band {
		return false
	}
	if want.Rule == nil {
		return got.Rule == classifier.NoRule
	}
	return got.Rule != classifier.NoRule && table.Rule(got.Rule).Origin == want.Rule.Origin
}
