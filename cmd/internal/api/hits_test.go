package api

import (
	"errors"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// Hits come by rule, with the connections that are remembered because of each: of a
// table that is forgotten, too.
func TestHits(t *testing.T) {
	old, cur := table(t, 1), table(t, 9)
	ledger := hits.New(func() int64 { return 1e18 })
	d := cur.Lookup(record(cur, 1, 80).Key)
	ledger.Count(cur, d.Ingress, 5, 1e18+7)
	e := &engine{tables: map[uint64]*classifier.Table{9: cur}, inForce: cur, records: []conntrack.Record{record(cur, 1, 80), record(old, 2, 81)}}
	c := serve(t, Config{Node: "n1", Engine: e, Hits: func() ([]hits.Rule, error) { return ledger.Rules(cur), nil }})
	var got []Hits
	if err := c.Hits(t.Context(), func(h *Hits) error { got = append(got, *h); return nil }); err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 {
		t.Fatalf("%d rules: %+v", len(got), got)
	}
	if h := got[0]; h.Node != "n1" || h.Policy.Name != "web" || h.Rule != "ingress[0]" || h.Hits != 5 || h.Live != 2 || h.Last == nil ||
		h.Last.UnixNano() != 1e18+7 || h.Since.UnixNano() != 1e18 || h.Stage != "enforce" || h.Band != "networkpolicy" {
		t.Errorf("%+v", h)
	}
	var refused *RefusedError
	if err := serve(t, Config{}).Hits(t.Context(), func(*Hits) error { return nil }); !errors.As(err, &refused) || refused.Status != 409 {
		t.Errorf("a daemon that counts nothing: %v", err)
	}
	stuck := serve(t, Config{Hits: func() ([]hits.Rule, error) { return nil, errors.New("stuck") }})
	if err := stuck.Hits(t.Context(), func(*Hits) error { return nil }); !errors.As(err, &refused) || refused.Status != 503 {
		t.Errorf("a worker that does not answer: %v", err)
	}
}
