package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// quiet is how long a daemon may search its log without sending a record.
const quiet = 5 * time.Minute

// nodeLogs are the audit logs of a cluster's nodes, read through their daemons. The
// filter is evaluated by the daemons: only records that match travel.
type nodeLogs struct {
	daemons []cluster.Daemon
	client  func(cluster.Daemon) (*api.Client, func())
	tail    api.Tail
	notes   io.Writer // nodes that cannot be read are said here
	failed  int
}

// addNodes gives a command of logs the flag --all-nodes and those that go with it.
func (q *logQuestion) addNodes(cmd *cobra.Command) {
	q.nodes = new(nodesFlags)
	q.nodes.clusterOnly(cmd)
}

// source checks that a log is asked for in one way.
func (q *logQuestion) source(cmd *cobra.Command, args []string) error {
	switch n := q.nodes; {
	case n.all && len(args) > 0:
		return usage(cmd, errors.New("--all-nodes and a log of this machine are two different sources: give one"))
	case n.cluster.Given() && !n.all:
		return usage(cmd, errors.New("--kubeconfig and --context go with --all-nodes"))
	}
	return nil
}

// openNodes finds the daemons. words is what they are to select; its word "node" and
// only choose among them.
func (q *logQuestion) openNodes(ctx context.Context, cmd *cobra.Command, words auditlog.Words) (*nodeLogs, error) {
	d, err := q.nodes.daemons()
	if err != nil {
		return nil, err
	}
	list, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	if only := words["node"]; len(only) > 0 {
		if list, err = pick(list, only); err != nil {
			return nil, err
		}
	}
	delete(words, "node")
	for name, at := range map[string]time.Time{"since": q.filter.Since, "until": q.filter.Until} {
		if !at.IsZero() {
			words[name] = []string{at.UTC().Format(time.RFC3339Nano)} // by this machine's zone and clock
		}
	}
	if len(list) == 0 {
		return nil, errors.New("the cluster has no node to read from")
	}
	return &nodeLogs{daemons: list, client: d.Client, tail: api.Tail{Filter: words, Lines: -1}, notes: cmd.ErrOrStderr()}, nil
}

// eachOfNodes is each for the logs of all nodes, one node after the other.
func (q *logQuestion) eachOfNodes(cmd *cobra.Command, words auditlog.Words, inOrder bool, record func(r *audit.Record, line []byte) error, bad func(line []byte) error) error {
	ctx, stop := interruptible(cmd)
	defer stop()
	l, err := q.openNodes(ctx, cmd, words)
	if err != nil {
		return err
	}
	for _, d := range l.daemons {
		if d.Why == "" {
			q.cover.opened("the log of node " + d.Node)
		}
	}
	take := func(line []byte) error {
		r, err := audit.Parse(line)
		if err != nil {
			return bad(line)
		}
		q.cover.saw(&r)
		if !q.filter.Match(&r) { // what the daemon may understand in another way
			return nil
		}
		q.cover.matched++
		return record(&r, line)
	}
	if inOrder {
		err = l.merged(ctx, take)
	} else {
		err = l.oneByOne(ctx, take)
	}
	q.failed, q.asked = l.failed, len(l.daemons)
	return err
}

// incomplete is a command's error when nodes could not be read: what it printed is
// right, and not all there is.
func (q *logQuestion) incomplete() error {
	if q.failed == 0 {
		return nil
	}
	if q.failed == q.asked {
		return errors.New("no node could be read")
	}
	return cli.Finding("%d of %d nodes could not be read: what they recorded is missing", q.failed, q.asked)
}

func (l *nodeLogs) fail(d cluster.Daemon, why error) {
	l.failed++
	fmt.Fprintf(l.notes, "%s: not read: %v\n", cli.Escape(d.Node), why)
}

func (l *nodeLogs) oneByOne(ctx context.Context, take func([]byte) error) error {
	for _, d := range l.daemons {
		var stop error
		if err := l.read(ctx, d, func(line []byte) error {
			stop = take(line)
			return stop
		}); err != nil {
			if stop != nil || ctx.Err() != nil {
				return errors.Join(stop, ctx.Err())
			}
			l.fail(d, err)
		}
	}
	return nil
}

// read sends a node's records to fn. The line is reused.
func (l *nodeLogs) read(ctx context.Context, d cluster.Daemon, fn func([]byte) error) error {
	if d.Why != "" {
		return errors.New(d.Why)
	}
	client, done := l.client(d)
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(quiet, func() { cancel(errors.New("no sign of life")) })
	defer watchdog.Stop()
	err := client.Audit(ctx, l.tail, api.TailFuncs{
		Line: func(line []byte) error {
			watchdog.Reset(quiet)
			return fn(line)
		},
		Missing: func(m api.Missing) error {
			fmt.Fprintf(l.notes, "%s: records %d to %d were removed before they could be read\n", cli.Escape(d.Node), m.First, m.Last)
			return nil
		},
	})
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// lined is a line of a node's log on its way into the order of time.
type lined struct {
	line []byte
	time time.Time
}

// merged reads all nodes at once and delivers the lines in the order of time. It holds
// few lines of each node: a stream waits until the others have come as far.
func (l *nodeLogs) merged(ctx context.Context, take func([]byte) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type stream struct {
		lines chan lined
		err   error
		head  *lined
	}
	streams := make([]*stream, len(l.daemons))
	for i, d := range l.daemons {
		s := &stream{lines: make(chan lined, 16)}
		streams[i] = s
		go func() {
			defer close(s.lines)
			var at time.Time // a line that is no record has its neighbour's time
			s.err = l.read(ctx, d, func(line []byte) error {
				if r, err := audit.Parse(line); err == nil {
					at = r.Time
				}
				select {
				case s.lines <- lined{slices.Clone(line), at}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
	}
	open := slices.Clone(streams)
	for {
		for _, s := range open {
			if s.head == nil {
				if next, more := <-s.lines; more {
					s.head = &next
				}
			}
		}
		open = slices.DeleteFunc(open, func(s *stream) bool { return s.head == nil })
		if len(open) == 0 {
			break
		}
		first := open[0]
		for _, s := range open[1:] {
			if s.head.time.Before(first.head.time) {
				first = s
			}
		}
		if err := take(first.head.line); err != nil {
			return err
		}
		first.head = nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, s := range streams {
		if s.err != nil {
			l.fail(l.daemons[i], s.err)
		}
	}
	return nil
}

// verifyNodes checks the hash chain of every node's log, by its own daemon.
func verifyNodes(ctx context.Context, cmd *cobra.Command, n *nodesFlags, known string, asJSON bool) error {
	targets, err := n.targets(ctx, cmd)
	if err != nil {
		return err
	}
	type answer struct {
		Node  string                 `json:"node"`
		Error string                 `json:"error,omitempty"`
		Check *auditlog.Verification `json:"verification,omitempty"`
	}
	out := make([]answer, len(targets))
	errs := ask(ctx, targets, func(ctx context.Context, i int, t *target) error {
		v, err := t.Client.Verify(ctx, known)
		out[i].Check = v
		return err
	})
	broken := 0
	for i := range out {
		out[i].Node = targets[i].Node
		if errs[i] != nil {
			out[i].Error, out[i].Check = errs[i].Error(), nil
		} else if !out[i].Check.OK {
			broken++
		}
	}
	w := cmd.OutOrStdout()
	if asJSON {
		err = cli.WriteJSON(w, map[string]any{"nodes": out})
	}
	for i := range out {
		if v := out[i].Check; v != nil && err == nil && !asJSON {
			_, err = fmt.Fprintf(w, "%s\n", cli.StyleFor(w).Bold(cli.Escape(out[i].Node)))
			err = errors.Join(err, writeVerification(w, v))
		}
	}
	if err == nil {
		err = answered(cmd, targets, errs)
	}
	if err == nil && broken > 0 {
		err = &cli.FindingError{Err: fmt.Errorf("the logs of %d nodes do not verify", broken), Shown: true}
	}
	return err
}

// ofNodes is what help texts say of --all-nodes.
var ofNodes = strings.TrimSpace(`
--all-nodes asks the daemons of all nodes of the kubeconfig's cluster (rights as for
"flows"), which evaluate the filter themselves; --node narrows it down. A node that
cannot be read is said on standard error and makes exit code 1.`)
