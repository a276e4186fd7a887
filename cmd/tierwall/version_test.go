package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

func TestVersion(t *testing.T) {
	r := tierwall(t, "", "version", "-o", "json")
	var v versionInfo
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.code != 0 {
		t.Fatalf("%v: %s%s", err, r.out, r.err)
	}
	if v.Version == "" || !strings.HasPrefix(v.Go, "go1.") || v.Kernel == "" || v.Kernel == "unknown" {
		t.Errorf("version %+v", v)
	}
	if os.Geteuid() == 0 && len(v.Features) != 3 {
		t.Errorf("features %+v", v.Features)
	}
	for _, f := range v.Features {
		if f.OK != (f.Missing == "") {
			t.Errorf("feature %+v", f)
		}
		for name, says := range map[string]string{"nfqueue backend": "queues by", "afxdp backend": "are attached by"} {
			if f.Name == name && f.OK && !strings.Contains(f.How, says) {
				t.Errorf("%s runs, and how is not said: %+v", name, f)
			}
		}
	}
}

func TestVersionText(t *testing.T) {
	v := versionInfo{Version: "v1.2.3", Revision: "abc", Go: "go1.26", Kernel: "6.18 x86_64", Features: []feature{
		{Name: "one", OK: true}, {Name: "more", OK: true, How: "in some way"}, {Name: "two", Missing: "no such device"},
	}}
	var b bytes.Buffer
	if err := v.writeText(&b, cli.Style{}); err != nil {
		t.Fatal(err)
	}
	want := "tierwall v1.2.3 (abc)\ngo1.26, Linux 6.18 x86_64\nyes  one\nyes  more: in some way\nno   two: no such device\n"
	if b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
	b.Reset()
	v.Features = nil
	if err := v.writeText(&b, cli.Style{}); err != nil || !strings.Contains(b.String(), "as root") {
		t.Errorf("without root: %q", b.String())
	}
}
