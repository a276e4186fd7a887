package main

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/doctor"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// The contract of -o json and of the exit code; as root the backends are really tried.
func TestDoctor(t *testing.T) {
	r := tierwall(t, "", "doctor", "-o", "json")
	var report struct {
		Kernel     string
		Checks     []struct{ Name, State, Detail, Hint string }
		Dataplanes map[string]struct {
			Works, How, Why string
			Limits          []string
		}
	}
	if err := json.Unmarshal([]byte(r.out), &report); err != nil {
		t.Fatalf("%v: %s%s", err, r.out, r.err)
	}
	if report.Kernel == "" || len(report.Checks) < 20 || len(report.Dataplanes) != 3 {
		t.Errorf("%s", r.out)
	}
	names := map[string]bool{}
	for _, c := range report.Checks {
		if names[c.Name] || c.Detail == "" || !strings.Contains(" ok loadable missing warning ", " "+c.State+" ") {
			t.Errorf("check %+v", c)
		}
		names[c.Name] = true
	}
	healthy := false
	for name, d := range report.Dataplanes {
		healthy = healthy || d.Works == "fully"
		switch {
		case os.Geteuid() != 0 && d.Works == "fully":
			t.Errorf("%s works fully, and nobody could try it", name)
		case d.Works != "fully" && d.Works != "partly" && d.Why == "":
			t.Errorf("%s does not work, and why is not said: %+v", name, d)
		}
	}
	if (r.code == 0) != healthy || r.code > 1 {
		t.Errorf("exit code %d, healthy %v", r.code, healthy)
	}
	if bad := tierwall(t, "", "doctor", "now"); bad.code != 2 {
		t.Errorf("an argument: exit code %d", bad.code)
	}
}

// Doctor and version try the same way and say the same.
func TestDoctorAgreesWithVersion(t *testing.T) {
	nstest.Need(t)
	var v versionInfo
	if err := json.Unmarshal([]byte(tierwall(t, "", "version", "-o", "json").out), &v); err != nil {
		t.Fatal(err)
	}
	var d doctor.Report
	if err := json.Unmarshal([]byte(tierwall(t, "", "doctor", "-o", "json").out), &d); err != nil {
		t.Fatal(err)
	}
	for _, f := range v.Features {
		backend, ok := strings.CutSuffix(f.Name, " backend")
		if !ok {
			continue
		}
		if got := d.Dataplanes[backend]; got.How != f.How || f.OK != (got.Why == "") {
			t.Errorf("version %+v, doctor %+v", f, got)
		}
	}
}

func TestDoctorText(t *testing.T) {
	r := doctor.Report{
		Checks: []doctor.Check{
			{Name: "kernel", State: doctor.OK, Detail: "Linux 6.1"},
			{Name: "nft_fib", State: doctor.Missing, Detail: "for forged sources", Hint: "run it"},
		},
		Dataplanes: map[string]doctor.Dataplane{
			"auto":    {Works: doctor.Partly, How: "nfqueue alone", Limits: []string{"this", "that"}},
			"nfqueue": {Works: doctor.Fully, How: "queues"},
			"afxdp":   {Works: doctor.No, Why: "no BTF"},
		},
	}
	var b bytes.Buffer
	if err := writeDoctor(&b, cli.Style{}, &r); err != nil {
		t.Fatal(err)
	}
	want := `ok        kernel                Linux 6.1
missing   nft_fib               for forged sources
                                -> run it

dataplane auto     partly     nfqueue alone
                                not: this
                                not: that
dataplane nfqueue  fully      queues
dataplane afxdp    no         no BTF
`
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
}
