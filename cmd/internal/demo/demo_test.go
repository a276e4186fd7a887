package demo

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/world"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// staged is the demo without packets: the built-in policies over the plan of
// the world, every probe's fate as the table predicts it.
func staged(t *testing.T) []Observation {
	t.Helper()
	dir := t.TempDir()
	if err := writeManifests(dir, nil); err != nil {
		t.Fatal(err)
	}
	in, err := cli.Load(dir, world.NodeName, nil)
	if err != nil {
		t.Fatal(err)
	}
	if in.Table == nil || len(in.Findings.Warnings) > 0 {
		t.Fatalf("the built-in policies have findings: %v", in.Findings)
	}
	var results []world.Result
	for _, p := range world.All(world.Plan()) {
		results = append(results, world.Result{Probe: p})
	}
	obs, err := predict(in.Table, results)
	if err != nil {
		t.Fatal(err)
	}
	for i := range obs {
		obs[i].Passed = obs[i].Predicted.Verdict == "Allow"
	}
	return obs
}

// What the built-in policies mean, as people see it.
func TestBuiltInPolicies(t *testing.T) {
	r := Report{Dataplane: "afxdp+nfqueue", Why: "auto: both backends run on this kernel", Seconds: 12.34}
	r.observe(staged(t))
	if r.Mismatches != 0 || !r.OK() {
		t.Errorf("%d mismatches", r.Mismatches)
	}
	var b bytes.Buffer
	if err := r.WriteText(&b, cli.Style{}, 120); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join("testdata", "report.txt")
	if *update {
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("report differs (run with -update and read the change)\n%s", b.String())
	}
}

// The built-in policies show something of everything, or they teach little.
func TestBuiltInPoliciesTeach(t *testing.T) {
	reasons := map[string]int{}
	for _, o := range staged(t) {
		side := o.Predicted.Ingress
		if o.Predicted.Egress.Verdict != "Allow" {
			side = o.Predicted.Egress
		}
		reasons[side.Reason+" "+side.Band+" "+side.Verdict]++
	}
	for _, want := range []string{
		"rule admin Allow", "rule admin Drop", "rule networkpolicy Allow", "isolation networkpolicy Drop",
		"rule baseline Drop", "default default Allow", "self default Allow", "not-local default Allow",
	} {
		if reasons[want] == 0 {
			t.Errorf("no connection is decided by %q; decided are %v", want, reasons)
		}
	}
}

// One wrong packet must be seen: in the count, in JSON, in the picture.
func TestReportSeesMismatch(t *testing.T) {
	for _, passed := range []bool{true, false} {
		obs := staged(t)
		i := 0
		for obs[i].Passed == passed || obs[i].Family != 6 {
			i++
		}
		obs[i].Passed = passed
		var r Report
		r.observe(obs)
		if r.Mismatches != 1 || r.OK() || len(r.Differences) != 1 || r.Probes != len(obs) || r.Passed+r.Refused != len(obs) {
			t.Fatalf("report %+v", r)
		}
		d := r.Differences[0]
		if d.From != obs[i].From.Name || d.Family != 6 || (d.Observed == "passed") != passed {
			t.Errorf("difference %+v", d)
		}
		var plain, painted bytes.Buffer
		if err := errors.Join(r.WriteText(&plain, cli.Style{}, 120), r.WriteText(&painted, cli.Painted(), 120)); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(plain.String(), " 1 mismatch ") || !strings.Contains(plain.String(), "disagree") {
			t.Error("the text does not say so")
		}
		// Its cell is marked in both pictures: the observed one shows the only
		// family that passes, the predicted one none or both.
		observed, predicted := "4", "."
		if passed {
			observed, predicted = "6", "X"
		}
		for _, sym := range []string{observed, predicted} {
			if n := strings.Count(painted.String(), "\x1b[1;37;41m"+sym+"\x1b"); n != 1 {
				t.Errorf("%d cells are marked with %q, want 1", n, sym)
			}
		}
	}
}

// Only what should have passed and was silent is tried again.
func TestSilent(t *testing.T) {
	obs := staged(t)
	if at := silent(obs); len(at) != 0 {
		t.Errorf("nothing differs, and %v are tried again", at)
	}
	var want []int
	for i := range obs {
		switch allowed := obs[i].Passed; {
		case allowed && i%50 == 0:
			obs[i].Passed = false
			want = append(want, i)
		case allowed && i%50 == 1:
			obs[i].Passed, obs[i].Broken = false, errors.New("no socket")
		case !allowed && i%50 == 2:
			obs[i].Passed = true // against policy: no further try may hide it
		}
	}
	if at := silent(obs); len(want) == 0 || !slices.Equal(at, want) {
		t.Errorf("%v are tried again, want %v", at, want)
	}
	for i := range obs {
		obs[i].Passed = false
	}
	if at := silent(obs); len(at) != 0 {
		t.Errorf("nothing passes, and %d are tried again", len(at))
	}
}

// A probe that could not be made says nothing about policy, and is no success.
func TestReportSeesBrokenProbe(t *testing.T) {
	obs := staged(t)
	obs[0].Passed, obs[0].Broken = false, errors.New("no socket")
	obs[1].Passed, obs[1].Attempts = true, 2
	var r Report
	r.observe(obs)
	if r.Broken != 1 || r.Retried != 1 || r.Mismatches != 0 || r.OK() {
		t.Fatalf("report %+v", r)
	}
	var b bytes.Buffer
	if err := r.WriteText(&b, cli.Style{}, 120); err != nil || !strings.Contains(b.String(), "no socket") {
		t.Errorf("text without the failure (%v)", err)
	}
}

// On a narrow terminal the pictures stand one below the other and fit.
func TestReportNarrow(t *testing.T) {
	var r Report
	r.observe(staged(t))
	var b bytes.Buffer
	if err := r.WriteText(&b, cli.Style{}, 60); err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(b.String(), "\n") {
		if strings.HasPrefix(line, "x/a ") && len(line) > 60 {
			t.Errorf("a row of %d columns: %q", len(line), line)
		}
	}
}

func TestReadAudit(t *testing.T) {
	const line = `{"v":1,"kind":"flow","time":"2026-01-02T03:04:0%SZ","verdict":"Drop","direction":"ingress",` +
		`"policy":{"kind":"NetworkPolicy","namespace":"y","name":"%N"},"source":{"ip":"10.0.0.1"},"destination":{"ip":"10.0.0.2"},"count":1}` + "\n"
	mk := func(second, name string) string {
		return strings.NewReplacer("%S", second, "%N", name).Replace(line)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte(mk("1", "a")+mk("2", "b")+mk("3", "a")), 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := readAudit(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	if sum.Records != 3 || len(sum.Tail) != 2 || sum.Tail[0].Policy.Name != "b" || sum.Tail[1].Policy.Name != "a" ||
		!sum.Tail[1].Time.Equal(time.Date(2026, 1, 2, 3, 4, 3, 0, time.UTC)) {
		t.Errorf("summary %+v", sum)
	}
	if sum, err := readAudit(t.Context(), path+".none"); err != nil || sum.Records != 0 {
		t.Errorf("no log: %+v, %v", sum, err)
	}
	if err := os.WriteFile(path, []byte("garbage\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readAudit(t.Context(), path); err == nil {
		t.Error("garbage in the log went unnoticed")
	}
}

func TestWriteManifests(t *testing.T) {
	src := t.TempDir()
	for name, text := range map[string]string{"a.yaml": "a", "sub/b.json": "b", "notes.txt": "no", ".hidden.yaml": "no", ".git/c.yaml": "no"} {
		path := filepath.Join(src, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	list := func(dir string) (names []string) {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				rel, _ := filepath.Rel(dir, path)
				names = append(names, rel)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return names
	}
	for from, want := range map[string]string{src: "policies/a.yaml policies/sub/b.json world.yaml", src + "/a.yaml": "policies/a.yaml world.yaml"} {
		dir := t.TempDir()
		if err := writeManifests(dir, []string{from}); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(list(dir), " "); got != want {
			t.Errorf("from %s: %s, want %s", from, got, want)
		}
	}
	// Of several, files of one name do not replace each other.
	dir := t.TempDir()
	if err := writeManifests(dir, []string{src, src + "/a.yaml"}); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(list(dir), " "); got != "policies/1/a.yaml policies/1/sub/b.json policies/2/a.yaml world.yaml" {
		t.Errorf("from two: %s", got)
	}
	for _, from := range []string{src + "/none", t.TempDir()} {
		if err := writeManifests(t.TempDir(), []string{from}); err == nil {
			t.Errorf("%s has no manifests, and that is no error", from)
		}
	}
}

func TestSymbol(t *testing.T) {
	for _, tt := range []struct {
		set, asked uint8
		want       string
	}{{0, 0, " "}, {0, 3, "X"}, {3, 3, "."}, {1, 3, "4"}, {2, 3, "6"}, {1, 1, "."}, {2, 2, "."}, {0, 1, "X"}} {
		if got := symbol(tt.set, tt.asked); got != tt.want {
			t.Errorf("symbol(%d, %d) = %q, want %q", tt.set, tt.asked, got, tt.want)
		}
	}
}
