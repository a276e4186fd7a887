package cli

import (
	"fmt"
	"io"

	"golang.org/x/term"
)

// Progress says on a terminal how far a long command is. Elsewhere it is silent.
type Progress struct {
	w     io.Writer
	what  string
	total int
	shown bool
}

// NewProgress returns a progress of a number of things.
func NewProgress(w io.Writer, what string, total int) *Progress {
	p := &Progress{what: what, total: total}
	if f := Terminal(w); f != nil && term.IsTerminal(int(f.Fd())) {
		p.w = f
	}
	return p
}

// Done says how many are done.
func (p *Progress) Done(n int) {
	if p.w != nil && p.total > 0 {
		_, err := fmt.Fprintf(p.w, "\r%d of %d %s", n, p.total, p.what)
		p.shown = err == nil
	}
}

// End takes the line away.
func (p *Progress) End() {
	if p.shown {
		_, _ = fmt.Fprint(p.w, "\r\033[K") // a line that stays is not worth an error
	}
}
