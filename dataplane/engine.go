package dataplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/conntrack"
)

// Classifier is what a worker asks: the part of *classifier.Table that the
// packet path uses. Implementations are immutable and safe for concurrent use.
type Classifier interface {
	Lookup(k flow.Key) classifier.Decision
	LookupVia(k flow.Key, via flow.Service) classifier.Decision
	LookupMasked(k flow.Key) classifier.Decision
	IsVIP(a flow.Addr) bool
	IsPod(a flow.Addr) bool
	IsNode(a flow.Addr) bool
	UnknownLocal(k flow.Key) (src, dst bool)
	Generation() uint64
}

// How many tables TableOf can still resolve: the current one and its
// predecessors. An event waits in a ring for milliseconds, or while the disk
// hiccups for seconds; tables share what did not change between them.
const (
	keptTables = 16              // at least
	mostTables = 256             // at most: what is younger than keepTable
	keepTable  = 5 * time.Second // after it was replaced
)

// kernelRingSize is enough for a kind of drop of every pod of a large node.
const kernelRingSize = 1024

// ErrClosed is returned by Driver.Recv after Driver.Close.
var ErrClosed = errors.New("dataplane: driver closed")

// Errors of SetTable.
var (
	ErrStalled    = errors.New("dataplane: a worker did not finish its batch in time")
	ErrGeneration = errors.New("dataplane: table generation must grow")
)

var clockBase = time.Now()

// MonotonicClock returns nanoseconds: the wall clock at program start plus the
// monotonic time since. It never steps, also when the wall clock is set.
func MonotonicClock() int64 { return clockBase.UnixNano() + int64(time.Since(clockBase)) }

// snapshot is one published policy: what a worker loads once per batch.
type snapshot struct {
	classifier Classifier
	generation uint64
	table      *classifier.Table // nil in tests that stub the classifier
	published  int64             // engine clock

	// change is the step from the snapshot before. settled is set when all that
	// it denies has been cut from the workers' tables.
	change  Change
	settled atomic.Bool
	before  *classifier.Table // the table before it, nil as table

	// hits are the workers' counters of what the table decides; see CollectHits.
	hits atomic.Pointer[hitBanks]
}

// vouches reports whether a connection in the table needs no other look: it was
// judged by s, or by an older table whose decision s repeats. Records are not
// restamped for that, so that an update costs what it changes. settled is what
// s.settled was before rec was copied: who asks later may hold what was cut meanwhile.
//
// Why one step back is enough: when s was published, every record was right by
// the table before it, or else the change is everything (see Engine.publish).
func (s *snapshot) vouches(rec *conntrack.Record, settled bool) bool {
	return rec.Generation >= s.generation || settled || !s.change.Affects(rec.Key)
}

// passedOn reports whether an address of a connection is another pod's than by the
// table before. What was accepted for a pod is not accepted for the next one that
// gets its address, whatever Established says of changes of policy. settled: see vouches.
func (s *snapshot) passedOn(k *flow.Key, settled bool) bool {
	if s.before == nil || s.table == nil || settled {
		return false
	}
	return otherPod(s.before.Endpoint(k.Src), s.table.Endpoint(k.Src)) || otherPod(s.before.Endpoint(k.Dst), s.table.Endpoint(k.Dst))
}

func otherPod(a, b *rule.Endpoint) bool {
	if a == nil || b == nil {
		return a != b
	}
	return a.Namespace != b.Namespace || a.Name != b.Name
}

// Engine owns the workers and the current table. All methods may be called from
// any goroutine; SetTable calls are serialised.
type Engine struct {
	cfg      Config
	clock    func() int64
	log      *slog.Logger
	workers  []*Worker
	backends []string
	learners []Backend // those with Learns
	kernel   *Ring     // of events about what kernel sides dropped; see recordDrops
	running  atomic.Bool

	current atomic.Pointer[snapshot] // nil until the first SetTable
	ready   chan struct{}            // closed with the first SetTable

	update  sync.Mutex // serialises SetTable
	partial bool       // guarded by update: the last publish reached only some backends
	retired []retired  // guarded by update: counters to be told to Config.Hits

	idleBanks []*hitBanks // guarded by update: all zero, to be used again

	mu     sync.Mutex // guards recent
	recent []*snapshot
}

// New returns an Engine with one Worker per driver of every backend. It starts
// nothing. More than 255 backends or 65535 drivers is the caller's bug.
func New(cfg Config) *Engine {
	if cfg.RingSize == 0 {
		cfg.RingSize = DefaultRingSize
	}
	if cfg.StallTimeout == 0 {
		cfg.StallTimeout = DefaultStallTimeout
	}
	if cfg.RejectRate == 0 {
		cfg.RejectRate = DefaultRejectRate
	}
	e := &Engine{cfg: cfg, clock: cfg.Clock, log: cfg.Logger, ready: make(chan struct{}), kernel: NewRing(kernelRingSize)}
	if e.clock == nil {
		e.clock = MonotonicClock
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	for i, b := range cfg.Backends {
		e.backends = append(e.backends, b.Name())
		if b.Learns() {
			e.learners = append(e.learners, b)
		}
		first := len(e.workers)
		for q, d := range b.Drivers() {
			e.workers = append(e.workers, newWorker(e, d, uint8(i), q, len(e.workers)))
		}
		introduce(e.workers[first:])
	}
	return e
}

// Run moves packets until ctx is done, then lets the backends drain, closes every
// driver, waits for the workers and returns nil. If a driver fails for good Run stops
// all of them and returns the reason. Backends stay open: what their Close means for traffic is
// the caller's decision. Run may be called once.
func (e *Engine) Run(ctx context.Context) error {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("dataplane: engine runs already or has run")
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(e.workers))
	var failed atomic.Bool
	var wg sync.WaitGroup
	for i, w := range e.workers {
		wg.Go(func() {
			if err := w.run(ctx); err != nil {
				errs[i] = fmt.Errorf("%s queue %d: %w", e.backends[w.backend], w.queue, err)
				failed.Store(true)
				cancel(errs[i])
			}
		})
	}
	e.tellUntil(ctx)
	defer e.recordDrops() // the last ones
	if !failed.Load() {   // without a worker nothing would ever be empty
		e.drain()
	}
	for _, w := range e.workers {
		if err := w.driver.Close(); err != nil {
			e.log.Warn("driver did not close cleanly", "backend", e.backends[w.backend], "queue", w.queue, "error", err)
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// drain waits until queued packets have verdicts. What the fast path leaves to
// the hook behind it comes up there, so the order is that of the backends.
func (e *Engine) drain() {
	e.update.Lock()
	defer e.update.Unlock()
	for i, b := range e.cfg.Backends {
		if err := b.Drain(); err != nil {
			e.log.Warn("packets that waited for a verdict are lost", "backend", e.backends[i], "error", err)
		}
	}
}

// SetTable puts t in force and returns when no packet can be decided by an
// older table any more and every live connection t denies has been cut. cut is
// how many were: connections of the engine's and of the backends' tables, so a
// connection both know counts twice.
//
// The order of steps is what makes that true:
//
//  1. publish the pointer: a batch that starts from now on uses t;
//  2. wait for batches that started before (see Worker.epoch). An idle worker
//     is not waited for: its next batch starts after 1;
//  3. report the connections that were passed until now (Backend.Learn);
//  4. re-evaluate those of the workers' records that the change affects. No
//     worker adds one of an older generation any more, so one pass is enough.
//     The others keep the generation they have: see snapshot.vouches;
//  5. Backend.Update, for what the kernel remembers by itself. With the first table
//     that may be from before this process: see Backend.Inherit.
//
// c says how t differs from the table in force; when it does not compare these
// two (a table was skipped), or the last call failed half-way, everything counts
// as changed.
//
// t's generation must be greater than the one in force, or ErrGeneration is
// returned and nothing changes. A worker that does not come back in
// Config.StallTimeout gives ErrStalled, a backend that fails its own error; t
// stays in force either way. Only if a backend cannot be prepared for a first table
// is that not in force, and the next one is the first.
func (e *Engine) SetTable(t *classifier.Table, c Change) (cut int, err error) {
	return e.publish(&snapshot{classifier: t, generation: t.Generation(), table: t}, c)
}

func (e *Engine) publish(s *snapshot, c Change) (cut int, err error) {
	e.update.Lock()
	defer e.update.Unlock()
	old := e.current.Load()
	if old != nil && s.generation <= old.generation {
		return 0, fmt.Errorf("%w: %d after %d", ErrGeneration, s.generation, old.generation)
	}
	if old == nil {
		if err := e.prepare(s); err != nil {
			return 0, err
		}
	}
	if e.partial || old == nil || s.table != nil && !c.between(old.table, s.table) {
		c = Change{}
	}
	e.partial = true
	s.change = c
	if old != nil {
		s.before = old.table
	}
	e.remember(s)
	var before uint64
	for _, w := range e.workers {
		before += w.cutTotal.Load()
	}

	s.hits.Store(e.openBanks(s.table))
	e.current.Store(s)
	if old == nil {
		close(e.ready)
	} else {
		e.retire(old, nil)
	}
	var errs []error
	stalled := e.observed()
	if stalled != nil {
		errs = append(errs, stalled)
	} else {
		e.countRetired()
	}
	e.tell(stalled != nil)
	for _, w := range e.workers {
		w.rejudgeAll(s)
	}
	// A worker that stalled may still add what the table before s allowed.
	s.settled.Store(stalled == nil)
	if old == nil {
		e.inherit(s)
	}
	for i, b := range e.cfg.Backends {
		n, err := b.Update(s.table, c)
		cut += n
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: update to table generation %d: %w", e.backends[i], s.generation, err))
		}
	}
	for _, w := range e.workers {
		cut += int(w.cutTotal.Load())
	}
	e.partial = len(errs) > 0
	return cut - int(before), errors.Join(errs...)
}

// prepare announces the first table to backends that receive deferred packets, before
// any worker has it. A run of another configuration may have judged alone what is left to
// a later hook from then on: one that knows of nobody to judge yet would pass it.
func (e *Engine) prepare(s *snapshot) error {
	var errs []error
	for i, b := range e.cfg.Backends {
		if err := b.Prepare(s.table); err != nil {
			errs = append(errs, fmt.Errorf("%s: prepare for table generation %d: %w", e.backends[i], s.generation, err))
		}
	}
	return errors.Join(errs...)
}

// observed waits until every worker has finished the batch it was in.
func (e *Engine) observed() error {
	deadline := time.Now().Add(e.cfg.StallTimeout)
	for _, w := range e.workers {
		epoch := w.epoch.Load()
		if epoch&1 == 0 {
			continue // idle: its next batch loads the new table
		}
		// A batch takes microseconds; do not pay for a timer at once.
		for spin := 0; w.epoch.Load() == epoch; spin++ {
			if spin < 64 {
				runtime.Gosched()
				continue
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%w: %s queue %d", ErrStalled, e.backends[w.backend], w.queue)
			}
			time.Sleep(20 * time.Microsecond)
		}
	}
	return nil
}

// remember keeps s for TableOf and forgets what nobody will ask for any more.
func (e *Engine) remember(s *snapshot) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s.published = e.clock()
	e.recent = append(e.recent, s)
	n := 0
	for len(e.recent)-n > keptTables && (len(e.recent)-n > mostTables || s.published-e.recent[n+1].published > int64(keepTable)) {
		n++
	}
	e.recent = slices.Delete(e.recent, 0, n)
}

// TableOf returns the table of a generation if it is one of the last few, else
// nil.
func (e *Engine) TableOf(generation uint64) *classifier.Table {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.recent) - 1; i >= 0; i-- {
		if e.recent[i].generation == generation {
			return e.recent[i].table
		}
	}
	return nil
}

// Ready is closed once packets are judged by a table. SetTable may not have returned
// by then: what backends do about it brings packets up.
func (e *Engine) Ready() <-chan struct{} { return e.ready }

// Table returns the table in force, nil before the first SetTable.
func (e *Engine) Table() *classifier.Table {
	if s := e.current.Load(); s != nil {
		return s.table
	}
	return nil
}

// Now reads the engine's clock: the time base of events and connections.
func (e *Engine) Now() int64 { return e.clock() }

// BackendNames returns the backends' names; Event.Backend is an index into it.
func (e *Engine) BackendNames() []string { return slices.Clone(e.backends) }

// Rings returns the workers' event rings, and behind them the one about kernel sides. The caller must be their only consumer.
func (e *Engine) Rings() []*Ring {
	rings := make([]*Ring, 0, len(e.workers)+1)
	for _, w := range e.workers {
		rings = append(rings, w.ring)
	}
	return append(rings, e.kernel)
}

// WorkerStats are one worker's totals.
type WorkerStats struct {
	Backend string
	Queue   int
	Stats
}

// Workers returns each worker's totals.
func (e *Engine) Workers() []WorkerStats {
	out := make([]WorkerStats, len(e.workers))
	for i, w := range e.workers {
		out[i] = WorkerStats{Backend: e.backends[w.backend], Queue: w.queue, Stats: w.Stats()}
	}
	return out
}

// Stats returns the totals over all workers. Each worker's part is consistent in
// itself: packets received equal the sum of paths.
func (e *Engine) Stats() Stats {
	var s Stats
	for _, w := range e.workers {
		ws := w.Stats()
		s.Add(&ws)
	}
	return s
}

// Flows calls f with a copy of every connection record until f returns false.
// Workers go on meanwhile; a connection seen by two backends appears twice.
func (e *Engine) Flows(f func(backend string, rec conntrack.Record) bool) {
	for _, w := range e.workers {
		more := true
		w.conns.Each(func(r conntrack.Record) bool {
			more = f(e.backends[w.backend], r)
			return more
		})
		if !more {
			return
		}
	}
}
