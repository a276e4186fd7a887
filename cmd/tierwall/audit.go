package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/classifier/rule"
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
	filter                       auditlog.Filter
	nets, from, to, ports        []string
	since, until                 string
	utc                          bool
	output                       *cli.Format
	verdicts, kinds, dirs, stage []string
}

func (q *logQuestion) flags(cmd *cobra.Command, formats ...string) {
	q.output = cli.NewFormat(formats...)
	f := cmd.Flags()
	f.StringSliceVar(&q.verdicts, "verdict", nil, "Allow, Drop, Reject, Pass; of audit-only policies would-allow, would-drop, would-reject, would-pass")
	f.StringSliceVar(&q.kinds, "kind", nil, "flow (decisions), packet (undecidable ones), lost, file")
	f.StringSliceVar(&q.dirs, "direction", nil, "whose side decided: ingress or egress")
	f.StringSliceVar(&q.stage, "stage", nil, "enforce or audit")
	f.StringSliceVar(&q.filter.Bands, "band", nil, "band that decided, as explain names it")
	f.StringSliceVar(&q.filter.Reasons, "reason", nil, "rule, isolation, default, …")
	f.StringSliceVar(&q.filter.Nodes, "node", nil, "node that decided")
	f.StringSliceVar(&q.filter.Protocols, "protocol", nil, "TCP, UDP, ICMP, …")
	f.StringSliceVar(&q.filter.Labels, "label", nil, "log label of the rule")
	f.StringSliceVar(&q.filter.Namespaces, "namespace", nil, "namespace of a pod at either end")
	f.StringSliceVar(&q.filter.Pods, "pod", nil, "pod at either end: NAME or NAMESPACE/NAME")
	f.StringSliceVar(&q.filter.Policies, "policy", nil, "policy that decided: NAME, NAMESPACE/NAME or KIND/NAMESPACE/NAME")
	f.StringSliceVar(&q.filter.Rules, "rule", nil, "rule that decided: its name, or its place as in ingress[0]")
	f.StringSliceVar(&q.nets, "cidr", nil, "prefix or address of either end")
	f.StringSliceVar(&q.from, "from", nil, "source: NAME, NAMESPACE/NAME, NAMESPACE/, address or prefix")
	f.StringSliceVar(&q.to, "to", nil, "destination, likewise")
	f.StringSliceVar(&q.ports, "port", nil, "destination port: 80, 8000-8080, 53/UDP")
	f.StringVar(&q.since, "since", "", "not before: 15m, 36h, 7d ago, or a time such as \"2026-01-02 15:04\"")
	f.StringVar(&q.until, "until", "", "not after, likewise")
	f.BoolVar(&q.utc, "utc", false, "print and read times in UTC instead of local time")
	f.VarP(q.output, "output", "o", "form of the output")
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
	f := &q.filter
	var errs []error
	words := func(flag string, given []string, known ...string) []string {
		for _, w := range given {
			if !slices.ContainsFunc(known, func(k string) bool { return strings.EqualFold(k, w) }) {
				errs = append(errs, fmt.Errorf("--%s %q: want one of %s", flag, w, strings.Join(known, ", ")))
			}
		}
		return given
	}
	f.Verdicts = words("verdict", q.verdicts, audit.Allow, audit.Drop, audit.Reject, audit.Pass,
		audit.WouldAllow, audit.WouldDrop, audit.WouldReject, audit.WouldPass)
	f.Kinds = words("kind", q.kinds, audit.KindFlow, audit.KindPacket, audit.KindLost, audit.KindFile)
	f.Directions = words("direction", q.dirs, "ingress", "egress")
	f.Stages = words("stage", q.stage, audit.StageEnforce, audit.StageAudit)
	var bands []string
	for b := rule.Band(0); b <= rule.BandDefault; b++ {
		bands = append(bands, b.String())
	}
	words("band", f.Bands, bands...)
	for flag, patterns := range map[string][]string{
		"namespace": f.Namespaces, "pod": f.Pods, "policy": f.Policies, "label": f.Labels,
	} {
		for _, p := range patterns {
			if err := auditlog.CheckPattern(p); err != nil {
				errs = append(errs, fmt.Errorf("--%s: %w", flag, err))
			}
		}
	}
	f.Nets = parseAll(&errs, "cidr", q.nets, auditlog.ParseNet)
	f.Sources = parseAll(&errs, "from", q.from, auditlog.ParseParty)
	f.Dests = parseAll(&errs, "to", q.to, auditlog.ParseParty)
	f.Ports = parseAll(&errs, "port", q.ports, auditlog.ParsePort)
	now := time.Now().In(q.zone())
	for _, t := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", q.since, &f.Since}, {"until", q.until, &f.Until}} {
		if t.text == "" {
			continue
		}
		var err error
		if *t.to, err = auditlog.ParseTime(t.text, now); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %w", t.flag, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return usage(cmd, err)
	}
	return nil
}

func parseAll[T any](errs *[]error, flag string, texts []string, parse func(string) (T, error)) []T {
	var out []T
	for _, s := range texts {
		v, err := parse(s)
		if err != nil {
			*errs = append(*errs, fmt.Errorf("--%s: %w", flag, err))
		}
		out = append(out, v)
	}
	return out
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
	ctx, stop := interruptible(cmd)
	defer stop()
	opt := auditlog.ReadOptions{Stdin: cmd.InOrStdin(), Since: q.filter.Since}
	for _, path := range paths {
		err := auditlog.Read(ctx, path, opt, func(line []byte) error {
			r, err := audit.Parse(line)
			if err != nil {
				return bad(line)
			}
			if !q.filter.Match(&r) {
				return nil
			}
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
