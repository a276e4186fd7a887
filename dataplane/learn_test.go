package dataplane_test

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/fake"
)

// pupil is a backend that learns, and a driver that notes what the kernel would
// remember.
type pupil struct {
	*fake.Backend
	mu     sync.Mutex
	known  map[flow.Key]string // by which backend
	missed int
	rounds int
}

func (p *pupil) Learns() bool { return true }

func (p *pupil) Learn(backend string, news []conntrack.Record, missed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range news {
		p.known[news[i].Key] = backend
	}
	if news == nil {
		p.rounds++
	}
	if missed {
		p.missed++
	}
}

type noting struct {
	*fake.Driver
	mu         sync.Mutex
	remembered map[flow.Key]bool
}

func (n *noting) Apply(b *dataplane.Batch) error {
	n.mu.Lock()
	for i := range b.Packets[:b.N] {
		if p := &b.Packets[i]; p.Disposition == dataplane.PassPacket && p.Remember {
			n.remembered[p.Headers.Key] = true
		}
	}
	n.mu.Unlock()
	return n.Driver.Apply(b)
}

// school is an engine with a learning backend and another one, each with a driver.
func school(t *testing.T, limits conntrack.Limits) (*dataplane.Engine, *pupil, []*noting) {
	t.Helper()
	drivers := []*noting{
		{Driver: fake.NewDriver(64, false), remembered: map[flow.Key]bool{}},
		{Driver: fake.NewDriver(64, false), remembered: map[flow.Key]bool{}},
	}
	fast := &fake.Backend{Label: "fast", D: []dataplane.Driver{drivers[0]}}
	p := &pupil{Backend: &fake.Backend{Label: "hook", D: []dataplane.Driver{drivers[1]}}, known: map[flow.Key]string{}}
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{fast, p}, Conntrack: limits})
	start(t, e)
	return e, p, drivers
}

// A learner hears of every connection any backend accepted before it is asked to
// update, whatever the workers are doing meanwhile, or that it missed some.
func TestLearnBeforeUpdate(t *testing.T) {
	for name, records := range map[string]int{"large tables": 0, "tables of four": 4} {
		e, p, drivers := school(t, conntrack.Limits{Records: records})
		var passed []flow.Key // before SetTable was called
		p.OnUpdate = func(*classifier.Table, dataplane.Change) (int, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, k := range passed {
				if p.known[k] == "" && p.missed == 0 {
					t.Errorf("%s: update without having heard of %s", name, k)
				}
			}
			return 0, nil
		}
		table := func(gen uint64) *dataplane.Stub {
			return &dataplane.Stub{Gen: gen, Quiet: true, Allowed: func(k flow.Key) bool { return k.SrcPort%10 != 0 }}
		}
		if _, err := e.Publish(table(1)); err != nil {
			t.Fatal(err)
		}
		var feeders sync.WaitGroup
		const flows = 3000
		for i, d := range drivers {
			feeders.Go(func() {
				for n := range flows {
					d.Send(fake.In{Frame: dataplane.Datagram(t, fmt.Sprintf("10.0.%d.1:%d", i, 1000+n), "10.0.9.9:53"), Final: true})
				}
			})
		}
		for gen := uint64(2); gen < 40; gen++ {
			for drivers[1].Applied() < gen*flows/45 {
				runtime.Gosched()
			}
			passed = nil
			for _, d := range drivers {
				d.mu.Lock()
				for k := range d.remembered {
					passed = append(passed, k)
				}
				d.mu.Unlock()
			}
			if _, err := e.Publish(table(gen)); err != nil {
				t.Fatal(err)
			}
		}
		feeders.Wait()
		if len(passed) == 0 {
			t.Error("nothing passed: the test tests nothing")
		}
		p.mu.Lock()
		for i, want := range []string{"fast", "hook"} {
			k := dataplane.Key(flow.UDP, fmt.Sprintf("10.0.%d.1:1001", i), "10.0.9.9:53")
			if p.known[k] != want {
				t.Errorf("%s: %s is known by %q, want %q", name, k, p.known[k], want)
			}
			if denied := dataplane.Key(flow.UDP, fmt.Sprintf("10.0.%d.1:1000", i), "10.0.9.9:53"); p.known[denied] != "" {
				t.Errorf("%s: told of %s, which was never accepted", name, denied)
			}
		}
		p.mu.Unlock()
	}
}

// What does not fit is reported as missed, a worker that stalls as well, and a quiet
// engine tells by itself.
func TestLearnMissed(t *testing.T) {
	e, p, drivers := school(t, conntrack.Limits{Records: 1})
	if _, err := e.Publish(&dataplane.Stub{Gen: 1, Quiet: true, Allowed: dataplane.Always}); err != nil {
		t.Fatal(err)
	}
	until := func(what string, cond func() bool) {
		t.Helper()
		for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			p.mu.Lock()
			ok := cond()
			p.mu.Unlock()
			if ok {
				return
			}
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	drivers[0].Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.9.9:53"), Final: true})
	until("a connection was not told without an update", func() bool { return len(p.known) == 1 })
	if p.missed != 0 {
		t.Error("missed one of one")
	}
	for i := range 2000 {
		drivers[0].Send(fake.In{Frame: dataplane.Datagram(t, fmt.Sprintf("10.0.0.1:%d", 1000+i), "10.0.9.9:53"), Final: true})
	}
	until("a table of one record forgot 2000 and missed none", func() bool { return p.missed > 0 || len(p.known) == 2001 })
}

// A worker that does not come back has something in its hands that cannot be told.
func TestLearnStalled(t *testing.T) {
	hold := make(chan struct{})
	d := fake.NewDriver(8, false)
	d.ApplyErr = func() error { <-hold; return nil }
	p := &pupil{Backend: fake.NewBackend("hook", d), known: map[flow.Key]string{}}
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{p}, StallTimeout: time.Millisecond})
	start(t, e)
	table := func(gen uint64) *dataplane.Stub {
		return &dataplane.Stub{Gen: gen, Quiet: true, Allowed: dataplane.Always}
	}
	// A worker that a busy machine does not let run is a stalled one, too.
	gen := uint64(1)
	for _, err := e.Publish(table(gen)); err != nil; _, err = e.Publish(table(gen)) {
		if gen++; gen > 1000 {
			t.Fatal(err)
		}
	}
	p.mu.Lock()
	if p.missed != 0 && gen == 1 {
		t.Error("missed some before there were any")
	}
	p.missed = 0
	p.mu.Unlock()
	d.Send(fake.In{Frame: dataplane.Datagram(t, "10.0.0.1:1", "10.0.9.9:53"), Final: true})
	for missed := 0; missed == 0; {
		gen++
		_, err := e.Publish(table(gen))
		p.mu.Lock()
		missed = p.missed
		p.mu.Unlock()
		if (err != nil) != (missed != 0) {
			t.Fatalf("%d missed, %v", missed, err)
		}
	}
	close(hold)
}
