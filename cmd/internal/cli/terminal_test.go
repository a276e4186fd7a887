package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"
)

// Nothing but printable text, line ends, tabs and our own colours gets out, however
// writes are cut.
func TestOutput(t *testing.T) {
	for _, tt := range []struct {
		in           string
		plain, color string // what comes out without and with colours
	}{
		{"a\tb\n", "a\tb\n", "a\tb\n"},
		{"é😀", "é😀", "é😀"},
		{"\x1b[31mred\x1b[0m", `\u001b[31mred\u001b[0m`, "\x1b[31mred\x1b[0m"},
		{"\x1b[1;37;41m", `\u001b[1;37;41m`, "\x1b[1;37;41m"},
		{"\x1b[2J", `\u001b[2J`, `\u001b[2J`},
		{"\x1b[31;31;31;31m", `\u001b[31;31;31;31m`, `\u001b[31;31;31;31m`},
		{"\x1b]0;x\x07\x1b", `\u001b]0;x\u0007\u001b`, `\u001b]0;x\u0007\u001b`},
		{"a\r\x00\x7f\u009b\u202e\u2028", `a\r\u0000\u007f\u009b\u202e\u2028`, `a\r\u0000\u007f\u009b\u202e\u2028`},
		{"\xff\xc3", `\ufffd\ufffd`, `\ufffd\ufffd`},
		{"\U000e0041", `\udb40\udc41`, `\udb40\udc41`},
	} {
		for _, colour := range []bool{false, true} {
			want := tt.plain
			if colour {
				want = tt.color
			}
			for size := 1; size <= len(tt.in); size++ {
				var b bytes.Buffer
				o := &Output{w: &b, colour: colour}
				for from := 0; from < len(tt.in); from += size {
					part := tt.in[from:min(from+size, len(tt.in))]
					if n, err := o.Write([]byte(part)); n != len(part) || err != nil {
						t.Fatal(n, err)
					}
				}
				if err := o.Flush(); err != nil {
					t.Fatal(err)
				}
				if got := b.String(); got != want {
					t.Errorf("%q in pieces of %d, colour %t: %q, want %q", tt.in, size, colour, got, want)
				}
			}
		}
	}
	if _, err := (&Output{w: failing{}}).Write([]byte("é")); err == nil {
		t.Error("a failed write is none")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("closed") }

func TestEscapeAll(t *testing.T) {
	type inner struct{ Name string }
	type answer struct {
		Name    string
		List    []inner
		Map     map[string]*inner
		Any     any
		Nothing *inner
		private string
	}
	in := answer{"a\n", []inner{{"b\x1b"}}, map[string]*inner{"k\r": {"c\u202e"}}, inner{"d\x07"}, nil, "e\n"}
	out := EscapeAll(&in)
	if out.Name != `a\n` || out.List[0].Name != `b\u001b` || out.Map[`k\r`].Name != `c\u202e` || out.Any.(inner).Name != `d\u0007` || out.Nothing != nil || out.private != "e\n" {
		t.Errorf("%+v", out)
	}
	if in.Name != "a\n" || in.List[0].Name != "b\x1b" || in.Map["k\r"].Name != "c\u202e" {
		t.Errorf("the answer itself is changed: %+v", in)
	}
	if long := Escape(strings.Repeat("é", 5000)); utf8.RuneCountInString(long) > 4200 || !strings.HasSuffix(long, "… (904 more characters)") {
		t.Errorf("%d characters, ending in %q", utf8.RuneCountInString(long), long[len(long)-40:])
	}
}
