package agent

import (
	"context"
	"time"

	"github.com/tierwall/tierwall/dataplane/hits"
)

// observeHits is how often new rules are noticed, and hits taken from the workers,
// where nobody asks: the time since which a rule is watched is no older than that.
const observeHits = 10 * time.Second

// watchHits keeps the ledger of hits up to date until ctx ends.
func (d *daemon) watchHits(ctx context.Context) {
	select {
	case <-d.engine.Ready():
	case <-ctx.Done():
		return
	}
	tick := time.NewTicker(observeHits)
	defer tick.Stop()
	for {
		d.hits.Observe(d.engine.Table())
		if err := d.engine.CollectHits(); err != nil {
			d.log.Debug("hits not collected", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// ruleHits returns every rule in force with its hits up to now.
func (d *daemon) ruleHits() ([]hits.Rule, error) {
	if err := d.engine.CollectHits(); err != nil {
		return nil, err
	}
	return d.hits.Rules(d.engine.Table()), nil
}
