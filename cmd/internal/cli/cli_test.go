package cli

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// Anything that is not a finding is a failure to answer, however it is wrapped.
func TestCode(t *testing.T) {
	for _, tt := range []struct {
		err   error
		code  int
		shown bool
	}{
		{nil, ExitOK, false},
		{errors.New("x"), ExitUsage, false},
		{&UsageError{Err: errors.New("x")}, ExitUsage, false},
		{Finding("%d mismatches", 3), ExitFinding, false},
		{fmt.Errorf("demo: %w", Finding("x")), ExitFinding, false},
		{&FindingError{Err: errors.New("x"), Shown: true}, ExitFinding, true},
	} {
		if Code(tt.err) != tt.code || Shown(tt.err) != tt.shown {
			t.Errorf("%v: code %d shown %v, want %d %v", tt.err, Code(tt.err), Shown(tt.err), tt.code, tt.shown)
		}
	}
}

func TestFormat(t *testing.T) {
	f := NewFormat("text", "json")
	if f.String() != "text" || f.JSON() || f.Type() != "text|json" {
		t.Errorf("a new format is %s of %s", f, f.Type())
	}
	if f.Set("xml") == nil || f.String() != "text" {
		t.Error("xml was accepted")
	}
	if f.Set("json") != nil || !f.JSON() {
		t.Error("json was not accepted")
	}
}

// A file or pipe gets no escape sequences, whatever the environment says.
func TestStyle(t *testing.T) {
	t.Setenv("NO_COLOR", "")
	t.Setenv("TERM", "xterm")
	var b bytes.Buffer
	for name, s := range map[string]Style{"buffer": StyleFor(&b), "zero": {}} {
		if got := s.Verdict("Drop") + s.Alarm("x") + s.Dim("y"); got != "Dropxy" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := Painted().Verdict("Allow"); got != "\x1b[32mAllow\x1b[0m" {
		t.Errorf("painted Allow is %q", got)
	}
	if Painted().Red("") != "" {
		t.Error("nothing painted is something")
	}
}

func TestWriteFindings(t *testing.T) {
	l := diag.List{
		Errors:   []diag.Diagnostic{{File: "a.yaml:3", Object: api.Ref{Kind: "NetworkPolicy", Namespace: "x", Name: "y"}, Path: "spec.foo", Message: `unknown field "foo"`, Hint: "write <bar> & co"}},
		Warnings: []diag.Diagnostic{{Message: "odd"}},
	}
	var text, js bytes.Buffer
	if err := errors.Join(WriteFindings(&text, Style{}, false, &l), WriteFindings(&js, Style{}, true, &l)); err != nil {
		t.Fatal(err)
	}
	want := "error: a.yaml:3: NetworkPolicy x/y: spec.foo: unknown field \"foo\"\n  hint: write <bar> & co\nwarning: odd\n"
	if text.String() != want {
		t.Errorf("text %q, want %q", text.String(), want)
	}
	// Not escaped for HTML: people copy hints from the JSON, too.
	if !strings.Contains(js.String(), `"hint": "write <bar> & co"`) {
		t.Errorf("JSON %s", js.String())
	}
	for n, want := range map[int]string{0: "0 policies: 1 error, 1 warning", 1: "1 policy: 1 error, 1 warning", 2: "2 policies: 1 error, 1 warning"} {
		in := Input{Objects: make([]*api.Object, n), Findings: l}
		if got := in.Summary(); got != want {
			t.Errorf("summary %q, want %q", got, want)
		}
	}
}

func TestLoadRefusesTheQuestion(t *testing.T) {
	if _, err := Load("/nonexistent", "", nil); err == nil {
		t.Error("a directory that does not exist is no finding but an error")
	}
	if _, err := Load("../../../deploy/examples/quickstart", "node-9", nil); err == nil || !strings.Contains(err.Error(), "node-9") {
		t.Errorf("a node that does not exist: %v", err)
	}
	in, err := Load("../../../deploy/examples/broken", "", nil)
	if err != nil || in.Table != nil || len(in.Findings.Errors) < 3 {
		t.Errorf("broken manifests: table %v, findings %v, error %v", in.Table != nil, in.Findings, err)
	}
}
