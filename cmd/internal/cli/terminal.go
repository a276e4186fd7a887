package cli

import (
	"bytes"
	"io"
	"os"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/tierwall/tierwall/policy/diag"
)

// Output is what commands print to. It is the last guard against text that a
// terminal would obey: printable characters, line ends and tabs pass, and the
// colours of a [Style]; everything else becomes an escape of JSON, which leaves
// the values of JSON as they are. Line ends inside names are not its business: see
// [Escape].
type Output struct {
	w      io.Writer
	colour bool

	mu   sync.Mutex
	rest []byte // an unfinished character or colour
}

// NewOutput guards w.
func NewOutput(w io.Writer) *Output { return &Output{w: w, colour: StyleFor(w).on} }

// Write prints p.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.rest) == 0 && isPlain(p) {
		return o.w.Write(p)
	}
	in := p
	if len(o.rest) > 0 {
		in = append(o.rest, p...)
	}
	out := make([]byte, 0, len(in)+16)
	for len(in) > 0 {
		if n := o.colourAt(in); n > 0 {
			out, in = append(out, in[:n]...), in[n:]
			continue
		}
		if !utf8.FullRune(in) || o.colour && unfinishedColour(in) {
			break
		}
		r, size := utf8.DecodeRune(in)
		if r == '\n' || r == '\t' || unicode.IsPrint(r) && (r != utf8.RuneError || size > 1) {
			out = append(out, in[:size]...)
		} else {
			out = diag.AppendEscape(out, r)
		}
		in = in[size:]
	}
	o.rest = append([]byte(nil), in...)
	if _, err := o.w.Write(out); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush prints what is left of an unfinished character.
func (o *Output) Flush() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []byte
	for _, r := range string(o.rest) { // what is cut is U+FFFD
		out = diag.AppendEscape(out, r)
	}
	o.rest = nil
	if len(out) == 0 {
		return nil
	}
	_, err := o.w.Write(out)
	return err
}

func isPlain(p []byte) bool {
	for _, c := range p {
		if c < ' ' && c != '\n' && c != '\t' || c > '~' {
			return false
		}
	}
	return true
}

var colourStart = []byte("\x1b[")

// longestColour is what a Style writes at most: "\x1b[1;37;41m".
const longestColour = 10

// colourAt returns the length of the colour sequence in begins with, or 0.
func (o *Output) colourAt(in []byte) int {
	if !o.colour || !bytes.HasPrefix(in, colourStart) {
		return 0
	}
	for i := len(colourStart); i < min(len(in), longestColour); i++ {
		switch c := in[i]; {
		case c == 'm':
			return i + 1
		case c != ';' && (c < '0' || c > '9'):
			return 0
		}
	}
	return 0
}

func unfinishedColour(in []byte) bool {
	if len(in) >= longestColour {
		return false
	}
	for i, c := range in {
		if i < len(colourStart) && c != colourStart[i] || i >= len(colourStart) && c != ';' && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// Terminal returns the file behind what a command prints to, nil when it is none.
func Terminal(w io.Writer) *os.File {
	if o, ok := w.(*Output); ok {
		w = o.w
	}
	f, _ := w.(*os.File)
	return f
}
