package dataplane_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/fake"
)

// patience bounds the wait for what must happen: only a test that fails spends it.
const patience = 30 * time.Second

// start runs an engine until the test ends and fails it if Run does.
func start(t *testing.T, e *dataplane.Engine) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run did not return")
		}
	})
}

func invariant(t *testing.T, e *dataplane.Engine) dataplane.Stats {
	t.Helper()
	s := e.Stats()
	if s.Passed()+s.Deferred()+s.Dropped() != s.Received || s.Latency.Count() != s.Received {
		t.Errorf("received %d: passed %d, deferred %d, dropped %d, latencies %d", s.Received, s.Passed(), s.Deferred(), s.Dropped(), s.Latency.Count())
	}
	return s
}

// retirable is a classifier that must not be asked once it is retired.
type retirable struct {
	dataplane.Stub
	retired  atomic.Bool
	tooLate  *atomic.Int64
	lookedUp atomic.Int64
}

func (r *retirable) Lookup(k flow.Key) classifier.Decision {
	r.lookedUp.Add(1)
	if r.retired.Load() {
		r.tooLate.Add(1)
	}
	return r.Stub.Lookup(k)
}

// TestSetTableStorm swaps tables under full traffic. Once a swap has returned no
// packet may be decided by the old table, every connection the new one denies is
// gone, and every packet is accounted for.
func TestSetTableStorm(t *testing.T) {
	const workers, perWorker, swaps = 3, 4000, 150
	drivers := make([]*fake.Driver, workers)
	for i := range drivers {
		drivers[i] = fake.NewDriver(64, false)
	}
	e := dataplane.New(dataplane.Config{
		Backends: []dataplane.Backend{fake.NewBackend("fake", drivers...)}, AuditDenies: true, RingSize: 256,
		Conntrack: conntrack.Limits{Records: 512},
	})
	start(t, e)

	var tooLate atomic.Int64
	table := func(gen uint64) *retirable {
		r := &retirable{tooLate: &tooLate}
		// Odd generations deny odd ports, even ones even ports.
		r.Stub = dataplane.Stub{Gen: gen, Quiet: true, Allowed: func(k flow.Key) bool { return uint64(k.SrcPort)%2 != gen%2 }}
		return r
	}
	current := table(1)
	if _, err := e.Publish(current); err != nil {
		t.Fatal(err)
	}
	frames := make([][]byte, 200)
	for i := range frames {
		frames[i] = dataplane.Segment(t, fmt.Sprintf("10.0.0.1:%d", 1000+i), "10.0.0.2:80", dataplane.Flags{SYN: true}, 1)
	}
	var feeders sync.WaitGroup
	for _, d := range drivers {
		feeders.Go(func() {
			for i := range perWorker {
				d.Send(fake.In{Frame: frames[i%len(frames)], Final: true})
			}
		})
	}
	var cut int
	applied := func() (n uint64) {
		for _, d := range drivers {
			n += d.Applied()
		}
		return n
	}
	for gen := uint64(2); gen < swaps+2; gen++ {
		// Spread the swaps over the traffic, whichever of the two is faster.
		for target := gen * workers * perWorker / (swaps + 10); applied() < target; {
			runtime.Gosched()
		}
		next := table(gen)
		n, err := e.Publish(next)
		if err != nil {
			t.Fatal(err)
		}
		current.retired.Store(true)
		current = next
		cut += n
		e.Flows(func(_ string, r conntrack.Record) bool {
			if r.Generation != gen || uint64(r.Key.SrcPort)%2 == gen%2 {
				t.Errorf("after table %d: record of %d for port %d", gen, r.Generation, r.Key.SrcPort)
				return false
			}
			return true
		})
		invariant(t, e) // in the middle of traffic
	}
	feeders.Wait()
	for i, d := range drivers {
		if !d.WaitApplied(perWorker, patience) {
			t.Fatalf("driver %d: %d of %d packets have a verdict", i, d.Applied(), perWorker)
		}
	}
	if n := tooLate.Load(); n > 0 {
		t.Errorf("%d lookups in a table that was no longer in force", n)
	}
	// The last batch's counters are published after Apply.
	deadline := time.Now().Add(patience)
	for e.Stats().Received < workers*perWorker && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	s := invariant(t, e)
	if s.Received != workers*perWorker {
		t.Errorf("received %d of %d", s.Received, workers*perWorker)
	}
	if cut == 0 || uint64(cut) > s.Cut {
		t.Errorf("publishing reported %d cut connections, workers counted %d", cut, s.Cut)
	}
	if got := uint64(s.Conntrack.Records); got != s.Conntrack.Inserted-s.Conntrack.Replaced-s.Conntrack.Evicted-s.Conntrack.Expired-s.Conntrack.Removed {
		t.Errorf("connection table does not add up: %+v", s.Conntrack)
	}
	if s.Cut != s.Conntrack.Removed {
		t.Errorf("%d cut, %d removed", s.Cut, s.Conntrack.Removed)
	}
}

// TestSetTableWaitsForApply: a verdict of the old table may still be on its way
// to the kernel; SetTable returns after it, and does not wait for idle workers.
func TestSetTableWaitsForApply(t *testing.T) {
	busy, idle := fake.NewDriver(4, false), fake.NewDriver(4, false)
	idle.Idle = time.Hour // never back from Recv by itself
	inApply, release := make(chan struct{}), make(chan struct{})
	busy.ApplyErr = func() error {
		inApply <- struct{}{}
		<-release
		return nil
	}
	backend := fake.NewBackend("fake", busy, idle)
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{backend}, StallTimeout: 500 * time.Millisecond})
	start(t, e)
	if _, err := e.Publish(&dataplane.Stub{Gen: 1, Allowed: dataplane.Always}); err != nil {
		t.Fatalf("idle workers are waited for: %v", err)
	}
	busy.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.0.2:2")})
	<-inApply

	// Stalled for longer than allowed: reported, and the table is in force anyway.
	deny := &dataplane.Stub{Gen: 2, Allowed: dataplane.Never}
	cut, err := e.Publish(deny)
	if !errors.Is(err, dataplane.ErrStalled) || cut != 1 || backend.Updates() != 2 {
		t.Errorf("stalled worker: cut %d, %v, %d backend updates", cut, err, backend.Updates())
	}

	// Released while SetTable waits: it returns, and not before.
	e2 := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("fake", busy2(t, inApply, release))}})
	start(t, e2)
	<-inApply
	returned := make(chan error, 1)
	go func() {
		_, err := e2.Publish(&dataplane.Stub{Gen: 1, Allowed: dataplane.Always})
		returned <- err
	}()
	select {
	case <-returned:
		close(release)
		t.Fatal("SetTable returned while a verdict was being applied")
	case <-time.After(30 * time.Millisecond):
	}
	close(release)
	if err := <-returned; err != nil {
		t.Error(err)
	}
}

func busy2(t *testing.T, inApply chan<- struct{}, release <-chan struct{}) *fake.Driver {
	d := fake.NewDriver(4, false)
	d.ApplyErr = func() error {
		inApply <- struct{}{}
		<-release
		return nil
	}
	d.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.0.2:2")})
	return d
}

func TestSetTableGeneration(t *testing.T) {
	b := fake.NewBackend("fake", fake.NewDriver(1, false))
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{b}})
	select {
	case <-e.Ready():
		t.Error("ready without a table")
	default:
	}
	b.OnUpdate = func(*classifier.Table, dataplane.Change) (int, error) {
		select {
		case <-e.Ready():
		default:
			t.Error("not ready when the backends hear of the table")
		}
		return 0, nil
	}
	for _, c := range []struct {
		gen uint64
		ok  bool
	}{{5, true}, {5, false}, {4, false}, {6, true}} {
		_, err := e.Publish(&dataplane.Stub{Gen: c.gen, Allowed: dataplane.Always})
		if errors.Is(err, dataplane.ErrGeneration) == c.ok {
			t.Errorf("generation %d: %v", c.gen, err)
		}
	}
}

// TestBackendUpdateError: the table stays in force, the error names the backend,
// and the others are updated all the same.
func TestBackendUpdateError(t *testing.T) {
	broken, fine := fake.NewBackend("broken"), fake.NewBackend("fine")
	errNetlink := errors.New("netlink said no")
	broken.OnUpdate = func(*classifier.Table, dataplane.Change) (int, error) { return 2, errNetlink }
	fine.OnUpdate = func(*classifier.Table, dataplane.Change) (int, error) { return 3, nil }
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{broken, fine}})
	cut, err := e.Publish(&dataplane.Stub{Gen: 1, Allowed: dataplane.Always})
	if cut != 5 || !errors.Is(err, errNetlink) || fine.Updates() != 1 {
		t.Errorf("cut %d, %v, %d updates of the other backend", cut, err, fine.Updates())
	}
}

// TestRunFailures: a hiccup is survived and counted; a broken driver ends Run,
// with its name, and stops the other workers.
func TestRunFailures(t *testing.T) {
	errIO := errors.New("device went away")
	var calls atomic.Int64
	hiccup, broken := fake.NewDriver(4, false), fake.NewDriver(4, false)
	hiccup.RecvErr = func() error {
		if calls.Add(1) <= 2 {
			return errIO
		}
		return nil
	}
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("ok", hiccup)}})
	start(t, e)
	hiccup.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.0.2:2")})
	if !hiccup.WaitApplied(1, patience) {
		t.Fatal("worker did not recover")
	}
	for deadline := time.Now().Add(patience); e.Stats().Received == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // the counters follow
	}
	if s := e.Stats(); s.RecvFails != 2 {
		t.Errorf("counted %d failures", s.RecvFails)
	}

	broken.RecvErr = func() error { return errIO }
	other := fake.NewDriver(4, false)
	e = dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("ok", other), fake.NewBackend("bad", broken)}})
	err := e.Run(t.Context())
	if !errors.Is(err, errIO) || err.Error() != "bad queue 0: device went away" {
		t.Errorf("Run: %v", err)
	}
	if other.Send(fake.In{}) {
		t.Error("the other driver is still open")
	}
	if err := e.Run(t.Context()); err == nil {
		t.Error("an engine ran twice")
	}
}

// TestRunDrains: when an engine is told to stop, the backends drain in their order
// while the workers still work; when a driver is broken they do not.
func TestRunDrains(t *testing.T) {
	const waiting = 100
	d := fake.NewDriver(waiting, false)
	gate := make(chan struct{})
	d.ApplyErr = func() error { <-gate; return nil }
	fast, slow := fake.NewBackend("fast", d), fake.NewBackend("slow", fake.NewDriver(1, false))
	var order []string
	fast.OnDrain = func() error {
		order = append(order, "fast")
		close(gate)
		if !d.WaitApplied(waiting, patience) {
			return errors.New("the worker does not work any more")
		}
		return nil
	}
	slow.OnDrain = func() error { order = append(order, "slow"); return nil }
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fast, slow}, FailMode: dataplane.FailOpen})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	for range waiting {
		d.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.0.2:2"), Final: true})
	}
	stop()
	if err := <-done; err != nil || d.Passed() != waiting || !slices.Equal(order, []string{"fast", "slow"}) {
		t.Errorf("Run: %v, %d of %d packets passed, drained %v", err, d.Passed(), waiting, order)
	}

	broken := fake.NewDriver(1, false)
	broken.RecvErr = func() error { return errors.New("device went away") }
	b := fake.NewBackend("bad", broken)
	b.OnDrain = func() error { t.Error("drained without a worker"); return nil }
	if err := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{b}}).Run(t.Context()); err == nil {
		t.Error("Run: no error")
	}
}

// TestApplyError: the packets stay accounted for, the failure is counted.
func TestApplyError(t *testing.T) {
	d := fake.NewDriver(4, false)
	var fail atomic.Bool
	fail.Store(true)
	d.ApplyErr = func() error {
		if fail.Load() {
			return errors.New("no buffer space")
		}
		return nil
	}
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fake.NewBackend("fake", d)}, FailMode: dataplane.FailOpen})
	start(t, e)
	d.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.0.2:2"), Final: true})
	deadline := time.Now().Add(patience)
	for e.Stats().ApplyFail == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	fail.Store(false)
	d.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.0.2:2"), Final: true})
	if !d.WaitApplied(1, patience) {
		t.Fatal("worker stopped")
	}
	if s := invariant(t, e); s.ApplyFail != 1 {
		t.Errorf("counted %d failures", s.ApplyFail)
	}
}

// TestTableOf: real tables resolve for a bounded time.
func TestTableOf(t *testing.T) {
	var now atomic.Int64
	e := dataplane.New(dataplane.Config{Clock: now.Load})
	if e.Table() != nil || e.TableOf(0) != nil {
		t.Error("a table before the first SetTable")
	}
	var first *classifier.Table
	for gen := uint64(1); gen <= 20; gen++ {
		table := compile(t, gen)
		if gen == 1 {
			first = table
		}
		if _, err := e.SetTable(table, dataplane.Change{}); err != nil {
			t.Fatal(err)
		}
		if e.Table() != table || e.TableOf(gen) != table {
			t.Fatalf("table %d is not the one that was set", gen)
		}
		if gen <= 19 && e.TableOf(1) != first {
			t.Errorf("%d updates later the first table is gone", gen-1)
		}
		if gen == 19 { // for as long as disks hiccup
			now.Add(int64(10 * time.Second))
		}
	}
	// Table 19 was in force until table 20 came, whatever the time.
	if e.TableOf(1) != nil || e.TableOf(4) != nil || e.TableOf(5) == nil {
		t.Error("the history of the time before is not bounded to 16")
	}
	for gen := uint64(21); gen <= 400; gen++ { // all at the same time
		if _, err := e.SetTable(compile(t, gen), dataplane.Change{}); err != nil {
			t.Fatal(err)
		}
	}
	if e.TableOf(400-256) != nil || e.TableOf(400-255) == nil {
		t.Error("the history is not bounded to 256")
	}
}

// preparer is a backend to which others leave packets.
type preparer struct {
	*fake.Backend
	prepare func() error
}

func (p preparer) Prepare(*classifier.Table) error { return p.prepare() }

// TestPrepare: whoever is left something by others hears of the first table before
// workers and backends do, and if it cannot act on it, nobody has that table.
func TestPrepare(t *testing.T) {
	front := fake.NewBackend("front", fake.NewDriver(1, false))
	prepared := 0
	failed := errors.New("no memory")
	behind := preparer{Backend: fake.NewBackend("behind")}
	var e *dataplane.Engine
	behind.prepare = func() error {
		prepared++
		select {
		case <-e.Ready():
			t.Error("prepared when the workers have the table")
		default:
		}
		if front.Updates() > 0 || behind.Updates() > 0 {
			t.Error("prepared after an update")
		}
		return failed
	}
	e = dataplane.New(dataplane.Config{Backends: []dataplane.Backend{front, behind}})
	if _, err := e.Publish(&dataplane.Stub{Gen: 1, Allowed: dataplane.Always}); !errors.Is(err, failed) || !strings.Contains(err.Error(), "behind") || front.Updates()+behind.Updates() > 0 {
		t.Errorf("%v, %d updates", err, front.Updates()+behind.Updates())
	}
	failed = nil
	for gen := range uint64(3) { // the first one once more: it is not in force
		if _, err := e.Publish(&dataplane.Stub{Gen: gen + 1, Allowed: dataplane.Always}); err != nil {
			t.Fatal(err)
		}
	}
	if prepared != 2 || front.Updates() != 3 {
		t.Errorf("prepared %d times, want once for each attempt at a first table; %d updates", prepared, front.Updates())
	}
}
