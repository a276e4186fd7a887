package api

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// flushEvery is how long a record waits for others to travel with.
const flushEvery = 100 * time.Millisecond

// reachBack is how much earlier than a reader was last served a rotated file may
// have ended to be looked into when the reader comes back.
const reachBack = time.Minute

// tailQuestion is what an audit stream was asked for.
type tailQuestion struct {
	lines  int
	follow bool
	after  uint64
	heard  time.Time
	filter auditlog.Filter
}

func (s *server) tailQuestion(q url.Values) (t tailQuestion, err error) {
	words := auditlog.Words{}
	for name, v := range q {
		switch {
		case slices.Contains(auditlog.WordNames, name):
			words[name] = v
		case name != "lines" && name != "follow" && name != "after" && name != "heard":
			return t, fmt.Errorf("unknown parameter %q", name)
		}
	}
	if t.filter, err = words.Filter("", s.cfg.Now()); err != nil {
		return t, err
	}
	if t.lines, err = number(q, "lines", 10, -1, math.MaxInt32); err != nil {
		return t, err
	}
	if v := q.Get("follow"); v != "" {
		if t.follow, err = strconv.ParseBool(v); err != nil {
			return t, fmt.Errorf("parameter %q: want true or false", "follow")
		}
	}
	if v := q.Get("after"); v != "" {
		if t.after, err = strconv.ParseUint(v, 10, 64); err != nil {
			return t, fmt.Errorf("parameter %q: want the number of a record", "after")
		}
	}
	if v := q.Get("heard"); v != "" {
		if t.heard, err = time.Parse(time.RFC3339Nano, v); err != nil {
			return t, fmt.Errorf("parameter %q: %w", "heard", err)
		}
	}
	return t, nil
}

func (s *server) audit(w http.ResponseWriter, r *http.Request) {
	q, err := s.tailQuestion(r.URL.Query())
	switch {
	case err != nil:
		fail(w, http.StatusBadRequest, err.Error())
		return
	case s.cfg.AuditFile == "":
		fail(w, http.StatusConflict, s.cfg.NoAudit)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	t := &tail{out: stream(w), filter: &q.filter, cancel: cancel}
	t.out.flush() // the reader learns at once that it was understood
	opt := auditlog.TailOptions{
		ReadOptions: auditlog.ReadOptions{Since: q.filter.Since}, Lines: q.lines, Follow: q.follow, Keep: t.keep,
		Missing: func(first, last uint64) { t.control(control{Missing: &Missing{first, last}}) },
		Caught:  func() { t.control(control{Past: true}) },
	}
	if q.after > 0 {
		if t.after, err = resume(ctx, s.cfg.AuditFile, q.after); err == nil && t.after > 0 {
			t.gap = func(first, last uint64) { opt.Missing(first, last) }
			opt.Lines = -1
			if !q.heard.IsZero() {
				opt.Since = q.heard.Add(-reachBack)
			}
		}
	}
	var wg sync.WaitGroup
	if q.follow {
		wg.Go(func() { s.keepAlive(ctx, t) })
	}
	if err == nil {
		err = auditlog.Tail(ctx, s.cfg.AuditFile, opt, t.line)
	}
	cancel()
	wg.Wait()
	if err != nil && r.Context().Err() == nil {
		t.control(control{Failed: err.Error()})
		return
	}
	t.control(control{End: &End{Lines: t.lines}})
}

// resume returns after if the log is still the one whose record it was, else 0:
// numbers begin again in another log.
func resume(ctx context.Context, path string, after uint64) (uint64, error) {
	newest := uint64(0)
	err := auditlog.Tail(ctx, path, auditlog.TailOptions{Lines: 1}, func(line []byte) error {
		newest = auditlog.SeqOf(line)
		return nil
	})
	if err != nil || newest < after {
		return 0, err
	}
	return after, nil
}

// tail sends records. The log's reader and keepAlive share the writer.
type tail struct {
	filter *auditlog.Filter
	after  uint64
	gap    func(first, last uint64) // until the first record after
	cancel context.CancelFunc

	mu    sync.Mutex
	out   *lines
	lines int
	dirty bool
}

// keep selects lines; it sees all of them, in order.
func (t *tail) keep(line []byte) bool {
	if n := auditlog.SeqOf(line); t.after > 0 && n != 0 {
		if n <= t.after {
			return false
		}
		if t.gap != nil && n > t.after+1 {
			t.gap(t.after+1, n-1)
		}
		t.gap = nil
	}
	if t.filter.Empty() {
		return len(bytes.TrimSpace(line)) > 0
	}
	r, err := audit.Parse(line)
	if err != nil {
		return len(bytes.TrimSpace(line)) > 0 // sent as it is: hiding it would make the log look complete
	}
	return t.filter.Match(&r)
}

// line sends what the log has.
func (t *tail) line(line []byte) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lines++
	t.dirty = true
	if _, err := audit.Parse(line); err != nil {
		t.out.json(rawLine{string(line)})
	} else {
		t.out.send(line)
	}
	return t.out.err
}

// rawLine is a line of the log that is no record.
type rawLine struct {
	Raw string `json:"raw"`
}

func (t *tail) control(c control) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.out.json(c)
	t.out.flush()
	t.dirty = false
}

// keepAlive sends what waits, and shows a reader of a quiet log that it is still
// read. A reader that does not read ends the stream.
func (s *server) keepAlive(ctx context.Context, t *tail) {
	tick := time.NewTicker(min(flushEvery, s.cfg.Alive))
	defer tick.Stop()
	next := s.cfg.Now().Add(s.cfg.Alive)
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		t.mu.Lock()
		if now := s.cfg.Now(); !now.Before(next) {
			next = now.Add(s.cfg.Alive)
			now = now.UTC()
			t.out.json(control{Alive: &now})
			t.dirty = true
		}
		if t.dirty {
			t.out.flush()
			t.dirty = false
		}
		failed := t.out.err != nil
		t.mu.Unlock()
		if failed {
			t.cancel()
			return
		}
	}
}
