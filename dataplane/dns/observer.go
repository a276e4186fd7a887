package dns

import (
	"encoding/binary"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Defaults of an Observer.
const (
	DefaultHold = 100 * time.Millisecond
	// maxHeld is how many answers may wait at once, and maxHeldFor how many of one
	// client; more go on at once.
	maxHeld    = 1024
	maxHeldFor = 128
)

// Observer reads the DNS packets of pods.
type Observer struct {
	// Names learns.
	Names *Names
	// Hold is how long an answer waits for its addresses to be in force; 0 means
	// DefaultHold.
	Hold time.Duration
	// Believe reports whether the answers of a server count; nil means that everybody's
	// do. The server is the one that answers: behind a Service the endpoint.
	Believe func(server netip.Addr) bool
	// Clock takes the place of time.Now in tests.
	Clock func() time.Time

	asked asked
	held  held
	count struct{ queries, answers, unasked, foreign, unreadable, waited, late, crowded atomic.Uint64 }
}

// ObserverStats are totals since start.
type ObserverStats struct {
	Queries    uint64 // questions seen
	Answers    uint64 // answers that were asked for
	Unasked    uint64 // answers nobody asked for, or not any more; they teach nothing
	Foreign    uint64 // answers of servers that are not believed
	Unreadable uint64 // messages that say nothing: errors, malformed, in pieces
	Waited     uint64 // answers that waited until their addresses were in force
	Late       uint64 // answers that waited and went on before that
	Crowded    uint64 // answers that went on at once, because too many waited
}

// Stats returns totals; any goroutine may call it.
func (o *Observer) Stats() ObserverStats {
	c := &o.count
	return ObserverStats{
		Queries: c.queries.Load(), Answers: c.answers.Load(), Unasked: c.unasked.Load(), Foreign: c.foreign.Load(),
		Unreadable: c.unreadable.Load(), Waited: c.waited.Load(), Late: c.late.Load(), Crowded: c.crowded.Load(),
	}
}

// Packet looks at a packet, from its IP header on, and calls release exactly once:
// before it returns, or, for an answer that has to wait, later on another
// goroutine. The packet's memory is not used after the return.
func (o *Observer) Packet(b []byte, release func()) {
	var h packet.Headers
	if packet.ParseIP(b, &h) != packet.OK || h.Fragment {
		o.count.unreadable.Add(1)
		release()
		return
	}
	payload := b[h.Payload:min(int(h.L3)+int(h.Length), len(b))]
	var wait []<-chan struct{}
	switch h.Key.Proto {
	case flow.UDP:
		wait = o.message(h.Key, payload, wait)
	case flow.TCP: // RFC 1035 §4.2.2: a length in front of each
		for len(payload) > 2 {
			n := int(binary.BigEndian.Uint16(payload))
			if payload = payload[2:]; n > len(payload) {
				o.count.unreadable.Add(1)
				break
			}
			wait = o.message(h.Key, payload[:n], wait)
			payload = payload[n:]
		}
	}
	o.release(h.Key.Dst.Netip(), wait, release)
}

// held counts the answers that wait, by client.
type held struct {
	mu  sync.Mutex
	all int
	of  map[netip.Addr]int
}

// take reports whether one more may wait.
func (h *held) take(client netip.Addr) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all >= maxHeld || h.of[client] >= maxHeldFor {
		return false
	}
	if h.of == nil {
		h.of = map[netip.Addr]int{}
	}
	h.all++
	h.of[client]++
	return true
}

func (h *held) give(client netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all--
	if h.of[client]--; h.of[client] == 0 {
		delete(h.of, client)
	}
}

func (o *Observer) release(client netip.Addr, wait []<-chan struct{}, release func()) {
	if len(wait) == 0 {
		release()
		return
	}
	if !o.held.take(client) {
		o.count.crowded.Add(1)
		release()
		return
	}
	hold := o.Hold
	if hold == 0 {
		hold = DefaultHold
	}
	go func() {
		defer o.held.give(client)
		defer release()
		over := time.NewTimer(hold)
		defer over.Stop()
		for _, w := range wait {
			select {
			case <-w:
			case <-over.C:
				o.count.late.Add(1)
				return
			}
		}
		o.count.waited.Add(1)
	}()
}

// message looks at one message of a packet; wait gets what its release must wait
// for.
func (o *Observer) message(k flow.Key, b []byte, wait []<-chan struct{}) []<-chan struct{} {
	m, ok := parse(b)
	if !ok {
		o.count.unreadable.Add(1)
		return wait
	}
	now := time.Now
	if o.Clock != nil {
		now = o.Clock
	}
	if !m.response {
		o.count.queries.Add(1)
		o.asked.add(k, &m, now())
		return wait
	}
	if o.Believe != nil && !o.Believe(k.Src.Netip()) {
		o.count.foreign.Add(1)
		return wait
	}
	if !o.asked.take(k, &m, now()) {
		o.count.unasked.Add(1)
		return wait
	}
	o.count.answers.Add(1)
	if w := o.Names.Learn(k.Dst.Netip(), m.question.name, m.addrs); w != nil {
		wait = append(wait, w)
	}
	return wait
}
