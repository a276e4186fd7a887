package ui

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/dataplane/audit"
)

const (
	// tickEvery is how often the page hears of records.
	tickEvery = 250 * time.Millisecond
	// rowsPerTick is how many records it gets each time: more nobody reads. The
	// others are counted.
	rowsPerTick = 50
)

// Tick is an event of the stream: what came since the one before. Seen is always
// shown plus hidden plus unreadable lines.
type Tick struct {
	Seen   int `json:"seen"`   // lines
	Shown  int `json:"shown"`  // of these: in Records
	Hidden int `json:"hidden"` // not in Records, because there are too many
	// Verdicts counts what was seen by verdict; records of lost ones as "Lost", lines
	// that are no records as "?".
	Verdicts map[string]int `json:"verdicts"`
	// Lost is how many records the log says are missing.
	Lost uint64 `json:"lost"`
	// Records are losses first, then denials, then the others; of each the newest, the
	// newest first.
	Records []json.RawMessage `json:"records"`
	Notes   []string          `json:"notes,omitempty"` // what could not be read
	Past    bool              `json:"past,omitempty"`  // nothing in it is new
}

// ticker collects records until the next tick.
type ticker struct {
	mu    sync.Mutex
	tick  Tick
	first [3][]json.RawMessage // lost, denied, others: rings of the newest
}

// rank is the place of a record in the order of a tick.
func rank(r *audit.Record) int {
	switch {
	case r.Kind == audit.KindLost:
		return 0
	case r.Verdict == audit.Drop || r.Verdict == audit.Reject:
		return 1
	}
	return 2
}

func (t *ticker) add(line []byte) {
	if len(bytes.TrimSpace(line)) == 0 {
		return
	}
	rec, err := audit.Parse(line)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.tick.Verdicts == nil {
		t.tick.Verdicts = map[string]int{}
	}
	t.tick.Seen++
	if err != nil {
		t.tick.Verdicts["?"]++
		text, _ := json.Marshal(map[string]string{"raw": string(line)}) // strings always can be
		t.keep(0, text)
		return
	}
	word := rec.Verdict
	if rec.Kind == audit.KindLost {
		word = "Lost"
		t.tick.Lost += rec.Count
	}
	if word == "" {
		word = rec.Kind
	}
	t.tick.Verdicts[word]++
	t.keep(rank(&rec), bytes.Clone(bytes.TrimSpace(line)))
}

// keep keeps the newest of a rank.
func (t *ticker) keep(rank int, line json.RawMessage) {
	list := append(t.first[rank], line)
	if len(list) > 2*rowsPerTick {
		list = slices.Clone(list[len(list)-rowsPerTick:])
	}
	t.first[rank] = list
}

func (t *ticker) note(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.tick.Notes = append(t.tick.Notes, text)
}

// take returns what has come, and begins anew.
func (t *ticker) take() Tick {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := t.tick
	out.Records = []json.RawMessage{}
	for _, list := range t.first {
		room := rowsPerTick - len(out.Records)
		list = list[max(0, len(list)-room):]
		slices.Reverse(list)
		out.Records = append(out.Records, list...)
	}
	out.Shown = len(out.Records)
	out.Hidden = out.Seen - out.Shown
	if out.Verdicts == nil {
		out.Verdicts = map[string]int{}
	}
	t.tick, t.first = Tick{}, [3][]json.RawMessage{}
	return out
}

// words reads the filters of a question.
func words(q url.Values) (auditlog.Words, error) {
	w := auditlog.Words{}
	for name, v := range q {
		if slices.Contains(auditlog.WordNames, name) {
			w[name] = v
		}
	}
	_, err := w.Filter("", time.Now())
	return w, err
}

// pastLines is how many records of the past a stream begins with.
const pastLines = rowsPerTick

// stream sends records as they come.
func (s *state) stream(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	filter, err := words(q)
	if err == nil {
		err = known(q, auditlog.WordNames)
	}
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, err.Error())
		return
	case s.source.Records == nil:
		fail(w, http.StatusConflict, s.source.NoRecords)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	var t ticker
	ended := make(chan error, 1)
	go func() {
		ended <- s.source.Records(ctx, RecordQuestion{Filter: filter, Lines: pastLines, Follow: true},
			func(line []byte) error { t.add(line); return nil }, t.note)
	}()
	send := func(event string, v any) error {
		text, err := json.Marshal(v)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", event, text); err != nil {
			return err
		}
		return out.Flush()
	}
	every := time.NewTicker(tickEvery)
	defer every.Stop()
	for first := true; ; first = false {
		select {
		case <-ctx.Done():
			return
		case err := <-ended:
			_ = send("tick", t.take()) // the browser is gone: nobody to tell
			if ctx.Err() == nil {
				text := "the log ended"
				if err != nil {
					text = err.Error()
				}
				_ = send("end", map[string]string{"error": text}) // as above
			}
			return
		case <-every.C:
			tick := t.take()
			tick.Past = first
			if send("tick", tick) != nil {
				return
			}
		}
	}
}

// audit returns the last records that match.
func (s *state) audit(r *http.Request, q url.Values) (any, error) {
	filter, err := words(q)
	if err != nil {
		return nil, err
	}
	lines := 10
	if text := q.Get("lines"); text != "" {
		if lines, err = strconv.Atoi(text); err != nil || lines < 0 || lines > maxLines {
			return nil, fmt.Errorf("parameter %q: want a number from 0 to %d", "lines", maxLines)
		}
	}
	if s.source.Records == nil {
		return nil, &statusError{http.StatusConflict, errors.New(s.source.NoRecords)}
	}
	out := struct {
		Records []json.RawMessage `json:"records"`
		Notes   []string          `json:"notes,omitempty"`
	}{Records: []json.RawMessage{}}
	err = s.source.Records(r.Context(), RecordQuestion{Filter: filter, Lines: lines}, func(line []byte) error {
		if _, err := audit.Parse(line); err == nil {
			out.Records = append(out.Records, bytes.Clone(line))
		}
		return nil
	}, func(text string) { out.Notes = append(out.Notes, text) })
	if err != nil {
		return nil, &statusError{http.StatusBadGateway, err}
	}
	return out, nil
}

// maxLines bounds the answer to "audit".
const maxLines = 10_000

// hitsOf is how far back hits are counted.
const hitsOf = "1h"

// hits counts records of the last hour by policy and verdict.
func (s *state) hits(r *http.Request, _ url.Values) (any, error) {
	if s.source.Records == nil {
		return nil, &statusError{http.StatusConflict, errors.New(s.source.NoRecords)}
	}
	type key struct{ policy, verdict string }
	type count struct {
		Policy  string    `json:"policy"` // as answers name it
		Verdict string    `json:"verdict"`
		Records uint64    `json:"records"`
		Packets uint64    `json:"packets"`
		Last    time.Time `json:"last"`
	}
	by := map[key]*count{}
	ctx, cancel := context.WithTimeout(r.Context(), replayTime)
	defer cancel()
	err := s.source.Records(ctx, RecordQuestion{Filter: auditlog.Words{"since": {hitsOf}}, Lines: -1}, func(line []byte) error {
		rec, err := audit.Parse(line)
		if err != nil || rec.Kind != audit.KindFlow {
			return nil
		}
		deciders := rec.Deciders()
		for i := range deciders {
			k := key{auditlog.PolicyRef(&deciders[i]), rec.Verdict}
			if by[k] == nil {
				by[k] = &count{Policy: k.policy, Verdict: k.verdict}
			}
			by[k].Records++
			by[k].Packets += rec.Count
			by[k].Last = rec.Time
		}
		return nil
	}, func(string) {})
	if err != nil {
		return nil, &statusError{http.StatusBadGateway, err}
	}
	out := []count{}
	for _, c := range by {
		out = append(out, *c)
	}
	return map[string]any{"since": hitsOf, "policies": out}, nil
}
