package dataplane_test

import (
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/fake"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// byTable is a HitSink that keeps what each table's rules and isolations had.
type byTable struct {
	mu         sync.Mutex
	rules      map[uint64]uint64
	isolations map[uint64]uint64
}

func (b *byTable) Count(t *classifier.Table, id classifier.OutcomeID, n uint64, last int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	hits.Deciders(t, id, func(*rule.Rule) { b.rules[t.Generation()] += n }, func(*rule.Isolation) { b.isolations[t.Generation()] += n })
}

func (b *byTable) sum(m map[uint64]uint64) (n uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, v := range m {
		n += v
	}
	return n
}

// Every decision counts once, by the table that made it, while tables change and
// others read, with several workers: nothing is lost, and nothing is taken for another
// table's. No rule asks for a record.
func TestHitsAreExactWhileTablesChange(t *testing.T) {
	const workers, each = 3, 4000
	sink := &byTable{rules: map[uint64]uint64{}, isolations: map[uint64]uint64{}}
	drivers := make([]*fake.Driver, workers)
	backends := make([]dataplane.Backend, workers)
	for i := range drivers {
		drivers[i] = fake.NewDriver(64, true)
		backends[i] = fake.NewBackend("fake", drivers[i])
	}
	e := dataplane.New(dataplane.Config{Backends: backends, Hits: sink})
	start(t, e)
	if _, err := e.SetTable(compile(t, 1), dataplane.Change{}); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var others sync.WaitGroup
	others.Go(func() {
		for gen := uint64(2); ; gen++ {
			select {
			case <-stop:
				return
			default:
			}
			port := uint16(81) // open by every odd table
			if gen%2 == 0 {
				port = 99
			}
			if _, err := e.SetTable(compileOpen(t, gen, "b", port), dataplane.Change{}); err != nil {
				t.Error(err)
				return
			}
		}
	})
	others.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				if err := e.CollectHits(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	var senders sync.WaitGroup
	for i, d := range drivers {
		senders.Go(func() {
			for n := range each {
				// A new connection each: source ports of its own.
				src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i), 1}), uint16(1024+n))
				d.Send(fake.In{Frame: dataplane.Segment(t, src.String(), "10.0.0.2:81", dataplane.Flags{SYN: true}, 1), Final: true})
			}
			if !d.WaitApplied(each, patience) {
				t.Error("no verdict")
			}
		})
	}
	senders.Wait()
	close(stop)
	others.Wait()
	if err := e.CollectHits(); err != nil {
		t.Fatal(err)
	}
	s := e.Stats()
	dropped := s.Paths[dataplane.DropPolicy]
	if got := sink.sum(sink.isolations); got != dropped {
		t.Errorf("isolations have %d hits, %d packets were refused", got, dropped)
	}
	if s.Received != workers*each {
		t.Errorf("received %d", s.Received)
	}
	if got := sink.sum(sink.rules); got != s.Paths[dataplane.PassNew] {
		t.Errorf("rules have %d hits, %d connections were opened", got, s.Paths[dataplane.PassNew])
	}
	for gen, n := range sink.rules {
		if gen%2 == 0 && n > 0 {
			t.Errorf("table %d allows nothing that was sent, and its rule has %d hits", gen, n)
		}
	}
	if sink.sum(sink.rules) == 0 || dropped == 0 {
		t.Errorf("one kind never happened: %d allowed, %d refused", sink.sum(sink.rules), dropped)
	}
}
