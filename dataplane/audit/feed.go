package audit

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// feed is an output that may be slow or away for minutes: standard output, a
// syslog receiver. Lines go through a bounded queue to a goroutine of its own,
// so that the log itself never waits for it. What the queue has no room for, or
// the other side does not take, is counted, and reported by a record of kind
// "lost" once the other side takes lines again.
type feed struct {
	name   string
	node   string
	line   func(b []byte, en *entry, f *facts) []byte
	send   func(p *parcel) (sent int, err error) // how many lines were taken
	close  func() error
	log    *slog.Logger
	queue  chan *parcel
	free   chan *parcel
	cur    *parcel // the writer's
	done   chan struct{}
	stamps stamps

	sent, lost atomic.Uint64

	mu      sync.Mutex // guards what follows
	gap     gap
	failing bool
	retryAt int64 // engine clock
}

// parcel is some lines on their way.
type parcel struct {
	buf   []byte
	marks []mark
	told  gap // of a gap that these lines report
	now   int64
}

var errQueueFull = errors.New("queue is full")

// feedParcels bounds a feed's queue: 64 parcels of about flushAt bytes.
const feedParcels = 64

func newFeed(name, node string, log *slog.Logger) *feed {
	return &feed{
		name: name, node: node, log: log.With("output", name), cur: &parcel{},
		queue: make(chan *parcel, feedParcels), free: make(chan *parcel, feedParcels), done: make(chan struct{}),
	}
}

// put adds a line.
func (d *feed) put(en *entry, f *facts, now int64) {
	if len(d.cur.marks) == 0 {
		d.begin(now)
	}
	d.append(en, f)
	if len(d.cur.buf) >= flushAt {
		d.flush(now)
	}
}

// begin reports a gap in front of the next lines, if it is time to try.
func (d *feed) begin(now int64) {
	d.mu.Lock()
	g := d.gap
	if g.count == 0 || now < d.retryAt {
		d.mu.Unlock()
		return
	}
	d.gap = gap{}
	d.mu.Unlock()
	d.cur.told = g
	e := newEntry(Record{V: Version, Kind: KindLost, Node: d.node, Reason: LostWrite})
	d.append(&e, &facts{time: g.first, until: g.last, count: g.count})
}

func (d *feed) append(en *entry, f *facts) {
	p := d.cur
	p.buf = d.line(p.buf, en, f)
	p.marks = append(p.marks, mark{end: len(p.buf), first: f.time, last: max(f.time, f.until)})
}

// flush passes the lines on. It never waits.
func (d *feed) flush(now int64) {
	if len(d.cur.marks) == 0 {
		if d.begin(now); len(d.cur.marks) == 0 {
			return
		}
	}
	d.cur.now = now
	select {
	case d.queue <- d.cur:
	default:
		d.missing(d.cur, 0, errQueueFull)
		d.recycle(d.cur)
	}
	select {
	case d.cur = <-d.free:
	default:
		d.cur = &parcel{}
	}
}

func (d *feed) recycle(p *parcel) {
	p.buf, p.marks, p.told = p.buf[:0], p.marks[:0], gap{}
	if cap(p.buf) > 4*flushAt {
		p.buf = nil
	}
	select {
	case d.free <- p:
	default:
	}
}

// missing counts the lines of p behind the first sent ones.
func (d *feed) missing(p *parcel, sent int, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	marks := p.marks[sent:]
	if p.told.count > 0 && sent == 0 {
		d.gap.add(p.told.count, 0, p.told.first, p.told.last) // not told, after all
		marks = marks[1:]
	}
	for _, m := range marks {
		d.gap.add(1, 0, m.first, m.last)
	}
	d.lost.Add(uint64(len(marks)))
	d.retryAt = p.now + retryEvery
	if !d.failing {
		d.failing = true
		d.log.Warn("audit records cannot be sent", "error", err)
	}
}

// run sends until the queue is closed.
func (d *feed) run() {
	defer close(d.done)
	for p := range d.queue {
		n, err := d.send(p)
		d.sent.Add(uint64(n))
		if n < len(p.marks) {
			d.missing(p, n, err)
		} else {
			d.mu.Lock()
			if d.failing && d.gap.count == 0 {
				d.failing = false
				d.log.Info("audit records are sent again")
			}
			d.mu.Unlock()
		}
		d.recycle(p)
	}
}

// errStuck is a feed's end when its other side takes nothing.
var errStuck = errors.New("audit: records were left unsent")

// finish sends what is left and ends the goroutine. An other side that takes
// nothing is not waited for longer than finishTimeout.
func (d *feed) finish(now int64) error {
	const finishTimeout = 2 * sendTimeout
	late := time.NewTimer(finishTimeout)
	defer late.Stop()
	for range 2 { // the second parcel reports what the first could not pass on
		d.mu.Lock()
		d.retryAt = now
		d.mu.Unlock()
		if len(d.cur.marks) == 0 {
			d.begin(now)
		}
		if len(d.cur.marks) == 0 {
			break
		}
		d.cur.now = now
		select {
		case d.queue <- d.cur:
			d.cur = &parcel{}
		case <-late.C:
			d.missing(d.cur, 0, errQueueFull)
			return errStuck
		}
	}
	close(d.queue)
	select {
	case <-d.done:
		return d.close()
	case <-late.C:
		return errStuck
	}
}
