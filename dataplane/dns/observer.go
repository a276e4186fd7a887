package dns

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Defaults of an Observer.
const (
	DefaultHold = 100 * time.Millisecond
	// maxHeld is how many answers may wait at once; more go on at once.
	maxHeld = 1024
)

// Observer reads the DNS packets of pods.
type Observer struct {
	// Names learns.
	Names *Names
	// Hold is how long an answer waits for its addresses to be in force; 0 means
	// DefaultHold.
	Hold time.Duration
	// Servers are whose answers count; empty means everybody's. The server is the
	// one that answers: behind a Service the endpoint.
	Servers []netip.Prefix
	// Clock takes the place of time.Now in tests.
	Clock func() time.Time

	asked asked
	held  atomic.Int64
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
	o.release(wait, release)
}

func (o *Observer) release(wait []<-chan struct{}, release func()) {
	if len(wait) == 0 {
		release()
		return
	}
	if o.held.Add(1) > maxHeld {
		o.held.Add(-1)
		o.count.crowded.Add(1)
		release()
		return
	}
	hold := o.Hold
	if hold == 0 {
		hold = DefaultHold
	}
	go func() {
		defer o.held.Add(-1)
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
	server := k.Src.Netip()
	if len(o.Servers) > 0 && !slices.ContainsFunc(o.Servers, func(p netip.Prefix) bool { return p.Contains(server) }) {
		o.count.foreign.Add(1)
		return wait
	}
	if !o.asked.take(k, &m, now()) {
		o.count.unasked.Add(1)
		return wait
	}
	o.count.answers.Add(1)
	if w := o.Names.Learn(m.question.name, m.addrs); w != nil {
		wait = append(wait, w)
	}
	return wait
}
