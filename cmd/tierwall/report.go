package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/cmd/internal/report"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/source/manifests"
)

type reportFlags struct {
	world
	opt     report.Options
	log     string
	known   string
	daemons nodesFlags
	output  *cli.Format
}

func newReport() *cobra.Command {
	var q reportFlags
	cmd := &cobra.Command{
		Use:   "report [--manifests DIR] [--log FILE] [--profile pci|cis] > report.html",
		Short: "Write down who can reach whom, and what of it meets a standard",
		Long: `Writes one HTML file without scripts that loads nothing, or the same as JSON: who can
reach whom (every pair of pods, and pods with addresses outside; all protocols and
ports), isolation by namespace, policies in order with what they override, what
staged policies would change, and the tables that nodes enforce. With --log, an
audit log, also rules that nobody used, and whether the log's hash chain is intact.

--profile pci lists every connection that is possible from what is out of scope into
--in-scope: evidence for PCI DSS 11.4.5 and 11.4.6, and none is a pass. Out of scope
is all that is not in scope, addresses outside included and host-network pods not,
unless --out-of-scope says what is. --profile cis says of every namespace whether it
has policies: CIS Kubernetes Benchmark 5.3.2. What was not read fails a profile.

Selectors are those of "tierwall test":

` + assure.EndForms + `

Exit code 0: written, and a profile passes; 1: it does not; 2: it cannot be asked.`,
		Example: `  tierwall report --manifests policies/ > report.html
  tierwall report --log /var/log/tierwall/audit.log > report.html
  tierwall report -m policies/ --profile pci --in-scope ns:scope=cde > pci.html
  tierwall report -m policies/ --profile cis -o json | jq -r '.profile.namespaces[] | select(.pass | not) | .namespace'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return q.run(cmd) },
	}
	q.flags(cmd)
	q.output = cli.NewFormat("html", "json")
	f := cmd.Flags()
	f.StringVar(&q.log, "log", "", "audit log (or its directory): rules that were not used, and its hash chain")
	f.StringVar(&q.known, "known", "", "hash an earlier report or verification printed: its line must still be in the log")
	f.StringVar(&q.opt.Profile, "profile", "", "pci or cis: does it meet this standard?")
	f.StringArrayVar(&q.opt.InScope, "in-scope", nil, "pci: what has to be protected; may be given several times")
	f.StringArrayVar(&q.opt.OutOfScope, "out-of-scope", nil, "pci: what must not reach it (default: all that is not in scope)")
	f.BoolVar(&q.daemons.local, "local", false, "ask the daemon on this machine for its table, too")
	f.StringVar(&q.daemons.address, "address", agent.Default().Metrics.Address, "--local: where it listens")
	f.StringVar(&q.daemons.namespace, "daemon-namespace", cluster.DefaultNamespace, "namespace of the daemons")
	f.IntVar(&q.daemons.port, "daemon-port", cluster.DefaultPort, "port the daemons listen on")
	f.VarP(q.output, "output", "o", "form of the answer")
	return cmd
}

func (q *reportFlags) run(cmd *cobra.Command) error {
	if err := q.opt.Check(); err != nil {
		return usage(cmd, err)
	}
	if q.known != "" && q.log == "" {
		return usage(cmd, errors.New("--known is a hash of --log, which is not given"))
	}
	out := cmd.OutOrStdout()
	if f := cli.Terminal(out); !q.output.JSON() && f != nil && term.IsTerminal(int(f.Fd())) {
		return usage(cmd, errors.New("a page is not for a terminal: write it to a file with > report.html, or ask for -o json"))
	}
	in, err := q.load(cmd, "")
	if err != nil {
		return err
	}
	w := cmd.ErrOrStderr()
	if err := in.WriteGaps(w, cli.StyleFor(w)); err != nil {
		return err
	}
	if in.Table == nil {
		if err := cli.WriteFindings(w, cli.StyleFor(w), false, &in.Findings); err != nil {
			return err
		}
		return errors.New("the policies have errors: there is nothing to report about")
	}
	q.opt.Namespace = q.cluster.Namespace
	if err := q.made(cmd, in); err != nil {
		return err
	}
	if err := q.readLog(cmd); err != nil {
		return err
	}
	q.askNodes(cmd, in)
	d, err := report.Build(in, q.opt)
	if err != nil {
		return err
	}
	b := bufio.NewWriterSize(out, 1<<16)
	if q.output.JSON() {
		err = d.WriteJSON(b)
	} else {
		err = d.WriteHTML(b)
	}
	if err = errors.Join(err, b.Flush()); err != nil || d.Profile == nil {
		return err
	}
	word := map[bool]string{true: "pass", false: "fail"}[d.Profile.Pass]
	fmt.Fprintf(w, "%s: %s\n", d.Profile.Control, word)
	for _, why := range d.Profile.Why {
		fmt.Fprintf(w, "  %s\n", cli.Escape(why))
	}
	if !d.Profile.Pass {
		return &cli.FindingError{Err: errors.New(d.Profile.Name + " fails"), Shown: true}
	}
	return nil
}

// made fills in what the report is made from.
func (q *reportFlags) made(cmd *cobra.Command, in *cli.Input) error {
	m := &q.opt.Made
	v := buildVersion()
	m.Time, m.Version, m.Source = time.Now().UTC().Truncate(time.Second), v.Version, "manifests"
	if v.Revision != "" {
		m.Version += " (" + v.Revision + ")"
	}
	if in.Live {
		m.Source = "cluster"
		c, err := q.cluster.Open()
		if err != nil {
			return err
		}
		m.Cluster = c.Name()
		return nil
	}
	for _, path := range q.manifests {
		p := report.Path{Path: path}
		if path == manifests.Stdin {
			p.Path = "standard input"
		} else {
			p.Commit, p.Changed, _ = changes.Commit(cmd.Context(), path)
		}
		m.Paths = append(m.Paths, p)
	}
	return nil
}

// readLog counts the records of rules and verifies the hash chain.
func (q *reportFlags) readLog(cmd *cobra.Command) error {
	if q.log == "" {
		return nil
	}
	path := q.log
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "audit.log")
	}
	q.opt.Log, q.opt.Seen = &report.Log{}, report.NewLogReader()
	l := q.opt.Log
	var all logQuestion
	err := all.each(cmd, []string{path}, func(r *audit.Record, _ []byte) error {
		if r.Kind == audit.KindLost {
			l.Lost += r.Count
		}
		q.opt.Seen.Add(r)
		return nil
	}, func([]byte) error {
		l.Bad++
		return nil
	})
	if err != nil {
		return err
	}
	l.Files, l.Records, l.First, l.Last = all.cover.Files, all.cover.Records, all.cover.First, all.cover.Last
	chain, err := auditlog.Verify(cmd.Context(), path, q.known)
	l.Chain = &chain
	return err
}

// askNodes asks daemons which table they have. That none is there is an answer.
func (q *reportFlags) askNodes(cmd *cobra.Command, in *cli.Input) {
	n := &q.opt.Nodes
	if !in.Live && !q.daemons.local {
		n.Unknown = "manifests say nothing about nodes (--local asks the daemon on this machine)."
		return
	}
	q.daemons.cluster = q.cluster
	if q.daemons.local {
		q.daemons.cluster = cluster.Options{}
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), readTimeout)
	defer cancel()
	targets, err := q.daemons.targets(ctx, cmd)
	if err != nil {
		n.Unknown = "the daemons were not found: " + err.Error() + "."
		return
	}
	n.List = make([]report.Node, len(targets))
	errs := ask(ctx, targets, func(ctx context.Context, i int, t *target) (err error) {
		n.List[i].Status, err = t.Client.Status(ctx)
		return err
	})
	for i, err := range errs {
		if n.List[i].Node = nodeName(&targets[i]); err != nil {
			n.List[i].Error = err.Error()
		} else if targets[i].Node == "" {
			n.List[i].Node = n.List[i].Status.Node
		}
	}
	slices.SortFunc(n.List, func(a, b report.Node) int { return strings.Compare(a.Node, b.Node) })
	if len(targets) == 0 {
		n.Unknown = "there are no daemons in the namespace " + q.daemons.namespace + "."
	}
}
