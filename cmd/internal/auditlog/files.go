package auditlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// maxLine bounds a line in bytes, as audit.Follow does.
const maxLine = 1 << 20

// rotatedName matches what follows a log's own name in its rotated files: the
// daemon's time stamps, and what logrotate appends with its usual settings
// ("audit.log.1", "audit.log-20260102").
var rotatedName = regexp.MustCompile(`^(\.\d{8}T\d{6}\.\d{9}Z|\.\d+|-\d{8,14})(\.gz)?$`)

// opened is an open file of a log.
type opened struct {
	*os.File
	first string // its first line: what tells files apart
	began time.Time
	seq   uint64
}

// look reads how a file begins. A file without a record is as old as its last
// change.
func (o *opened) look() (err error) {
	info, err := o.Stat()
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	o.began = info.ModTime()
	defer func() {
		if _, serr := o.Seek(0, io.SeekStart); err == nil && serr != nil {
			err = fmt.Errorf("open log: %w", serr)
		}
	}()
	var r io.Reader = o.File
	if strings.HasSuffix(o.Name(), ".gz") {
		z, err := gzip.NewReader(o)
		if err != nil {
			return fmt.Errorf("%s: %w", o.Name(), err)
		}
		r = z
	}
	in := bufio.NewReader(r)
	for i := range 16 { // skip what is no record, within reason
		line, err := in.ReadBytes('\n')
		if i == 0 {
			o.first = string(line)
		}
		if err != nil {
			break
		}
		if rec, err := audit.Parse(bytes.TrimSuffix(line, []byte{'\n'})); err == nil {
			o.began, o.seq = rec.Time, rec.Seq
			break
		}
	}
	return nil
}

// reader takes f over and decompresses it if its name says so.
func reader(f *os.File) (io.ReadCloser, error) {
	if !strings.HasSuffix(f.Name(), ".gz") {
		return f, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", f.Name(), err)
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// openAll opens the files of a log, oldest first, the one being written last.
// Together they are the log as of one moment: rotation and compression can
// neither take a line away any more nor show it twice. Rotated files that were
// last written before since are left out; the zero time leaves none out.
//
// The order of steps is what makes that true. The file being written is opened
// first: whatever it is called a moment later, the files older than it are
// rotated ones by now, under their plain name or compressed. Directories are
// listed twice, because one listing may miss a file that changes its name
// meanwhile. What was opened twice, under two names, has the same first line.
func openAll(path string, since time.Time) (files []*os.File, err error) {
	current, err := openCurrent(path)
	if err != nil {
		return nil, err
	}
	all := []*opened{current}
	defer func() {
		for _, o := range all {
			if o != nil && !slices.Contains(files, o.File) {
				o.Close()
			}
		}
	}()
	if err := current.look(); err != nil {
		return nil, err
	}
	names, err := rotatedNames(path)
	if err != nil {
		return nil, err
	}
	seen := map[string]bool{current.first: current.first != ""}
	for _, name := range names {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			f, err = os.Open(name + ".gz") // compressed since it was listed
		}
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed for its age
		}
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		o := &opened{File: f}
		all = append(all, o)
		if err := o.look(); err != nil {
			return nil, err
		}
		if o.first == "" || seen[o.first] {
			continue
		}
		seen[o.first] = true
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("open log: %w", err)
		}
		if info.ModTime().Before(since) || current.first != "" && o.after(current) {
			continue
		}
		files = append(files, f)
	}
	kept := all[:0:0]
	for _, o := range all[1:] {
		if slices.Contains(files, o.File) {
			kept = append(kept, o)
		}
	}
	slices.SortStableFunc(kept, func(a, b *opened) int {
		switch {
		case b.after(a):
			return -1
		case a.after(b):
			return 1
		}
		return 0
	})
	files = files[:0]
	for _, o := range kept {
		files = append(files, o.File)
	}
	return append(files, current.File), nil
}

// after reports whether a file was begun after another one. Numbers go on
// across files; times may overlap, since denied packets are recorded when their
// window closes, but are all there is in logs without numbers. Names do not
// tell: logrotate counts backwards.
func (o *opened) after(p *opened) bool {
	if o.seq != 0 && p.seq != 0 && o.seq != p.seq {
		return o.seq > p.seq
	}
	return o.began.After(p.began)
}

// openCurrent opens the file being written. Between the two renames of a
// rotation there is none for a moment.
func openCurrent(path string) (*opened, error) {
	const tries = 20
	for try := 0; ; try++ {
		f, err := os.Open(path)
		if err == nil {
			return &opened{File: f}, nil
		}
		if try < tries && errors.Is(err, fs.ErrNotExist) {
			if names, err := rotatedNames(path); err == nil && len(names) > 0 {
				time.Sleep(5 * time.Millisecond)
				continue
			}
		}
		return nil, fmt.Errorf("open log: %w", err)
	}
}

// rotatedNames lists the rotated files of a log, in no order.
func rotatedNames(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	var names []string
	for range 2 {
		list, err := os.ReadDir(dir)
		if err != nil {
			return nil, fmt.Errorf("list log files: %w", err)
		}
		for _, e := range list {
			if rest, ok := strings.CutPrefix(e.Name(), base); ok && rotatedName.MatchString(rest) {
				names = append(names, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// ReadOptions say what of a log to read.
type ReadOptions struct {
	// Stdin is read for the path [Stdin].
	Stdin io.Reader
	// Opened, if set, is called with the name of every file that is read.
	Opened func(name string)
	// Since allows to leave out files that were last written before it. Records
	// before it may still be delivered.
	Since time.Time
}

// Read calls fn with every line of a log, oldest first, without its newline:
// the rotated files of path and then path itself, as they are at this moment. A
// line is valid until fn returns; fn's error ends Read and is returned as it is.
//
// The unfinished last line of the file being written is left out: its rest is
// yet to come.
func Read(ctx context.Context, path string, opt ReadOptions, fn func(line []byte) error) error {
	if path == Stdin {
		opt.opened("standard input")
		return lines(ctx, opt.Stdin, true, fn)
	}
	files, err := openAll(path, opt.Since)
	if err != nil {
		return err
	}
	defer closeAll(files)
	for i, f := range files {
		opt.opened(f.Name())
		if err := readFile(ctx, f, i+1 < len(files), fn); err != nil {
			return err
		}
	}
	return nil
}

func (o *ReadOptions) opened(name string) {
	if o.Opened != nil {
		o.Opened(name)
	}
}

// readFile reads a file; ended says that nobody writes it any more.
func readFile(ctx context.Context, f *os.File, ended bool, fn func([]byte) error) error {
	r, err := reader(f)
	if err != nil {
		return err
	}
	return lines(ctx, r, ended, fn)
}

// lines calls fn with every line. What follows the last newline is one if the
// input has ended.
func lines(ctx context.Context, r io.Reader, ended bool, fn func([]byte) error) error {
	in := bufio.NewReaderSize(r, 256<<10)
	var part []byte
	for n := 0; ; n++ {
		if n&0x3ff == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		line, err := in.ReadSlice('\n')
		if err == nil && len(part) == 0 {
			if err := fn(line[:len(line)-1]); err != nil {
				return err
			}
			continue
		}
		part = append(part, line...)
		if len(part) > maxLine {
			return audit.ErrLineTooLong
		}
		switch {
		case err == nil:
			if err := fn(part[:len(part)-1]); err != nil {
				return err
			}
			part = part[:0]
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF):
			if ended && len(part) > 0 {
				return fn(part)
			}
			return nil
		default:
			return fmt.Errorf("read log: %w", err)
		}
	}
}
