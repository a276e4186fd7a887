package diag

import (
	"errors"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	for want, d := range map[string]Diagnostic{
		"f:1: Kind ns/n: spec.x: bad (do this)": {File: "f:1", Object: "Kind ns/n", Path: "spec.x", Message: "bad", Hint: "do this"},
		"Kind n: bad":                           {Object: "Kind n", Message: "bad"},
		"bad":                                   {Message: "bad"},
	} {
		if got := d.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestSort(t *testing.T) {
	var l List
	for _, f := range []string{"b:2", "a:10", "", "a:9 (generated)", "a:9", "a", "b:2"} {
		l.Add(List{Errors: []Diagnostic{{File: f, Message: "m"}}, Warnings: []Diagnostic{{File: f}}})
	}
	l.Errors[len(l.Errors)-1].Message = "earlier"
	l.Sort()
	var got []string
	for _, d := range l.Errors {
		got = append(got, d.File+" "+d.Message)
	}
	const want = " m|a m|a:9 m|a:10 m|a:9 (generated) m|b:2 earlier|b:2 m"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	if l.Warnings[1].File != "a" {
		t.Errorf("warnings are not sorted: %v", l.Warnings)
	}
}

func TestErr(t *testing.T) {
	l := List{Warnings: []Diagnostic{{Message: "w"}}}
	if err := l.Err(); err != nil {
		t.Errorf("warnings alone are an error: %v", err)
	}
	l.Errors = []Diagnostic{{Message: "a"}, {File: "f", Message: "b"}}
	var e *Error
	if err := l.Err(); !errors.As(err, &e) || len(e.Findings) != 2 || err.Error() != "a\nf: b" {
		t.Errorf("got %v", err)
	}
}
