package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// A question that nothing matched was answered with nothing at all: nobody could
// tell a log without such records from another log, day or spelling.
func TestEmptyAnswerSaysWhatWasRead(t *testing.T) {
	r := hostileRecord("harmless")
	r.Policy.Name, r.Node, r.Source.Namespace, r.Source.Pod = "db", "node-1", "shop", "frontend"
	line, err := r.Append(nil, audit.JSON)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, append(line, line...), 0o600); err != nil {
		t.Fatal(err)
	}
	read := "no record matches: read 2 records from 2026-01-02 03:04:05 to 2026-01-02 03:04:05 in " + path + "\n"
	for args, want := range map[string]string{
		"audit query --policy shop/bd":              read + "--policy shop/bd: in these records there is NetworkPolicy shop/db (crd.antrea.io)\n",
		"audit query --policy shop/bd -o json":      read,
		"audit tail --namespace shpo":               read + "--namespace shpo: in these records there is shop\n",
		"audit top --pod fronted":                   "--pod fronted: in these records there is shop/frontend, ",
		"audit top --node node-2":                   "--node node-2: in these records there is node-1\n",
		"audit staged":                              read,
		"audit query --from 192.0.2.1":              read,
		"audit simulate --to none -m " + quickstart: read,
	} {
		r := tierwall(t, "", append(strings.Fields(args), "--utc", path)...)
		if r.code != 0 || !strings.Contains(r.err, want) {
			t.Errorf("%s: exit code %d, want %q\n%s", args, r.code, want, r.err)
		}
	}
	var top struct {
		Read struct {
			Files   []string
			Records int
		}
	}
	decode(t, tierwall(t, "", "audit", "top", "--policy", "none", "-o", "json", path).out, &top)
	if len(top.Read.Files) != 1 || top.Read.Records != 2 {
		t.Errorf("JSON: %+v", top)
	}
	if r := tierwall(t, "", "audit", "query", "--policy", "shop/db", path); r.err != "" || strings.Count(r.out, "\n") < 2 {
		t.Errorf("an answer: %q %q", r.out, r.err)
	}
}
