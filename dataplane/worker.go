package dataplane

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Housekeeping and failure bounds of a worker.
const (
	// expireEvery is how often idle connections are looked for, nanoseconds.
	expireEvery = int64(100 * time.Millisecond)
	// expireSlots is how many records are examined then: a full default table
	// every 13 seconds, at some 10 µs a time. A worker that slept longer examines
	// more, up to maxExpire times as many.
	expireSlots = 512
	maxExpire   = 16
	// maxRecvFails is how many Recv failures in a row end a worker: with the
	// growing pause between them about two seconds of a broken driver.
	maxRecvFails = 10
	recvPause    = 2 * time.Millisecond
)

// Worker decides the packets of one driver. It has one goroutine, which owns
// every field not said to be shared; nothing is locked that another worker uses,
// except where the driver is Scattered.
type Worker struct {
	engine  *Engine
	driver  Driver           // IsHost and IsTunnel: shared with the control goroutine
	conns   *conntrack.Table // shared with the control goroutine, locks for itself
	peers   []*Worker        // whose tables have our connections, too; see table
	ring    *Ring            // this end: producer
	backend uint8
	queue   int
	index   int      // among the engine's workers
	hits    *hitBank // of the batch under way, nil where nothing is counted

	batch      Batch
	count      counters
	samples    [sampleSlots]sample
	holding    bool             // a sample holds something
	seen       conntrack.Packet // scratch: the packet being decided
	rec        conntrack.Record // scratch: its connection's record, once found
	event      Event            // scratch: the event being built
	settled    bool             // what snapshot.settled was when the batch began
	lastExpire int64
	forced     struct{ allow, deny bool } // events whatever the rules ask for
	bucket     bucket                     // bounds answers
	answer     [packet.MaxAnswer]byte     // scratch

	// epoch is odd while a batch is being decided and applied, even while the
	// worker waits in Recv. Written by the worker, read by SetTable.
	//
	// No race can be lost: the worker makes epoch odd before it loads the
	// table, SetTable stores the table before it reads epoch, and both are
	// sequentially consistent. If SetTable reads an even epoch, the worker's
	// next step to odd, and the load after it, come later and see the new
	// table. If it reads an odd one it waits for any other value: that batch is
	// over, applied included.
	epoch     atomic.Uint64
	published seqCounters   // shared: any reader
	cutTotal  atomic.Uint64 // shared: worker and control goroutine add
}

func newWorker(e *Engine, d Driver, backend uint8, queue, index int) *Worker {
	limits := e.cfg.Conntrack
	limits.Worker = uint16(index) // connection ids are unique in the process
	w := &Worker{
		engine: e, driver: d, backend: backend, queue: queue, index: index,
		conns: conntrack.New(limits), ring: NewRing(e.cfg.RingSize),
	}
	w.bucket = newBucket(e.cfg.RejectRate)
	w.forced.allow = e.cfg.AuditAll
	w.forced.deny = e.cfg.AuditAll || e.cfg.AuditDenies
	return w
}

// run moves batches until the driver is closed (nil) or broken (its error).
func (w *Worker) run(ctx context.Context) error {
	defer func() {
		w.releaseDue(math.MaxInt64 - sampleEvery)
		w.ring.Flush()
	}()
	w.driver.Bind()
	fails := 0
	for {
		err := w.driver.Recv(&w.batch)
		switch {
		case err == nil:
			fails = 0
		case errors.Is(err, ErrClosed):
			return nil
		default:
			if ctx.Err() != nil {
				return nil // being closed: whatever it says, it is over
			}
			w.count.recvFails++
			w.published.publish(&w.count, -1)
			if fails++; fails == 1 {
				w.engine.log.Warn("driver cannot receive", "backend", w.engine.backends[w.backend], "queue", w.queue, "error", err)
			}
			if fails == maxRecvFails {
				return err
			}
			select {
			case <-ctx.Done():
			case <-time.After(recvPause << fails):
			}
			continue
		}
		if w.batch.N == 0 {
			w.expire(w.engine.clock())
			w.ring.Flush()
			continue
		}
		w.process(&w.batch)
	}
}

// process decides and applies one batch. It reads the clock twice and the table
// once, and allocates nothing.
func (w *Worker) process(b *Batch) {
	w.epoch.Store(w.epoch.Load() + 1)
	now := w.engine.clock()
	s := w.engine.current.Load()
	w.settled, w.hits = false, nil
	if s != nil {
		w.settled = s.settled.Load()
		if h := s.hits.Load(); h != nil {
			w.hits = &(*h)[w.index]
		}
	}
	for i := range b.Packets[:b.N] {
		p := &b.Packets[i]
		p.Remember, p.Verdict = false, classifier.Drop
		p.Problem = parse(p)
		if p.Real.Valid() {
			p.reveal()
		}
		path := w.decide(p, s, now)
		p.Disposition = dispositions[path]
		switch {
		case p.Disposition == PassPacket:
			p.Verdict = classifier.Allow
		case path == DropPolicy || path == DropCut:
			w.reject(p, now)
		}
		if p.Remember && p.Disposition == PassPacket {
			w.count.remember++
		}
		w.count.paths[path]++
	}
	err := w.driver.Apply(b)
	w.epoch.Store(w.epoch.Load() + 1)

	n := uint64(b.N)
	bucket := bucketOf(w.engine.clock() - now)
	w.count.latency.Buckets[bucket] += n
	w.count.received += n
	w.count.batches++
	if err != nil {
		if w.count.applyFail++; w.count.applyFail == 1 {
			w.engine.log.Warn("driver cannot apply verdicts; further failures are only counted",
				"backend", w.engine.backends[w.backend], "queue", w.queue, "error", err)
		}
	}
	if now-w.lastExpire >= expireEvery {
		w.expire(now)
	}
	w.published.publish(&w.count, bucket)
	w.ring.Flush()
}

func (w *Worker) expire(now int64) {
	due := min(max((now-w.lastExpire)/expireEvery, 1), maxExpire)
	w.lastExpire = now
	w.conns.Expire(now, int(due)*expireSlots)
	w.releaseDue(now)
}

// rejudgeAll re-evaluates the records of older generations that s's change
// affects, or with Keep those of addresses that are another pod's now. It runs on the
// control goroutine while the worker goes on with s: whoever comes first to a record
// decides it, and both decide alike.
func (w *Worker) rejudgeAll(s *snapshot) {
	keep := w.engine.cfg.Established == Keep
	settle := func(r conntrack.Record) bool {
		if keep && s.passedOn(&r.Key, false) || !keep && !s.vouches(&r, false) {
			w.settle(s, &r)
		}
		return true
	}
	if s.change.All() {
		w.conns.Each(settle)
		return
	}
	w.conns.EachTouching(s.change.Touches, settle)
}

// parse fills the packet's headers.
func parse(p *Packet) packet.Problem {
	length := int(p.Length)
	if length == 0 {
		length = len(p.Frame)
	}
	if p.L2 {
		return packet.ParseEthernetSnap(p.Frame, length, &p.Headers)
	}
	return packet.ParseIPSnap(p.Frame, length, &p.Headers)
}

// put sends the worker's scratch event to the ring.
func (w *Worker) put() {
	w.count.events++
	w.ring.Put(&w.event)
}

// prepare fills the scratch event with what all events of a packet share.
func (w *Worker) prepare(p *Packet, s *snapshot, cause Cause, now int64) *Event {
	e := &w.event
	*e = Event{
		Time: now, Count: 1, Device: p.Device, Length: packetLength(p), Key: p.Headers.Key, Service: p.Service,
		Cause: cause, Problem: p.Problem, TCPFlags: p.Headers.TCPFlags, Backend: w.backend,
	}
	if s != nil {
		e.Generation = s.generation
	}
	return e
}

// decided counts and reports a table's decision about k.
func (w *Worker) decided(p *Packet, s *snapshot, cause Cause, k flow.Key, d classifier.Decision, conn uint64, now int64) {
	if w.hits != nil {
		w.hits.add(d.Egress, now)
		w.hits.add(d.Ingress, now)
	}
	forced := w.forced.deny
	if d.Verdict == classifier.Allow {
		forced = w.forced.allow
	}
	if !d.Audit && !forced {
		return
	}
	e := w.prepare(p, s, cause, now)
	e.Key, e.Egress, e.Ingress, e.Verdict, e.Conn, e.Forced = k, d.Egress, d.Ingress, d.Verdict, conn, forced
	w.put()
}

// packetLength is the IP packet's length, or the frame's if there is no packet.
func packetLength(p *Packet) uint32 {
	if p.Headers.Length != 0 {
		return uint32(p.Headers.Length)
	}
	if p.Length != 0 {
		return p.Length
	}
	return uint32(len(p.Frame))
}

// Stats returns the worker's totals; any goroutine may call it.
func (w *Worker) Stats() Stats {
	var s Stats
	c := w.published.read()
	s.add(&c)
	s.Lost = w.ring.Lost()
	s.Cut = w.cutTotal.Load()
	s.Conntrack = w.conns.Stats()
	return s
}
