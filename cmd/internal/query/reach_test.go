package query_test

import (
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
)

// What is counted by groups is what every pair of pods is asked about one by one.
func TestReachCountsWhatMatrixDecides(t *testing.T) {
	in, err := cli.Load("../../../deploy/examples/quickstart", "", nil)
	if err != nil {
		t.Fatal(err)
	}
	g := query.NewGroups(in.Table, nil, in.Snapshot)
	for _, text := range []string{"5432/TCP", "http/TCP", "9100/TCP", "0/ICMP"} {
		p, err := query.ParsePort(text)
		if err != nil {
			t.Fatal(err)
		}
		want := map[[2]string]query.Tally{}
		for f := range query.Matrix(in.Table, []query.Port{p}, query.AnyFamily) {
			if f.From == f.To {
				continue
			}
			from, _, _ := strings.Cut(f.From, "/")
			to, _, _ := strings.Cut(f.To, "/")
			for _, k := range [][2]string{{from, to}, {f.From, f.To}} {
				c := want[k]
				c.Total++
				if f.Verdict == "Allow" {
					c.Allowed++
				}
				want[k] = c
			}
		}
		groups := g.Namespaces()
		check := func(list []*query.Pods) {
			for _, from := range list {
				for _, to := range list {
					got := g.Reach(from, to, p)
					if got != want[[2]string{from.Name, to.Name}] {
						t.Errorf("%s: %s to %s: %+v, want %+v", text, from.Name, to.Name, got, want[[2]string{from.Name, to.Name}])
					}
					sum := 0
					for _, d := range g.Decisions(from, to, p) {
						sum += d.Count
					}
					if sum != got.Total {
						t.Errorf("%s: %s to %s: %d decisions of %d", text, from.Name, to.Name, sum, got.Total)
					}
				}
			}
		}
		check(groups)
		var workloads []*query.Pods
		for _, ns := range groups {
			workloads = append(workloads, g.Workloads(ns.Name)...)
		}
		if len(groups) < 2 || len(workloads) < 6 {
			t.Fatalf("%d groups, %d workloads", len(groups), len(workloads))
		}
		check(workloads)
	}
}
