package main

import (
	"context"
	"io"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

func newAudit() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Read the audit log: what was decided, why, and what another policy would do",
		Long: `Reads the daemon's JSON audit log (docs/audit-log.md), its rotated and compressed
files included. FILE is the log's own name; "-" is standard input; without FILE it
is ` + agent.Default().Audit.File + `.

  tail      the last records, and new ones as they come
  query     all records that match
  top       who, by which policy, how often
  staged    what promoting audit-only policies would do
  simulate  what other policies would have decided
  verify    whether a hash-chained log was changed

Filters are the same everywhere. Flags of different kinds must all match, of a
repeated one any. Names are patterns: --pod 'shop/frontend-*'. Records of missing
records ("lost") always show, unless the time or node is another one.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newAuditTail(), newAuditQuery(), newAuditTop(), newAuditStaged(), newAuditSimulate(), newAuditVerify())
	return cmd
}

// logQuestion has the flags of commands that select records of a log.
type logQuestion struct {
	filter auditlog.Filter
	words  filterFlags
	utc    bool
	output *cli.Format
	cover  coverage

	nodes         *nodesFlags // nil for commands that read logs of this machine only
	asked, failed int         // nodes, once their logs were read
	inOrder       bool        // records of several nodes are wanted in the order of time
}

func (q *logQuestion) flags(cmd *cobra.Command, formats ...string) {
	q.output = cli.NewFormat(formats...)
	w, f := &q.words, cmd.Flags()
	w.list(cmd, "verdict", "Allow, Drop, Reject, Pass; of audit-only policies would-allow, would-drop, would-reject, would-pass")
	w.list(cmd, "kind", "flow (decisions), packet (undecidable ones), lost, file")
	w.list(cmd, "stage", "enforce or audit")
	w.list(cmd, "label", "log label of the rule")
	w.list(cmd, "node", "node that decided")
	w.ends(cmd)
	w.one(cmd, "since", "only records after this time: 15m, 36h, 7d ago, or a time such as \"2026-01-02 15:04\"")
	w.one(cmd, "until", "only records before this time")
	f.BoolVar(&q.utc, "utc", false, "print and read times in UTC instead of local time")
	f.VarP(q.output, "output", "o", "output format")
}

// filterFlags are the flags a filter is written with; see auditlog.Words.
type filterFlags struct {
	lists map[string]*[]string
	texts map[string]*string
}

func (w *filterFlags) list(cmd *cobra.Command, name, help string) {
	if w.lists == nil {
		w.lists = map[string]*[]string{}
	}
	w.lists[name] = new([]string)
	cmd.Flags().StringSliceVar(w.lists[name], name, nil, help)
}

func (w *filterFlags) one(cmd *cobra.Command, name, help string) {
	if w.texts == nil {
		w.texts = map[string]*string{}
	}
	w.texts[name] = new(string)
	cmd.Flags().StringVar(w.texts[name], name, "", help)
}

// ends adds the filters by what connections are: who, what, and by which policy.
func (w *filterFlags) ends(cmd *cobra.Command) {
	w.list(cmd, "direction", "whose side decided: ingress or egress")
	w.list(cmd, "band", "band that decided, as explain names it")
	w.list(cmd, "reason", "rule, isolation, default, …")
	w.list(cmd, "protocol", "TCP, UDP, ICMP, …")
	w.list(cmd, "namespace", "namespace of a pod at either end")
	w.list(cmd, "pod", "pod at either end: NAME or NAMESPACE/NAME")
	w.list(cmd, "policy", "policy that decided: NAME, NAMESPACE/NAME, KIND.GROUP/NAMESPACE/NAME, or as any output writes it")
	w.list(cmd, "rule", "rule that decided: its name, or its place as in ingress[0]")
	w.list(cmd, "cidr", "prefix or address of either end")
	w.list(cmd, "from", "source: NAME, NAMESPACE/NAME, NAMESPACE/, address or prefix")
	w.list(cmd, "to", "destination: NAME, NAMESPACE/NAME, NAMESPACE/, address or prefix")
	w.list(cmd, "port", "destination port: 80, 8000-8080, 53/UDP")
}

// words returns what was given.
func (w *filterFlags) words() auditlog.Words {
	out := auditlog.Words{}
	for name, v := range w.lists {
		if len(*v) > 0 {
			out[name] = *v
		}
	}
	for name, v := range w.texts {
		if *v != "" {
			out[name] = []string{*v}
		}
	}
	return out
}

// zone is the time zone of the output.
func (q *logQuestion) zone() *time.Location {
	if q.utc {
		return time.UTC
	}
	return time.Local
}

// parse turns the flags into the filter.
func (q *logQuestion) parse(cmd *cobra.Command) error {
	var err error
	if q.filter, err = q.words.words().Filter("--", time.Now().In(q.zone())); err != nil {
		return usage(cmd, err)
	}
	return nil
}

// logs returns the logs named on the command line, or the default one.
func logs(args []string) []string {
	if len(args) == 0 {
		return []string{agent.Default().Audit.File}
	}
	return args
}

// each reads all logs and calls record with what the filter selects; bad gets
// lines that are no records.
func (q *logQuestion) each(cmd *cobra.Command, paths []string, record func(r *audit.Record, line []byte) error, bad func(line []byte) error) error {
	if q.nodes != nil && q.nodes.all {
		return q.eachOfNodes(cmd, q.words.words(), q.inOrder, record, bad)
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	opt := auditlog.ReadOptions{Stdin: cmd.InOrStdin(), Since: q.filter.Since, Opened: q.cover.opened}
	for _, path := range paths {
		err := auditlog.Read(ctx, path, opt, func(line []byte) error {
			r, err := audit.Parse(line)
			if err != nil {
				return bad(line)
			}
			q.cover.saw(&r)
			if !q.filter.Match(&r) {
				return nil
			}
			q.cover.matched++
			return record(&r, line)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// interruptible returns a context that ends with SIGINT and SIGTERM.
func interruptible(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
}

// printer prints records the way the flags ask for.
func (q *logQuestion) printer(w io.Writer) *auditlog.Printer {
	return &auditlog.Printer{W: w, Style: cli.StyleFor(w), Format: q.output.String(), Zone: q.zone(), Today: time.Now()}
}
