package audit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/dataplane"
)

// Format is the form of a line.
type Format uint8

// Formats.
const (
	JSON     Format = iota // one object per line, see Record
	AntreaV1               // S2-85
	AntreaV2               // Antrea 1.13 and later
)

var formatNames = [...]string{"json", "antrea-v1", "antrea-v2"}

// String returns the name ParseFormat takes.
func (f Format) String() string {
	if int(f) < len(formatNames) {
		return formatNames[f]
	}
	return "invalid"
}

// ParseFormat reads a format's name.
func ParseFormat(s string) (Format, error) {
	for i, name := range formatNames {
		if s == name {
			return Format(i), nil
		}
	}
	return JSON, fmt.Errorf("unknown audit format %q: want json, antrea-v1 or antrea-v2", s)
}

// Config configures a Writer. Source is required, and one of Path, Open, Stdout
// and Syslog.
type Config struct {
	Source Source
	// Format is that of the log and of Stdout.
	Format Format
	// Path is the log file: appended to, created if need be.
	Path string
	// Mode is given to files the writer creates; 0 means 0640.
	Mode fs.FileMode
	// Open replaces Path: the log is whatever it returns. It is called by New
	// and by every Reopen; a writer that returns short counts must return an
	// error with them (io.Writer). What follows about files does not apply.
	Open func() (io.WriteCloser, error)

	// MaxSize and MaxAge rotate the file when it has that many bytes (give or
	// take a buffer of 64 KiB), or when its first record is that old. 0: never.
	MaxSize int64
	MaxAge  time.Duration
	// Keep is how many rotated files are kept, KeepFor how long one is. 0: all,
	// for ever.
	Keep    int
	KeepFor time.Duration
	// Compress makes rotated files gzip files.
	Compress bool
	// Chain links the lines of the log by hashes: see Chain. JSON only.
	Chain bool
	// State keeps a small file beside the log from which the next writer knows
	// how many events this one did not write, if it dies. It also numbers the
	// lines (JSON), and keeps a second writer from the log. The source's rings
	// must not be in use yet.
	State bool

	// Stdout, if set, gets every record, too; Syslog sends them to a receiver,
	// as JSON; Stream offers them on a Unix socket of this path, as JSON. None of
	// these is ever waited for.
	Stdout io.Writer
	Syslog *SyslogTarget
	Stream string

	// Node is this node's name, for the records.
	Node string
	// Labels are the keys of pod labels to record.
	Labels []string
	// InterfaceName names an interface index; nil prints "if7". It is called
	// once per event from the writer's goroutine.
	InterfaceName func(index int32) string
	// Clock must be the engine's clock; nil means dataplane.MonotonicClock.
	Clock func() int64
	// Wall is the time of day; nil means time.Now.
	Wall func() time.Time
	// Window is how long equal denied packets are collected; 0 means one second
	// (S2-86).
	Window time.Duration
	// MaxAggregates bounds the windows open at a time, of single tuples and of
	// address pairs each; 0 means 8192. An open window takes some 500 bytes.
	MaxAggregates int
	// Poll is how often the rings are looked at while there are events; 0 means 2 ms.
	// After a few looks at nothing the writer sleeps until a producer has flushed its
	// ring or filled another quarter of it, or something else is due.
	Poll time.Duration
	// Tee, if set, is called with every record, from the writer's goroutine,
	// which waits for it. It must not call the Writer. It costs far more than
	// writing the record does.
	Tee    func(Record)
	Logger *slog.Logger // nil discards
}

// Stats are totals since start, Lag and Readers excepted.
type Stats struct {
	Events     uint64 // events taken from the rings, gap markers excluded
	Records    uint64 // records written to the log; to the other outputs without a log
	Collapsed  uint64 // denied packets that became part of another's record
	Folded     uint64 // of those, into a record that does not tell their ports
	RingLost   uint64 // events the rings had no room for, as far as reported by records
	WriteLost  uint64 // records the log did not take
	CrashLost  uint64 // events an earlier run did not write, as reported at start
	OutputLost uint64 // records standard output and syslog did not take
	Unresolved uint64 // events whose table was gone
	Reopens    uint64
	Rotations  uint64
	Readers    int           // connected to the stream now
	Dropped    uint64        // stream readers that were too slow
	Windows    int           // open now
	Lag        time.Duration // of the last write: age of the oldest event that waited for it, windows not counted
}

// Limits of the writer's own memory.
const (
	drainBatch  = 256
	flushAt     = 64 << 10
	defaultOpen = 8192
	dozeAfter   = 5 // looks at empty rings before the writer sleeps
)

const (
	// resyncAt is how far the wall clock may drift from the engine's before
	// record times follow it: small against what matters in a log, large against
	// jitter.
	resyncAt = int64(time.Millisecond)
	// lookEvery is how often the log's name is looked at: is it still our file?
	lookEvery = int64(time.Second)
)

// Writer writes the audit log. Run does the work; the other methods may be
// called from any goroutine.
type Writer struct {
	cfg     Config
	clock   func() int64
	log     *slog.Logger
	rings   []*dataplane.Ring
	wake    chan struct{} // a ring has been filled by another quarter, or flushed while the writer dozed
	build   builder
	planner *planner
	windows *windows
	events  []dataplane.Event
	facts   facts // scratch
	offset  int64 // wall clock minus engine clock, nanoseconds
	since   int64 // engine time of the oldest event not yet written; 0 = none
	look    int64 // engine time of the next look at the log's name
	rotate  int64 // engine time before which no rotation is tried again

	feeds   []*feed
	stream  *stream
	state   *state
	archive *archive

	mu  sync.Mutex // guards the output: Reopen against the writing goroutine
	out *output    // nil without a log

	nEvents, nCollapsed, nFolded, nRingLost, nUnresolved, nReopens, nRotations atomic.Uint64
	nRecords, nWriteLost, nCrashLost, nWindows                                 atomic.Uint64
	lag                                                                        atomic.Int64
}

// New opens the log, and mends and accounts for what an earlier writer that died
// left behind.
func New(cfg Config) (*Writer, error) {
	w := &Writer{cfg: cfg, clock: cfg.Clock, log: cfg.Logger}
	if cfg.Source == nil {
		return nil, errors.New("audit: no source")
	}
	hasLog := cfg.Path != "" || cfg.Open != nil
	switch {
	case !hasLog && cfg.Stdout == nil && cfg.Syslog == nil:
		return nil, errors.New("audit: no file")
	case cfg.Chain && (cfg.Format != JSON || !hasLog):
		return nil, errors.New("audit: a hash chain needs a log in JSON")
	case cfg.State && cfg.Path == "":
		return nil, errors.New("audit: no file to keep a state for")
	}
	w.defaults()
	if err := w.openOutputs(hasLog); err != nil {
		return nil, errors.Join(err, w.closeOutputs(w.clock()))
	}
	return w, nil
}

func (w *Writer) defaults() {
	if w.clock == nil {
		w.clock = dataplane.MonotonicClock
	}
	if w.cfg.Wall == nil {
		w.cfg.Wall = time.Now
	}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	if w.cfg.Window <= 0 {
		w.cfg.Window = time.Second
	}
	if w.cfg.MaxAggregates <= 0 {
		w.cfg.MaxAggregates = defaultOpen
	}
	if w.cfg.Poll <= 0 {
		w.cfg.Poll = 2 * time.Millisecond
	}
	if w.cfg.Mode == 0 {
		w.cfg.Mode = 0o640
	}
	w.rings, w.wake = w.cfg.Source.Rings(), make(chan struct{}, 1)
	for _, r := range w.rings {
		r.Wake(w.wake)
	}
	w.events = make([]dataplane.Event, drainBatch)
	w.build = builder{
		node: w.cfg.Node, labels: w.cfg.Labels, backends: w.cfg.Source.BackendNames(), ifname: w.cfg.InterfaceName, wall: w.wall,
	}
	if w.build.ifname == nil {
		w.build.ifname = defaultName
	}
	w.planner = newPlanner(&w.build, w.cfg.Source)
	w.windows = newWindows(int64(w.cfg.Window), w.cfg.MaxAggregates)
	w.sync(w.clock())
}

func defaultName(index int32) string {
	if index == 0 {
		return ""
	}
	return "if" + strconv.Itoa(int(index))
}

// Hits returns how many packets were recorded for each line of policy, in no
// order. Counts start with the writer; their number is bounded.
func (w *Writer) Hits() []Hit { return w.planner.hits.list() }

// Stats returns the totals.
func (w *Writer) Stats() Stats {
	s := Stats{
		Events: w.nEvents.Load(), Records: w.nRecords.Load(), Collapsed: w.nCollapsed.Load(), Folded: w.nFolded.Load(),
		RingLost: w.nRingLost.Load(), WriteLost: w.nWriteLost.Load(), CrashLost: w.nCrashLost.Load(),
		Unresolved: w.nUnresolved.Load(), Reopens: w.nReopens.Load(), Rotations: w.nRotations.Load(),
		Windows: int(w.nWindows.Load()), Lag: time.Duration(w.lag.Load()),
	}
	for i, d := range w.feeds {
		s.OutputLost += d.lost.Load()
		if i == 0 && w.out == nil {
			s.Records = d.sent.Load()
		}
	}
	if w.stream != nil {
		s.Readers, s.Dropped = int(w.stream.active.Load()), w.stream.dropped.Load()
	}
	return s
}

// Run writes until ctx is done, then takes what is left in the rings, closes
// every window, flushes and closes the log. Stop the engine first, so that
// nothing is put into the rings after that. The error is the last flush's or the
// close's; write failures before that are counted and logged, not returned.
func (w *Writer) Run(ctx context.Context) error {
	if w.archive != nil {
		actx, stop := context.WithCancel(context.WithoutCancel(ctx))
		var wg sync.WaitGroup
		wg.Go(func() { w.archive.run(actx) })
		defer wg.Wait()
		defer stop()
	}
	timer := time.NewTimer(w.cfg.Poll)
	defer timer.Stop()
	empty := 0
	for {
		select {
		case <-ctx.Done():
			return w.finish()
		case <-timer.C:
		case <-w.wake:
		}
		now := w.clock()
		if w.step(now) > 0 {
			empty = 0
		} else {
			empty++
		}
		wait := w.cfg.Poll
		if empty >= dozeAfter && w.doze() {
			wait = max(wait, w.nap(now))
		}
		timer.Reset(wait)
	}
}

// doze has the rings' producers wake the writer. It reports whether all are empty.
func (w *Writer) doze() bool {
	empty := true
	for _, r := range w.rings {
		empty = r.Doze() && empty
	}
	return empty
}

// nap is how long the writer may sleep while nothing happens: until a window ends,
// or the log's name is to be looked at.
func (w *Writer) nap(now int64) time.Duration {
	due := now + lookEvery
	if w.look > now {
		due = min(due, w.look)
	}
	if a := w.windows.oldest(); a != nil {
		due = min(due, a.closeAt)
	}
	return time.Duration(due - now)
}

// finish writes everything there is and closes the log.
func (w *Writer) finish() error {
	now := w.clock()
	for w.step(now) > 0 {
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.windows.oldest() != nil {
		w.closeOldest(now)
	}
	return w.closeOutputs(now)
}

// step takes what is in the rings, closes the windows that are due and writes.
// It returns how many events it took.
func (w *Writer) step(now int64) (taken int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sync(now)
	for _, r := range w.rings {
		// One ring's worth per step, so that a flood into one ring does not keep
		// the others and the windows waiting.
		for left := r.Cap(); left > 0; {
			n := r.Drain(w.events[:min(left, len(w.events))])
			if n == 0 {
				break
			}
			if w.since == 0 {
				w.since = w.events[0].Time
			}
			for i := range w.events[:n] {
				w.event(&w.events[i], now)
			}
			taken += n
			left -= n
		}
	}
	for a := w.windows.oldest(); a != nil && a.closeAt <= now; a = w.windows.oldest() {
		w.closeOldest(now)
	}
	w.nWindows.Store(uint64(len(w.windows.queue) - w.windows.first))
	w.flush(now)
	return taken
}

func (w *Writer) sync(now int64) {
	offset := w.cfg.Wall().UnixNano() - now
	if d := offset - w.offset; d > resyncAt || d < -resyncAt {
		w.offset = offset
	}
}

func (w *Writer) wall(ns int64) time.Time { return time.Unix(0, ns+w.offset).UTC() }

// event takes one event: writes what is due now, aggregates the rest.
func (w *Writer) event(e *dataplane.Event, now int64) {
	if e.Cause == dataplane.CauseLost {
		w.nRingLost.Add(e.Count)
		w.lost(LostRing, e.Count, e.Time, e.Last, now)
		return
	}
	w.nEvents.Add(1)
	denied := e.Verdict != classifier.Allow
	if denied && w.repeat(e, now) {
		return
	}
	t := w.planner.table(e.Generation)
	pl := w.planner.plan(e, t)
	if pl.unresolved {
		w.nUnresolved.Add(1)
	}
	f := &w.facts
	w.planner.facts(f, e, t, e.Time+w.offset)
	if !denied || pl.denials == 0 {
		if len(pl.entries) == 0 {
			w.settle(1)
			return
		}
		for i := range pl.entries {
			w.put(&pl.entries[i], f, weightAt(i, len(pl.entries), 1), now)
		}
		return
	}
	if w.immediate(pl, f, now); w.windows.full() {
		w.closeOldest(now)
	}
	w.windows.add(e, pl, f.src, f.dst)
}

// weightAt gives the last of n lines the whole weight: what a line completes.
func weightAt(i, n int, weight uint64) uint64 {
	if i == n-1 {
		return weight
	}
	return 0
}

// immediate writes those records of a denied packet that are not aggregated:
// rules passed through, and an allowing side.
func (w *Writer) immediate(pl *plan, f *facts, now int64) {
	if pl.denials == len(pl.entries) {
		return
	}
	for i := range pl.entries {
		if !pl.entries[i].denial {
			w.put(&pl.entries[i], f, 0, now)
		}
	}
}

// repeat counts e into an open window, if there is one for it and it is not due.
func (w *Writer) repeat(e *dataplane.Event, now int64) bool {
	a, late := w.windows.find(e)
	if a == nil {
		return false
	}
	if late {
		// The writer is late: the window ended before this packet.
		for end := a.closeAt; w.windows.oldest() != nil && w.windows.oldest().closeAt <= end; {
			w.closeOldest(end)
		}
		return false
	}
	a.add(e)
	w.nCollapsed.Add(e.Count)
	if a.folded {
		w.nFolded.Add(e.Count)
	}
	if a.plan.denials < len(a.plan.entries) {
		w.planner.facts(&w.facts, e, w.planner.table(e.Generation), e.Time+w.offset)
		w.immediate(a.plan, &w.facts, now)
	}
	return true
}

// denies reports whether a record is of the kind that is aggregated. Allow and
// Pass are not (S2-87).
func denies(r *Record) bool {
	switch r.Verdict {
	case Drop, Reject, WouldDrop, WouldReject:
		return true
	}
	return false
}

// closeOldest writes the oldest window's records.
func (w *Writer) closeOldest(now int64) {
	a := w.windows.remove()
	e := &a.event
	a.facts(&w.facts, w.build.ifname(e.Device), e.Time+w.offset, max(now, e.Time)+w.offset)
	n := 0
	for i := range a.plan.entries {
		if en := &a.plan.entries[i]; en.denial {
			w.put(en, &w.facts, weightAt(n, a.plan.denials, a.events), now)
			n++
		}
	}
	w.windows.release(a)
}
