package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/hits"
)

// Hits is a rule, or the isolation of a policy in one direction, and how often it
// decided on a node. Times are UTC.
type Hits struct {
	Node      string       `json:"node"`
	Policy    audit.Policy `json:"policy"`
	Direction string       `json:"direction"`
	// Rule is the rule's name, or its place such as "ingress[0]"; "" for the isolation.
	Rule   string `json:"rule,omitempty"`
	Index  int    `json:"index"` // -1 for the isolation
	Action string `json:"action,omitempty"`
	Band   string `json:"band"`
	Stage  string `json:"stage"`
	// Hits are new connections allowed and packets refused, since Since.
	Hits  uint64     `json:"hits"`
	Last  *time.Time `json:"last,omitempty"` // absent for never
	Since time.Time  `json:"since"`
	// Live is how many connections the node remembers that this rule allows or passed.
	Live int `json:"live"`
}

// Used reports whether the rule decided after a time, or allows a connection that is
// remembered.
func (h *Hits) Used(after time.Time) bool {
	return h.Live > 0 || h.Last != nil && !h.Last.Before(after)
}

func (s *server) hits(w http.ResponseWriter, r *http.Request) {
	if err := known(r.URL.Query()); err != nil {
		fail(w, http.StatusBadRequest, err.Error())
		return
	}
	if s.cfg.Hits == nil {
		fail(w, http.StatusConflict, "this daemon counts no hits")
		return
	}
	rules, err := s.cfg.Hits()
	if err != nil {
		fail(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	live := s.live()
	out := stream(w)
	var end End
	for i := range rules {
		one := s.hitsOf(&rules[i])
		one.Live = live[rules[i].ID]
		out.json(&one)
		end.Lines++
		if out.err != nil || r.Context().Err() != nil {
			return
		}
	}
	out.json(control{End: &end})
	out.flush()
}

func (s *server) hitsOf(r *hits.Rule) Hits {
	p := &r.Policy
	h := Hits{
		Node: s.cfg.Node, Policy: audit.Policy{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name},
		Direction: r.Direction.String(), Index: r.Index, Action: r.Action, Band: r.Band.String(), Stage: r.Stage.String(),
		Hits: r.Hits, Since: time.Unix(0, r.Since).UTC(),
	}
	o := rule.Origin{Rule: r.Name, Index: r.Index}
	h.Rule = o.RuleName(r.Direction)
	if r.Last > 0 {
		last := time.Unix(0, r.Last).UTC()
		h.Last = &last
	}
	return h
}

// live counts remembered connections by what admitted them.
func (s *server) live() map[hits.ID]int {
	type decision struct {
		generation      uint64
		egress, ingress uint32
	}
	count := map[decision]int{}
	inForce := s.cfg.Engine.Table()
	tables := map[uint64]*classifier.Table{}
	s.cfg.Engine.Flows(func(_ string, rec conntrack.Record) bool {
		if rec.State.Over() {
			return true
		}
		t, asked := tables[rec.Generation]
		if !asked {
			t = s.cfg.Engine.TableOf(rec.Generation)
			tables[rec.Generation] = t
		}
		d := decision{rec.Generation, rec.Egress, rec.Ingress}
		if t == nil { // forgotten: the table in force repeats its decision
			if inForce == nil {
				return false
			}
			now := inForce.LookupVia(rec.Key, rec.Service)
			d = decision{inForce.Generation(), uint32(now.Egress), uint32(now.Ingress)}
			tables[d.generation] = inForce
		}
		count[d]++
		return true
	})
	out := map[hits.ID]int{}
	for d, n := range count {
		for _, id := range []uint32{d.egress, d.ingress} {
			hits.Deciders(tables[d.generation], classifier.OutcomeID(id),
				func(r *rule.Rule) { out[hits.RuleID(r)] += n }, func(i *rule.Isolation) { out[hits.IsolationID(i)] += n })
		}
	}
	return out
}

// Hits calls fn for every rule and isolation the daemon has in force.
func (c *Client) Hits(ctx context.Context, fn func(*Hits) error) error {
	ended := false
	err := c.stream(ctx, "hits", url.Values{}, func(line []byte) error {
		var l control
		if bytes.HasPrefix(line, []byte(`{"end":`)) {
			ended = true
			return json.Unmarshal(line, &l)
		}
		h := new(Hits)
		if err := json.Unmarshal(line, h); err != nil {
			return err
		}
		return fn(h)
	})
	if err == nil && !ended {
		err = fmt.Errorf("hits: %w", ErrCut)
	}
	return err
}

// Origin is what the hits are of, in the form other answers name policies in.
func (h *Hits) Origin() rule.Origin {
	p := &h.Policy
	return rule.Origin{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name, Index: h.Index}
}

// Ingress reports whether the rule is about what comes to its subject.
func (h *Hits) Ingress() bool { return h.Direction == flow.Ingress.String() }
