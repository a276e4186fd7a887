package audit

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
)

// windows collects equal denied packets (S2-86). Packets are equal if they are
// but for when and how many; the first one opens a window, and when that has
// been open for the configured time one record tells of all of them.
//
// A port scan makes every packet different. When there are too many windows,
// new ones are folded: one window for all ports between two addresses, its
// record telling the span of ports. Exact counts stay exact, memory stays
// bounded, and a scan does not fill the disk with a line for each port. Should
// even the pairs be too many, the oldest window is closed early: that costs
// lines, not counts.
//
//	a packet ─► its window is open? ── yes ─► count
//	              │ no: room for a window? ── yes ─► open one
//	              │ no: its pair's window is open, or there is room? ── yes ─► count there
//	              └ no: close the oldest, open one
type windows struct {
	length int64
	limit  int
	open   map[dataplane.Event]*aggregate
	pairs  map[dataplane.Event]*aggregate
	queue  []*aggregate // by the time they were opened; the head is queue[first]
	first  int
	free   []*aggregate
}

// aggregate is one open window.
type aggregate struct {
	event    dataplane.Event // the first packet's
	plan     *plan
	src, dst *host
	packets  uint64
	events   uint64
	closeAt  int64
	folded   bool
	span     Ports
}

func newWindows(length int64, limit int) *windows {
	return &windows{length: length, limit: limit, open: map[dataplane.Event]*aggregate{}, pairs: map[dataplane.Event]*aggregate{}}
}

// aggregateKey is what makes two denied packets equal: all but when and how many.
func aggregateKey(e *dataplane.Event) dataplane.Event {
	k := *e
	k.Time, k.Last, k.Conn, k.Count = 0, 0, 0, 0
	return k
}

// pairKey is what makes them the same pair: all but what changes from port to
// port, too.
func pairKey(e *dataplane.Event) dataplane.Event {
	k := aggregateKey(e)
	k.Key.SrcPort, k.Key.DstPort, k.TCPFlags, k.Length, k.Device = 0, 0, 0, 0, 0
	return k
}

func (a *aggregate) due(e *dataplane.Event) bool { return e.Time >= a.closeAt }

func (a *aggregate) add(e *dataplane.Event) {
	a.packets += e.Count
	a.events++
	if a.folded {
		p := e.Key.DstPort
		a.span.First, a.span.Last = min(a.span.First, p), max(a.span.Last, p)
	}
}

// find returns the window that e belongs to, or nil. late is set if it should
// have been closed before e.
func (w *windows) find(e *dataplane.Event) (a *aggregate, late bool) {
	if a = w.open[aggregateKey(e)]; a == nil && len(w.open) >= w.limit {
		a = w.pairs[pairKey(e)]
	}
	return a, a != nil && a.due(e)
}

// full reports whether there is no room for a window of e.
func (w *windows) full() bool { return len(w.open) >= w.limit && len(w.pairs) >= w.limit }

// add opens a window with e. There must be room.
func (w *windows) add(e *dataplane.Event, pl *plan, src, dst *host) {
	var a *aggregate
	if n := len(w.free); n > 0 {
		a, w.free = w.free[n-1], w.free[:n-1]
	} else {
		a = new(aggregate)
	}
	*a = aggregate{
		event: *e, plan: pl, src: src, dst: dst, packets: e.Count, events: 1, closeAt: e.Time + w.length,
		span: Ports{e.Key.DstPort, e.Key.DstPort},
	}
	if a.folded = len(w.open) >= w.limit; a.folded {
		w.pairs[pairKey(e)] = a
	} else {
		w.open[aggregateKey(e)] = a
	}
	w.queue = append(w.queue, a)
}

// oldest returns the window opened first, or nil.
func (w *windows) oldest() *aggregate {
	if w.first == len(w.queue) {
		return nil
	}
	return w.queue[w.first]
}

// remove takes the oldest window out. The caller gives it back with release.
func (w *windows) remove() *aggregate {
	a := w.queue[w.first]
	w.queue[w.first] = nil
	if w.first++; w.first == len(w.queue) {
		w.queue, w.first = w.queue[:0], 0
	} else if w.first > 1024 && w.first > len(w.queue)/2 {
		n := copy(w.queue, w.queue[w.first:])
		clear(w.queue[n:])
		w.queue, w.first = w.queue[:n], 0
	}
	if a.folded {
		delete(w.pairs, pairKey(&a.event))
	} else {
		delete(w.open, aggregateKey(&a.event))
	}
	return a
}

func (w *windows) release(a *aggregate) {
	*a = aggregate{}
	if len(w.free) < 4096 {
		w.free = append(w.free, a)
	}
}

// facts fills f for the window's record.
func (a *aggregate) facts(f *facts, iface string, time, until int64) {
	e := &a.event
	*f = facts{
		time: time, key: e.Key, hasKey: e.Key.Valid(), hasSrc: onlySource(&e.Key), src: a.src, dst: a.dst, flags: e.TCPFlags,
		length: e.Length, iface: iface, conn: e.Conn, count: a.packets, folded: a.folded,
	}
	if e.Key.Proto != flow.TCP {
		f.flags = 0
	}
	if a.packets > 1 {
		f.until = until
	}
	if a.folded {
		if f.key.Proto.HasPorts() {
			span := a.span
			f.span = &span
		}
		f.flags, f.length, f.iface = 0, 0, "" // of one packet among many
	}
}
