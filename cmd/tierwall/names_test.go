package main

import (
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// A name with a typing mistake got a verdict about nothing, or an empty answer,
// and exit code 0.
func TestUnknownNamesAreErrors(t *testing.T) {
	m := " -m " + quickstart
	for _, tt := range []struct{ args, err string }{
		{"matrix -p htp/TCP" + m, "no pod has a port named htp/TCP; there is http/TCP, "},
		{"matrix -p 80/TCP -p http/UDP" + m, "no pod has a port named http/UDP; there is http/TCP, "},
		{"matrix -p htp/TCP -o json" + m, "there is http/TCP"},
		{"explain --from frontend --to db -p htp/TCP" + m, "no pod has a port named htp/TCP; there is http/TCP, "},
		{"explain --from frontend --to 203.0.113.9 -p htp" + m, "there is http/TCP"},
		{"explain --from frontend --to svc/shop/backend -p htp/TCP" + m, "it has 80/TCP (http)"},
		{"explain --from frontend --to shop/bd -p 80/TCP" + m, "no pod or workload shop/bd; there is shop/db, "},
		{"explain --from shp/frontend --to db -p 80/TCP" + m, "no namespace shp; there is shop, "},
		{"explain --from frontend --to svc/shop/bakcend -p 80/TCP" + m, "no Service shop/bakcend; there is shop/backend, "},
		{"explain --from shop/frontend --to shop/db -p 80/TCP -n shpo" + m, "no namespace shpo; there is shop, "},
		{"explain --from frontend --to db -p 80/TCP --node node-9" + m, `node "node-9" is not among the 2 nodes; there is node-1, node-2`},
		{"matrix -n typo" + m, "no namespace typo; there is "},
		{"matrix -n shpo -o json" + m, "no namespace shpo; there is shop, "},
		{"get policies -n shpo" + m, "no namespace shpo; there is shop, "},
		{"get policies -n shpo -o json" + m, "no namespace shpo; there is shop, "},
		{"get policies --pod shop/fronted" + m, "--pod: no pod or workload shop/fronted; there is shop/frontend, "},
	} {
		r := tierwall(t, "", strings.Fields(tt.args)...)
		if r.code != cli.ExitUsage || r.out != "" || !strings.Contains(r.err, tt.err) {
			t.Errorf("%s: exit code %d, want 2 and %q\nstdout: %s\nstderr: %s", tt.args, r.code, tt.err, r.out, r.err)
		}
	}
}

// A name some pod has is known: what has no such port is shown as that.
func TestKnownNamesAreAnswered(t *testing.T) {
	for _, args := range []string{"matrix -p http/TCP -n monitoring", "matrix -p 8080/TCP -n shop", "get policies -n monitoring"} {
		if r := tierwall(t, "", append(strings.Fields(args), "-m", quickstart)...); r.code != cli.ExitOK {
			t.Errorf("%s: exit code %d: %s", args, r.code, r.err)
		}
	}
}
