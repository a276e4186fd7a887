package main

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
)

func newAuditTop() *cobra.Command {
	var q logQuestion
	by := []string{"verdict", "policy", "source"}
	n := 10
	cmd := &cobra.Command{
		Use:   "top [FILE...]",
		Short: "Count records: who, by which policy, how often",
		Long: `Counts the records that match by any of these, most packets first:

  ` + wrap(strings.Join(auditlog.Keys(), ", "), 76, "\n  ") + `

A record stands for one packet, or for the number it says: denied packets that are
equal within a window are one record. Connections that are allowed are recorded
with their first packet. Of a default deny "policy" is all policies that isolate:
none of them alone denied it.

` + ofNodes,
		Example: `  tierwall audit top --by policy,source --verdict Drop --since 24h
  tierwall audit top --by destination,port -n 50 -o json`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(q.source(cmd, args), q.parse(cmd)); err != nil {
				return err
			}
			t, err := auditlog.NewTop(by...)
			if err != nil {
				return usage(cmd, fmt.Errorf("--by: %w", err))
			}
			err = q.each(cmd, logs(args), func(r *audit.Record, _ []byte) error {
				t.Add(r)
				return nil
			}, func([]byte) error {
				t.Bad()
				return nil
			})
			if err != nil {
				return err
			}
			if q.output.JSON() {
				err = writeTopJSON(cmd.OutOrStdout(), t, n, &q.cover)
			} else {
				q.cover.tell(cmd.ErrOrStderr(), q.words.words(), q.zone())
				err = writeTop(cmd.OutOrStdout(), t, n, q.zone())
			}
			return errors.Join(err, q.incomplete())
		},
	}
	q.flags(cmd, "text", "json")
	q.addNodes(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&by, "by", by, "what to count by")
	f.IntVarP(&n, "lines", "n", n, "how many groups to print; -1 for all")
	return cmd
}

func writeTopJSON(w io.Writer, t *auditlog.Top, n int, read *coverage) error {
	groups, total := t.Groups(n)
	out := struct {
		By     []string         `json:"by"`
		Groups []map[string]any `json:"groups"`
		Total  int              `json:"total"` // groups, printed or not
		auditlog.Totals
		Read *coverage `json:"read,omitempty"` // when nothing matched
	}{By: t.By(), Groups: []map[string]any{}, Total: total, Totals: t.Totals()}
	if read.matched == 0 {
		out.Read = read
	}
	for _, g := range groups {
		values := map[string]string{}
		for i, k := range t.By() {
			values[k] = g.Values[i]
		}
		out.Groups = append(out.Groups, map[string]any{
			"values": values, "records": g.Records, "packets": g.Packets, "first": g.First, "last": g.Last,
		})
	}
	return cli.WriteJSON(w, out)
}

func writeTop(w io.Writer, t *auditlog.Top, n int, zone *time.Location) error {
	s := cli.StyleFor(w)
	groups, total := t.Groups(n)
	head := []string{"PACKETS", "RECORDS", "LAST"}
	for _, k := range t.By() {
		head = append(head, strings.ToUpper(k))
	}
	rows := [][]string{head}
	for _, g := range groups {
		row := []string{
			strconv.FormatUint(g.Packets, 10), strconv.FormatUint(g.Records, 10), g.Last.In(zone).Format(time.DateTime),
		}
		for _, v := range g.Values {
			if v == "" {
				v = "-"
			}
			row = append(row, v)
		}
		rows = append(rows, row)
	}
	var b strings.Builder
	align(&b, rows, 2, func(row, col int, text string) string {
		if row == 0 {
			return s.Dim(text)
		}
		if col >= 3 && t.By()[col-3] == "verdict" {
			return s.VerdictAs(strings.TrimSpace(text), text)
		}
		return text
	})
	sum := t.Totals()
	fmt.Fprintf(&b, "%s\n", s.Dim(fmt.Sprintf("%d of %s; %s, %s", len(groups), cli.Plural(total, "group"), cli.Plural(sum.Records, "record"), cli.Plural(sum.Packets, "packet"))))
	writeGaps(&b, s, sum.Lost, sum.Bad)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeGaps says what a summary cannot know.
func writeGaps(b *strings.Builder, s cli.Style, lost, bad uint64) {
	if lost > 0 {
		fmt.Fprintf(b, "%s\n", s.Yellow(cli.Plural(lost, "record")+" missing, as the log itself says: the counts are lower bounds."))
	}
	if bad > 0 {
		fmt.Fprintf(b, "%s\n", s.Yellow("Not counted: "+cli.Plural(bad, "line")+" without a record."))
	}
}

// align writes rows with columns padded to equal width, the first right columns
// to the right. paint gets the padded text.
func align(b *strings.Builder, rows [][]string, right int, paint func(row, col int, text string) string) {
	rows = cli.EscapeAll(rows)
	var width []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	for r, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell))
			switch {
			case i < right:
				cell = pad + cell
			case i < len(row)-1:
				cell += pad
			}
			if i > 0 {
				b.WriteString("  ")
			}
			b.WriteString(paint(r, i, cell))
		}
		b.WriteByte('\n')
	}
}

// wrap breaks a list at blanks so that no line is longer than width.
func wrap(s string, width int, newline string) string {
	var b strings.Builder
	col := 0
	for i, w := range strings.Fields(s) {
		switch {
		case i == 0:
		case col+1+len(w) > width:
			b.WriteString(newline)
			col = 0
		default:
			b.WriteByte(' ')
			col++
		}
		b.WriteString(w)
		col += len(w)
	}
	return b.String()
}

func newAuditStaged() *cobra.Command {
	var q logQuestion
	n := 10
	cmd := &cobra.Command{
		Use:   "staged [FILE...]",
		Short: "Show what enforcing staged policies would change",
		Long: `A policy of any API with the annotation tierwall.io/stage: audit is evaluated and
recorded, and not enforced. This command adds up what such policies would have
done to the connections in the log, if all of them had been enforced:

  deny     connections that passed and would not have
  open     connections that were denied, by the side that would have let them pass
  unknown  denied by something that left no record: cannot be told
  none     no difference

Promote a policy (remove the annotation) when what it would deny is what it should.

` + ofNodes,
		Example: `  tierwall audit staged --since 7d
  tierwall audit staged --policy shop/db-lockdown -n -1`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := errors.Join(q.source(cmd, args), q.parse(cmd)); err != nil {
				return err
			}
			s := auditlog.NewStaged()
			s.Keep = func(r *audit.Record) bool {
				ok := q.filter.Match(r)
				if ok {
					q.cover.matched++
				}
				return ok
			}
			lost, bad, err := q.events(cmd, logs(args), s.Add)
			if err != nil {
				return err
			}
			r := s.Report(n)
			r.Lost, r.Bad = lost, bad
			if q.output.JSON() {
				err = cli.WriteJSON(cmd.OutOrStdout(), r)
			} else {
				q.cover.tell(cmd.ErrOrStderr(), q.words.words(), q.zone())
				err = writeStaged(cmd.OutOrStdout(), &r, q.zone())
			}
			return errors.Join(err, q.incomplete())
		},
	}
	q.flags(cmd, "text", "json")
	q.addNodes(cmd)
	cmd.Flags().IntVarP(&n, "lines", "n", n, "how many changed connections to list per policy; -1 for all")
	return cmd
}

// events groups the records of the time and nodes asked for into events. The
// rest of the filter is the caller's to apply: what else happened to a packet
// tells what a record means.
func (q *logQuestion) events(cmd *cobra.Command, paths []string, add func(auditlog.Event)) (lost, bad uint64, err error) {
	events := auditlog.Events{Done: add}
	all := logQuestion{filter: auditlog.Filter{Since: q.filter.Since, Until: q.filter.Until, Nodes: q.filter.Nodes}, nodes: q.nodes}
	defer func() {
		matched := q.cover.matched
		q.cover, q.asked, q.failed = all.cover, all.asked, all.failed
		q.cover.matched = matched
	}()
	if len(all.filter.Nodes) > 0 {
		all.words.lists = map[string]*[]string{"node": &all.filter.Nodes}
	}
	err = all.each(cmd, paths, func(r *audit.Record, _ []byte) error {
		if r.Kind == audit.KindLost {
			lost += r.Count
		}
		events.Add(r)
		return nil
	}, func([]byte) error {
		bad++
		return nil
	})
	events.Flush()
	return lost, bad, err
}

func writeStaged(w io.Writer, r *auditlog.StagedReport, zone *time.Location) error {
	r = cli.EscapeAll(r)
	s := cli.StyleFor(w)
	var b strings.Builder
	if r.Events == 0 {
		b.WriteString("No recorded connection met a staged policy.\n")
		writeGaps(&b, s, r.Lost, r.Bad)
		_, err := io.WriteString(w, b.String())
		return err
	}
	fmt.Fprintf(&b, "%s met staged policies, from %s to %s.\n", cli.Plural(r.Events, "recorded decision"),
		r.First.In(zone).Format(time.DateTime), r.Last.In(zone).Format(time.DateTime))
	for i := range r.Policies {
		p := &r.Policies[i]
		fmt.Fprintf(&b, "\n%s\n", s.Bold(p.Policy))
		verdict := s.Green("would change nothing")
		if p.Deny+p.Open+p.Unknown > 0 {
			verdict = s.Red(fmt.Sprintf("would deny %d", p.Deny)) + ", " + s.Yellow(fmt.Sprintf("would open %d", p.Open))
			if p.Unknown > 0 {
				verdict += fmt.Sprintf(", unknown %d", p.Unknown)
			}
		}
		fmt.Fprintf(&b, "  %s; no difference for %d\n", verdict, p.None)
		var rows [][]string
		for _, f := range p.Flows {
			rows = append(rows, []string{
				"  " + f.Effect, f.From + " -> " + f.To, f.Port, cli.Plural(f.Packets, "packet"), "last " + f.Last.In(zone).Format(time.DateTime), f.By,
			})
		}
		align(&b, rows, 0, func(_, col int, text string) string {
			if col == 0 && strings.TrimSpace(text) == auditlog.EffectDeny {
				return s.Red(text)
			}
			return text
		})
	}
	if r.Unlisted > 0 {
		fmt.Fprintf(&b, "\n%s counted and not listed: too many different ones.\n", cli.Plural(r.Unlisted, "changed connection"))
	}
	writeGaps(&b, s, r.Lost, r.Bad)
	_, err := io.WriteString(w, b.String())
	return err
}

func newAuditVerify() *cobra.Command {
	output := cli.NewFormat("text", "json")
	var known string
	var nodes nodesFlags
	cmd := &cobra.Command{
		Use:   "verify [FILE]",
		Short: "Check the hash chain of an audit log",
		Long: `With audit.chain in the daemon's configuration every line of the log carries the
SHA-256 of the line before it, across rotated files. This command checks every
link: a line that was changed, removed, added or moved shows.

What a chain cannot show by itself is a log whose end was cut off or written anew:
whoever may write the file can compute hashes, too. Keep the last hash this command
prints on another machine and give it to a later run as --known.

--all-nodes lets the daemon of each node check its own log, and --node some of them; a
daemon that does not answer is said. Trust in that is trust in the daemons: read the
logs themselves where that is in question.

Exit status 1: something was changed, or there is no chain, or a node did not answer.`,
		Example: `  tierwall audit verify
  tierwall audit verify /var/log/tierwall/audit.log --known 6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			path := logs(args)[0]
			all := nodes.all || len(nodes.nodes) > 0
			switch {
			case all && len(args) > 0:
				return usage(cmd, errors.New("--all-nodes and a log of this machine are two different sources: give one"))
			case nodes.cluster.Given() && !all:
				return usage(cmd, errors.New("--kubeconfig and --context go with --all-nodes"))
			}
			if path == auditlog.Stdin {
				return usage(cmd, errors.New("verify needs a file: a log has several"))
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			if all {
				return verifyNodes(ctx, cmd, &nodes, known, output.JSON())
			}
			v, err := auditlog.Verify(ctx, path, known)
			if err != nil {
				return err
			}
			if output.JSON() {
				err = cli.WriteJSON(cmd.OutOrStdout(), v)
			} else {
				err = writeVerification(cmd.OutOrStdout(), &v)
			}
			if err == nil && !v.OK {
				err = &cli.FindingError{Err: errors.New("the log does not verify"), Shown: true}
			}
			return err
		},
	}
	nodes.clusterOnly(cmd)
	f := cmd.Flags()
	f.StringSliceVar(&nodes.nodes, "node", nil, "let the daemon of this node check its log; may be given several times")
	f.StringVar(&known, "known", "", "hash an earlier verification printed: its line must still be there")
	f.VarP(output, "output", "o", "output format")
	return cmd
}

func writeVerification(w io.Writer, v *auditlog.Verification) error {
	v = cli.EscapeAll(v)
	s := cli.StyleFor(w)
	var b strings.Builder
	for _, br := range v.Breaks {
		fmt.Fprintf(&b, "%s %s:%d", s.Red("changed"), br.File, br.Line)
		if br.Seq != 0 {
			fmt.Fprintf(&b, " (record %d)", br.Seq)
		}
		fmt.Fprintf(&b, ": %s\n", br.Why)
	}
	if v.Known != nil {
		if v.Known.Found {
			fmt.Fprintf(&b, "The known hash is that of %s:%d.\n", v.Known.File, v.Known.Line)
		} else {
			fmt.Fprintf(&b, "%s: no line has the known hash; the log was cut or written anew, or the file is gone.\n", s.Red("missing"))
		}
	}
	switch {
	case v.Chained == 0:
		fmt.Fprintf(&b, "%s: no hash chain in %s of %s (configuration key audit.chain).\n", s.Yellow("not protected"), cli.Plural(v.Lines, "line"), cli.Plural(len(v.Files), "file"))
	case v.OK:
		fmt.Fprintf(&b, "%s: %s in %s, hash chain intact.\n", s.Green("verified"), cli.Plural(v.Chained, "line"), cli.Plural(len(v.Files), "file"))
	}
	if v.Chained > 0 && v.Unchained > 0 {
		fmt.Fprintf(&b, "Not protected: %s before the chain began.\n", cli.Plural(v.Unchained, "line"))
	}
	if v.Chained > 0 && strings.Trim(v.First, "0") != "" {
		fmt.Fprintf(&b, "The first line builds on %s: what was before it is not here.\n", v.First)
	}
	if v.Lost > 0 {
		fmt.Fprintf(&b, "%s missing, as the log itself says.\n", cli.Plural(v.Lost, "record"))
	}
	if v.Chained > 0 {
		fmt.Fprintf(&b, "Last hash, of record %d: %s\n", v.Seq, v.Last)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
