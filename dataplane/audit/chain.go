package audit

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
)

// A hash chain makes changes show. Every line carries the SHA-256 of the line
// before it (Record.Prev), and the first line of a file, a record of kind
// "file", that of the last line of the file before:
//
//	file n      … ─► line ─► line ─┐
//	file n+1    ┌──────────────────┘
//	            └► header ─► line ─► line …
//
// Changing, removing, adding or swapping lines breaks a link. What the chain
// cannot show by itself is a log whose end was cut off, or one that was written
// anew from some line on: whoever may write the file can compute hashes, too.
// Both show against a hash that was kept elsewhere: Chain.Last of an earlier
// verification, or the records a syslog receiver has.

// Chain is the state of a verification.
type Chain struct {
	Lines     int    // read
	Chained   int    // of those, with a hash
	Unchained int    // before the chain began: what they say is not protected
	First     string // the hash the first chained line has: of the file before, zeros at the very beginning
	Last      string // the last line's own hash, which the next one must have
	Seq       uint64 // the last line's number
	Records   uint64 // sum of Record.Count over lost records: what the log itself says is missing
	Breaks    []Break

	prev  [sha256.Size]byte
	begun bool
}

// Break is a place where the log is not what was written.
type Break struct {
	Line int    // in the order read, from 1: the first line that does not fit
	Seq  uint64 // its number, if it has one
	Why  string
}

func (b Break) String() string { return fmt.Sprintf("line %d (seq %d): %s", b.Line, b.Seq, b.Why) }

// maxBreaks bounds what is reported of a file that is no log at all.
const maxBreaks = 1000

// Verify reads a file of a chained log (see Open for compressed ones) and checks
// every link. Call it for file after file, oldest first, on one Chain to check
// the links between them, too. The zero Chain accepts any beginning.
//
// Breaks are results, not errors; the error is that of reading.
func (c *Chain) Verify(r io.Reader) error {
	in := bufio.NewReaderSize(r, 256<<10)
	var long []byte
	for {
		line, err := in.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			long = append(long, line...)
			if len(long) > 16<<20 {
				return ErrLineTooLong
			}
			continue
		}
		if len(long) > 0 {
			long = append(long, line...)
			line = long
		}
		if errors.Is(err, io.EOF) {
			if len(line) > 0 {
				c.Lines++
				c.broken(0, "the file ends inside a line")
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("audit: verify: %w", err)
		}
		c.line(bytes.TrimSuffix(line, []byte{'\n'}))
		long = long[:0]
	}
}

func (c *Chain) line(line []byte) {
	c.Lines++
	sum := sha256.Sum256(line)
	r, err := Parse(line)
	switch {
	case err != nil && !c.begun:
		c.Unchained++
	case err != nil:
		c.broken(0, "not a record: "+err.Error())
	case r.Prev == "" && !c.begun:
		c.Unchained++
	case r.Prev == "":
		c.broken(r.Seq, "no hash of the previous line")
	case !c.begun:
		c.begun, c.First = true, r.Prev
		c.Chained++
		if c.Unchained > 0 && r.Prev != hex.EncodeToString(c.prev[:]) {
			c.broken(r.Seq, "hash of the line before the chain's first does not match")
		}
	default:
		c.Chained++
		if r.Prev != hex.EncodeToString(c.prev[:]) {
			c.broken(r.Seq, "hash of the previous line does not match")
		} else if r.Seq != c.Seq+1 && r.Seq != 0 {
			c.broken(r.Seq, fmt.Sprintf("its number does not follow %d", c.Seq))
		}
	}
	if err == nil {
		if r.Kind == KindLost {
			c.Records += r.Count
		}
		if r.Seq != 0 {
			c.Seq = r.Seq
		}
	}
	c.prev, c.Last = sum, hex.EncodeToString(sum[:])
}

func (c *Chain) broken(seq uint64, why string) {
	if len(c.Breaks) < maxBreaks {
		c.Breaks = append(c.Breaks, Break{Line: c.Lines, Seq: seq, Why: why})
	}
}

// OK reports whether there was a chain and nothing in it was changed.
func (c *Chain) OK() bool { return c.begun && len(c.Breaks) == 0 }
