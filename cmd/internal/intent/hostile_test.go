package intent

import (
	"bytes"
	"encoding/xml"
	"io"
	"os/exec"
	"strings"
	"testing"
	"unicode"

	junit "github.com/joshdk/go-junit"
	"github.com/owenrumney/go-sarif/v3/pkg/report/v210/sarif"
	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

var hostile = []string{
	"\x1b[31m\x1b]0;title\x07", "a\nnot ok 2 - b\n1..9", "# SKIP", "\\# TODO", "<script>alert(1)</script>", "]]></failure>", "[x](http://e.example)", "\u202egnp",
	"\xff\xfe", "a\r\n\r\n# b", "\x00", "...\n---", `"`, "Bail out!",
}

// hostileResults are one test that passes and one that fails, in which everything
// that files can name is hostile.
func hostileResults(name string) *Results {
	r := Result{
		File: name + ".yaml", Line: 3, Name: name, From: name, To: name, Port: name, Expect: "allow", Got: "deny", Policy: "policy.g/" + name + "/" + name, Rule: name,
		Connection: name + " → " + name, Why: "want it decided by " + name, PolicyFile: name, PolicyLine: 4,
	}
	passed, isolated := r, r
	passed.OK = true
	isolated.Rule, isolated.Isolations = "", []string{r.Policy, r.Policy + "2"}
	return &Results{Tests: []Result{passed, r, isolated}, Passed: 1, Failed: 2}
}

// printed is what a format makes of hostile results, without control characters.
func printed(t *testing.T, name string, write func(io.Writer, *Results) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := write(&b, hostileResults(name)); err != nil {
		t.Fatal(err)
	}
	for _, c := range b.String() {
		if c != '\n' && !unicode.IsPrint(c) {
			t.Fatalf("name %q: %q in\n%s", name, c, b.String())
		}
	}
	return b.String()
}

func TestHostileNamesInText(t *testing.T) {
	write := func(w io.Writer, res *Results) error { return WriteText(w, cli.Style{}, res, true) }
	tame := strings.Count(printed(t, "tame", write), "\n")
	for _, name := range hostile {
		if out := printed(t, name, write); strings.Count(out, "\n") != tame {
			t.Errorf("name %q: other lines than a tame one:\n%s", name, out)
		}
	}
}

// TestHostileNamesInTAP reads the report with Perl's TAP::Parser: three tests, two of
// which fail, none skipped or to do.
func TestHostileNamesInTAP(t *testing.T) {
	const script = `use TAP::Parser; local $/; my $p = TAP::Parser->new({tap => <STDIN> =~ s/version 14/version 13/r}); $p->run;
		print join(" ", scalar $p->passed, scalar $p->failed, scalar $p->todo, scalar $p->skipped, scalar $p->parse_errors, $p->tests_run);`
	perl := exec.Command("perl", "-MTAP::Parser", "-e", "1").Run() == nil
	for _, name := range hostile {
		out := printed(t, name, WriteTAP)
		for block := range strings.SplitSeq(out[strings.Index(out, "  ---\n"):], "  ---\n") {
			body, _, _ := strings.Cut(block, "  ...\n")
			var diag map[string]string
			if err := yaml.Unmarshal([]byte(body), &diag); err != nil || body != "" && diag["severity"] != "fail" {
				t.Errorf("name %q: %v in %s", name, err, body)
			}
		}
		if !perl {
			continue
		}
		cmd := exec.Command("perl", "-e", script)
		cmd.Stdin = strings.NewReader(out)
		if got, err := cmd.CombinedOutput(); err != nil || string(got) != "1 2 0 0 0 3" {
			t.Errorf("name %q: passed, failed, todo, skipped, errors, run: %s %v\n%s", name, got, err, out)
		}
	}
}

func TestHostileNamesInJUnit(t *testing.T) {
	for _, name := range hostile {
		out := printed(t, name, WriteJUnit)
		suites, err := junit.IngestReader(strings.NewReader(out))
		if err != nil || len(suites) != 1 || suites[0].Totals.Tests != 3 || suites[0].Totals.Failed != 2 {
			t.Errorf("name %q: %v in %s", name, err, out)
		}
		elements := map[string]int{}
		for dec := xml.NewDecoder(strings.NewReader(out)); ; {
			tok, err := dec.Token()
			if err != nil {
				break
			}
			if e, ok := tok.(xml.StartElement); ok {
				elements[e.Name.Local]++
			}
		}
		if len(elements) != 4 || elements["testcase"] != 3 || elements["failure"] != 2 {
			t.Errorf("name %q: elements %v", name, elements)
		}
	}
}

func TestHostileNamesInSARIF(t *testing.T) {
	for _, name := range hostile {
		out := printed(t, name, func(w io.Writer, res *Results) error { return WriteSARIF(w, res, "v1") })
		log, err := sarif.FromString(out)
		if err != nil {
			t.Fatalf("name %q: %v", name, err)
		}
		if err := log.Validate(); err != nil || len(log.Runs[0].Results) != 2 {
			t.Errorf("name %q: %v in %s", name, err, out)
		}
		for _, r := range log.Runs[0].Results {
			text := *r.Message.Text
			if strings.Contains(text, "](") || strings.ContainsFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }) {
				t.Errorf("name %q: message %q", name, text)
			}
		}
	}
}
