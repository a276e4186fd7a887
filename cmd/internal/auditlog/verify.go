package auditlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// Verification is the result of checking a log's hash chain.
type Verification struct {
	OK        bool     `json:"ok"`
	Files     []string `json:"files"`
	Lines     int      `json:"lines"`
	Chained   int      `json:"chained"`
	Unchained int      `json:"unchained"` // before the chain begins: not protected
	// First is the hash the log's first line builds on: zeros for a log that is
	// complete from its beginning.
	First string `json:"first,omitempty"`
	// Last is the last line's hash. Keep it somewhere else: a later verification
	// with it shows whether the log was cut or written anew since.
	Last   string     `json:"last,omitempty"`
	Seq    uint64     `json:"seq"`  // the last line's number
	Lost   uint64     `json:"lost"` // what the log itself says is missing
	Breaks []BreakAt  `json:"breaks"`
	Known  *KnownHash `json:"known,omitempty"` // with an expected hash
}

// BreakAt is a place where the log is not what was written.
type BreakAt struct {
	File string `json:"file"`
	Line int    `json:"line"` // in the file, from 1
	Seq  uint64 `json:"seq,omitempty"`
	Why  string `json:"why"`
}

// KnownHash says where the hash that was kept was found.
type KnownHash struct {
	Hash  string `json:"hash"`
	Found bool   `json:"found"`
	File  string `json:"file,omitempty"`
	Line  int    `json:"line,omitempty"`
}

// Verify checks the hash chain through all files of a log. With known, a hash
// an earlier verification gave as Last, a line with that hash must be there.
//
// Breaks are results; the error is that of reading.
func Verify(ctx context.Context, path, known string) (Verification, error) {
	v := Verification{Files: []string{}, Breaks: []BreakAt{}}
	var want [sha256.Size]byte
	if known != "" {
		b, err := hex.DecodeString(strings.TrimSpace(known))
		if err != nil || len(b) != sha256.Size {
			return v, fmt.Errorf("%q is not a hash: want %d hexadecimal digits", known, 2*sha256.Size)
		}
		copy(want[:], b)
		v.Known = &KnownHash{Hash: hex.EncodeToString(b)}
	}
	files, err := openAll(path, time.Time{})
	if err != nil {
		return v, err
	}
	defer closeAll(files)
	chain := &audit.Chain{}
	for i, f := range files {
		if ctx.Err() != nil {
			return v, ctx.Err()
		}
		r, err := reader(f)
		if err != nil {
			return v, err
		}
		var in io.Reader = r
		if i == len(files)-1 && path == f.Name() {
			in = &settled{r: r}
		}
		v.Files = append(v.Files, f.Name())
		before, breaks := chain.Lines, len(chain.Breaks)
		var watch *hashWatch
		if v.Known != nil && !v.Known.Found {
			watch = newHashWatch(want)
			in = io.TeeReader(in, watch)
		}
		if err := chain.Verify(in); err != nil {
			return v, fmt.Errorf("%s: %w", f.Name(), err)
		}
		for _, b := range chain.Breaks[breaks:] {
			v.Breaks = append(v.Breaks, BreakAt{File: f.Name(), Line: b.Line - before, Seq: b.Seq, Why: b.Why})
		}
		if watch != nil && watch.found > 0 {
			v.Known.Found, v.Known.File, v.Known.Line = true, f.Name(), watch.found
		}
	}
	v.OK = chain.OK() && (v.Known == nil || v.Known.Found)
	v.Lines, v.Chained, v.Unchained = chain.Lines, chain.Chained, chain.Unchained
	v.First, v.Seq, v.Lost = chain.First, chain.Seq, chain.Records
	if chain.Chained > 0 {
		v.Last = chain.Last
	}
	return v, nil
}

// settled reads a file that is being written: at its end it waits a moment for
// the rest of a line.
type settled struct {
	r     io.Reader
	last  byte
	tries int
}

func (s *settled) Read(p []byte) (int, error) {
	for {
		n, err := s.r.Read(p)
		if n > 0 {
			s.last, s.tries = p[n-1], 0
			return n, nil
		}
		if !errors.Is(err, io.EOF) || s.last == '\n' || s.last == 0 || s.tries == 20 {
			return n, err
		}
		s.tries++
		time.Sleep(10 * time.Millisecond)
	}
}

// hashWatch looks for a line with a given hash in what is written to it.
type hashWatch struct {
	want  [sha256.Size]byte
	line  []byte
	lines int
	found int // the line's number, 0 = not found
}

func newHashWatch(want [sha256.Size]byte) *hashWatch { return &hashWatch{want: want} }

func (w *hashWatch) Write(b []byte) (int, error) {
	n := len(b)
	for w.found == 0 {
		line, rest, ok := bytes.Cut(b, []byte{'\n'})
		if !ok {
			break
		}
		w.lines++
		if len(w.line) > 0 {
			w.line = append(w.line, line...)
			line = w.line
		}
		if sha256.Sum256(line) == w.want {
			w.found = w.lines
		}
		w.line = w.line[:0]
		b = rest
	}
	if w.found == 0 {
		w.line = append(w.line, b...)
	}
	return n, nil
}
