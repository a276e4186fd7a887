package auditlog

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// line is record n of a log: n is its number and its source port.
func line(n int) string {
	return fmt.Sprintf(`{"v":1,"kind":"flow","time":"2026-01-02T03:04:05.%09dZ","verdict":"Drop","direction":"ingress",`+
		`"source":{"ip":"10.0.0.1","port":%d},"destination":{"ip":"10.0.0.2","port":80},"protocol":"TCP","count":1,"seq":%d,"events":%d}`, n, n, n, n)
}

func text(from, to int) string {
	var b strings.Builder
	for n := from; n <= to; n++ {
		b.WriteString(line(n) + "\n")
	}
	return b.String()
}

func write(t *testing.T, name, text string) {
	t.Helper()
	var err error
	if strings.HasSuffix(name, ".gz") {
		var f *os.File
		if f, err = os.Create(name); err == nil {
			z := gzip.NewWriter(f)
			_, werr := z.Write([]byte(text))
			err = errors.Join(werr, z.Close(), f.Close())
		}
	} else {
		err = os.WriteFile(name, []byte(text), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func appendTo(t *testing.T, name, text string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	f.Close()
}

// numbers returns the numbers of the lines read.
func numbers(t *testing.T, read func(fn func([]byte) error) error) []int {
	t.Helper()
	var got []int
	if err := read(func(b []byte) error {
		got = append(got, int(SeqOf(b)))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return got
}

func count(from, to int) []int {
	var out []int
	for n := from; n <= to; n++ {
		out = append(out, n)
	}
	return out
}

// A log is its rotated files in the order they were written, whoever rotated
// them, and then the file of its name.
func TestReadHistory(t *testing.T) {
	for name, files := range map[string]map[string][2]int{
		"one file":            {"log": {1, 5}},
		"the daemon's stamps": {"log.20260102T030405.000000006Z.gz": {1, 3}, "log.20260102T040405.000000000Z": {4, 6}, "log": {7, 9}},
		"logrotate, numbers":  {"log.3.gz": {1, 2}, "log.2.gz": {3, 4}, "log.1": {5, 6}, "log": {7, 8}},
		"logrotate, dates":    {"log-20260102": {1, 2}, "log-20260103.gz": {3, 4}, "log": {5, 6}},
		"plain and compressed": {
			"log.20260102T030405.000000006Z": {1, 3}, "log.20260102T030405.000000006Z.gz": {1, 3}, "log": {4, 5},
		},
		"an empty current file": {"log.1": {1, 4}, "log": {5, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			last := 0
			for file, span := range files {
				write(t, filepath.Join(dir, file), text(span[0], span[1]))
				last = max(last, span[1])
			}
			// Neighbours that are not this log's.
			for _, other := range []string{"log.next", "log.1.gz.tmp", ".log.state", "log2", "logs.1", "log.old"} {
				write(t, filepath.Join(dir, other), text(900, 910))
			}
			got := numbers(t, func(fn func([]byte) error) error {
				return Read(t.Context(), filepath.Join(dir, "log"), ReadOptions{}, fn)
			})
			if !slices.Equal(got, count(1, last)) {
				t.Errorf("read %v, want 1 to %d", got, last)
			}
		})
	}
}

func TestReadSinceLeavesOutOldFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "log.2"), text(1, 2))
	write(t, filepath.Join(dir, "log.1"), text(3, 4))
	write(t, filepath.Join(dir, "log"), text(5, 6))
	now := time.Now()
	for name, age := range map[string]time.Duration{"log.2": 3 * time.Hour, "log.1": time.Minute} {
		if err := os.Chtimes(filepath.Join(dir, name), now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
	}
	got := numbers(t, func(fn func([]byte) error) error {
		return Read(t.Context(), filepath.Join(dir, "log"), ReadOptions{Since: now.Add(-time.Hour)}, fn)
	})
	if !slices.Equal(got, count(3, 6)) {
		t.Errorf("read %v, want 3 to 6", got)
	}
}

func TestReadErrors(t *testing.T) {
	dir := t.TempDir()
	stop := errors.New("stop")
	log := filepath.Join(dir, "log")
	if err := Read(t.Context(), log, ReadOptions{}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	write(t, log, text(3, 5)+"unfinished")
	n := 0
	if err := Read(t.Context(), log, ReadOptions{}, func([]byte) error { n++; return nil }); err != nil || n != 3 {
		t.Errorf("%d lines, error %v: the unfinished one is yet to come", n, err)
	}
	if err := Read(t.Context(), log, ReadOptions{}, func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("fn's error came back as %v", err)
	}
	write(t, filepath.Join(dir, "log.1"), line(1)+"\ntorn by a crash")
	var all []string
	if err := Read(t.Context(), log, ReadOptions{}, func(b []byte) error { all = append(all, string(b)); return nil }); err != nil || all[1] != "torn by a crash" {
		t.Errorf("%q, error %v: nobody will finish that line", all, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "log.2.gz"), []byte("not gzip"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Read(t.Context(), log, ReadOptions{}, func([]byte) error { return nil }); err == nil || !strings.Contains(err.Error(), "log.2.gz") {
		t.Errorf("a broken archive: error %v, want one that names it", err)
	}
	if err := os.Remove(filepath.Join(dir, "log.2.gz")); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(t.TempDir(), "log")
	write(t, long, strings.Repeat("x", maxLine+10)+"\n")
	if err := Read(t.Context(), long, ReadOptions{}, func([]byte) error { return nil }); err == nil {
		t.Error("a line without end was accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Read(ctx, log, ReadOptions{}, func([]byte) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// Reading while the log is rotated and compressed: every line once, in order,
// whatever moment was caught.
func TestReadDuringRotation(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	write(t, log, text(1, 10))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		next, plain := 11, ""
		for i := 0; ctx.Err() == nil && i < 200; i++ {
			name := fmt.Sprintf("%s.20260102T%06d.000000000Z", log, i)
			write(t, log+".next", text(next, next+9))
			if err := errors.Join(os.Rename(log, name), os.Rename(log+".next", log)); err != nil {
				t.Error(err)
				return
			}
			if plain != "" { // compress the one before, as the daemon does
				b, err := os.ReadFile(plain)
				if err != nil {
					t.Error(err)
					return
				}
				write(t, plain+".tmp.gz", string(b))
				if err := errors.Join(os.Rename(plain+".tmp.gz", plain+".gz"), os.Remove(plain)); err != nil {
					t.Error(err)
					return
				}
			}
			plain, next = name, next+10
			time.Sleep(2 * time.Millisecond) // a log that rotates without a pause cannot be listed
		}
	})
	for range 20 {
		got := numbers(t, func(fn func([]byte) error) error { return Read(t.Context(), log, ReadOptions{}, fn) })
		if len(got)%10 != 0 || !slices.Equal(got, count(1, len(got))) {
			t.Fatalf("read %v", got)
		}
	}
}

func TestTailLast(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	write(t, log+".2.gz", text(1, 10))
	write(t, log+".1", text(11, 20))
	write(t, log, text(21, 25))
	odd := func(b []byte) bool { return SeqOf(b)%2 == 1 }
	for _, tt := range []struct {
		n    int
		keep func([]byte) bool
		want []int
	}{
		{0, nil, nil},
		{3, nil, count(23, 25)},
		{5, nil, count(21, 25)},
		{7, nil, count(19, 25)},
		{22, nil, count(4, 25)},
		{99, nil, count(1, 25)},
		{-1, nil, count(1, 25)},
		{4, odd, []int{19, 21, 23, 25}},
		{-1, odd, []int{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25}},
	} {
		got := numbers(t, func(fn func([]byte) error) error {
			return Tail(t.Context(), log, TailOptions{Lines: tt.n, Keep: tt.keep}, fn)
		})
		if !slices.Equal(got, tt.want) {
			t.Errorf("-n %d: %v, want %v", tt.n, got, tt.want)
		}
	}
}

// follower runs Tail in the background and collects the numbers of its lines.
type follower struct {
	t       *testing.T
	mu      sync.Mutex
	got     []int
	missing []string
	done    chan error
	cancel  context.CancelFunc
}

func follow(t *testing.T, log string, n int) *follower {
	ctx, cancel := context.WithCancel(t.Context())
	f := &follower{t: t, done: make(chan error, 1), cancel: cancel}
	go func() {
		f.done <- Tail(ctx, log, TailOptions{Lines: n, Follow: true, Missing: func(a, b uint64) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.missing = append(f.missing, fmt.Sprintf("%d-%d", a, b))
		}}, func(b []byte) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.got = append(f.got, int(SeqOf(b)))
			return nil
		})
	}()
	return f
}

// until waits for line n.
func (f *follower) until(n int) {
	f.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		f.mu.Lock()
		seen := slices.Contains(f.got, n)
		got := slices.Clone(f.got)
		f.mu.Unlock()
		if seen {
			return
		}
		if time.Now().After(end) {
			f.t.Fatalf("waited 10 s for line %d; got %v", n, got)
		}
	}
}

func (f *follower) end(want []int) {
	f.t.Helper()
	f.cancel()
	if err := <-f.done; err != nil {
		f.t.Error(err)
	}
	if !slices.Equal(f.got, want) {
		f.t.Errorf("got %v, want %v", f.got, want)
	}
}

// Rotated and compressed twice between two looks: the file in the middle was
// never the current one when it was looked at, and its lines come all the same.
func TestFollowFastRotation(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	write(t, log, text(1, 5))
	f := follow(t, log, 2)
	f.until(5)
	appendTo(t, log, text(6, 7))
	rename := func(to string) {
		if err := os.Rename(log, to); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 { // faster than anybody looks
		first := 8 + i*10
		rename(fmt.Sprintf("%s.20260102T%06d.000000000Z", log, i))
		write(t, log, text(first, first+9))
	}
	// The last but one is compressed, too.
	plain := fmt.Sprintf("%s.20260102T%06d.000000000Z", log, 18)
	b, err := os.ReadFile(plain)
	if err != nil {
		t.Fatal(err)
	}
	write(t, plain+".gz", string(b))
	if err := os.Remove(plain); err != nil {
		t.Fatal(err)
	}
	f.until(8 + 19*10 + 9)
	f.end(count(4, 8+19*10+9))
}

// What was removed before anybody could read it is said, not passed over.
func TestFollowMissing(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	write(t, log, text(1, 5))
	f := follow(t, log, 1)
	f.until(5)
	appendTo(t, log, text(6, 6))
	f.until(6)
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	write(t, log+".1", text(10, 12))
	write(t, log, text(15, 16))
	f.until(16)
	f.end([]int{5, 6, 10, 11, 12, 15, 16})
	if want := []string{"7-9", "13-14"}; !slices.Equal(f.missing, want) {
		t.Errorf("missing %v, want %v", f.missing, want)
	}
}

// A log that starts over counts from 1 again.
func TestFollowNewLog(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	write(t, log, text(1, 5))
	f := follow(t, log, 1)
	f.until(5)
	if err := os.Remove(log); err != nil {
		t.Fatal(err)
	}
	write(t, log, text(1, 2))
	f.until(2)
	f.end([]int{5, 1, 2})
}

func TestSeqOf(t *testing.T) {
	for text, want := range map[string]uint64{
		line(42): 42, `{"v":1}`: 0, `{"a":"b","seq":7}`: 7, `{"a":"b","seq":x}`: 0,
		`{"policy":{"name":",\"seq\":9"},"count":1,"seq":3,"prev":"00"}`: 3, "": 0, `,"seq":18446744073709551616`: 0,
	} {
		if got := SeqOf([]byte(text)); got != want {
			t.Errorf("%s: %d, want %d", text, got, want)
		}
	}
}

// Times as people say them. Days are the calendar's: in the night clocks change one has
// 23 hours.
func TestParseTimeInWords(t *testing.T) {
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip(err)
	}
	now := time.Date(2026, 3, 30, 9, 30, 0, 0, zone) // the day after clocks changed
	for text, want := range map[string]time.Time{
		"today":     time.Date(2026, 3, 30, 0, 0, 0, 0, zone),
		"yesterday": time.Date(2026, 3, 29, 0, 0, 0, 0, zone),
		"Yesterday": time.Date(2026, 3, 29, 0, 0, 0, 0, zone),
		"now":       now,
		"08:00":     time.Date(2026, 3, 30, 8, 0, 0, 0, zone),
		"23:15:30":  time.Date(2026, 3, 29, 23, 15, 30, 0, zone),
		"2w":        now.Add(-14 * 24 * time.Hour),
		"1.5d":      now.Add(-36 * time.Hour),
	} {
		if got, err := ParseTime(text, now); err != nil || !got.Equal(want) {
			t.Errorf("%s: %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"tomorrow", "25:00", "-1w", "w", "8"} {
		if got, err := ParseTime(text, now); err == nil {
			t.Errorf("%s: %v", text, got)
		}
	}
}
