package audit

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// openOutputs opens everything records go to.
func (w *Writer) openOutputs(hasLog bool) error {
	if hasLog {
		if err := w.openLog(); err != nil {
			return err
		}
	}
	if w.cfg.Stdout != nil {
		d := newFeed("stdout", w.cfg.Node, w.log)
		newStdout(w.cfg.Stdout, w.cfg.Format, d)
		w.feeds = append(w.feeds, d)
	}
	if w.cfg.Syslog != nil {
		d := newFeed("syslog", w.cfg.Node, w.log)
		newSyslog(*w.cfg.Syslog, &w.cfg, d)
		w.feeds = append(w.feeds, d)
	}
	for _, d := range w.feeds {
		go d.run()
	}
	if w.cfg.Stream == "" {
		return nil
	}
	var err error
	w.stream, err = newStream(w.cfg.Stream, w.log)
	return err
}

// openLog opens the log and goes on where the last writer stopped.
func (w *Writer) openLog() error {
	o := &output{
		format: w.cfg.Format, node: w.cfg.Node, log: w.log, chained: w.cfg.Chain,
		numbered: w.cfg.Format == JSON && (w.cfg.State || w.cfg.Chain),
	}
	if w.cfg.Open != nil {
		f, err := w.cfg.Open()
		if err != nil {
			return err
		}
		o.dst, w.out = f, o
		w.begin(ending{}, false)
		return nil
	}
	fresh := false
	if st, err := os.Stat(w.cfg.Path); w.cfg.State && (err != nil || st.Mode().IsRegular()) { // no state for /dev/stdout
		w.state, fresh, err = openState(statePath(w.cfg.Path))
		if errors.Is(err, errLocked) {
			return err
		}
		if err != nil { // better a log without it than none
			w.log.Warn("audit log keeps no state: what a crash loses will not be counted", "error", err)
		}
	}
	f, err := openLogFile(w.cfg.Path, w.cfg.Mode)
	if err != nil {
		return err
	}
	o.dst, o.file, w.out = f, f, o
	e, err := f.ended()
	if err != nil {
		return err
	}
	if f.regular {
		w.archive = &archive{
			path: w.cfg.Path, mode: w.cfg.Mode, compress: w.cfg.Compress, keep: w.cfg.Keep, keepFor: w.cfg.KeepFor,
			wall: w.cfg.Wall, log: w.log, wake: make(chan struct{}, 1),
		}
	}
	o.now, o.saved = e.numbers, e.numbers
	w.begin(e, fresh)
	return nil
}

// begin writes what has to be said before the first record.
func (w *Writer) begin(e ending, fresh bool) {
	o, now := w.out, w.clock()
	empty := o.file != nil && o.file.size == 0
	if o.chained && (!e.chained || empty) {
		o.header("start", now+w.offset)
	}
	missing := uint64(0)
	first, last := now+w.offset, now+w.offset
	if w.state != nil && !fresh {
		offered, at := w.state.offered()
		done := max(o.now.events, w.state.head.settled.Load())
		if o.now.events < done {
			o.now.events = done // its lines are gone: moved away by somebody
		}
		if offered > done {
			missing = offered - done
			last = w.state.wall(at).UnixNano()
			first = min(w.state.wall(w.state.head.oldest.Load()).UnixNano(), last)
		}
	}
	switch {
	case missing > 0:
		w.nCrashLost.Add(missing)
		o.append(o.lostEntry(LostCrash), &facts{time: first, until: last, count: missing}, missing)
		w.log.Warn("the last run did not write all its audit records", "lost", missing, "from", time.Unix(0, first), "to", time.Unix(0, last))
	case e.torn && (w.state == nil || fresh):
		o.append(o.lostEntry(LostTorn), &facts{time: first, until: last, count: 1}, 0)
	}
	if o.flush(now) != nil && missing > 0 {
		// A full disk does not keep a node from starting: it is counted and
		// logged, and the gap is told when there is room, the old one with it.
		o.gap.add(missing-1, 0, first, last)
	}
	w.count()
	if w.state != nil {
		// From here on a crash is this run's. If it comes before the next line,
		// the same difference was told already: the log's numbers include it.
		w.state.restart(o.now.events+o.gap.events, o.saved.events)
		w.mark(now)
		w.state.attach(w.rings)
	}
}

// mark tells the state what is in the log.
func (w *Writer) mark(now int64) {
	s := w.state
	if s == nil || w.out.gap.count > 0 {
		return
	}
	oldest := now
	if a := w.windows.oldest(); a != nil {
		oldest = a.event.Time
	}
	s.head.offset.Store(w.offset)
	s.head.settled.Store(w.out.saved.events)
	s.head.oldest.Store(oldest)
}

// put writes one record to every output.
func (w *Writer) put(en *entry, f *facts, weight uint64, now int64) {
	if en.hit != nil {
		en.hit.packets.Add(f.count)
	}
	if w.out != nil {
		w.out.put(en, f, weight, now)
		if l := w.out.file; l != nil && w.cfg.MaxSize > 0 && l.size >= w.cfg.MaxSize {
			w.tend(now) // a step may bring many times a file's worth
		}
	}
	for _, d := range w.feeds {
		d.put(en, f, now)
	}
	if w.stream != nil {
		w.stream.put(en, f)
	}
	if w.cfg.Tee != nil {
		w.cfg.Tee(en.record(f, numbering{}))
	}
}

// settle accounts for events without records.
func (w *Writer) settle(weight uint64) {
	if w.out != nil {
		w.out.settle(weight)
	}
}

// lost records a loss before the outputs: count events between two engine times.
func (w *Writer) lost(reason string, count uint64, first, last, now int64) {
	e := newEntry(Record{V: Version, Kind: KindLost, Node: w.cfg.Node, Reason: reason})
	w.put(&e, &facts{time: first + w.offset, until: last + w.offset, count: count}, count, now)
}

// flush writes what is buffered, and rotates the log if it is time.
func (w *Writer) flush(now int64) {
	if o := w.out; o != nil {
		_ = o.flush(now) // counted and logged there
		if o.gap.count > 0 && now >= o.retryAt {
			o.report(now)
		}
		w.count()
		w.mark(now)
		w.tend(now)
	}
	for _, d := range w.feeds {
		d.flush(now)
	}
	if w.stream != nil {
		w.stream.flush()
	}
	if w.since != 0 {
		w.lag.Store(max(w.clock()-w.since, 0))
		w.since = 0
	}
}

func (w *Writer) count() {
	w.nRecords.Store(w.out.records)
	w.nWriteLost.Store(w.out.lost)
}

// tend rotates the log when it is big or old enough, and looks whether its name
// still leads to it.
func (w *Writer) tend(now int64) {
	o := w.out
	l := o.file
	if l == nil || !l.regular {
		return
	}
	if now >= w.look {
		w.look = now + lookEvery
		moved, truncated := l.moved()
		switch {
		case moved:
			if err := w.reopenLocked("reopened", now); err != nil {
				w.log.Error("audit log not reopened", "error", err)
			}
			return
		case truncated:
			o.header("truncated", now+w.offset)
		}
	}
	big := w.cfg.MaxSize > 0 && l.size >= w.cfg.MaxSize
	old := w.cfg.MaxAge > 0 && l.size > 0 && w.wall(now).Sub(l.began) >= w.cfg.MaxAge
	if !big && !old || o.gap.count > 0 || now < w.rotate {
		return
	}
	if o.flush(now) != nil {
		return // counted and logged there
	}
	n, err := l.rotate(w.wall(now), w.cfg.Mode)
	if err != nil {
		w.rotate = now + 10*retryEvery
		w.log.Error("audit log not rotated", "error", err)
		return
	}
	n.began = w.wall(now)
	if err := o.replace(n, n); err != nil {
		w.log.Warn("rotated audit log not closed", "error", err)
	}
	w.nRotations.Add(1)
	w.archive.rotated()
	o.header("rotated", now+w.offset)
	_ = o.flush(now) // counted and logged there
}

// Reopen opens the log anew, as after a rotation by another program. Buffered
// lines go to the old file. If the new one cannot be opened the old one stays in
// use. Without a log it does nothing.
func (w *Writer) Reopen() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.out == nil {
		return nil
	}
	return w.reopenLocked("reopened", w.clock())
}

func (w *Writer) reopenLocked(reason string, now int64) error {
	o := w.out
	var dst io.WriteCloser
	var file *logFile
	var err error
	if w.cfg.Open != nil {
		dst, err = w.cfg.Open()
	} else if file, err = openLogFile(w.cfg.Path, w.cfg.Mode); err == nil {
		dst = file
		if _, err = file.mend(); err != nil {
			file.Close()
		}
	}
	if err != nil {
		return err
	}
	_ = o.flush(now) // counted and logged there
	same := o.file != nil && file != nil && sameFile(o.file, file)
	w.nReopens.Add(1)
	err = o.replace(dst, file)
	if !same {
		o.header(reason, now+w.offset)
	}
	if err != nil {
		return fmt.Errorf("audit: close old log: %w", err)
	}
	return nil
}

// closeOutputs closes what is open.
func (w *Writer) closeOutputs(now int64) error {
	var errs []error
	if w.out != nil {
		errs = append(errs, w.out.close(now))
		w.count()
		w.mark(now)
	}
	if w.state != nil {
		errs = append(errs, w.state.close())
	}
	for _, d := range w.feeds {
		errs = append(errs, d.finish(now))
	}
	if w.stream != nil {
		errs = append(errs, w.stream.close())
	}
	return errors.Join(errs...)
}
