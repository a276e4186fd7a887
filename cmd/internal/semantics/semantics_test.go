package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestDocument is the check: every number has a line, every line its proof.
func TestDocument(t *testing.T) {
	var out bytes.Buffer
	if err := report(&out, options{}); err != nil {
		t.Errorf("%s: %v", Document, err)
	}
	t.Log("\n" + out.String())
}

func TestParse(t *testing.T) {
	rows, errs := Parse(strings.Join([]string{
		"prose about S0-01",
		"| No | Behaviour | State | Proof |",
		"|---|---|---|---|",
		"| S0-01 | what it does | enforced | `a/b:TestC`, `a/b/testdata/c.txtar` |",
		"| S0-02 | one \\| two | not yet: later | |",
		"| S0-03 | x | enforced |",
		"| S0-04 | x | enforced | TestC |",
		"| S0-05 | x | enforced | `TestC` |",
		"| S0-06 | x | enforced | y | z |",
	}, "\n"))
	if len(rows) != 3 || len(errs) != 3 {
		t.Fatalf("got %d rows, errors %v", len(rows), errs)
	}
	if r := rows[0]; r.Number != "S0-01" || r.State != Enforced || r.Line != 4 || len(r.Proofs) != 2 ||
		r.Proofs[0] != (Proof{Package: "a/b", Test: "TestC"}) || r.Proofs[1] != (Proof{Fixture: "a/b/testdata/c.txtar"}) {
		t.Errorf("got %+v", r)
	}
	if r := rows[1]; r.Text != "one | two" || r.State != NotYet || r.Reason != "later" || len(r.Proofs) != 0 {
		t.Errorf("got %+v", r)
	}
}

// complete is a table without fault; each case below breaks it.
func complete() []Row {
	var rows []Row
	for _, s := range Seeds {
		for n := 1; n <= s.Lines; n++ {
			rows = append(rows, Row{Number: number(s.Prefix, n), Text: "t", State: Enforced, Proofs: []Proof{{Fixture: "f.txtar"}}, Line: len(rows) + 1})
		}
	}
	return rows
}

func TestProblems(t *testing.T) {
	if errs := Problems(complete()); len(errs) > 0 {
		t.Fatal(errs)
	}
	for want, breakIt := range map[string]func([]Row) []Row{
		"S0-01 is missing":        func(r []Row) []Row { return r[1:] },
		"X-67 is missing":         func(r []Row) []Row { return r[:len(r)-1] },
		"already":                 func(r []Row) []Row { return append(r, r[0]) },
		"no document has S0-91":   func(r []Row) []Row { return append(r, Row{Number: "S0-91", Text: "t", State: NotYet, Reason: "r"}) },
		"says nothing":            func(r []Row) []Row { r[0].Text = ""; return r },
		"enforced without a":      func(r []Row) []Row { r[0].Proofs = nil; return r },
		"refused without a proof": func(r []Row) []Row { r[0].State, r[0].Proofs = Refused, nil; return r },
		"without a reason":        func(r []Row) []Row { r[0].State, r[0].Proofs = NotYet, nil; return r },
		"and has a proof":         func(r []Row) []Row { r[0].State, r[0].Reason = Informational, "r"; return r },
		"unknown state":           func(r []Row) []Row { r[0].State = "done"; return r },
	} {
		if errs := Problems(breakIt(complete())); len(errs) != 1 || !strings.Contains(errs[0].Error(), want) {
			t.Errorf("%s: got %v", want, errs)
		}
	}
}

func TestNumbersIn(t *testing.T) {
	for text, want := range map[string]string{
		"S0-01, X-40":         "S0-01 X-40",
		"S2-100":              "S2-100",
		"S0-41…S0-43":         "S0-41 S0-42 S0-43",
		"S0-41...43":          "S0-41 S0-42 S0-43",
		"S0-41…S1-43":         "S0-41",
		"XS0-01 S5-01 X-ray":  "",
		"S0-9 is not the way": "S0-09",
	} {
		got := numbersIn(text)
		if len(got) != len(strings.Fields(want)) {
			t.Errorf("%q: got %v", text, got)
		}
		for _, n := range strings.Fields(want) {
			if !got[Number(n)] {
				t.Errorf("%q: no %s", text, n)
			}
		}
	}
}

// What counts as a case in a test, and what is only prose.
const goFile = `package a

import "testing"

var outside = "S0-09"

// TestProse is about S0-01.
func TestProse(t *testing.T) {
	// S0-02 is what comes next.
	got := 1
	manifest := ` + "`kind: Policy # S0-03\n`" + `
	_, _ = got, manifest // S0-04
	t.Log("S0-05")
	rows := []string{"S0-06"} // nobody asks
	_ = rows
	for range 2 { // S0-07
		if got != 1 {
			t.Error("wrong")
		}
	}
}

func TestCases(t *testing.T) {
	want := []string{
		"a", // S1-01
	}
	for _, c := range []struct {
		name string
		n    int
	}{
		{"S1-02 by name", 1},
		{"by comment", 1}, // S1-03
		// S1-04
		{
			"above", 1,
		},
	} {
		if c.n != 1 { // S1-05, S1-06…S1-08
			t.Errorf("%s", c.name)
		}
	}
	if len(want) != 1 {
		t.Fatal("S1-09")
	}
	t.Run("S1-10", func(t *testing.T) {
		helper(t, 1) // S1-11
	})
	check := func(n int) {
		if n != 1 {
			t.Fail()
		}
	}
	// S1-12: the
	// comment above.
	check(1)
	switch {
	case len(want) == 2: // S1-13
		t.Error("two")
	case len(want) == 3: // S1-14 says nothing
	}
	helper(t, want...)
}

` + `func FuzzIt(f *testing.F) {
	f.Fuzz(func(t *testing.T, n int) {
		if n == 7 { // S1-15
			t.Error(n)
		}
	})
}

func helper(t *testing.T, n int) { _ = "S0-08" }
`

const fixtureFile = `Prose about S2-01.
-- world --
pod x/a # S2-02
-- a.yaml --
# S2-03
kind: Policy
metadata: {name: no-priority} # S2-04
spec: {} # S2-05
---
kind: Policy
metadata: {name: good} # S2-06
spec: # S2-07
  rules: []
---
kind: Policy
metadata:
  name: bad-rule # S2-08
spec:
  rules: [{}] # S2-09
-- expect --
# S2-10
x/a > x/b 80/TCP Drop # S2-11, S2-12
-- findings --
error: a.yaml:3: Policy no-priority: spec.priority: missing
warning: a.yaml:15: Policy bad-rule: spec.rules[0]: is empty
-- verdicts --
x/a > x/b 80/TCP: Drop # S2-13
`

// TestScan reads a tree of its own: what counts as a case, and what does not.
func TestScan(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/a_test.go":         goFile,
		"a/testdata/f.txtar":  fixtureFile,
		".hidden/h_test.go":   "not Go",
		"a/product.go":        "not Go either, never read",
		"a/testdata/other.md": "S1-03",
	} {
		p := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := Scan(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proof   string
		numbers string
		want    error
	}{
		{"a:TestProse", "S0-01…S0-07", errProse},
		{"a:TestProse", "S0-08, S0-09", errSilent},
		{"a:TestCases", "S1-01…S1-13", nil},
		{"a:TestCases", "S1-14", errProse},
		{"a:TestCases", "S1-15", errSilent},
		{"a:FuzzIt", "S1-15", nil},
		{"a:TestNone", "S1-01", errNoProof},
		{"b:TestCases", "S1-01", errNoProof},
		{"a/testdata/f.txtar", "S2-01, S2-02, S2-03, S2-05, S2-06, S2-07, S2-10, S2-13", errProse},
		{"a/testdata/f.txtar", "S2-04, S2-08, S2-09, S2-11, S2-12", nil},
		{"a/testdata/f.txtar", "S1-03", errSilent},
		{"a/testdata/g.txtar", "S1-01", errNoProof},
	} {
		p, err := parseProof(c.proof)
		if err != nil {
			t.Fatal(err)
		}
		for n := range numbersIn(c.numbers) {
			if got := tree.Check(p, n); !errors.Is(got, c.want) {
				t.Errorf("%s %s: got %v, want %v", c.proof, n, got, c.want)
			}
		}
	}
	if got := tree.Cites("S1-02"); len(got) != 1 || got[0] != "a:TestCases" {
		t.Errorf("got %v", got)
	}
}

func TestCounts(t *testing.T) {
	rows := complete()
	rows[0].State, rows[1].State = Informational, NotYet
	rows[2].Proofs = append(rows[2].Proofs, Proof{Package: "p", Test: "TestGone"})
	counts := CountRows(rows, func(p Proof, _ Number) bool { return p.Test == "" })
	if c := counts[0]; c.Informational != 1 || c.Todo != 1 || c.Unproved != 1 || c.Proved != 87 {
		t.Errorf("got %+v", c)
	}
	var out strings.Builder
	if err := WriteCounts(&out, counts); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "98 %") || !strings.Contains(out.String(), "397") {
		t.Errorf("got\n%s", out.String())
	}
}

// A proof passed only when go test said so.
func TestOutcomes(t *testing.T) {
	o := outcomes{}
	if err := o.read("a", strings.NewReader(`{"Action":"run","Test":"TestX"}
{"Action":"pass","Test":"TestX"}
# build output is no JSON
{"Action":"fail","Test":"TestY"}
{"Action":"skip","Test":"TestZ"}
{"Action":"pass","Test":"TestF/good"}
{"Action":"fail","Test":"TestF/bad"}
{"Action":"pass"}
`)); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[Proof]bool{
		{Package: "a", Test: "TestX"}:       true,
		{Package: "a", Test: "TestY"}:       false,
		{Package: "a", Test: "TestZ"}:       false,
		{Package: "a", Test: "TestN"}:       false,
		{Package: "b", Test: "TestX"}:       false,
		{Fixture: "a/testdata/good.txtar"}:  true,
		{Fixture: "a/testdata/bad.txtar"}:   false,
		{Fixture: "a/testdata/never.txtar"}: false,
	} {
		if got := o.passed(p); got != want {
			t.Errorf("%s: got %v", p, got)
		}
	}
}

// The parts of a finding, however many of them there are.
func TestRefusals(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "policy", "lower", "d", "testdata")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	const file = `-- findings --
error: a.yaml:1: Kind x/name: spec.a[0].b["k l"].c: is wrong: no (do: this)
error: a.yaml:9: Kind x/name: spec.a[1].b["k l"].c: is wrong: no (do: this)
error: a.yaml:1: Kind name: the whole of it
error: b.yaml: not YAML
warning: a.yaml:1: Kind name: spec: no error
-- expect --
error: c.yaml: not a finding
`
	if err := os.WriteFile(filepath.Join(dir, "f.txtar"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Refusals(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []Refusal{
		{"d", "Kind x/name", `spec.a[].b["k l"].c`, "is wrong: no (do: this)"},
		{"d", "Kind name", "", "the whole of it"},
		{"d", "", "", "not YAML"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	doc, err := replaceRefusals("a\n"+refusalsBegin+"\nold\n"+refusalsEnd+"\nz\n", refusalText(got[1:2]))
	if err != nil || doc != "a\n"+refusalsBegin+"\n\n### d: 1\n\n| Situation | Field | Message |\n|---|---|---|\n| Kind name |  | the whole of it |\n\n"+refusalsEnd+"\nz\n" {
		t.Errorf("%v: got %q", err, doc)
	}
	if _, err := replaceRefusals("a\n"+refusalsEnd, ""); err == nil {
		t.Error("a document without the marks")
	}
}
