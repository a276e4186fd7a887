package dataplane

import "github.com/tierwall/tierwall/classifier"

// HitSink is told which outcomes of tables decided. *hits.Ledger is one.
type HitSink interface {
	// Count says that an outcome of t decided n new connections or refused packets
	// since it was last told, the last of them at last (engine clock). It runs on
	// the goroutine that calls SetTable or CollectHits, one call at a time.
	Count(t *classifier.Table, id classifier.OutcomeID, n uint64, last int64)
}

// hitPageSize is how many outcomes share one allocation.
const hitPageSize = 256

// hit is what became of one outcome.
type hit struct {
	n    uint64
	last int64 // engine clock
}

// hitBank counts one worker's decisions by one table, by index of the outcome. Only
// the worker writes, with plain stores; the engine reads a bank after the worker has
// left the last batch that could use it.
type hitBank struct{ pages []*[hitPageSize]hit }

// add counts a decision. It allocates for the first of 256 outcomes only, which were
// allocated a moment ago themselves.
func (b *hitBank) add(id classifier.OutcomeID, now int64) {
	i := id.Index()
	if i < classifier.FirstDecided {
		return // most often the side that another node decides
	}
	if p := int(i / hitPageSize); p < len(b.pages) {
		if page := b.pages[p]; page != nil {
			h := &page[i%hitPageSize]
			h.n++
			h.last = now
			return
		}
	}
	b.grow(id, now)
}

func (b *hitBank) grow(id classifier.OutcomeID, now int64) {
	p := int(id.Index() / hitPageSize)
	if p >= len(b.pages) {
		b.pages = append(b.pages, make([]*[hitPageSize]hit, p+1-len(b.pages))...)
	}
	if b.pages[p] == nil {
		b.pages[p] = new([hitPageSize]hit)
	}
	b.add(id, now)
}

// drain gives what was counted to f and sets it to zero. The pages stay.
func (b *hitBank) drain(f func(id classifier.OutcomeID, n uint64, last int64)) {
	for p, page := range b.pages {
		if page == nil {
			continue
		}
		for i := range page {
			if h := &page[i]; h.n > 0 {
				f(classifier.OutcomeAt(uint32(p*hitPageSize+i)), h.n, h.last)
				*h = hit{}
			}
		}
	}
}

// hitBanks has a bank for every worker.
type hitBanks []hitBank

// retired are banks that no batch begins to use any more, and the table they are about.
type retired struct {
	table *classifier.Table
	banks *hitBanks
}

// maxRetired bounds the banks that wait for a worker that does not come back.
const maxRetired = 8

// openBanks returns banks for a table, nil where nobody is told.
func (e *Engine) openBanks(t *classifier.Table) *hitBanks {
	if e.cfg.Hits == nil || t == nil {
		return nil
	}
	if n := len(e.idleBanks); n > 0 {
		b := e.idleBanks[n-1]
		e.idleBanks = e.idleBanks[:n-1]
		return b
	}
	b := make(hitBanks, len(e.workers))
	return &b
}

// retire puts fresh banks, which may be nil, in the place of those of s. The caller
// holds e.update.
func (e *Engine) retire(s *snapshot, fresh *hitBanks) {
	if old := s.hits.Swap(fresh); old != nil {
		e.retired = append(e.retired, retired{s.table, old})
	}
}

// countRetired tells the sink what retired banks have. No batch may be under way that
// began before they were retired. The caller holds e.update.
func (e *Engine) countRetired() {
	for _, r := range e.retired {
		for i := range *r.banks {
			(*r.banks)[i].drain(func(id classifier.OutcomeID, n uint64, last int64) { e.cfg.Hits.Count(r.table, id, n, last) })
		}
		e.idleBanks = append(e.idleBanks, r.banks)
	}
	clear(e.retired)
	e.retired = e.retired[:0]
}

// CollectHits tells Config.Hits of all decisions made before the call. Decisions by
// one table are never taken for another's: each table has counters of its own. It
// waits for a SetTable under way, and returns ErrStalled if a worker does not finish
// its batch in time; what that worker counts is told later.
func (e *Engine) CollectHits() error {
	e.update.Lock()
	defer e.update.Unlock()
	s := e.current.Load()
	if s == nil || s.hits.Load() == nil {
		return nil
	}
	if len(e.retired) < maxRetired {
		e.retire(s, e.openBanks(s.table))
	}
	if err := e.observed(); err != nil {
		return err
	}
	e.countRetired()
	return nil
}
