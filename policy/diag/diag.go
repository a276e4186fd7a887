// Package diag is the one form in which Tierwall says what is wrong with what
// people wrote: which file, which object, which field, what, and what to do.
package diag

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Diagnostic is one finding.
type Diagnostic struct {
	File    string // path as given, with ":line" when known; "" for objects from an API server
	Object  Ref    // zero when the document names none
	Path    string // field path, "spec.ingress[0].from[1].podSelector"
	Message string // what is wrong
	Hint    string // what to do; "" where there is nothing to do
	Code    Code   // for the few findings that programs tell apart
	// Override is set on findings about what a stronger policy decides.
	Override Override
	// Among are the objects that cause an error together, if there are several; Object
	// is the first of them. No one of them alone is to blame, so all of them stay as
	// they were.
	Among []Ref
}

// Equal reports whether two findings say the same.
func (d Diagnostic) Equal(o Diagnostic) bool {
	return d.File == o.File && d.Object == o.Object && d.Path == o.Path && d.Message == o.Message &&
		d.Hint == o.Hint && d.Code == o.Code && d.Override == o.Override && slices.Equal(d.Among, o.Among)
}

// document is the JSON form of a Diagnostic, the contract of "tierwall check -o
// json". Code and Among do not travel.
type document struct {
	File    string `json:"file"`
	Object  string `json:"object"`          // "Kind namespace/name"
	Group   string `json:"group,omitempty"` // the API group of the object
	Path    string `json:"path"`
	Message string `json:"message"`
	Hint    string `json:"hint"`

	Override *override `json:"override,omitempty"`
}

// MarshalJSON implements json.Marshaler. Whether <, > and & are escaped is the
// caller's choice (json.Encoder.SetEscapeHTML).
func (d Diagnostic) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	out := document{File: d.File, Object: d.Object.short(), Group: d.Object.Group, Path: d.Path, Message: d.Message, Hint: d.Hint}
	if o := d.Override; !o.By.IsZero() {
		out.Override = &override{o.By.short(), o.By.Group, o}
	}
	err := e.Encode(out)
	return b.Bytes(), err
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Diagnostic) UnmarshalJSON(text []byte) error {
	var in document
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	*d = Diagnostic{File: in.File, Object: parseShort(in.Group, in.Object), Path: in.Path, Message: in.Message, Hint: in.Hint}
	if o := in.Override; o != nil {
		d.Override = o.Override
		d.Override.By = parseShort(o.Group, o.By)
	}
	return nil
}

// Override says by which rule a policy is overridden, and names a connection for
// which it is so, in the words of the flags of "tierwall explain". The connection is
// left out where everything between pods is overridden and nothing more is known.
type Override struct {
	By         Ref    `json:"-"` // the stronger policy
	Rule       string `json:"rule"`
	Action     string `json:"action"` // in the words of its API: "Deny", "Drop"
	From       string `json:"from,omitempty"`
	To         string `json:"to,omitempty"`
	Port       string `json:"port,omitempty"`
	ICMP       string `json:"icmp,omitempty"`
	SourcePort uint16 `json:"sourcePort,omitempty"`
}

// override is the JSON form of an Override.
type override struct {
	By    string `json:"by"` // "Kind namespace/name"
	Group string `json:"group,omitempty"`
	Override
}

// Code tells findings of a sort from others, for those who act on them; people
// read Message. Most findings have none.
type Code string

// Codes.
const (
	// PriorityConflict: two policies of equal priority disagree, or may.
	PriorityConflict Code = "PriorityConflict"
	// UnknownSelector: a selector sets no field this version knows.
	UnknownSelector Code = "UnknownSelector"
	// UnknownField: a field this version does not know.
	UnknownField Code = "UnknownField"
	// MixedDialects: policies that count priority in opposite directions.
	MixedDialects Code = "MixedDialects"
)

// String renders the diagnostic on one line, see [Escape].
func (d Diagnostic) String() string {
	var b strings.Builder
	for _, part := range []string{d.File, d.Object.String(), d.Path} {
		if part != "" {
			b.WriteString(part)
			b.WriteString(": ")
		}
	}
	b.WriteString(d.Message)
	if d.Hint != "" {
		fmt.Fprintf(&b, " (%s)", d.Hint)
	}
	return Escape(b.String())
}

// List collects findings. Errors make the whole input unusable: the last good
// table stays in force. Warnings do not. Notes are worth knowing and need nobody to
// do anything.
type List struct {
	Errors   []Diagnostic
	Warnings []Diagnostic
	Notes    []Diagnostic
}

// Add appends another list.
func (l *List) Add(o List) {
	l.Errors = append(l.Errors, o.Errors...)
	l.Warnings = append(l.Warnings, o.Warnings...)
	l.Notes = append(l.Notes, o.Notes...)
}

// Sort orders findings by file, line, object and path, so output is stable and
// reads from the top of each file to its end.
func (l *List) Sort() {
	by := func(a, b Diagnostic) int {
		fileA, lineA := SplitLine(a.File)
		fileB, lineB := SplitLine(b.File)
		return cmp.Or(strings.Compare(fileA, fileB), cmp.Compare(lineA, lineB), a.Object.Compare(b.Object),
			strings.Compare(a.Path, b.Path), strings.Compare(a.Message, b.Message))
	}
	slices.SortStableFunc(l.Errors, by)
	slices.SortStableFunc(l.Warnings, by)
	slices.SortStableFunc(l.Notes, by)
}

// SplitLine takes a file reference apart; the line is 0 when there is none.
func SplitLine(file string) (string, int) {
	if i := strings.LastIndexByte(file, ':'); i >= 0 {
		if line, err := strconv.Atoi(file[i+1:]); err == nil {
			return file[:i], line
		}
	}
	return file, 0
}

// Err returns nil without errors, else an error that prints all of them, one a line.
func (l *List) Err() error {
	if len(l.Errors) == 0 {
		return nil
	}
	return &Error{l.Errors}
}

// Error is a non-empty list of error findings.
type Error struct{ Findings []Diagnostic }

// Error prints every finding on its own line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Findings))
	for i, d := range e.Findings {
		lines[i] = d.String()
	}
	return strings.Join(lines, "\n")
}
