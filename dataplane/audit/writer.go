package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
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

// Config configures a Writer. Source and one of Path and Open are required.
type Config struct {
	Source Source
	Format Format
	// Path is the log file: appended to, created with mode 0640.
	Path string
	// Open replaces Path. It is called by New and by every Reopen; a writer that
	// returns short counts must return an error with them (io.Writer).
	Open func() (io.WriteCloser, error)
	// Node is this node's name, for the records.
	Node string
	// InterfaceName names an interface index; nil prints "if7". It is called
	// once per record from the writer's goroutine.
	InterfaceName func(index int32) string
	// Clock must be the engine's clock; nil means dataplane.MonotonicClock.
	Clock func() int64
	// Wall is the time of day; nil means time.Now.
	Wall func() time.Time
	// Window is how long equal denied packets are collected; 0 means one second
	// (S2-86).
	Window time.Duration
	// MaxAggregates bounds the windows open at a time; 0 means 8192. Beyond it
	// the oldest is closed early.
	MaxAggregates int
	// Poll is how often the rings are looked at; 0 means 2 ms. After a while
	// without events it is five times that.
	Poll time.Duration
	// Tee, if set, is called with every record as it is written, from the
	// writer's goroutine, which waits for it. It must not call the Writer.
	Tee    func(Record)
	Logger *slog.Logger // nil discards
}

// Stats are totals since start.
type Stats struct {
	Events     uint64 // events taken from the rings, gap markers excluded
	Records    uint64 // records written, the rings' gap markers included
	Collapsed  uint64 // denied packets that became part of another's record
	RingLost   uint64 // events the rings had no room for, as far as reported by records
	WriteLost  uint64 // records the file did not take
	Unresolved uint64 // events whose table was gone
	Reopens    uint64
}

// Limits of the writer's own memory.
const (
	drainBatch  = 256
	flushAt     = 64 << 10
	defaultOpen = 8192
)

// resyncAt is how far the wall clock may drift from the engine's before record
// times follow it: small against what matters in a log, large against jitter.
const resyncAt = int64(time.Millisecond)

// Writer writes the audit log. Run does the work; the other methods may be
// called from any goroutine.
type Writer struct {
	cfg    Config
	clock  func() int64
	log    *slog.Logger
	rings  []*dataplane.Ring
	build  builder
	events []dataplane.Event
	offset int64 // wall clock minus engine clock, nanoseconds

	open  map[dataplane.Event]*aggregate
	queue []*aggregate // by the time they were opened; the head is queue[first]
	first int

	mu      sync.Mutex // guards what follows: Reopen against the writing goroutine
	file    io.WriteCloser
	buf     []byte
	lines   int
	torn    bool // the file ends in the middle of a line
	failing bool
	gap     gap
	retryAt int64

	nEvents, nRecords, nCollapsed, nRingLost, nWriteLost, nUnresolved, nReopens atomic.Uint64
}

// gap is what the file did not take and no lost record has told yet.
type gap struct {
	count       uint64
	first, last int64
}

// aggregate is one open window: equal denied packets.
type aggregate struct {
	event     dataplane.Event // the first packet's
	count     uint64
	closeAt   int64
	immediate bool // the event also has records that are not aggregated
	res       Resolver
}

// New opens the log.
func New(cfg Config) (*Writer, error) {
	w := &Writer{cfg: cfg, clock: cfg.Clock, log: cfg.Logger, open: map[dataplane.Event]*aggregate{}}
	if cfg.Source == nil {
		return nil, errors.New("audit: no source")
	}
	if cfg.Path == "" && cfg.Open == nil {
		return nil, errors.New("audit: no file")
	}
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
	w.rings = cfg.Source.Rings()
	w.events = make([]dataplane.Event, drainBatch)
	w.build = builder{node: cfg.Node, backends: cfg.Source.BackendNames(), ifname: cfg.InterfaceName, wall: w.wall}
	if w.build.ifname == nil {
		w.build.ifname = defaultName
	}
	f, err := w.openFile()
	if err != nil {
		return nil, err
	}
	w.file = f
	w.sync(w.clock())
	return w, nil
}

func defaultName(index int32) string {
	if index == 0 {
		return ""
	}
	return "if" + strconv.Itoa(int(index))
}

func (w *Writer) openFile() (io.WriteCloser, error) {
	if w.cfg.Open != nil {
		return w.cfg.Open()
	}
	f, err := os.OpenFile(w.cfg.Path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return nil, fmt.Errorf("audit: open log: %w", err)
	}
	return f, nil
}

// Reopen opens the log anew, as after a rotation. Buffered lines go to the old
// file. If the new one cannot be opened the old one stays in use.
func (w *Writer) Reopen() error {
	f, err := w.openFile()
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushLocked(w.clock())
	old := w.file
	w.file, w.torn = f, false
	w.nReopens.Add(1)
	if err := old.Close(); err != nil {
		return fmt.Errorf("audit: close old log: %w", err)
	}
	return nil
}

// Stats returns the totals.
func (w *Writer) Stats() Stats {
	return Stats{
		Events: w.nEvents.Load(), Records: w.nRecords.Load(), Collapsed: w.nCollapsed.Load(), RingLost: w.nRingLost.Load(),
		WriteLost: w.nWriteLost.Load(), Unresolved: w.nUnresolved.Load(), Reopens: w.nReopens.Load(),
	}
}

// Run writes until ctx is done, then takes what is left in the rings, closes
// every window, flushes and closes the file. Stop the engine first, so that
// nothing is put into the rings after that. The error is the last flush's or the
// close's; write failures before that are counted and logged, not returned.
func (w *Writer) Run(ctx context.Context) error {
	// After idleAfter empty looks the node has nothing to say: look less often.
	const idleAfter, idleFactor = 100, 5
	timer := time.NewTimer(w.cfg.Poll)
	defer timer.Stop()
	empty := 0
	for {
		select {
		case <-ctx.Done():
			return w.finish()
		case <-timer.C:
		}
		if w.step(w.clock()) > 0 {
			empty = 0
		} else {
			empty++
		}
		wait := w.cfg.Poll
		if empty > idleAfter {
			wait *= idleFactor
		}
		timer.Reset(wait)
	}
}

func (w *Writer) finish() error {
	for w.step(w.clock()) > 0 {
	}
	now := w.clock()
	for w.first < len(w.queue) {
		w.closeOldest(now)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.flushLocked(now)
	return errors.Join(err, w.file.Close())
}

// step takes what the rings hold, closes due windows and writes. It returns the
// number of events taken.
func (w *Writer) step(now int64) (taken int) {
	w.sync(now)
	for _, r := range w.rings {
		// At most one ring's worth per step, so that a flood into one ring
		// does not keep the others and the windows waiting.
		for left := r.Cap(); left > 0; {
			n := r.Drain(w.events[:min(left, len(w.events))])
			if n == 0 {
				break
			}
			for i := range w.events[:n] {
				w.event(&w.events[i], now)
			}
			taken += n
			left -= n
		}
	}
	for w.first < len(w.queue) && w.queue[w.first].closeAt <= now {
		w.closeOldest(now)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines > 0 || (w.gap.count > 0 && now >= w.retryAt) {
		_ = w.flushLocked(now) // counted and logged there
	}
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
		w.build.records(e, nil, w.write)
		return
	}
	w.nEvents.Add(1)
	var res Resolver
	if e.Verdict != classifier.Allow {
		if w.repeat(e) {
			return
		}
	}
	if e.Generation != 0 || e.Cause == dataplane.CausePolicy || e.Cause == dataplane.CauseICMPError {
		if res = w.cfg.Source.Resolver(e.Generation); res == nil {
			w.nUnresolved.Add(1)
		}
	}
	if e.Verdict == classifier.Allow {
		w.build.records(e, res, w.write)
		return
	}
	a := &aggregate{event: *e, count: e.Count, closeAt: e.Time + int64(w.cfg.Window), res: res}
	w.build.records(e, res, func(r Record) {
		if !denies(&r) {
			a.immediate = true
			w.write(r)
		}
	})
	for len(w.open) >= w.cfg.MaxAggregates {
		w.closeOldest(now)
	}
	w.open[aggregateKey(e)] = a
	w.queue = append(w.queue, a)
}

// repeat counts e into an open window, if there is one for it and it is not due.
func (w *Writer) repeat(e *dataplane.Event) bool {
	a := w.open[aggregateKey(e)]
	if a == nil {
		return false
	}
	if e.Time >= a.closeAt {
		// The writer is late: the window ended before this packet.
		for w.first < len(w.queue) && w.open[aggregateKey(e)] == a {
			w.closeOldest(a.closeAt)
		}
		return false
	}
	a.count += e.Count
	w.nCollapsed.Add(e.Count)
	if a.immediate {
		w.build.records(e, a.res, func(r Record) {
			if !denies(&r) {
				w.write(r)
			}
		})
	}
	return true
}

// denies reports whether a record is of the kind that is aggregated. Allow and
// Pass are not (S2-87).
func denies(r *Record) bool { return r.Verdict == Drop || r.Verdict == Reject }

// aggregateKey is what makes two denied packets equal: all but when and how many.
func aggregateKey(e *dataplane.Event) dataplane.Event {
	k := *e
	k.Time, k.Last, k.Conn, k.Count = 0, 0, 0, 0
	return k
}

// closeOldest writes the oldest window's records.
func (w *Writer) closeOldest(now int64) {
	a := w.queue[w.first]
	w.queue[w.first] = nil
	if w.first++; w.first == len(w.queue) {
		w.queue, w.first = w.queue[:0], 0
	} else if w.first > 1024 && w.first > len(w.queue)/2 {
		n := copy(w.queue, w.queue[w.first:])
		clear(w.queue[n:])
		w.queue, w.first = w.queue[:n], 0
	}
	delete(w.open, aggregateKey(&a.event))
	w.build.records(&a.event, a.res, func(r Record) {
		if !denies(&r) {
			return
		}
		r.Count = a.count
		if a.count > 1 {
			until := w.wall(max(now, a.event.Time))
			r.Until = &until
		}
		w.write(r)
	})
}

// write formats a record into the buffer.
func (w *Writer) write(r Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf = w.format(w.buf, &r)
	w.lines++
	w.nRecords.Add(1)
	if w.cfg.Tee != nil {
		w.cfg.Tee(r)
	}
	if len(w.buf) >= flushAt {
		_ = w.flushLocked(w.clock()) // counted and logged there
	}
}

func (w *Writer) format(b []byte, r *Record) []byte {
	switch w.cfg.Format {
	case AntreaV1:
		return r.appendAntrea(b, false)
	case AntreaV2:
		return r.appendAntrea(b, true)
	}
	out, err := r.appendJSON(b)
	if err != nil {
		// Records hold nothing JSON cannot say, but for a time beyond year 9999.
		return append(b, fmt.Sprintf("{\"v\":%d,\"kind\":%q,\"reason\":%q,\"count\":1}\n", Version, KindLost, err)...)
	}
	return out
}

// flushLocked writes the buffer in one go, a report of what was lost before in
// front of it. The buffer is empty afterwards, whatever happened: under a full
// disk memory stays bounded and the log says how much is missing.
func (w *Writer) flushLocked(now int64) error {
	if w.lines == 0 && w.gap.count == 0 {
		return nil
	}
	var head []byte
	heads := 0 // complete lines in head that are not records
	if w.torn {
		head = append(head, '\n')
		heads++
	}
	reported := w.gap
	if reported.count > 0 {
		until := w.wall(reported.last)
		head = w.format(head, &Record{
			V: Version, Kind: KindLost, Time: w.wall(reported.first), Until: &until, Node: w.cfg.Node,
			Reason: LostWrite, Count: reported.count,
		})
		heads++
	}
	out := w.buf
	if heads > 0 {
		out = append(head, w.buf...)
	}
	n, err := w.file.Write(out)
	if err == nil && n < len(out) {
		err = io.ErrShortWrite
	}
	done := bytes.Count(out[:n], []byte{'\n'})
	if n > 0 {
		w.torn = out[n-1] != '\n'
	}
	if reported.count > 0 && done >= heads {
		w.gap = gap{}
	}
	if missing := w.lines - max(done-heads, 0); missing > 0 {
		if w.gap.count == 0 {
			w.gap.first = now
		}
		w.gap.count += uint64(missing)
		w.gap.last = now
		w.nWriteLost.Add(uint64(missing))
		w.nRecords.Add(-uint64(missing))
	}
	w.buf, w.lines = w.buf[:0], 0
	switch {
	case err != nil:
		w.retryAt = now + int64(time.Second)
		if !w.failing {
			w.log.Error("audit log cannot be written", "error", err)
		}
	case w.failing:
		w.log.Info("audit log is written again", "lost", reported.count)
	}
	w.failing = err != nil
	return err
}
