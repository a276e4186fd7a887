package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"log/slog"
	"time"
)

// output is the log: lines are formatted into a buffer, which is written in one
// go. What cannot be written is counted, and reported by a record as soon as
// the log can be written again. It is not safe for concurrent use.
type output struct {
	format   Format
	node     string
	dst      io.WriteCloser
	file     *logFile // dst, when it is a file of ours
	log      *slog.Logger
	numbered bool // lines have Seq and Events
	chained  bool // and Prev

	stamps stamps
	buf    []byte
	marks  []mark // one per line in buf
	now    numbers
	saved  numbers // as of the last line that was written

	failing bool
	gap     gap
	retryAt int64 // engine clock
	torn    bool  // dst ends in the middle of a line

	records, lost uint64 // written; not written
	prevText      [2 * sha256.Size]byte
}

// numbers is what the next line goes on from.
type numbers struct {
	seq, events uint64
	prev        [sha256.Size]byte
}

// mark is a line in the buffer.
type mark struct {
	end         int
	events      uint64 // numbers.events at its end
	first, last int64  // the time it is about, Unix nanoseconds
}

// gap is what was not written and no record has told yet.
type gap struct {
	count, events uint64
	first, last   int64 // Unix nanoseconds
}

func (g *gap) add(count, events uint64, first, last int64) {
	if g.count == 0 || first < g.first {
		g.first = first
	}
	g.count += count
	g.events += events
	g.last = max(g.last, last)
}

// retryEvery is how long a log that could not be written is left alone.
const retryEvery = int64(time.Second)

// put adds a line. weight is how many events it completes. now is the engine's
// time.
func (o *output) put(en *entry, f *facts, weight uint64, now int64) {
	if o.gap.count > 0 && (now < o.retryAt || !o.report(now)) {
		o.gap.add(1, weight, f.time, max(f.time, f.until))
		o.lost++
		return
	}
	o.append(en, f, weight)
	if len(o.buf) >= flushAt {
		_ = o.flush(now) // counted and logged there
	}
}

// settle accounts for events that leave no line.
func (o *output) settle(weight uint64) {
	if o.gap.count > 0 {
		o.gap.events += weight
		return
	}
	o.now.events += weight
	if len(o.marks) == 0 {
		o.saved.events = o.now.events
	}
}

func (o *output) append(en *entry, f *facts, weight uint64) {
	o.now.seq++
	o.now.events += weight
	var n numbering
	if o.numbered {
		n.seq, n.events = o.now.seq, o.now.events
	}
	if o.chained {
		hex.Encode(o.prevText[:], o.now.prev[:])
		n.prev = o.prevText[:]
	}
	start := len(o.buf)
	switch o.format {
	case JSON:
		o.buf = en.appendJSON(o.buf, f, n, &o.stamps)
	default:
		r := en.record(f, n)
		o.buf = r.appendAntrea(o.buf, o.format == AntreaV2)
	}
	if o.chained {
		o.now.prev = sha256.Sum256(o.buf[start : len(o.buf)-1])
	}
	o.marks = append(o.marks, mark{end: len(o.buf), events: o.now.events, first: f.time, last: max(f.time, f.until)})
}

// flush writes the buffer, which is empty afterwards, whatever happened: under
// a full disk memory stays bounded.
func (o *output) flush(now int64) error {
	if len(o.marks) == 0 {
		return nil
	}
	was := o.failing
	done, err := o.write()
	for _, m := range o.marks[done:] {
		o.gap.add(1, 0, m.first, m.last)
		o.lost++
	}
	o.records += uint64(done)
	if done > 0 && done < len(o.marks) {
		o.saved.seq += uint64(done)
		o.saved.events = o.marks[done-1].events
		if o.chained {
			start := 0
			if done > 1 {
				start = o.marks[done-2].end
			}
			o.saved.prev = sha256.Sum256(o.buf[start : o.marks[done-1].end-1])
		}
	}
	if err != nil {
		o.gap.events += o.now.events - o.saved.events
		o.now = o.saved // numbers have no holes: the gap's record says how many are missing
		o.retryAt = now + retryEvery
		o.failing = true
		if !was {
			o.log.Error("audit log cannot be written", "error", err)
		}
	} else {
		o.saved = o.now
	}
	o.buf, o.marks = o.buf[:0], o.marks[:0]
	if cap(o.buf) > 4*flushAt {
		o.buf = nil
	}
	return err
}

// write hands the buffer to the kernel and returns how many whole lines of it
// are in the log. err is set if that is not all of them. What is left of a line
// that was cut off is taken back, or ended where that is impossible.
func (o *output) write() (done int, err error) {
	if o.torn {
		if _, err := o.dst.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		o.torn = false
	}
	n, err := o.dst.Write(o.buf)
	if n == len(o.buf) {
		return len(o.marks), nil
	}
	if err == nil {
		err = io.ErrShortWrite
	}
	end := 0
	for _, m := range o.marks {
		if m.end > n {
			break
		}
		done, end = done+1, m.end
	}
	if n > end {
		o.torn = o.file == nil || o.file.cut(int64(n-end)) != nil
	}
	return done, err
}

// report writes the record of the gap. It reports whether there is none any more.
func (o *output) report(now int64) bool {
	if o.gap.count == 0 {
		return true
	}
	g := o.gap
	o.gap = gap{}
	o.append(o.lostEntry(LostWrite), &facts{time: g.first, until: g.last, count: g.count}, g.events)
	o.failing = true // do not log a failure again
	if err := o.flush(now); err != nil {
		o.lost-- // the report itself is not among what it reports
		o.gap = g
		return false
	}
	o.failing = false
	o.log.Info("audit log is written again", "lost", g.count)
	return true
}

func (o *output) lostEntry(reason string) *entry {
	e := newEntry(Record{V: Version, Kind: KindLost, Node: o.node, Reason: reason})
	return &e
}

// header starts a file of a chained log. prev is the last line of the file
// before it, so that a missing file shows, too.
func (o *output) header(reason string, wall int64) {
	if !o.chained {
		return
	}
	e := newEntry(Record{V: Version, Kind: KindFile, Node: o.node, Reason: reason})
	o.append(&e, &facts{time: wall}, 0)
}

// replace makes dst the log from here on. The buffer must have been flushed.
func (o *output) replace(dst io.WriteCloser, file *logFile) error {
	old := o.dst
	o.dst, o.file, o.torn = dst, file, false
	return old.Close()
}

// close writes what there is to write and closes the log.
func (o *output) close(now int64) error {
	o.retryAt = now
	if o.gap.count > 0 {
		o.report(now)
	}
	err := o.flush(now)
	if err == nil && o.gap.count > 0 {
		err = errors.New("audit: the log ends before the records do: it cannot be written")
	}
	return errors.Join(err, o.dst.Close())
}
