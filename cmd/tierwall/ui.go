package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/cmd/internal/ui"
)

type uiFlags struct {
	world
	daemons nodesFlags
	logs    []string
	tests   string
	page    pageFlags
}

// pageFlags say how the page is served, for every command that does.
type pageFlags struct {
	listen string
	noOpen bool
}

func (p *pageFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&p.listen, "listen", "127.0.0.1:0", "loopback address and port to serve the page on; port 0 is a free one")
	f.BoolVar(&p.noOpen, "no-open", false, "only print the URL, do not open a browser")
}

func newUI() *cobra.Command {
	var q uiFlags
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "ui [--manifests DIR] [--log FILE]",
		Short: "Serve a live page: the order of policies, why, who to whom, what is refused, and what a change would do",
		Long: `Serves a page on this machine's loopback address, until Ctrl-C, and opens it in the
browser. It shows the policies of all APIs in evaluation order, why a connection is
decided as it is, which workloads can connect to which, what a change of policies would
open and close, what is being refused right now, and what each node enforces.

Policies and pods come from manifests, which are watched, or from the cluster of your
kubeconfig, read with your permissions. Records and the state of nodes come from the
cluster's daemons (rights as for "flows"), from the daemon of this machine (--local), or
from log files (--log). Nothing is installed, nothing new listens on nodes, and what you
try in the page is compiled in memory and never written.

The URL works once: the server exchanges its token for a cookie of your browser. Nothing
is loaded from elsewhere and nothing is sent anywhere. The page's JSON is under /api/v1/,
with the fields of the commands' -o json; docs/ui.md describes it.

-o json prints {"url":"…"} on one line.`,
		Example: `  tierwall ui
  tierwall ui --manifests deploy/examples/quickstart
  tierwall ui --manifests policies/ --log audit.log --tests intents.yaml
  tierwall ui --no-open --listen 127.0.0.1:8080 -o json
  tierwall demo --ui   # a small world with traffic, to look at`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return q.run(cmd, output.JSON()) },
	}
	q.flags(cmd)
	q.page.flags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&q.logs, "log", nil, "audit log to show records of; may be given several times (default: the daemons')")
	f.StringVar(&q.tests, "tests", "", "file of tests (see \"tierwall test\") that a change is tried with")
	f.BoolVar(&q.daemons.local, "local", false, "ask the daemon on this machine, not the cluster's")
	f.StringVar(&q.daemons.address, "address", agent.Default().Metrics.Address, "where the daemon on this machine listens (its key metrics.address)")
	f.StringVar(&q.daemons.namespace, "daemon-namespace", cluster.DefaultNamespace, "namespace of the daemons")
	f.IntVar(&q.daemons.port, "daemon-port", cluster.DefaultPort, "port the daemons listen on")
	f.VarP(output, "output", "o", "form of the printed URL")
	return cmd
}

func (q *uiFlags) run(cmd *cobra.Command, asJSON bool) error {
	ctx, stop := interruptible(cmd)
	defer stop()
	cmd.SetContext(ctx)
	src, err := q.source(cmd)
	if err != nil {
		return err
	}
	return q.page.serve(ctx, cmd, src, asJSON)
}

// serve serves a page until ctx ends.
func (p *pageFlags) serve(ctx context.Context, cmd *cobra.Command, src ui.Source, asJSON bool) error {
	s, err := ui.Listen(ctx, p.listen, src, buildVersion().Version)
	if err != nil {
		return err
	}
	line := s.URL
	if asJSON {
		b, err := json.Marshal(map[string]string{"url": s.URL})
		if err != nil {
			return err
		}
		line = string(b)
	}
	if _, err := fmt.Fprintln(cmd.OutOrStdout(), line); err != nil {
		return err
	}
	if !p.noOpen {
		if err := openBrowser(ctx, s.URL); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "no browser could be started (%v): open the URL yourself; Ctrl-C ends the page\n", err)
		}
	}
	return s.Serve(ctx)
}

// openBrowser asks the desktop to open a URL.
func openBrowser(ctx context.Context, url string) error {
	name, args := "xdg-open", []string{url}
	switch runtime.GOOS {
	case "darwin":
		name = "open"
	case "windows":
		name, args = "rundll32", []string{"url.dll,FileProtocolHandler", url}
	}
	c := exec.CommandContext(ctx, name, args...)
	c.Cancel = func() error { return nil } // the browser may be its child: it outlives the page
	if err := c.Start(); err != nil {
		return err
	}
	go func() { _ = c.Wait() }() // only so that no zombie is left
	return nil
}

// source names everything the page asks.
func (q *uiFlags) source(cmd *cobra.Command) (ui.Source, error) {
	w := &q.world
	w.endpoints = true
	src := ui.Source{
		Lower: w.lower, Namespace: w.cluster.Namespace, Kind: "cluster", Where: "the cluster of your kubeconfig",
		Load: func(ctx context.Context) (*cli.Input, error) {
			cmd.SetContext(ctx)
			in, err := w.load(cmd, "")
			if err != nil {
				return nil, err
			}
			return in, in.CheckNamespace(w.cluster.Namespace)
		},
	}
	var flags []string
	add := func(name, value string) {
		if value != "" {
			flags = append(flags, name, shellQuote(value))
		}
	}
	if len(w.manifests) > 0 {
		src.Kind, src.Where = "manifests", w.manifests.String()
		for _, m := range w.manifests {
			add("--manifests", m)
		}
		src.Changed = fingerprint(w.manifests)
	}
	add("--kubeconfig", w.cluster.Kubeconfig)
	add("--context", w.cluster.Context)
	add("--namespace", w.cluster.Namespace)
	src.Flags = strings.Join(flags, " ")
	if q.tests != "" {
		b, err := os.ReadFile(q.tests)
		if err != nil {
			return src, fmt.Errorf("read tests: %w", err)
		}
		src.Tests = string(b)
	}
	n := &q.daemons
	n.cluster = w.cluster
	if n.local && w.cluster.Given() {
		return src, usage(cmd, errors.New("--local and a cluster (--kubeconfig, --context) are different daemons: give one"))
	}
	if n.local || len(w.manifests) == 0 {
		src.Status = func(ctx context.Context) (any, error) {
			a, _, _, err := n.status(ctx, cmd)
			return a, err
		}
		src.Records = n.records(cmd)
	}
	switch {
	case len(q.logs) > 0:
		for _, path := range q.logs {
			if path == auditlog.Stdin {
				return src, usage(cmd, errors.New("--log wants a file: it is read again and again"))
			}
		}
		src.Records = logRecords(q.logs)
	case src.Records == nil:
		src.NoRecords = "no audit log is known: start with --log FILE, or with --local for the daemon on this machine"
	}
	return src, nil
}

// shellQuote quotes a word for a shell, where it needs it.
func shellQuote(s string) string {
	if strings.Trim(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:@,+=") == "" && s != "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// fingerprint returns what tells whether manifests have changed since it was asked
// before: names, sizes and times of files.
func fingerprint(paths []string) func() bool {
	if slices.Contains(paths, "-") {
		return nil // it was read once, and there is no more of it
	}
	sum := func() uint64 {
		h := fnv.New64a()
		for _, path := range paths {
			_ = filepath.WalkDir(path, func(name string, e fs.DirEntry, err error) error {
				fmt.Fprintln(h, name, err)
				if err != nil {
					return nil // a file that has just gone is a change, too
				}
				if info, err := os.Stat(name); err == nil {
					fmt.Fprintln(h, info.Size(), info.ModTime().UnixNano())
				}
				return nil
			})
		}
		return h.Sum64()
	}
	last := sum()
	return func() bool {
		now := sum()
		changed := now != last
		last = now
		return changed
	}
}

// logRecords reads records of log files, merged by time if they are several.
func logRecords(paths []string) func(context.Context, ui.RecordQuestion, func([]byte) error, func(string)) error {
	return func(ctx context.Context, q ui.RecordQuestion, line func([]byte) error, note func(string)) error {
		f, err := q.Filter.Filter("", time.Now())
		if err != nil {
			return err
		}
		ask := logQuestion{filter: f}
		one := func(ctx context.Context, path string, line func([]byte) error, caught func()) error {
			return auditlog.Tail(ctx, path, auditlog.TailOptions{
				ReadOptions: auditlog.ReadOptions{Since: f.Since}, Lines: q.Lines, Follow: q.Follow, Keep: ask.keep(), Caught: caught,
				Missing: func(first, last uint64) {
					note(fmt.Sprintf("records %d to %d were rotated away before they could be read", first, last))
				},
			}, line)
		}
		if len(paths) == 1 {
			return one(ctx, paths[0], line, nil)
		}
		return mergeLogs(ctx, paths, q.Lines, line, one)
	}
}

// mergeLogs reads several logs as one.
func mergeLogs(ctx context.Context, paths []string, lines int, line func([]byte) error,
	one func(ctx context.Context, path string, line func([]byte) error, caught func()) error,
) error {
	m := auditlog.Merger{Hold: holdLines, Last: lines, Deliver: line}
	do := make(chan func() error)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	send := func(f func() error) error {
		select {
		case do <- f:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	ended := make(chan error)
	for _, path := range paths {
		m.Begin(path)
	}
	for _, path := range paths {
		go func() {
			err := one(ctx, path, func(b []byte) error {
				b = slices.Clone(b)
				return send(func() error { m.Add(b, time.Now()); return nil })
			}, func() { _ = send(func() error { return m.Caught(path) }) }) // fails when nobody listens any more
			_ = send(func() error { return m.Caught(path) }) // as above
			select {
			case ended <- err:
			case <-ctx.Done():
			}
		}()
	}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for left := len(paths); left > 0; {
		var err error
		select {
		case <-ctx.Done():
			return ctx.Err()
		case f := <-do:
			err = f()
		case now := <-tick.C:
			err = m.Release(now)
		case err = <-ended:
			left--
		}
		if err != nil {
			return err
		}
	}
	return m.Flush()
}

// records reads the logs of daemons: of a cluster's, or of the one here.
func (n *nodesFlags) records(cmd *cobra.Command) func(context.Context, ui.RecordQuestion, func([]byte) error, func(string)) error {
	return func(ctx context.Context, q ui.RecordQuestion, line func([]byte) error, note func(string)) error {
		words := auditlog.Words{}
		for name, v := range q.Filter {
			words[name] = v
		}
		only := words["node"]
		delete(words, "node") // it chooses streams
		f, err := words.Filter("", time.Now())
		if err != nil {
			return err
		}
		for name, at := range map[string]time.Time{"since": f.Since, "until": f.Until} {
			if !at.IsZero() {
				words[name] = []string{at.UTC().Format(time.RFC3339Nano)} // by this machine's clock
			}
		}
		t := &nodeTail{
			tail: api.Tail{Filter: words, Lines: q.Lines, Follow: q.Follow}, notes: noteWriter(note),
			merge: auditlog.Merger{Hold: holdLines, Last: q.Lines, Deliver: line}, retry: time.Second,
		}
		d, err := n.daemons()
		switch {
		case n.local || errors.Is(err, cluster.ErrNone):
			t.list = func(context.Context) ([]cluster.Daemon, error) { return []cluster.Daemon{{Node: "this node"}}, nil }
			t.client = func(cluster.Daemon) (*api.Client, func()) { one := n.here(); return one.Client, one.close }
		case err != nil:
			return err
		default:
			t.client = d.Client
			t.list = func(ctx context.Context) ([]cluster.Daemon, error) {
				list, err := d.List(ctx)
				if err == nil && len(only) > 0 {
					list, err = pick(list, only)
				}
				return list, err
			}
		}
		err = t.run(ctx)
		var incomplete *cli.FindingError
		if errors.As(err, &incomplete) {
			note(err.Error())
			return nil
		}
		return err
	}
}

// noteWriter makes lines notes.
type noteWriter func(string)

func (n noteWriter) Write(p []byte) (int, error) {
	n(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// dialed is a daemon that is reached by a connection of one's own making.
func dialed(dial func(context.Context) (cluster.Conn, error)) target {
	t := &http.Transport{DisableCompression: true, DialContext: func(ctx context.Context, _, _ string) (cluster.Conn, error) { return dial(ctx) }}
	return target{
		Client: &api.Client{HTTP: &http.Client{Transport: t}, Base: "http://" + agent.Default().Metrics.Address}, close: t.CloseIdleConnections,
	}
}
