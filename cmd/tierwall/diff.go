package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/assure"
)

// liveSource is the name of the cluster among the sources of diff.
const liveSource = "cluster"

// gcPercent lets the heap of a comparison grow to four times of what it needs: it lives
// for seconds, and with Go's 100 a third of its time would be the garbage collector's.
const gcPercent = 300

type diffFlags struct {
	world
	git, base, log, failOn string
	pods, all              bool
	output                 *cli.Format
}

func newDiff() *cobra.Command {
	var q diffFlags
	cmd := &cobra.Command{
		Use:   "diff OLD NEW | diff --git REVISION [PATH]",
		Short: "Show which connections a change of policies opens and closes",
		Long: `Compares two states of policies and pods and lists every connection that is
decided in another way: opened first, then closed, then those with the same answer
by another rule. Nothing is sampled: all pods, protocols, ports, ICMP messages and
outside addresses are compared.

OLD and NEW are directories or files of manifests, "-" for standard input, or
"cluster" for the cluster of your kubeconfig. With --git, OLD is PATH (default: the
current directory) as it is in that revision of its repository and NEW is PATH as it
is now; A..B compares two revisions. --base does the same for the first of the two
alone: a revision, or a directory.

Ends are workloads; --pods names pods. A prefix such as 203.0.113.0/24 stands for
the addresses in it that no pod and no node has; 10.0.0.1/32 may be a node. What only
one state has is listed and not compared. --log counts how many connections of an
audit log each change concerns.

JSON: {"changes":[{"from","to","family","protocol","ports":[first,last],"before":
{"verdict","policy","rule","direction"},"after":{…},"kind"}],"summary":{"opened",
"closed","rule"},"added":[…],"removed":[…]}; kind is opened, closed or rule. Ports
of ICMP are type*256+code; protocol "other" is every protocol that no policy names;
"some" says that not all pods of the workloads are concerned, "sourcePorts" that not
all source ports are. markdown is a comment for a pull request, csv has the columns
of np-guard's connectivity diff and the rules behind them, dot is a graph.

Exit code 0 without a change, 1 with one that --fail-on names.`,
		Example: `  tierwall diff old/ new/
  tierwall diff --git main policies/
  tierwall diff --git v1.2..v1.3 policies/ -o markdown
  tierwall diff cluster policies/ --fail-on opened
  tierwall diff old/ new/ --pods -o json | jq '.changes[] | select(.kind == "opened")'`,
		Args: cobra.MaximumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error { return q.run(cmd, args) },
	}
	clusterFlags(cmd, &q.cluster)
	lowerFlags(cmd, &q.lower)
	q.output = cli.NewFormat("text", "json", "markdown", "csv", "dot")
	f := cmd.Flags()
	f.StringVar(&q.git, "git", "", "compare with a git revision, or two: A..B")
	f.StringVar(&q.base, "base", "", "the old state: a directory, or a git revision of NEW")
	f.StringVar(&q.log, "log", "", "audit log (or its directory) to count connections of")
	f.StringVar(&q.failOn, "fail-on", "any", "which changes make the exit code 1: opened, closed, any or none")
	f.BoolVar(&q.pods, "pods", false, "name pods, not workloads")
	f.BoolVar(&q.all, "all", false, "text: show all connections that only another rule decides")
	f.VarP(q.output, "output", "o", "form of the answer")
	return cmd
}

func (q *diffFlags) run(cmd *cobra.Command, args []string) error {
	switch q.failOn {
	case "opened", "closed", "any", "none":
	default:
		return usage(cmd, fmt.Errorf("--fail-on %q: want opened, closed, any or none", q.failOn))
	}
	if os.Getenv("GOGC") == "" {
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	}
	tmp, err := os.MkdirTemp("", "tierwall-diff-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(tmp) }() // a temporary directory more is not worth an error
	old, now, err := q.sources(cmd, args, tmp)
	if err != nil {
		return err
	}
	inputs, err := q.read(cmd, old, now)
	if err != nil {
		return err
	}
	d, err := assure.Compare(inputs[0].State(), inputs[1].State(), assure.Options{Pods: q.pods})
	if err != nil {
		return err
	}
	if len(d.Units()) == 0 {
		return fmt.Errorf("%s and %s have no workload in common: there is nothing to compare (%d only in the old state, %d only in the new; --pods compares pods by name)",
			old.name, now.name, len(d.Removed), len(d.Added))
	}
	if q.log != "" {
		if err := q.weigh(cmd, d); err != nil {
			return err
		}
	}
	sum, err := q.write(cmd, d)
	if err != nil {
		return err
	}
	n := map[string]int{"opened": sum.Opened, "closed": sum.Closed, "any": sum.Total()}[q.failOn]
	if n > 0 {
		return &cli.FindingError{Err: errors.New(changes.Head(sum)), Shown: true}
	}
	return nil
}

// source is a state to read: a path, standard input, or the cluster.
type source struct {
	name string // as the user says it
	path string // "" for the cluster
}

// sources finds out what is compared with what.
func (q *diffFlags) sources(cmd *cobra.Command, args []string, tmp string) (old, now source, err error) {
	ctx := cmd.Context()
	switch {
	case q.git != "" && q.base != "":
		return old, now, usage(cmd, errors.New("--git and --base both name the old state: give one"))
	case q.git != "" || q.base != "":
		if len(args) > 1 {
			return old, now, usage(cmd, errors.New("the old state is given twice: by a flag and as an argument"))
		}
		path := "."
		if len(args) == 1 {
			path = args[0]
		}
		if q.base != "" {
			if _, err := os.Stat(q.base); err == nil || q.base == liveSource {
				return named(q.base), named(path), nil
			}
			old, err = q.revision(ctx, path, q.base, filepath.Join(tmp, "old"))
			return old, named(path), err
		}
		from, to, both := strings.Cut(q.git, "..")
		if old, err = q.revision(ctx, path, from, filepath.Join(tmp, "old")); err != nil {
			return old, now, err
		}
		if both {
			now, err = q.revision(ctx, path, to, filepath.Join(tmp, "new"))
			return old, now, err
		}
		return old, named(path), nil
	case len(args) != 2:
		return old, now, usage(cmd, errors.New("give the old and the new state, or --git REVISION"))
	case args[0] == "-" && args[1] == "-":
		return old, now, usage(cmd, errors.New("standard input can be one of the two states only"))
	}
	return named(args[0]), named(args[1]), nil
}

func named(arg string) source {
	if arg == liveSource {
		if _, err := os.Stat(arg); errors.Is(err, fs.ErrNotExist) {
			return source{name: "the cluster"}
		}
	}
	return source{arg, arg}
}

func (q *diffFlags) revision(ctx context.Context, path, revision, dir string) (source, error) {
	if path == liveSource || path == "-" {
		return source{}, fmt.Errorf("%s has no git revisions: give a directory", path)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return source{}, err
	}
	at, err := changes.Checkout(ctx, path, revision, dir)
	return source{revision + ":" + path, at}, err
}

// read reads both states at once. What is wrong with one of them is printed, with
// which one it is.
func (q *diffFlags) read(cmd *cobra.Command, old, now source) ([2]*cli.Input, error) {
	var in [2]*cli.Input
	var g errgroup.Group
	for i, s := range []source{old, now} {
		g.Go(func() error {
			var err error
			if s.path == "" {
				in[i], err = q.live(cmd, "")
			} else {
				in[i], err = cli.Read(q.lower, []string{s.path}, cmd.InOrStdin())
			}
			if err != nil {
				return fmt.Errorf("%s state: %w", [2]string{"old", "new"}[i], err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return in, err
	}
	w := cmd.ErrOrStderr()
	for i, s := range []source{old, now} {
		if strings.HasPrefix(s.path, os.TempDir()) && s.path != s.name {
			in[i].Rename(s.path, s.name)
		}
		if err := in[i].WriteGaps(w, cli.StyleFor(w)); err != nil {
			return in, err
		}
		if in[i].Fit() {
			continue
		}
		if err := cli.WriteFindings(w, cli.StyleFor(w), false, &in[i].Findings); err != nil {
			return in, err
		}
		return in, fmt.Errorf("the %s state (%s) has errors: correct them first", [2]string{"old", "new"}[i], s.name)
	}
	return in, nil
}

// weigh counts the connections of an audit log.
func (q *diffFlags) weigh(cmd *cobra.Command, d *assure.Diff) error {
	path := q.log
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "audit.log")
	}
	unknown, folded := uint64(0), uint64(0)
	log := logQuestion{}
	lost, bad, err := log.events(cmd, []string{path}, func(ev auditlog.Event) {
		r := &ev.Records[0]
		key, ok := auditlog.KeyOf(r)
		if !ok {
			folded++
			return
		}
		end := func(e *audit.Endpoint) assure.LogEnd {
			return assure.LogEnd{Namespace: e.Namespace, Pod: e.Pod, Labels: e.Labels, Addr: e.IP}
		}
		if !d.Weigh(end(r.Source), end(r.Destination), key.Proto, key.DstPort, 1) {
			unknown++
		}
	})
	if err != nil {
		return err
	}
	if unknown+folded+lost+bad > 0 {
		_, err = fmt.Fprintf(cmd.ErrOrStderr(), "log: not counted: %d connections of pods that are not compared, %d folded records, %d lost, %d lines that are no records\n",
			unknown, folded, lost, bad)
	}
	return err
}

func (q *diffFlags) write(cmd *cobra.Command, d *assure.Diff) (assure.Summary, error) {
	w := cmd.OutOrStdout()
	switch q.output.String() {
	case "json":
		return changes.WriteJSON(w, d)
	case "markdown":
		return changes.WriteMarkdown(w, d, q.log != "")
	case "csv":
		return changes.WriteCSV(w, d)
	case "dot":
		return changes.WriteDOT(w, d)
	}
	most := 30
	if q.all {
		most = 0
	}
	return changes.WriteText(w, cli.StyleFor(w), d, q.log != "", most)
}
