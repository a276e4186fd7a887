package auditlog

import (
	"bytes"
	"container/heap"
	"maps"
	"slices"
	"time"

	"github.com/tierwall/tierwall/dataplane/audit"
)

// Merger puts the lines of several logs into one order, that of time.
//
// The past of all logs is collected first, and then delivered. New lines are held
// for a moment, so that those of other logs, which were written before and travel
// longer, can take their places; one that comes later than that is delivered out
// of order, never left out. It is used by one goroutine.
type Merger struct {
	// Hold is how long new lines are held.
	Hold time.Duration
	// Last is how many lines of the past to deliver of all logs together; negative
	// means all.
	Last int
	// Deliver gets the lines in order. line is not reused.
	Deliver func(line []byte) error

	waiting map[string]bool // logs whose past is not complete
	queue   lineHeap
	number  uint64
}

// merged is a line that is held.
type merged struct {
	line    []byte
	time    time.Time // of its record
	arrived time.Time
	number  uint64 // of arrival
}

// Begin adds a log, whose past is to come.
func (m *Merger) Begin(log string) {
	if m.waiting == nil {
		m.waiting = map[string]bool{}
	}
	m.waiting[log] = true
}

// Add takes a line of a log, which may be reused afterwards. A line that is no
// record has the time it came.
func (m *Merger) Add(line []byte, now time.Time) {
	at := now
	if r, err := audit.Parse(line); err == nil {
		at = r.Time
	}
	m.number++
	heap.Push(&m.queue, merged{bytes.Clone(line), at, now, m.number})
}

// Caught says that the past of a log is complete, or that there is none to come.
func (m *Merger) Caught(log string) error {
	if !m.waiting[log] {
		return nil
	}
	delete(m.waiting, log)
	if len(m.waiting) > 0 {
		return nil
	}
	if skip := m.queue.Len() - m.Last; m.Last >= 0 && skip > 0 {
		for range skip {
			heap.Pop(&m.queue)
		}
	}
	m.Last = -1 // what comes now is new
	return m.drain(func(*merged) bool { return true })
}

// Release delivers what was held long enough.
func (m *Merger) Release(now time.Time) error {
	if len(m.waiting) > 0 {
		return nil
	}
	// Everything before the youngest that is due is due as well: it would only be
	// waiting for what is behind it.
	var due time.Time
	for i := range m.queue {
		if q := &m.queue[i]; now.Sub(q.arrived) >= m.Hold && q.time.After(due) {
			due = q.time
		}
	}
	if due.IsZero() {
		return nil
	}
	return m.drain(func(q *merged) bool { return !q.time.After(due) })
}

// Flush delivers everything.
func (m *Merger) Flush() error {
	for _, log := range slices.Sorted(maps.Keys(m.waiting)) {
		if err := m.Caught(log); err != nil {
			return err
		}
	}
	return m.drain(func(*merged) bool { return true })
}

func (m *Merger) drain(due func(*merged) bool) error {
	for m.queue.Len() > 0 && due(&m.queue[0]) {
		if err := m.Deliver(heap.Pop(&m.queue).(merged).line); err != nil {
			return err
		}
	}
	return nil
}

// lineHeap has the earliest line on top, of equal ones the one that came first.
type lineHeap []merged

func (h lineHeap) Len() int { return len(h) }
func (h lineHeap) Less(i, j int) bool {
	if c := h[i].time.Compare(h[j].time); c != 0 {
		return c < 0
	}
	return h[i].number < h[j].number
}
func (h lineHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *lineHeap) Push(x any)   { *h = append(*h, x.(merged)) }
func (h *lineHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	old[len(old)-1] = merged{}
	*h = old[:len(old)-1]
	return x
}
