package conntrack

import "math/bits"

// mostGone is how many records that go before they were told are kept for it.
const mostGone = 256

// news is what nobody has been told yet: see Table.News. It is part of the table,
// under its lock.
type news struct {
	slots  []uint64 // by block: slots whose record was inserted, or found by Seen
	gone   []Record // such records that are not in the table any more; has room for mostGone
	spare  []Record // takes turns with gone: the packet path allocates nothing
	missed bool     // more are gone than fit
}

func newNews() news {
	return news{gone: make([]Record, 0, mostGone), spare: make([]Record, 0, mostGone)}
}

func (n *news) note(s slot) { n.slots[s/blockSize] |= 1 << (s % blockSize) }

// leave notes that r, of slot s, is about to go or to be replaced.
func (n *news) leave(s slot, r *Record) {
	bit := uint64(1) << (s % blockSize)
	if n.slots[s/blockSize]&bit == 0 {
		return
	}
	n.slots[s/blockSize] &^= bit
	if len(n.gone) == mostGone {
		n.missed = true
		return
	}
	n.gone = append(n.gone, *r)
}

// News calls fn with copies of the records that a packet in userspace belonged to
// since the last call: those inserted, and those found by Seen. Of a record that
// was forgotten meanwhile it has the copy as it went, of one that was replaced
// both. missed is set if there were too many of these to keep. A record comes at
// most once, unless packets of it are seen while News runs.
//
// It is for whoever keeps a list of all connections, also of those whose records
// expire. fn must not keep the slice; it may call any method but News. One caller
// at a time.
func (t *Table) News(fn func([]Record)) (missed bool) {
	var copied [blockSize]Record
	for block := 0; ; block++ {
		t.mu.Lock()
		for block < len(t.news.slots) && t.news.slots[block] == 0 {
			block++
		}
		if block >= len(t.news.slots) {
			break
		}
		n := 0
		for w := t.news.slots[block]; w != 0; w &= w - 1 {
			copied[n] = t.blocks[block].records[bits.TrailingZeros64(w)]
			n++
		}
		t.news.slots[block] = 0
		t.mu.Unlock()
		fn(copied[:n])
	}
	// Last, because records may have gone while we looked at the others.
	missed, gone := t.news.missed, t.news.gone
	t.news.missed, t.news.gone, t.news.spare = false, t.news.spare[:0], gone
	t.mu.Unlock()
	if len(gone) > 0 {
		fn(gone)
	}
	return missed
}
