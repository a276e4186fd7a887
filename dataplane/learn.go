package dataplane

import (
	"context"
	"time"

	"github.com/tierwall/tierwall/conntrack"
)

// tellEvery is the time between two rounds of news where policy does not change.
// A worker's table may see all of its records replaced in between, at
// conntrack.DefaultRecords and a hundred thousand new connections a second.
const tellEvery = 500 * time.Millisecond

// tellUntil reports connections to backends that learn, and the audit log what kernel sides
// dropped, until ctx is done.
func (e *Engine) tellUntil(ctx context.Context) {
	tick := time.NewTicker(tellEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			e.recordDrops()
			if len(e.learners) > 0 && e.update.TryLock() { // else an update does it
				e.tell(e.observed() != nil)
				e.update.Unlock()
			}
		}
	}
}

// tell reports news to backends that learn. update is held, and workers have been observed; if
// they stalled, what they have in their hands is not known.
func (e *Engine) tell(stalled bool) {
	if len(e.learners) == 0 {
		return
	}
	for i, w := range e.workers {
		name := e.backends[w.backend]
		missed := w.conns.News(func(news []conntrack.Record) {
			for _, l := range e.learners {
				l.Learn(name, news, false)
			}
		})
		for _, l := range e.learners {
			l.Learn(name, nil, missed || stalled && i == 0)
		}
	}
}
