package dataplane_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/fake"
)

// askDriver is one of several that scatter: it judges frames while their senders
// wait, as a peer of theirs waits for an answer.
type askDriver struct {
	dataplane.DriverDefaults
	in      chan question
	closed  chan struct{}
	once    sync.Once
	waiting [dataplane.BatchSize]chan<- dataplane.Packet // worker's goroutine only
}

type question struct {
	frame  []byte
	answer chan<- dataplane.Packet
}

func newAskDriver() *askDriver {
	return &askDriver{in: make(chan question, 64), closed: make(chan struct{})}
}

func (d *askDriver) Scattered() bool { return true }

func (d *askDriver) Recv(b *dataplane.Batch) error {
	b.N = 0
	take := func(q question) {
		b.Packets[b.N] = dataplane.Packet{Frame: q.frame, Final: true}
		d.waiting[b.N] = q.answer
		b.N++
	}
	select {
	case <-d.closed:
		return dataplane.ErrClosed
	case q := <-d.in:
		take(q)
	}
	for b.N < dataplane.BatchSize {
		select {
		case q := <-d.in:
			take(q)
		default:
			return nil
		}
	}
	return nil
}

func (d *askDriver) Apply(b *dataplane.Batch) error {
	for i := range b.Packets[:b.N] {
		d.waiting[i] <- b.Packets[i]
	}
	return nil
}

func (d *askDriver) Close() error {
	d.once.Do(func() { close(d.closed) })
	return nil
}

// ask has a frame judged by d's worker.
func (d *askDriver) ask(frame []byte) <-chan dataplane.Packet {
	answer := make(chan dataplane.Packet, 1)
	d.in <- question{frame, answer}
	return answer
}

// newAsked starts an engine with workers that scatter.
func newAsked(t *testing.T, workers int) (*dataplane.Engine, []*askDriver) {
	drivers := make([]*askDriver, workers)
	b := fake.NewBackend("scattered")
	for i := range drivers {
		drivers[i] = newAskDriver()
		b.D = append(b.D, drivers[i])
	}
	e := dataplane.New(dataplane.Config{Backends: []dataplane.Backend{b}, AuditAll: true, RingSize: 16})
	start(t, e)
	return e, drivers
}

// TestScatteredAtOnce: two workers that judge packets of one connection in the same
// moment come to one connection.
func TestScatteredAtOnce(t *testing.T) {
	const from, to = "10.0.0.1:1000", "10.0.0.2:80"
	syn := dataplane.Segment(t, from, to, dataplane.Flags{SYN: true}, 7)
	for _, c := range []struct {
		name          string
		first, second []byte
	}{
		{"the same packet", syn, syn},
		{"two packets", dataplane.Datagram(t, from, to), dataplane.Datagram(t, from, to)},
		{"an answer that is denied as a first packet", syn, dataplane.Segment(t, to, from, dataplane.Flags{SYN: true, ACK: true}, 9)},
		{"both directions", dataplane.Datagram(t, from, to), dataplane.Datagram(t, to, from)},
	} {
		t.Run(c.name, func(t *testing.T) {
			e, drivers := newAsked(t, 2)
			// The second one is asked about, and answered when the first one has passed.
			passed, asked := make(chan struct{}), make(chan struct{})
			var lookups atomic.Int32
			allowed := func(k flow.Key) bool {
				if lookups.Add(1) == 1 {
					close(asked)
					<-passed
				}
				return k.DstPort == 80
			}
			if _, err := e.Publish(&dataplane.Stub{Gen: 1, Allowed: allowed, Quiet: true}); err != nil {
				t.Fatal(err)
			}
			second := drivers[1].ask(c.second)
			<-asked
			p := <-drivers[0].ask(c.first)
			if p.Disposition != dataplane.PassPacket || p.Reply {
				t.Errorf("the first packet: %v, reply %t", p.Disposition, p.Reply)
			}
			close(passed)
			back := p.Headers.Key
			if p = <-second; p.Disposition != dataplane.PassPacket || p.Reply != (p.Headers.Key != back) || !p.Remember {
				t.Errorf("the second packet: %v, reply %t, remember %t", p.Disposition, p.Reply, p.Remember)
			}
			nothing := dataplane.Raw(t, "10.0.0.1", "10.0.0.2", 17, nil) // what is counted is counted when the next one is judged
			<-drivers[0].ask(nothing)
			<-drivers[1].ask(nothing)
			s := e.Stats()
			if s.Conntrack.Inserted != 1 || s.Conntrack.Replaced != 0 || s.Conntrack.Hits != 1 || s.Conntrack.Misses != 1 {
				t.Errorf("%+v, want one connection, a hit and a miss", s.Conntrack)
			}
			if s.Paths[dataplane.PassNew] != 1 || s.Paths[dataplane.PassHit] != 1 {
				t.Errorf("%d new and %d hits, want one each", s.Paths[dataplane.PassNew], s.Paths[dataplane.PassHit])
			}
		})
	}
}

// TestScatteredUnderLoad: while policy changes all the time, the directions of
// connections come up at different workers, one after the other and at once.
// An answer is an answer, a connection is one, and what is denied does not pass.
func TestScatteredUnderLoad(t *testing.T) {
	const clients, each = 6, 150
	e, drivers := newAsked(t, 3)
	opens := func(k flow.Key) bool { return k.DstPort == 80 }
	publish := func(gen uint64, allowed func(flow.Key) bool) int {
		cut, err := e.Publish(&dataplane.Stub{Gen: gen, Allowed: allowed, Quiet: true})
		if err != nil {
			t.Error(err)
		}
		return cut
	}
	publish(1, opens)

	var asked, denials atomic.Uint64
	ask := func(worker int, frame []byte) <-chan dataplane.Packet {
		asked.Add(1)
		return drivers[worker].ask(frame)
	}
	var load, policy sync.WaitGroup
	over := make(chan struct{})
	gen := uint64(1)
	policy.Go(func() {
		for {
			select {
			case <-over:
				return
			case <-time.After(200 * time.Microsecond):
				gen++
				if cut := publish(gen, opens); cut != 0 {
					t.Errorf("generation %d cut %d connections", gen, cut)
				}
			}
		}
	})
	for client := range clients {
		load.Go(func() {
			r := rand.New(rand.NewPCG(uint64(client), 7))
			for i := range each {
				at := r.IntN(len(drivers))
				other := (at + 1 + r.IntN(len(drivers)-1)) % len(drivers)
				from, to := fmt.Sprintf("10.0.%d.1:%d", client, 1000+i), "10.0.9.9:80"
				there, back := dataplane.Datagram(t, from, to), dataplane.Datagram(t, to, from)
				fail := func(what string, p dataplane.Packet) bool {
					if p.Disposition == dataplane.PassPacket && p.Reply == (what != "there") && p.Remember {
						return false
					}
					t.Errorf("client %d, connection %d, %s: %v, reply %t, remember %t", client, i, what, p.Disposition, p.Reply, p.Remember)
					return true
				}
				switch i % 3 {
				case 0: // the first packet everywhere at once
					syn := dataplane.Segment(t, from, to, dataplane.Flags{SYN: true}, 7)
					there, back = dataplane.Segment(t, from, to, dataplane.Flags{ACK: true}, 8), dataplane.Segment(t, to, from, dataplane.Flags{ACK: true}, 9)
					var answers []<-chan dataplane.Packet
					for w := range drivers {
						answers = append(answers, ask(w, syn))
					}
					for _, a := range answers {
						if fail("there", <-a) {
							return
						}
					}
				case 1: // both directions at once: what comes back first is no answer
					a, b := ask(at, there), ask(other, back)
					if fail("there", <-a) {
						return
					}
					if p := <-b; p.Disposition == dataplane.DropPacket {
						denials.Add(1)
					} else if fail("back", p) {
						return
					}
				case 2:
					if fail("there", <-ask(at, there)) || fail("back", <-ask(other, back)) {
						return
					}
				}
				for range 3 {
					a, b := ask(at, there), ask(other, back)
					if fail("there", <-a) || fail("back", <-b) {
						return
					}
				}
			}
		})
	}
	load.Wait()
	close(over)
	policy.Wait()
	if t.Failed() {
		return
	}
	s := e.Stats()
	if s.Conntrack.Inserted != clients*each || s.Conntrack.Records != clients*each {
		t.Errorf("%d connections inserted and %d there, want %d", s.Conntrack.Inserted, s.Conntrack.Records, clients*each)
	}
	if s.Events != clients*each+denials.Load() {
		t.Errorf("%d events, want one for each of %d connections and %d denials", s.Events, clients*each, denials.Load())
	}
	if sum := s.Passed() + s.Deferred() + s.Dropped(); s.Received != asked.Load() || sum != s.Received || s.Conntrack.Hits+s.Conntrack.Misses != s.Received {
		t.Errorf("%d packets, %d received, %d outcomes, %d of them hits and %d misses", asked.Load(), s.Received, sum, s.Conntrack.Hits, s.Conntrack.Misses)
	}

	// A change that denies: none passes once it is in force, in either direction.
	stop := make(chan struct{})
	var denied atomic.Bool
	for client := range clients {
		load.Go(func() {
			for i := 0; ; i = (i + 1) % each {
				select {
				case <-stop:
					return
				default:
				}
				from, to := fmt.Sprintf("10.0.%d.1:%d", client, 1000+i), "10.0.9.9:80"
				if i%2 == 1 {
					from, to = to, from
				}
				inForce := denied.Load()
				p := <-ask((client+i)%len(drivers), dataplane.Segment(t, from, to, dataplane.Flags{ACK: true}, 8))
				if inForce && p.Disposition != dataplane.DropPacket {
					t.Errorf("%s to %s: %v after the change", from, to, p.Disposition)
					return
				}
			}
		})
	}
	time.Sleep(5 * time.Millisecond)
	publish(gen+1, dataplane.Never)
	denied.Store(true)
	time.Sleep(20 * time.Millisecond)
	close(stop)
	load.Wait()
	if s := e.Stats(); s.Conntrack.Records != 0 {
		t.Errorf("%d connections are left", s.Conntrack.Records)
	}
}
