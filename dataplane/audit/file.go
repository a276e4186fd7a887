package audit

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Files of a log called audit.log:
//
//	audit.log                                     written now
//	audit.log.20260102T030405.000000006Z          rotated then
//	audit.log.20260102T030405.000000006Z.gz       and compressed since
//	audit.log.next, *.gz.tmp                      steps in between; cleaned up at start
//	.audit.log.state                              see state
const (
	rotatedStamp = "20060102T150405.000000000Z"
	gzSuffix     = ".gz"
	tmpSuffix    = ".gz.tmp"
	nextSuffix   = ".next"
)

// rotated returns the rotated files of a log, oldest first. Where a file is there plain
// and compressed, because compressing it has just ended, it is named once. Names other
// programs gave when they rotated the log are not known here.
func rotated(path string) ([]string, error) {
	dir, base := filepath.Split(path)
	if dir == "" {
		dir = "."
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("audit: list log files: %w", err)
	}
	var files []string
	for _, e := range list {
		if _, ok := rotatedAt(base, e.Name()); ok {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	// Stamps have one length, so names sort by time, and plain before .gz.
	slices.Sort(files)
	return slices.CompactFunc(files, func(a, b string) bool { return b == a+gzSuffix }), nil
}

// rotatedAt reads the time a name says its file was rotated at.
func rotatedAt(base, name string) (time.Time, bool) {
	stamp, ok := strings.CutPrefix(name, base+".")
	if !ok {
		return time.Time{}, false
	}
	t, err := time.Parse(rotatedStamp, strings.TrimSuffix(stamp, gzSuffix))
	return t, err == nil
}

// Open opens a file of a log for reading, whether or not it is compressed.
func Open(name string) (io.ReadCloser, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	if !strings.HasSuffix(name, gzSuffix) {
		return f, nil
	}
	z, err := gzip.NewReader(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("audit: %s: %w", name, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{z, f}, nil
}

// logFile is the file being written.
type logFile struct {
	path    string
	f       *os.File
	size    int64
	began   time.Time // of its first record, or when it was last changed before
	stamp   time.Time // of the last rotation; zero = not known
	regular bool      // not a terminal, pipe or device
	info    os.FileInfo
}

// openLogFile opens path for appending and creates it with mode if need be.
func openLogFile(path string, mode fs.FileMode) (*logFile, error) {
	l := &logFile{path: path, regular: true}
	flags := os.O_APPEND | os.O_RDWR
	if st, err := os.Stat(path); err == nil && !st.Mode().IsRegular() {
		l.regular, flags = false, os.O_APPEND|os.O_WRONLY
	}
	f, err := os.OpenFile(path, flags, 0)
	if errors.Is(err, fs.ErrNotExist) {
		if f, err = os.OpenFile(path, flags|os.O_CREATE|os.O_EXCL, mode); err == nil {
			err = f.Chmod(mode) // whatever the umask says
		}
	}
	if err != nil {
		return nil, fmt.Errorf("audit: open log: %w", err)
	}
	l.f = f
	if l.info, err = f.Stat(); err != nil {
		f.Close()
		return nil, fmt.Errorf("audit: open log: %w", err)
	}
	l.began = time.Now()
	if l.size = l.info.Size(); l.size > 0 {
		l.began = l.info.ModTime()
	}
	return l, nil
}

func (l *logFile) Write(b []byte) (int, error) {
	n, err := l.f.Write(b)
	l.size += int64(n)
	return n, err
}

func (l *logFile) Close() error { return l.f.Close() }

// cut takes back the last n bytes, which belong to a line that was not finished.
func (l *logFile) cut(n int64) error {
	if !l.regular {
		return errors.ErrUnsupported
	}
	st, err := l.f.Stat()
	if err != nil {
		return err
	}
	if err := l.f.Truncate(st.Size() - n); err != nil {
		return err
	}
	l.size = st.Size() - n
	return nil
}

// moved reports whether the name leads to another file by now, or to none: a
// log rotation that did not tell us. A file that shrank was copied and truncated.
func (l *logFile) moved() (moved, truncated bool) {
	if !l.regular {
		return false, false
	}
	st, err := os.Stat(l.path)
	if err != nil {
		return errors.Is(err, fs.ErrNotExist), false
	}
	if !os.SameFile(st, l.info) {
		return true, false
	}
	if truncated = st.Size() < l.size; truncated {
		l.size = st.Size()
	}
	return false, truncated
}

// rotate gives the file its rotated name and returns a new one in its place. On
// an error nothing has changed, but that a rename may have gone through: the
// file is written on under either name.
//
// The new file is there before the old one loses its name, so at every moment
// there is a file to write to.
func (l *logFile) rotate(now time.Time, mode fs.FileMode) (*logFile, error) {
	next := l.path + nextSuffix
	if err := os.Remove(next); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("audit: rotate: %w", err)
	}
	n, err := openLogFile(next, mode)
	if err != nil {
		return nil, err
	}
	// Names sort in the order of rotation, whatever the clock does, and none is
	// used twice, also when its file was compressed meanwhile.
	if files, err := rotated(l.path); err == nil && len(files) > 0 && l.stamp.IsZero() {
		l.stamp, _ = rotatedAt(filepath.Base(l.path), filepath.Base(files[len(files)-1]))
	}
	if now = now.UTC(); !now.After(l.stamp) {
		now = l.stamp.Add(1)
	}
	name := l.path + "." + now.Format(rotatedStamp)
	if err = os.Rename(l.path, name); err == nil {
		err = os.Rename(next, l.path)
	}
	if err != nil {
		n.Close()
		return nil, fmt.Errorf("audit: rotate: %w", err)
	}
	n.path, n.stamp = l.path, now
	return n, nil
}

// ending is how a log's last file ends.
type ending struct {
	numbers      // of its last line
	torn    bool // the file ended inside a line, which was taken away
	chained bool // the last line belongs to a hash chain
}

// tailWindow is how much of a file's end is searched for its last lines.
const tailWindow = 4 << 20

// mend takes away what a writer that died left of its last line, and reads
// where the numbers stand.
func (l *logFile) mend() (ending, error) {
	var e ending
	if !l.regular || l.size == 0 {
		return e, nil
	}
	from := max(l.size-tailWindow, 0)
	b := make([]byte, l.size-from)
	if _, err := l.f.ReadAt(b, from); err != nil && !errors.Is(err, io.EOF) {
		return e, fmt.Errorf("audit: read log's end: %w", err)
	}
	if i := bytes.LastIndexByte(b, '\n'); i+1 < len(b) {
		e.torn = true
		if i < 0 && from > 0 {
			return e, fmt.Errorf("audit: %s does not look like a log: no line ends in its last %d bytes", l.path, tailWindow)
		}
		b = b[:i+1]
		if err := l.f.Truncate(from + int64(len(b))); err != nil {
			return e, fmt.Errorf("audit: mend torn line: %w", err)
		}
		l.size = from + int64(len(b))
	}
	e.read(b)
	if r, ok := l.firstRecord(); ok {
		l.began = r.Time
	}
	return e, nil
}

// read finds the numbers in a file's last lines.
func (e *ending) read(b []byte) {
	for first := true; len(b) > 0; first = false {
		b = b[:len(b)-1]
		i := bytes.LastIndexByte(b, '\n')
		line := b[i+1:]
		r, err := Parse(line)
		if first {
			e.prev = sha256.Sum256(line)
			e.chained = err == nil && r.Prev != ""
		}
		if err == nil && r.Seq != 0 {
			e.seq, e.events = r.Seq, r.Events
			return
		}
		b = b[:i+1]
	}
}

func (l *logFile) firstRecord() (Record, bool) {
	b := make([]byte, 64<<10)
	n, _ := l.f.ReadAt(b, 0) // short at the end of the file
	line, _, ok := bytes.Cut(b[:n], []byte{'\n'})
	if !ok {
		return Record{}, false
	}
	r, err := Parse(line)
	return r, err == nil
}

// endingOf reads how a rotated file ends.
func endingOf(name string) (ending, error) {
	var e ending
	f, err := Open(name)
	if err != nil {
		return e, err
	}
	defer f.Close()
	var b []byte
	chunk := make([]byte, 256<<10)
	for {
		n, err := f.Read(chunk)
		if b = append(b, chunk[:n]...); len(b) > 2*tailWindow {
			b = append(b[:0], b[len(b)-tailWindow:]...)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return e, fmt.Errorf("audit: %s: %w", name, err)
		}
	}
	e.read(b[:bytes.LastIndexByte(b, '\n')+1])
	return e, nil
}

// ended finds out how a log ends, whatever its last writer was doing when it
// stopped, and mends its file.
func (l *logFile) ended() (ending, error) {
	e, err := l.mend()
	if err != nil || !l.regular || l.size > 0 {
		return e, err
	}
	// A new or empty file: the numbers go on from the newest rotated one.
	files, err := rotated(l.path)
	if err != nil {
		return e, err
	}
	for _, name := range slices.Backward(files) {
		if last, err := endingOf(name); err == nil && last.seq != 0 {
			last.torn = e.torn
			return last, nil
		}
	}
	return e, nil
}

func sameFile(a, b *logFile) bool { return os.SameFile(a.info, b.info) }
