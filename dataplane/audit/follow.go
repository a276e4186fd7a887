package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// FollowOptions tune Follow. The zero value starts at the end of the file and
// looks for news every 50 ms.
type FollowOptions struct {
	// FromStart delivers what the file already holds.
	FromStart bool
	// Once stops at the end of the file instead of waiting for more.
	Once bool
	// Poll is the interval between looks; 0 means 50 ms. Polling works on every
	// file system, network and overlay ones included.
	Poll time.Duration
	// MaxLine bounds a line in bytes; 0 means 1 MiB. Longer ones are an error.
	MaxLine int
}

// ErrLineTooLong is returned by Follow for a line beyond FollowOptions.MaxLine, and by
// Chain.Verify for one of more than 16 MiB.
var ErrLineTooLong = errors.New("audit: line too long")

// Follow calls fn with every complete line of the log, without its newline, as
// the file grows, until ctx is done or fn returns an error. It survives what
// happens to logs: the file does not exist yet (it waits, unless Once is set),
// is replaced by a new one under the same name (what the old one still holds
// comes first), or is truncated (it starts over). A line is delivered only when
// its newline is there, so a half-written line is never seen.
//
// line is valid until fn returns. Follow returns nil when ctx is done or the
// end is reached with Once, and fn's error as it is.
func Follow(ctx context.Context, path string, opt FollowOptions, fn func(line []byte) error) error {
	if opt.Poll <= 0 {
		opt.Poll = 50 * time.Millisecond
	}
	if opt.MaxLine <= 0 {
		opt.MaxLine = 1 << 20
	}
	t := tail{path: path, opt: opt, fn: fn, chunk: make([]byte, 64<<10), skip: !opt.FromStart}
	defer t.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if err := t.look(ctx); err != nil {
			return err
		}
		if opt.Once {
			return nil
		}
		timer.Reset(opt.Poll)
	}
}

// tail is Follow's state.
type tail struct {
	path  string
	opt   FollowOptions
	fn    func([]byte) error
	file  *os.File
	read  int64  // bytes of file consumed
	part  []byte // an incomplete last line
	chunk []byte
	skip  bool // the first file opened is read from its end
}

func (t *tail) close() {
	if t.file != nil {
		_ = t.file.Close() // opened for reading: nothing to lose
		t.file = nil
	}
}

// look delivers everything that is there now.
func (t *tail) look(ctx context.Context) error {
	if t.file == nil {
		if err := t.open(); err != nil || t.file == nil {
			return err
		}
	}
	for {
		// Ask for the name's file before reading the open one to its end: if
		// the name points elsewhere by now, nothing is added to the old file
		// after a complete read, bar a writer that has not reopened yet.
		current, err := os.Stat(t.path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("audit: follow: %w", err)
		}
		mine, err2 := t.file.Stat()
		if err2 != nil {
			return fmt.Errorf("audit: follow: %w", err2)
		}
		if mine.Size() < t.read { // truncated: start over
			if _, err := t.file.Seek(0, io.SeekStart); err != nil {
				return fmt.Errorf("audit: follow: %w", err)
			}
			t.read, t.part = 0, t.part[:0]
		}
		if err := t.drain(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		if err != nil || os.SameFile(current, mine) {
			return nil // gone for the moment, or still the same
		}
		t.close()
		t.part = t.part[:0] // the old file ended in a torn line
		if err := t.open(); err != nil || t.file == nil {
			return err
		}
	}
}

func (t *tail) open() error {
	f, err := os.Open(t.path)
	if errors.Is(err, fs.ErrNotExist) && !t.opt.Once {
		t.skip = false // a file that appears later is news from its first line
		return nil
	}
	if err != nil {
		return fmt.Errorf("audit: follow: %w", err)
	}
	t.file, t.read = f, 0
	if t.skip {
		t.skip = false
		end, err := f.Seek(0, io.SeekEnd)
		if err != nil {
			return fmt.Errorf("audit: follow: %w", err)
		}
		t.read = end
	}
	return nil
}

// drain reads to the end of the open file and delivers complete lines.
func (t *tail) drain(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := t.file.Read(t.chunk)
		t.read += int64(n)
		data := t.chunk[:n]
		for {
			i := bytes.IndexByte(data, '\n')
			if i < 0 {
				break
			}
			line := data[:i]
			if len(t.part) > 0 {
				t.part = append(t.part, line...)
				line = t.part
			}
			if err := t.fn(line); err != nil {
				return err
			}
			t.part = t.part[:0]
			data = data[i+1:]
		}
		t.part = append(t.part, data...)
		if len(t.part) > t.opt.MaxLine {
			return ErrLineTooLong
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("audit: follow: %w", err)
		}
	}
	return nil
}
