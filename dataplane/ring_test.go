package dataplane

import (
	"math/rand/v2"
	"runtime"
	"testing"
	"time"
)

// TestRingModel runs random operations against a slice and checks that every
// event is either delivered, in order, or inside a gap with the right bounds.
func TestRingModel(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		size := MinRing << rng.IntN(4)
		r := NewRing(size)
		var queue []Event // the model: what a reader must see next
		var gap Event     // the model's pending loss
		var lost uint64
		now := int64(0)
		for range 500 {
			switch rng.IntN(3) {
			case 0:
				buf := make([]Event, rng.IntN(2*size))
				n := r.Drain(buf)
				if want := min(len(buf), len(queue)); n != want {
					t.Fatalf("seed %d: drained %d, want %d", seed, n, want)
				}
				for i, e := range buf[:n] {
					if e != queue[i] {
						t.Fatalf("seed %d: got %+v, want %+v", seed, e, queue[i])
					}
				}
				queue = queue[n:]
			case 1:
				room := len(queue) < size
				if got := r.Flush(); got != (gap.Count == 0 || room) {
					t.Fatalf("seed %d: flush %v with gap %d and room %v", seed, got, gap.Count, room)
				}
				if gap.Count > 0 && room {
					queue, gap = append(queue, gap), Event{}
				}
			default:
				now++
				e := Event{Time: now, Count: 1}
				need := 1
				if gap.Count > 0 {
					need = 2
				}
				fits := size-len(queue) >= need
				if got := r.Put(&e); got != fits {
					t.Fatalf("seed %d: put %v, model has room: %v", seed, got, fits)
				}
				if !fits {
					if gap.Count == 0 {
						gap = Event{Cause: CauseLost, Time: now}
					}
					gap.Count++
					gap.Last = now
					lost++
					continue
				}
				if gap.Count > 0 {
					queue, gap = append(queue, gap), Event{}
				}
				queue = append(queue, e)
			}
			if r.Len() != len(queue) || r.Lost() != lost {
				t.Fatalf("seed %d: length %d, lost %d; want %d, %d", seed, r.Len(), r.Lost(), len(queue), lost)
			}
		}
	}
}

// TestRingConcurrent: with a reader on another CPU, what was delivered and what
// the gaps say add up to what was put, in order and without overlap.
func TestRingConcurrent(t *testing.T) {
	const puts = 200_000
	r := NewRing(64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := int64(1); i <= puts; i++ {
			r.Put(&Event{Time: i, Generation: uint64(i) * 3, Count: 1})
			if i%97 == 0 {
				runtime.Gosched()
			}
		}
		for !r.Flush() {
			runtime.Gosched()
		}
	}()
	var next, kept, lost int64 = 1, 0, 0
	buf := make([]Event, 32)
	for finished := false; ; {
		n := r.Drain(buf)
		for _, e := range buf[:n] {
			if e.Time != next {
				t.Fatalf("got event %d, want %d", e.Time, next)
			}
			if e.Cause == CauseLost {
				if e.Last-e.Time+1 != int64(e.Count) {
					t.Fatalf("gap of %d from %d to %d", e.Count, e.Time, e.Last)
				}
				lost += int64(e.Count)
				next = e.Last + 1
				continue
			}
			if e.Generation != uint64(e.Time)*3 {
				t.Fatalf("torn event %+v", e)
			}
			kept++
			next++
		}
		if n > 0 {
			continue
		}
		if finished {
			break
		}
		select {
		case <-done:
			finished = true
		default:
			runtime.Gosched()
		}
	}
	if kept+lost != puts || uint64(lost) != r.Lost() {
		t.Errorf("kept %d + lost %d of %d; the ring says %d lost", kept, lost, puts, r.Lost())
	}
}

// TestRingDoze: a consumer that sleeps whenever it finds nothing is woken for
// everything, whatever the moment it fell asleep at; and not for what it has seen.
func TestRingDoze(t *testing.T) {
	const puts = 50_000
	r := NewRing(64)
	wake := make(chan struct{}, 1)
	r.Wake(wake)
	flushed, asleep, over := make(chan struct{}), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		for i := int64(1); i <= puts; i++ {
			for !r.Put(&Event{Time: i, Count: 1}) && i == puts { // the last one must arrive
				runtime.Gosched()
			}
			r.Flush()
			if i%7 == 0 {
				runtime.Gosched()
			}
		}
		for !r.Flush() {
			runtime.Gosched()
		}
		close(flushed)
		<-asleep
		for range 10 {
			r.Flush() // nothing new
		}
	}()
	buf := make([]Event, 32)
	slept, limit := 0, time.After(30*time.Second)
	for last := int64(0); last != puts; {
		if n := r.Drain(buf); n > 0 {
			last = max(buf[n-1].Time, buf[n-1].Last)
			continue
		}
		if !r.Doze() {
			continue
		}
		slept++
		select {
		case <-wake:
		case <-limit:
			t.Fatalf("asleep with %d events in the ring, after %d sleeps", r.Len(), slept)
		}
	}
	if slept == 0 {
		t.Error("the consumer never slept: nothing was tested")
	}
	<-flushed
	select { // of the last event, which may have been read before it was flushed
	case <-wake:
	default:
	}
	if !r.Doze() {
		t.Error("the ring is not empty")
	}
	close(asleep)
	<-over
	select {
	case <-wake:
		t.Error("woken for nothing")
	default:
	}
}

// BenchmarkRing is one event through the ring, producer and consumer in turn.
func BenchmarkRing(b *testing.B) {
	r := NewRing(1024)
	e := Event{Count: 1}
	buf := make([]Event, 256)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		e.Time = int64(i)
		r.Put(&e)
		if i&255 == 255 {
			r.Drain(buf)
		}
	}
}

// TestRingMirror: kept or lost, every event offered is counted in the mirror,
// from where the mirror stood.
func TestRingMirror(t *testing.T) {
	r := NewRing(2)
	m := RingMirror{Offered: 100}
	r.Mirror(&m)
	for i := range 5 {
		r.Put(&Event{Time: int64(10 + i), Count: 1})
	}
	if m.Offered != 105 || m.Last != 14 || r.Lost() != 3 {
		t.Errorf("offered %d, last at %d, lost %d; want 105, 14, 3", m.Offered, m.Last, r.Lost())
	}
}

// A ring that fills says so with every quarter, and does not wait for anybody to
// hear it.
func TestRingWake(t *testing.T) {
	c := make(chan struct{}, 1)
	r := NewRing(16)
	r.Wake(c)
	woken := 0
	for range 16 {
		r.Put(&Event{Count: 1})
		select {
		case <-c:
			woken++
		default:
		}
	}
	if woken != 4 {
		t.Errorf("woken %d times by 16 events, want 4", woken)
	}
	r.Drain(make([]Event, 16))
	for range 16 {
		r.Put(&Event{Count: 1}) // nobody listens
	}
	if n := r.Len(); n != 16 || len(c) != 1 {
		t.Errorf("%d events and %d calls wait, want 16 and 1", n, len(c))
	}
}
