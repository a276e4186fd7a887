package intent

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/cmd/internal/sarif"
)

// by says who decides.
func (r *Result) by() string {
	if r.Policy == "" {
		return "no policy applies"
	}
	if r.Rule == "" {
		return "isolated by " + changes.Isolating(r.Isolations) + ", and nothing allows it"
	}
	return cli.Escape(changes.PolicyName(r.Policy) + ", rule " + r.Rule)
}

// unsent says what was not probed; "" if everything was, or nothing was meant to be.
func (r *Result) unsent() string {
	if len(r.NotSent) == 0 {
		return ""
	}
	return fmt.Sprintf("%d connections made; not sent: %s", r.Probed, strings.Join(r.NotSent, "; "))
}

func (r *Result) policyPlace() string {
	if r.PolicyFile == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", r.PolicyFile, r.PolicyLine)
}

// printable is the result for people: every string is one line without control
// characters.
func (r *Result) printable() *Result { p := cli.EscapeAll(*r); return &p }

// chain is the story of a failure.
func (r *Result) chain(s cli.Style) string {
	if r.explanation == nil {
		return ""
	}
	var b strings.Builder
	if err := query.WriteExplanation(&b, s, r.explanation, false); err != nil {
		return ""
	}
	return b.String()
}

// WriteText prints what failed, with the way to the decision, and one line about
// the rest; all is every test.
func WriteText(w io.Writer, s cli.Style, res *Results, all bool) error {
	var b strings.Builder
	for i := range res.Tests {
		r := res.Tests[i].printable()
		if r.OK {
			if all {
				fmt.Fprintf(&b, "%s  %s:%d  %s  %s\n", s.Green("ok  "), r.File, r.Line, r.Name, s.Dim(r.by()))
			}
			continue
		}
		fmt.Fprintf(&b, "%s  %s:%d  %s\n      %s: %s: %s", s.Red("FAIL"), r.File, r.Line, s.Bold(r.Name), r.Why, r.Connection, r.by())
		if p := r.policyPlace(); p != "" {
			fmt.Fprintf(&b, " (%s)", p)
		}
		b.WriteString("\n")
		for l := range strings.Lines(r.chain(s)) {
			b.WriteString("      " + l)
		}
	}
	for i := range res.Tests {
		if r := res.Tests[i].printable(); len(r.NotSent) > 0 {
			fmt.Fprintf(&b, "%s\n", s.Dim(fmt.Sprintf("%s:%d  %s", r.File, r.Line, r.unsent())))
		}
	}
	fmt.Fprintf(&b, "%d passed, %d failed", res.Passed, res.Failed)
	if res.Dataplane != "" {
		fmt.Fprintf(&b, "; packets went through %s", res.Dataplane)
	}
	b.WriteString("\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// WriteTAP writes TAP 14 (https://testanything.org/tap-version-14-specification.html).
func WriteTAP(w io.Writer, res *Results) error {
	var b strings.Builder
	fmt.Fprintf(&b, "TAP version 14\n1..%d\n", len(res.Tests))
	for i := range res.Tests {
		r := res.Tests[i].printable()
		state := "ok"
		if !r.OK {
			state = "not ok"
		}
		name := strings.NewReplacer(`\`, `\\`, "#", `\#`).Replace(strings.Join(strings.Fields(r.Name), " "))
		if u := r.unsent(); u != "" { // before: a YAML block follows its test at once
			fmt.Fprintf(&b, "# test %d: %s\n", i+1, u)
		}
		fmt.Fprintf(&b, "%s %d - %s\n", state, i+1, name)
		if r.OK {
			continue
		}
		b.WriteString("  ---\n")
		for _, kv := range [][2]string{
			{"message", r.Why + ": " + r.Connection},
			{"severity", "fail"},
			{"at", fmt.Sprintf("%s:%d", r.File, r.Line)},
			{"decided_by", r.by()},
			{"policy_at", r.policyPlace()},
		} {
			if kv[1] != "" {
				fmt.Fprintf(&b, "  %s: %q\n", kv[0], kv[1])
			}
		}
		if c := r.chain(cli.Style{}); c != "" {
			b.WriteString("  explanation: |\n")
			for l := range strings.Lines(c) {
				b.WriteString("    " + l)
			}
		}
		b.WriteString("  ...\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// The parts of JUnit's XML that its readers agree on.
type (
	junitSuites struct {
		XMLName  xml.Name     `xml:"testsuites"`
		Name     string       `xml:"name,attr"`
		Tests    int          `xml:"tests,attr"`
		Failures int          `xml:"failures,attr"`
		Suites   []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name     string      `xml:"name,attr"`
		Tests    int         `xml:"tests,attr"`
		Failures int         `xml:"failures,attr"`
		Errors   int         `xml:"errors,attr"`
		Skipped  int         `xml:"skipped,attr"`
		Time     string      `xml:"time,attr"`
		Cases    []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Name    string        `xml:"name,attr"`
		Class   string        `xml:"classname,attr"`
		File    string        `xml:"file,attr"`
		Line    int           `xml:"line,attr"`
		Time    string        `xml:"time,attr"`
		Failure *junitFailure `xml:"failure,omitempty"`
		Out     string        `xml:"system-out,omitempty"`
	}
	junitFailure struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
		Text    string `xml:",chardata"`
	}
)

// WriteJUnit writes one suite for every file of tests.
func WriteJUnit(w io.Writer, res *Results) error {
	out := junitSuites{Name: "tierwall", Tests: len(res.Tests), Failures: res.Failed}
	for i := range res.Tests {
		r := res.Tests[i].printable()
		n := len(out.Suites)
		if n == 0 || out.Suites[n-1].Name != r.File {
			out.Suites = append(out.Suites, junitSuite{Name: r.File, Time: "0"})
			n++
		}
		s := &out.Suites[n-1]
		c := junitCase{Name: r.Name, Class: strings.TrimSuffix(filepath.Base(r.File), filepath.Ext(r.File)), File: r.File, Line: r.Line, Time: "0", Out: r.unsent()}
		if !r.OK {
			c.Failure = &junitFailure{
				Message: r.Why + ": " + r.Connection, Type: "intent",
				Text: fmt.Sprintf("%s:%d\ndecided by %s %s\n%s", r.File, r.Line, r.by(), r.policyPlace(), r.chain(cli.Style{})),
			}
			s.Failures++
		}
		s.Tests++
		s.Cases = append(s.Cases, c)
	}
	var b bytes.Buffer
	b.WriteString(xml.Header)
	enc := xml.NewEncoder(&b)
	enc.Indent("", "  ")
	if err := enc.Encode(out); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := w.Write(b.Bytes())
	return err
}

// WriteSARIF writes a result for every test that fails, at the line of the policy
// that decides; where none does, at the test's own.
func WriteSARIF(w io.Writer, res *Results, version string) error {
	log := sarif.New(version, sarif.Rule{
		ID: "TW900", Name: "IntentNotKept", Level: "error", Text: "A connection is not decided as an intent expects",
		Help: "https://github.com/tierwall/tierwall/blob/main/docs/checks.md#tw900",
	})
	for i := range res.Tests {
		r := &res.Tests[i]
		if r.OK {
			continue
		}
		at, also := sarif.Place{File: r.PolicyFile, Line: r.PolicyLine}, &sarif.Place{File: r.File, Line: r.Line}
		if r.PolicyFile == "" {
			at, also = *also, nil
		}
		p := r.printable()
		log.Add("TW900", fmt.Sprintf("%s: %s: %s: %s (%s:%d)", p.Name, p.Why, p.Connection, p.by(), p.File, p.Line), at, also)
	}
	return log.Write(w)
}
