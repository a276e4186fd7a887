package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
)

const (
	// holdLines is how long new records of one node wait for those of others.
	holdLines = time.Second
	// rediscover is how often nodes are looked for that came after the start.
	rediscover = 30 * time.Second
	// silence is how long a stream may show no sign of life: daemons send one a
	// second.
	silence = 15 * time.Second
)

// nodeTail prints the audit logs of many nodes as one.
type nodeTail struct {
	list   func(context.Context) ([]cluster.Daemon, error)
	client func(cluster.Daemon) (*api.Client, func())
	tail   api.Tail
	notes  io.Writer // what is missing is said here
	merge  auditlog.Merger
	retry  time.Duration // before a stream that broke is tried again; grows

	events  chan tailEvent
	running map[string]bool
	failed  map[string]bool
}

// tailEvent is what a node's stream says. Exactly one of the fields after node is
// set.
type tailEvent struct {
	node   string
	line   []byte
	caught bool
	note   string // something to tell
	err    error  // the stream is over, for now
	done   bool   // for good
	ack    chan<- struct{}
}

// run prints until the past is over, or with follow until ctx ends. Without
// follow, a node that could not be read is a finding.
func (t *nodeTail) run(ctx context.Context) error {
	t.events, t.running, t.failed = make(chan tailEvent), map[string]bool{}, map[string]bool{}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	daemons, err := t.list(ctx)
	if err != nil {
		return err
	}
	t.start(ctx, daemons)
	if len(t.running) == 0 && len(t.failed) == 0 {
		return errors.New("no node to read from")
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	look := time.NewTicker(rediscover)
	defer look.Stop()
	for t.tail.Follow || len(t.running) > 0 {
		var err error
		select {
		case <-ctx.Done():
			return t.merge.Flush()
		case e := <-t.events:
			err = t.event(e)
		case now := <-tick.C:
			err = t.merge.Release(now)
		case <-look.C:
			if !t.tail.Follow {
				continue
			}
			if daemons, err := t.list(ctx); err == nil {
				t.start(ctx, daemons)
			}
		}
		if err != nil {
			return err
		}
	}
	if err := t.merge.Flush(); err != nil {
		return err
	}
	if len(t.failed) > 0 {
		return cli.Finding("%d nodes could not be read completely", len(t.failed))
	}
	return nil
}

// start begins the streams of daemons that have none.
func (t *nodeTail) start(ctx context.Context, daemons []cluster.Daemon) {
	for _, d := range daemons {
		if t.running[d.Node] {
			continue
		}
		if d.Why != "" {
			if !t.failed[d.Node] {
				fmt.Fprintf(t.notes, "%s: not read: %s\n", d.Node, d.Why)
			}
			t.failed[d.Node] = true
			continue
		}
		t.running[d.Node] = true
		t.merge.Begin(d.Node)
		go t.node(ctx, d)
	}
}

func (t *nodeTail) event(e tailEvent) error {
	if e.ack != nil {
		defer close(e.ack)
	}
	switch {
	case e.line != nil:
		t.merge.Add(e.line, time.Now())
	case e.caught:
		return t.merge.Caught(e.node)
	case e.note != "":
		fmt.Fprintf(t.notes, "%s: %s\n", e.node, e.note)
	case e.done:
		delete(t.running, e.node)
		return t.merge.Caught(e.node)
	case e.err != nil:
		fmt.Fprintf(t.notes, "%s: %v\n", e.node, e.err)
		t.failed[e.node] = true
		return t.merge.Caught(e.node) // the others go on
	}
	return nil
}

// send hands an event over, and waits until it has been taken in: lines are the
// reader's buffer.
func (t *nodeTail) send(ctx context.Context, e tailEvent) error {
	ack := make(chan struct{})
	e.ack = ack
	select {
	case t.events <- e:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-ack
	return nil
}

// node reads one node's log, again and again where it follows: a stream ends with
// the daemon, the API server or an idle limit on the way. It goes on behind the
// last record that was read.
func (t *nodeTail) node(ctx context.Context, d cluster.Daemon) {
	defer func() { _ = t.send(ctx, tailEvent{node: d.Node, done: true}) }() // fails when nobody listens any more
	q := t.tail
	wait, broke := t.retry, time.Time{}
	for {
		err := t.stream(ctx, d, &q, func() {
			if !broke.IsZero() {
				_ = t.send(ctx, tailEvent{node: d.Node, note: fmt.Sprintf("read again after %s, from where it broke off", time.Since(broke).Round(time.Second))})
				broke, wait = time.Time{}, t.retry
			}
		})
		if ctx.Err() != nil || err == nil {
			return
		}
		var refused *api.RefusedError
		final := errors.As(err, &refused) && refused.Status < http.StatusInternalServerError && refused.Status != http.StatusTooManyRequests
		if broke.IsZero() {
			broke = time.Now()
			if t.send(ctx, tailEvent{node: d.Node, err: err}) != nil {
				return
			}
		}
		if !t.tail.Follow || final {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		wait = min(wait*2, 30*time.Second)
		if q.After == 0 && q.Lines > 0 {
			q.Lines = 0 // the past was printed, or there was none
		}
		// The daemon's pod may be another one by now.
		if list, err := t.list(ctx); err == nil {
			if i := slices.IndexFunc(list, func(o cluster.Daemon) bool { return o.Node == d.Node }); i >= 0 && list[i].Why == "" {
				d = list[i]
			}
		}
	}
}

// stream reads until it breaks, and notes in q where to go on. began is called
// with the first sign of life.
func (t *nodeTail) stream(ctx context.Context, d cluster.Daemon, q *api.Tail, began func()) error {
	client, done := t.client(d)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(dialAndSilence, func() { cancel(errors.New("no sign of life")) })
	defer watchdog.Stop()
	alive := func() {
		watchdog.Reset(silence)
		if began != nil {
			began()
			began = nil
		}
	}
	err := client.Audit(ctx, *q, api.TailFuncs{
		Line: func(line []byte) error {
			alive()
			if n := auditlog.SeqOf(line); n > 0 {
				q.After = n
			}
			return t.send(ctx, tailEvent{node: d.Node, line: line})
		},
		Caught: func() error { alive(); return t.send(ctx, tailEvent{node: d.Node, caught: true}) },
		Alive:  func(now time.Time) error { alive(); q.Heard = now; return nil },
		Missing: func(m api.Missing) error {
			alive()
			return t.send(ctx, tailEvent{node: d.Node, note: fmt.Sprintf("records %d to %d were removed before they could be read", m.First, m.Last)})
		},
	})
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// dialAndSilence is what the first sign of life may take.
const dialAndSilence = 15*time.Second + silence
