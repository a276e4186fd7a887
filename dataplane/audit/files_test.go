package audit

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

func allowed(conn uint64) dataplane.Event {
	return dataplane.Event{
		Time: dataplane.MonotonicClock(), Generation: 3, Count: 1, Key: toWeb, Conn: conn,
		Verdict: classifier.Allow, Egress: oQuiet, Ingress: oQuietRule, Forced: true,
	}
}

// TestRotationUnderLoad rotates by size, with compression, while records come
// as fast as they can, and moves the file away by hand now and then without
// telling. Every record is in one of the files, once, in order.
func TestRotationUnderLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	src := newWorld()
	src.ring = dataplane.NewRing(4096)
	w, err := New(Config{
		Source: src, Path: path, State: true, Chain: true, MaxSize: 128 << 10, Compress: true, Poll: 100 * time.Microsecond, Mode: 0o600,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	const n = 20_000
	for i := uint64(1); i <= n; i++ {
		e := allowed(i)
		for src.ring.Len() == src.ring.Cap() {
			runtime.Gosched()
		}
		if !src.ring.Put(&e) {
			t.Fatal("ring full although it was not")
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	files, err := logFiles(path)
	if err != nil {
		t.Fatal(err)
	}
	next, lines := uint64(1), uint64(0)
	for _, name := range files {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", name, st.Mode(), err)
		}
		for i, r := range readAll(t, name) {
			lines++
			if r.Seq != lines {
				t.Fatalf("%s: line %d is number %d", name, lines, r.Seq)
			}
			if (i == 0) != (r.Kind == KindFile) {
				t.Fatalf("%s: line %d of kind %s", name, i, r.Kind)
			}
			if r.Kind == KindFlow && r.Direction == "ingress" {
				if want := fmt.Sprintf("%x", next); r.Connection != want {
					t.Fatalf("%s: connection %s, want %s", name, r.Connection, want)
				}
				next++
			}
		}
	}
	if next != n+1 {
		t.Errorf("%d connections in the log, want %d", next-1, n)
	}
	if c, err := verifyFiles(files...); err != nil || !c.OK() || c.Chained != int(lines) {
		t.Errorf("chain of %d lines: %+v, %v", lines, c, err)
	}
	if s := w.Stats(); s.Rotations < 10 || s.Records != lines || s.WriteLost != 0 || s.RingLost != 0 {
		t.Errorf("stats %+v, %d lines", s, lines)
	}
}

// TestRotateByAge, with the clock in hand; what is too old or too much goes.
func TestRetention(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	src := newWorld()
	wall, now := wallEpoch, epoch
	step := func(d time.Duration) { wall, now = wall.Add(d), now+int64(d) }
	w, err := New(Config{
		Source: src, Path: path, MaxAge: time.Hour, Keep: 3, KeepFor: 150 * time.Minute, Compress: true,
		Clock: func() int64 { return now }, Wall: func() time.Time { return wall },
	})
	if err != nil {
		t.Fatal(err)
	}
	w.out.file.began = wall
	var names []string
	for i := range 8 {
		e := allowed(uint64(i + 1))
		e.Time = now
		src.ring.Put(&e)
		w.step(now)
		step(30 * time.Minute)
		w.step(now)
		if err := w.archive.tidy(t.Context()); err != nil {
			t.Fatal(err)
		}
		files, err := rotated(path)
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprint(len(files)))
		for _, f := range files {
			if !strings.HasSuffix(f, gzSuffix) {
				t.Errorf("%s is not compressed", f)
			}
		}
	}
	// One every hour, gone after two and a half.
	if got := strings.Join(names, " "); got != "0 1 1 2 2 3 3 3" && got != "0 1 1 2 2 3 2 3" {
		t.Errorf("rotated files after each half hour: %s", got)
	}
	if got := w.Stats().Rotations; got != 4 {
		t.Errorf("%d rotations in four hours", got)
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
}

// TestMovedAway: logrotate without a signal, and with copytruncate.
func TestMovedAway(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	src := newWorld()
	now := epoch
	w, err := New(Config{Source: src, Path: path, Chain: true, Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	put := func(conn uint64) {
		e := allowed(conn)
		e.Time = now
		src.ring.Put(&e)
		w.step(now)
		now += int64(2 * time.Second)
		w.step(now)
	}
	put(1)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	put(2) // still into the old file: its name is looked at once a second
	put(3)
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	now += int64(time.Second)
	w.step(now)
	put(4)
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	conns := func(name string) (s string) {
		for _, r := range readAll(t, name) {
			if r.Direction == "ingress" || r.Kind == KindFile {
				s += r.Connection + r.Reason + " "
			}
		}
		return s
	}
	if got := conns(path + ".1"); got != "start 1rule 2rule " {
		t.Errorf("old file: %s", got)
	}
	if got := conns(path); got != "truncated 4rule " {
		t.Errorf("new file: %s", got)
	}
}

// TestTamper changes a chained log in every way there is; each one shows.
func TestTamper(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	src := newWorld()
	w, err := New(Config{Source: src, Path: path, Chain: true, MaxSize: 4000})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		e := allowed(uint64(i + 1))
		src.ring.Put(&e)
		w.step(w.clock())
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
	files, err := logFiles(path)
	if err != nil || len(files) < 5 {
		t.Fatal(files, err)
	}
	var texts [][]byte
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, b)
	}
	verify := func(texts ...[]byte) *Chain {
		var c Chain
		for _, b := range texts {
			if err := c.Verify(bytes.NewReader(b)); err != nil {
				t.Fatal(err)
			}
		}
		return &c
	}
	whole := verify(texts...)
	if !whole.OK() || whole.Seq != uint64(whole.Lines) {
		t.Fatalf("untouched: %+v", whole)
	}
	if c := verify(texts[2:]...); !c.OK() || c.Last != whole.Last || c.First == whole.First {
		t.Errorf("old files removed by retention: %+v", c)
	}
	lines := bytes.SplitAfter(texts[1], []byte{'\n'})
	edit := func(f func(l [][]byte) [][]byte) []byte {
		return bytes.Join(f(append([][]byte(nil), lines[:len(lines)-1]...)), nil)
	}
	for name, b := range map[string][]byte{
		"changed": edit(func(l [][]byte) [][]byte {
			l[3] = bytes.Replace(l[3], []byte(`"Allow"`), []byte(`"Drop"`), 1)
			return l
		}),
		"removed":  edit(func(l [][]byte) [][]byte { return append(l[:2:2], l[3:]...) }),
		"added":    edit(func(l [][]byte) [][]byte { return append(l[:2:2], append([][]byte{l[1]}, l[2:]...)...) }),
		"swapped":  edit(func(l [][]byte) [][]byte { l[2], l[3] = l[3], l[2]; return l }),
		"last one": edit(func(l [][]byte) [][]byte { return l[:len(l)-1] }),
		"garbage":  edit(func(l [][]byte) [][]byte { l[2] = []byte("garbage\n"); return l }),
		"unhashed": edit(func(l [][]byte) [][]byte {
			i := bytes.Index(l[2], []byte(`,"prev"`))
			l[2] = append(append([]byte(nil), l[2][:i]...), "}\n"...)
			return l
		}),
		"cut":          texts[1][:len(texts[1])-10],
		"file missing": nil,
	} {
		if c := verify(append([][]byte{texts[0], b}, texts[2:]...)...); c.OK() || len(c.Breaks) == 0 {
			t.Errorf("%s: does not show", name)
		}
	}
	// A cut at the very end shows only against a hash from elsewhere.
	last := texts[len(texts)-1]
	if c := verify(append(texts[:len(texts)-1:len(texts)-1], last[:bytes.LastIndexByte(last[:len(last)-1], '\n')+1])...); c.Last == whole.Last {
		t.Error("the last line's hash does not tell a cut")
	}
}

// TestDiskReallyFull fills a small file system of its own, in a mount namespace
// of its own, and makes room again: lines are whole, and the number of missing
// records is exact.
func TestDiskReallyFull(t *testing.T) {
	nstest.Need(t)
	dir := t.TempDir()
	errs := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
		if err == nil {
			err = unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		}
		if err == nil {
			err = unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k")
		}
		if err == nil {
			err = fillUp(dir)
		}
		errs <- err
	}()
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
}

func fillUp(dir string) error {
	path := filepath.Join(dir, "audit.log")
	src := newWorld()
	now := epoch
	w, err := New(Config{Source: src, Path: path, Chain: true, State: true, Clock: func() int64 { return now }})
	if err != nil {
		return err
	}
	const n = 3000
	for i := range n {
		if i == 2000 { // by now it is full
			if w.Stats().WriteLost == 0 {
				return fmt.Errorf("not full after %d events", i)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if b[len(b)-1] != '\n' {
				return fmt.Errorf("the full file ends inside a line")
			}
			if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=16m"); err != nil {
				return err
			}
		}
		e := allowed(uint64(i + 1))
		e.Time = now
		src.ring.Put(&e)
		w.step(now)
		now += int64(10 * time.Millisecond)
	}
	if err := w.finish(); err != nil {
		return err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var flows, lost uint64
	var last Record
	for line := range bytes.Lines(b) {
		r, err := Parse(line)
		if err != nil {
			return fmt.Errorf("%w: %s", err, line)
		}
		switch r.Kind {
		case KindFlow:
			flows++
		case KindLost:
			lost += r.Count
		}
		last = r
	}
	s := w.Stats()
	if flows+lost != 2*n || lost != s.WriteLost || lost == 0 || last.Events != n {
		return fmt.Errorf("%d records and %d lost, want %d together; last line's events %d; stats %+v", flows, lost, 2*n, last.Events, s)
	}
	c, err := verifyFiles(path)
	if err == nil && !c.OK() {
		err = fmt.Errorf("chain: %v", c.Breaks)
	}
	return err
}
