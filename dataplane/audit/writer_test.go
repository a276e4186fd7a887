package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

func (l *log) records() []Record {
	l.t.Helper()
	var all []Record
	if l.Len() == 0 {
		return nil
	}
	for _, line := range l.lines() {
		r, err := Parse([]byte(line))
		if err != nil {
			l.t.Fatalf("%v: %s", err, line)
		}
		all = append(all, r)
	}
	return all
}

func denied(port uint16) dataplane.Event {
	e := dataplane.Event{Key: toWeb, Verdict: classifier.Drop, Egress: oQuiet, Ingress: oIsolated, Length: 60, TCPFlags: packet.SYN}
	e.Key.SrcPort = port
	return e
}

// TestAggregation: equal denied packets of one second are one record with their
// number; allowed ones and passed rules never are.
func TestAggregation(t *testing.T) {
	l := newLog(t, Config{})
	for range 4 {
		l.put(denied(1))
		l.put(denied(2))
		l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP})
		l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Drop, Egress: oQuiet, Ingress: oPassDenied})
		l.after(200 * time.Millisecond)
	}
	got := map[string]uint64{}
	for _, r := range l.records() {
		got[r.Verdict] += r.Count
	}
	if got[Allow] != 4 || got[Pass] != 8 || got[Drop] != 0 { // S2-87: a record each
		t.Errorf("before the second is over: %v, want 4 Allow, 8 Pass and no Drop", got)
	}
	l.after(200 * time.Millisecond) // 1.0 s after the first
	n := 0
	for _, r := range l.records() {
		if r.Verdict != Drop {
			continue
		}
		n++
		if r.Count != 4 || r.Until == nil || r.Until.Sub(r.Time) != time.Second { // S2-86
			t.Errorf("aggregate of %d until %v", r.Count, r.Until)
		}
	}
	if n != 3 { // S2-86
		t.Errorf("%d aggregates, want one for each port and rule set", n)
	}
	// The next second starts a new one, also if the writer was away meanwhile.
	l.Reset()
	l.put(denied(1))
	l.now += int64(1500 * time.Millisecond)
	l.put(denied(1))
	l.after(0)
	if r := l.records(); len(r) != 1 || r[0].Count != 1 || r[0].Until != nil {
		t.Errorf("late writer: %+v", r)
	}
	if s := l.w.Stats(); s.Collapsed != 9 || s.Events != 18 {
		t.Errorf("stats %+v, want 9 of 18 collapsed", s)
	}
}

// TestAggregationBound: the oldest window closes early, no packet goes uncounted.
func TestAggregationBound(t *testing.T) {
	const limit, ports, rounds = 8, 30, 5
	l := newLog(t, Config{MaxAggregates: limit})
	for range rounds {
		for p := range uint16(ports) {
			l.put(denied(p + 1))
			l.after(time.Millisecond)
			v := l.w.windows
			if n, m := len(v.open), len(v.pairs); n > limit || m > 1 || n+m != len(v.queue)-v.first {
				t.Fatalf("%d windows and %d pairs open, %d queued", n, m, len(v.queue)-v.first)
			}
		}
	}
	l.after(2 * time.Second)
	var total uint64
	for _, r := range l.records() {
		total += r.Count
	}
	if total != ports*rounds || len(l.w.windows.open)+len(l.w.windows.pairs) != 0 {
		t.Errorf("%d packets in the log, want %d; %d windows left", total, ports*rounds, len(l.w.windows.open))
	}
}

// TestDiskFull: traffic goes on, memory stays bounded, lines stay whole, and the
// log says how much is missing and since when.
func TestDiskFull(t *testing.T) {
	l := newLog(t, Config{})
	allow := dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP}
	l.put(allow)
	l.after(time.Millisecond)
	l.room = 100 // the disk fills up in the middle of the next line
	since := l.now
	for range 50 {
		l.put(allow)
		l.after(time.Millisecond)
	}
	last := l.now - int64(time.Millisecond)
	if s := l.w.Stats(); s.WriteLost != 100 || s.Records != 2 || cap(l.w.out.buf) > flushAt {
		t.Errorf("stats %+v, buffer %d; want 2 of 102 records written", s, cap(l.w.out.buf))
	}
	l.room = -1
	l.after(time.Second) // nothing to write: the gap is reported all the same
	l.put(allow)
	l.after(time.Millisecond)

	lines := l.lines()
	torn := 0
	var lost []Record
	for _, line := range lines {
		r, err := Parse([]byte(line))
		switch {
		case err != nil:
			torn++
		case r.Kind == KindLost:
			lost = append(lost, r)
		}
	}
	if torn != 1 || len(lost) != 1 || len(lines) != 2+1+1+2 {
		t.Fatalf("%d torn, %d lost records, %d lines:\n%s", torn, len(lost), len(lines), l.String())
	}
	at := func(ns int64) time.Time { return wallEpoch.Add(time.Duration(ns - epoch)) }
	if r := lost[0]; r.Count != 100 || r.Reason != LostWrite || !r.Time.Equal(at(since)) || !r.Until.Equal(at(last)) {
		t.Errorf("lost record %+v, want 100 from %v to %v", r, at(since), at(last))
	}
}

// TestStartOnFullDisk: a node starts although its log has no room for the first
// line, and the log tells when it has.
func TestStartOnFullDisk(t *testing.T) {
	src, full := newWorld(), &file{}
	now := epoch
	w, err := New(Config{Source: src, Chain: true, Clock: func() int64 { return now }, Open: func() (io.WriteCloser, error) { return full, nil }})
	if err != nil {
		t.Fatal(err)
	}
	e := allowed(1)
	e.Time = now
	src.ring.Put(&e)
	w.step(now)
	full.room = -1
	now += int64(2 * time.Second)
	w.step(now)
	if s := w.Stats(); s.WriteLost != 3 || s.Records != 1 {
		t.Errorf("stats %+v", s)
	}
	if r, err := Parse(full.Bytes()); err != nil || r.Kind != KindLost || r.Count != 3 || r.Seq != 1 || r.Events != 1 {
		t.Errorf("%v: %s", err, full.Bytes())
	}
}

// TestWholeLines: however much there is, every write ends with a line.
func TestWholeLines(t *testing.T) {
	l := newLog(t, Config{})
	for range 40 {
		for range 60 {
			l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP})
		}
		l.w.step(l.now)
	}
	if n := len(l.records()); n != 40*60*2 || l.writes > 40+l.Len()/flushAt+1 {
		t.Errorf("%d records in %d writes", n, l.writes)
	}
}

// TestRunFlushes: what is in the rings and windows when Run ends is in the file.
func TestRunFlushes(t *testing.T) {
	l := newLog(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 3 {
		l.put(denied(1))
	}
	if err := l.w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if r := l.records(); len(r) != 1 || r[0].Count != 3 || l.closed != 1 {
		t.Errorf("records %+v, closed %d times", r, l.closed)
	}
}

// TestSleep: a writer with nothing to do hardly ever looks, and is there at once when
// a producer has something.
func TestSleep(t *testing.T) {
	src := newWorld()
	var looks atomic.Int64
	w, err := New(Config{Source: src, Open: func() (io.WriteCloser, error) { return &file{room: -1}, nil }, Clock: func() int64 {
		looks.Add(1)
		return dataplane.MonotonicClock()
	}})
	if err != nil {
		t.Fatal(err)
	}
	nap := w.nap(0)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	// On a busy machine the writer may be late, but not every time.
	events := uint64(0)
	measure := func() (late []time.Duration) {
		for range 9 {
			time.Sleep(4 * dozeAfter * w.cfg.Poll) // it falls asleep
			events++
			e := allowed(events)
			e.Time = dataplane.MonotonicClock()
			src.ring.Put(&e)
			src.ring.Flush()
			for began := time.Now(); w.Stats().Events < events; time.Sleep(100 * time.Microsecond) {
				if time.Since(began) > 30*time.Second {
					t.Fatalf("event %d is not written", events)
				}
			}
			late = append(late, time.Duration(dataplane.MonotonicClock()-e.Time))
		}
		slices.Sort(late)
		return late
	}
	for try := 1; ; try++ {
		late := measure()
		if late[len(late)/2] <= nap/4 {
			break
		}
		if try == 20 {
			t.Errorf("events wait %v for a writer that sleeps %v at a time", late, nap)
			break
		}
	}
	before, began := looks.Load(), time.Now()
	time.Sleep(2 * nap)
	if n, took := looks.Load()-before, time.Since(began); n > int64(took/nap)+dozeAfter+2 {
		t.Errorf("%d looks at nothing within %v", n, took)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// A ring that fills is emptied, however rarely the rings are looked at.
func TestRunWakes(t *testing.T) {
	src := newWorld()
	w, err := New(Config{Source: src, Path: filepath.Join(t.TempDir(), "audit.log"), Poll: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	e := denied(1)
	for range src.ring.Cap() / 2 {
		src.ring.Put(&e)
	}
	for deadline := time.Now().Add(10 * time.Second); src.ring.Len() > src.ring.Cap()/4; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d events still wait in a ring of %d", src.ring.Len(), src.ring.Cap())
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestReopen writes through a rotation: no record is lost, the mode is 0640, and
// a name that cannot be opened leaves the old file in use.
func TestReopen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	src := newWorld()
	w, err := New(Config{Source: src, Path: path, Poll: 100 * time.Microsecond})
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o640 {
		t.Fatalf("%v %v, want mode 0640", st.Mode(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	const n = 300
	for i := range n {
		e := dataplane.Event{Time: dataplane.MonotonicClock(), Generation: 3, Count: 1, Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oQuietRule, Forced: true, Conn: uint64(i + 1)}
		for !src.ring.Put(&e) { // a lost one would be counted below
			time.Sleep(time.Millisecond)
		}
		if i%100 == 50 {
			if err := os.Rename(path, fmt.Sprintf("%s.%d", path, i)); err != nil {
				t.Fatal(err)
			}
			if err := w.Reopen(); err != nil {
				t.Fatal(err)
			}
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	seen := map[string]int{}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 4 {
		t.Fatalf("files %v, %v", files, err)
	}
	var lost uint64
	for _, f := range files {
		err := Follow(t.Context(), f, FollowOptions{FromStart: true, Once: true}, func(line []byte) error {
			r, err := Parse(line)
			if r.Kind == KindLost {
				lost += r.Count
			}
			seen[r.Connection+r.Direction]++
			return err
		})
		if err != nil {
			t.Fatal(f, err)
		}
	}
	for i := range n {
		for _, dir := range []string{"egress", "ingress"} {
			if c := seen[fmt.Sprintf("%x%s", i+1, dir)]; c != 1 {
				t.Fatalf("connection %d, %s: %d records", i+1, dir, c)
			}
		}
	}
	// The writer may have noticed a rename before it was told.
	if s := w.Stats(); s.Reopens < 3 || s.RingLost != lost {
		t.Errorf("stats %+v, %d lost", s, lost)
	}

	fails := newLog(t, Config{})
	fails.w.cfg.Open = func() (io.WriteCloser, error) { return nil, errFull }
	if err := fails.w.Reopen(); !errors.Is(err, errFull) || fails.closed != 0 {
		t.Errorf("reopen: %v, old file closed %d times", err, fails.closed)
	}
}

// TestWallClockStep: record times follow the wall clock when it is set.
func TestWallClockStep(t *testing.T) {
	l := newLog(t, Config{})
	shift := time.Duration(0)
	l.w.cfg.Wall = func() time.Time { return wallEpoch.Add(time.Duration(l.now-epoch) + shift) }
	e := dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP}
	l.put(e)
	l.after(0)
	shift = 10 * time.Microsecond // jitter: ignored
	l.put(e)
	l.after(0)
	shift = time.Hour
	l.put(e)
	l.after(0)
	r := l.records()
	if !r[2].Time.Equal(r[0].Time) || r[4].Time.Sub(r[0].Time) != time.Hour {
		t.Errorf("times %v, %v, %v", r[0].Time, r[2].Time, r[4].Time)
	}
}

func TestNewErrors(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{Path: "x"}, "no source"},
		{Config{Source: newWorld()}, "no file"},
		{Config{Source: newWorld(), Path: filepath.Join(t.TempDir(), "no", "such", "folder")}, "no such file"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	if _, err := ParseFormat("syslog"); err == nil {
		t.Error("syslog is not a format")
	}
	for _, f := range []Format{JSON, AntreaV1, AntreaV2} {
		if got, err := ParseFormat(f.String()); got != f || err != nil {
			t.Errorf("%v does not parse: %v", f, err)
		}
	}
}

// BenchmarkWriter is one audited connection, two records, ring to buffer.
func BenchmarkWriter(b *testing.B) {
	for _, f := range []Format{JSON, AntreaV2} {
		b.Run(f.String(), func(b *testing.B) {
			l := newLog(b, Config{Format: f})
			b.ReportAllocs()
			for b.Loop() {
				l.put(dataplane.Event{Key: toWeb, Verdict: classifier.Allow, Egress: oQuiet, Ingress: oPassThenNP})
				l.w.step(l.now)
				l.Reset()
			}
		})
	}
}
