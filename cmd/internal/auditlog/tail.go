package auditlog

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"math"
	"os"
	"strconv"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// TailOptions say what Tail delivers.
type TailOptions struct {
	ReadOptions
	// Lines is how many lines of the past to deliver; negative means all.
	Lines int
	// Keep selects lines; nil keeps all. Lines counts what it keeps.
	Keep func(line []byte) bool
	// Follow goes on with new lines until ctx ends. The file need not exist yet.
	Follow bool
	// Missing, if set, is called when lines were rotated away and removed before
	// they could be read: those numbered first to last.
	Missing func(first, last uint64)
	// Caught, if set, is called once, when the lines of the past have been
	// delivered and following begins.
	Caught func()
}

// Tail calls fn with the last lines of a log, in order, and with Follow goes on
// with what is added, across rotation and compression. It returns nil when ctx
// ends while it follows.
func Tail(ctx context.Context, path string, opt TailOptions, fn func(line []byte) error) error {
	t := tailer{path: path, opt: opt, fn: fn}
	if t.opt.Keep == nil {
		t.opt.Keep = func([]byte) bool { return true }
	}
	if path == Stdin {
		var last ring
		last.n = opt.Lines
		if err := Read(ctx, path, opt.ReadOptions, func(line []byte) error { return t.take(&last, line) }); err != nil {
			return err
		}
		return last.each(fn)
	}
	read, err := t.past(ctx)
	if err != nil || !opt.Follow {
		return err
	}
	if opt.Caught != nil {
		opt.Caught()
	}
	return t.follow(ctx, read)
}

type tailer struct {
	path string
	opt  TailOptions
	fn   func([]byte) error
	seq  uint64 // of the last line read; 0 = none, or lines have no numbers
	seen int64  // bytes of the current file's complete lines that were read
}

// take keeps a line for later, or delivers it at once when all are wanted.
func (t *tailer) take(last *ring, line []byte) error {
	if last.n == 0 || !t.opt.Keep(line) {
		return nil
	}
	if last.n < 0 {
		return t.fn(line)
	}
	last.add(line)
	return nil
}

// past delivers the last lines and returns the file that was read last.
func (t *tailer) past(ctx context.Context) (fs.FileInfo, error) {
	files, err := openAll(t.path, t.opt.Since)
	if t.opt.Follow && errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	newest := len(files) - 1
	info, err := files[newest].Stat()
	if err != nil {
		return nil, err
	}
	current := func(line []byte) {
		t.seen += int64(len(line)) + 1
		if n := SeqOf(line); n != 0 {
			t.seq = n
		}
	}
	if t.opt.Lines < 0 {
		for i, f := range files {
			t.opt.opened(f.Name())
			if err := readFile(ctx, f, i < newest, func(line []byte) error {
				if i == newest {
					current(line)
				}
				return t.take(&ring{n: -1}, line)
			}); err != nil {
				return nil, err
			}
		}
		return info, nil
	}
	// From the newest file backwards, until there are enough lines: a log is
	// long, and the end of it is asked for.
	var found []*ring
	left := t.opt.Lines
	for i := newest; i >= 0 && (left > 0 || i == newest); i-- {
		t.opt.opened(files[i].Name())
		r := &ring{n: left}
		if err := readFile(ctx, files[i], i < newest, func(line []byte) error {
			if i == newest {
				current(line)
			}
			return t.take(r, line)
		}); err != nil {
			return nil, err
		}
		found = append(found, r)
		left -= len(r.lines)
	}
	for i := len(found) - 1; i >= 0; i-- {
		if err := found[i].each(t.fn); err != nil {
			return nil, err
		}
	}
	return info, nil
}

// follow goes on after what past has read.
func (t *tailer) follow(ctx context.Context, read fs.FileInfo) error {
	// audit.Follow reads the file from its start; what past has seen of it is
	// left out, so that no line written in between is lost. A file that is new
	// by now has none of it.
	skip := t.seen
	if now, err := os.Stat(t.path); err != nil || read == nil || !os.SameFile(now, read) {
		skip = 0
		if read != nil {
			if err := t.fill(ctx, math.MaxUint64); err != nil {
				return err
			}
		}
	}
	return audit.Follow(ctx, t.path, audit.FollowOptions{FromStart: true, MaxLine: maxLine}, func(line []byte) error {
		if skip > 0 {
			skip -= int64(len(line)) + 1
			return nil
		}
		n := SeqOf(line)
		switch {
		case n == 0:
		case t.seq != 0 && n > t.seq+1:
			if err := t.fill(ctx, n); err != nil {
				return err
			}
		case t.seq != 0 && n <= t.seq && n != 1:
			return nil // fill has delivered it; number 1 begins another log
		}
		if n != 0 {
			t.seq = n
		}
		if !t.opt.Keep(line) {
			return nil
		}
		return t.fn(line)
	})
}

// fill delivers the lines after the last one and before number end from the
// log's rotated files.
func (t *tailer) fill(ctx context.Context, end uint64) error {
	if t.seq == 0 {
		return nil
	}
	files, err := openAll(t.path, t.opt.Since)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer closeAll(files)
	for _, f := range files[:len(files)-1] {
		if err := readFile(ctx, f, true, func(line []byte) error {
			n := SeqOf(line)
			if n <= t.seq || n >= end {
				return nil
			}
			t.missing(n)
			t.seq = n
			if !t.opt.Keep(line) {
				return nil
			}
			return t.fn(line)
		}); err != nil {
			return err
		}
	}
	if end != math.MaxUint64 {
		t.missing(end)
		t.seq = end - 1
	}
	return nil
}

// missing tells if the lines before number next are nowhere.
func (t *tailer) missing(next uint64) {
	if next > t.seq+1 && t.opt.Missing != nil {
		t.opt.Missing(t.seq+1, next-1)
	}
}

// SeqOf reads Record.Seq from a line without parsing all of it; 0 if there is
// none. The pattern cannot occur inside a JSON string, where quotes are escaped.
func SeqOf(line []byte) uint64 {
	const key = `,"seq":`
	i := bytes.LastIndex(line, []byte(key))
	if i < 0 {
		return 0
	}
	rest := line[i+len(key):]
	end := 0
	for end < len(rest) && rest[end] >= '0' && rest[end] <= '9' {
		end++
	}
	n, err := strconv.ParseUint(string(rest[:end]), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// ring keeps the newest n lines.
type ring struct {
	n     int
	lines [][]byte
	next  int
}

func (r *ring) add(line []byte) {
	if len(r.lines) < r.n {
		r.lines = append(r.lines, bytes.Clone(line))
		return
	}
	r.lines[r.next] = append(r.lines[r.next][:0], line...)
	r.next = (r.next + 1) % r.n
}

func (r *ring) each(fn func([]byte) error) error {
	for i := range r.lines {
		if err := fn(r.lines[(r.next+i)%len(r.lines)]); err != nil {
			return err
		}
	}
	return nil
}
