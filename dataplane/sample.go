package dataplane

import (
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// sampleEvery is the least distance between two events of one sample.
const sampleEvery = int64(time.Second)

// sampleSlots is a power of two. More samples than that at one time share slots, and
// then make more events.
const sampleSlots = 64

// sampleKey is what packets that no table could decide must have in common to be one
// event: a pod's packets are never counted as another's. Who is no pod is told by the
// device, because an address that anybody can write down would make an event of each packet.
type sampleKey struct {
	cause   Cause
	problem packet.Problem
	device  int32
	pod     flow.Addr // zero: no pod's
}

func (k *sampleKey) slot() int {
	h := uint32(2166136261) // FNV-1a
	for _, b := range k.pod {
		h = (h ^ uint32(b)) * 16777619
	}
	for _, v := range [...]uint32{uint32(k.cause), uint32(k.problem), uint32(k.device)} {
		h = (h ^ v) * 16777619
	}
	return int((h ^ h>>15) & (sampleSlots - 1))
}

// sample bounds the events of one kind of packets. Every packet is in one event's Count.
type sample struct {
	key  sampleKey
	next int64 // engine time from which the next event may be reported
	// held stands for the packets since the last event; a Count of 0 is none.
	held Event
}

// undecided reports a packet no table could decide. Of packets with one sampleKey the
// first is an event at once, and those of each second after it are one together.
func (w *Worker) undecided(p *Packet, s *snapshot, cause Cause, now int64) {
	k := sampleKey{cause: cause, problem: p.Problem, device: p.Device}
	if src := p.Headers.Key.Src; s != nil && s.classifier.IsPod(src) {
		k.pod = src
	}
	sm := &w.samples[k.slot()]
	if sm.key != k {
		w.release(sm)
		*sm = sample{key: k}
	}
	e := w.prepare(p, s, cause, now)
	switch {
	case sm.held.Count > 0:
		// The generation is of the last one, whose table is kept longest.
		if k.pod == (flow.Addr{}) && sm.held.Key != e.Key {
			e.Key = flow.Key{} // several hosts'
		}
		e.Time, e.Count = sm.held.Time, sm.held.Count+1
		sm.held = *e
	case now < sm.next:
		sm.held = *e
		w.holding = true
		return
	default:
		sm.next = now + sampleEvery
		w.put()
		return
	}
	if now >= sm.next {
		w.release(sm)
		sm.next = now + sampleEvery
	}
}

// release reports what a sample holds.
func (w *Worker) release(sm *sample) {
	if sm.held.Count == 0 {
		return
	}
	w.event = sm.held
	sm.held.Count = 0
	w.put()
}

// releaseDue reports what samples hold whose time has come.
func (w *Worker) releaseDue(now int64) {
	if !w.holding {
		return
	}
	w.holding = false
	for i := range w.samples {
		if sm := &w.samples[i]; sm.held.Count == 0 {
			continue
		} else if now < sm.next {
			w.holding = true
		} else {
			w.release(sm)
			sm.next = now + sampleEvery
		}
	}
}
