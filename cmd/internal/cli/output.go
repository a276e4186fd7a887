package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"golang.org/x/term"
)

// Format is a value of the -o flag. It implements pflag.Value, so a wrong value
// is refused while flags are parsed.
type Format struct {
	name    string
	allowed []string
	printer Printer
}

// NewFormat returns a flag value that accepts the given names and starts as the
// first. With "json" it accepts yaml, jsonpath=… and custom-columns=…, too, which make
// their forms of that JSON: see Printer.
func NewFormat(allowed ...string) *Format { return &Format{name: allowed[0], allowed: allowed} }

// String returns the chosen name.
func (f *Format) String() string { return f.name }

// Set chooses a format.
func (f *Format) Set(s string) error {
	if slices.Contains(f.allowed, s) {
		f.name, f.printer = s, nil
		return nil
	}
	if !slices.Contains(f.allowed, "json") {
		return fmt.Errorf("want %s", strings.Join(f.allowed, ", "))
	}
	printer, err := printerFor(s)
	if err != nil {
		return err
	}
	if printer == nil {
		return fmt.Errorf("want %s", strings.Join(append(slices.Clone(f.allowed), printerForms...), ", "))
	}
	f.name, f.printer = "json", printer
	return nil
}

// Printer turns the JSON of a command into the form that was asked for; nil where it
// is none that is made of JSON.
func (f *Format) Printer() Printer { return f.printer }

// Type names the value in help texts.
func (f *Format) Type() string { return strings.Join(f.allowed, "|") }

// JSON reports whether the chosen format is "json".
func (f *Format) JSON() bool { return f.name == "json" }

// WriteJSON prints v indented, followed by a newline, without escaping <, > and
// & (the output goes to people and jq, never into HTML).
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Plural is a number and what it counts, of which word is one: "1 policy",
// "2 policies".
func Plural[N int | uint64](n N, word string) string {
	if n == 1 {
		return "1 " + word
	}
	if stem, ok := strings.CutSuffix(word, "y"); ok && !strings.HasSuffix(stem, "e") {
		return fmt.Sprintf("%d %sies", n, stem)
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// Style paints words for a terminal. The zero value paints nothing.
type Style struct{ on bool }

// StyleFor returns a painting Style when w is a terminal and the NO_COLOR
// convention (https://no-color.org) does not forbid it.
func StyleFor(w io.Writer) Style {
	if os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return Style{}
	}
	f := Terminal(w)
	return Style{on: f != nil && term.IsTerminal(int(f.Fd()))}
}

// Painted is the Style that always paints; tests use it.
func Painted() Style { return Style{on: true} }

func (s Style) paint(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Bold emphasises text.
func (s Style) Bold(text string) string { return s.paint("1", text) }

// Dim plays text down.
func (s Style) Dim(text string) string { return s.paint("2", text) }

// Red marks what is refused or wrong.
func (s Style) Red(text string) string { return s.paint("31", text) }

// Green marks what passes.
func (s Style) Green(text string) string { return s.paint("32", text) }

// Yellow marks what needs a second look.
func (s Style) Yellow(text string) string { return s.paint("33", text) }

// Cyan marks names.
func (s Style) Cyan(text string) string { return s.paint("36", text) }

// Alarm marks a contradiction, readable even where red is everyday.
func (s Style) Alarm(text string) string { return s.paint("1;37;41", text) }

// Verdict paints a verdict word by its meaning.
func (s Style) Verdict(word string) string { return s.VerdictAs(word, word) }

// VerdictAs paints text in the colour of a verdict word.
func (s Style) VerdictAs(word, text string) string {
	switch word {
	case "Allow":
		return s.Green(text)
	case "Drop":
		return s.Red(text)
	}
	return s.Yellow(text)
}

// Width returns the number of columns to lay tables out for: the terminal's
// width, or 120 where there is none.
func Width(w io.Writer) int {
	if f := Terminal(w); f != nil {
		if cols, _, err := term.GetSize(int(f.Fd())); err == nil && cols > 20 {
			return cols
		}
	}
	return 120
}
