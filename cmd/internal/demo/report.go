package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/dataplane/audit"
)

// Report is the outcome of a demo; its JSON form is a contract with other tools.
type Report struct {
	Mismatches int    `json:"mismatches"` // probes whose fate the table did not predict
	Probes     int    `json:"probes"`
	Passed     int    `json:"passed"`
	Refused    int    `json:"refused"`
	Retried    int    `json:"retried"`   // passed, but not at the first attempt
	Broken     int    `json:"broken"`    // probes that failed for a reason of their own
	Dataplane  string `json:"dataplane"` // the backends that ran, "afxdp+nfqueue"
	Why        string `json:"why"`       // why these
	// Policies counts policy objects, Rules what they were lowered to.
	Policies    int          `json:"policies"`
	Rules       int          `json:"rules"`
	Stats       Stats        `json:"stats"`
	Audit       AuditSummary `json:"audit"`
	Differences []Difference `json:"differences"`
	Failures    []string     `json:"failures"` // of broken probes
	Seconds     float64      `json:"seconds"`
	// DaemonLog is the end of the daemon's log, when the report is not OK.
	DaemonLog string `json:"daemonLog,omitempty"`

	observations []Observation
}

// AuditSummary is what the daemon recorded.
type AuditSummary struct {
	Records int `json:"records"`
	// Tail has the last record of every rule that left one, oldest first.
	Tail []audit.Record `json:"tail"`
}

// OK reports whether wire and table agree and nothing else went wrong.
func (r *Report) OK() bool { return r.Mismatches == 0 && r.Broken == 0 }

func (r *Report) observe(obs []Observation) {
	r.observations, r.Probes = obs, len(obs)
	r.Differences, r.Failures = []Difference{}, []string{}
	for i := range obs {
		o := &obs[i]
		switch {
		case o.Broken != nil:
			r.Broken++
			r.Failures = append(r.Failures, o.Broken.Error())
			continue
		case o.Passed:
			r.Passed++
			if o.Attempts > 1 {
				r.Retried++
			}
		default:
			r.Refused++
		}
		if o.Differs() {
			r.Mismatches++
			r.Differences = append(r.Differences, difference(o))
		}
	}
}

// readAudit summarises an audit log of JSON lines.
func readAudit(ctx context.Context, path string) (AuditSummary, error) {
	sum := AuditSummary{Tail: []audit.Record{}}
	type place struct{ verdict, policy, rule, direction string }
	last := map[place]audit.Record{}
	err := audit.Follow(ctx, path, audit.FollowOptions{FromStart: true, Once: true}, func(line []byte) error {
		if len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		rec, err := audit.Parse(line)
		if err != nil {
			return err
		}
		sum.Records++
		k := place{verdict: rec.Verdict + rec.Kind + rec.Reason, direction: rec.Direction}
		for _, p := range rec.Deciders() {
			k.policy += p.Group + "/" + p.Kind + "/" + p.Namespace + "/" + p.Name + " "
		}
		if rec.Rule != nil {
			k.rule = fmt.Sprintf("%s[%d]", rec.Rule.Name, rec.Rule.Index)
		}
		last[k] = rec
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return sum, fmt.Errorf("read the audit log: %w", err)
	}
	for _, rec := range last {
		sum.Tail = append(sum.Tail, rec)
	}
	slices.SortFunc(sum.Tail, func(a, b audit.Record) int { return a.Time.Compare(b.Time) })
	return sum, nil
}

// mostDifferences bounds the list of mismatches for people; JSON has them all.
const mostDifferences = 20

// WriteText prints the report for people.
func (r *Report) WriteText(w io.Writer, s cli.Style, width int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s\n", s.Bold("1. What came through on the wire, beside what the table predicts"))
	b.WriteString("rows connect to columns; " + s.Green(".") + " passes over IPv4 and IPv6, " + s.Red("X") +
		" over neither, " + s.Yellow("4 6") + " over that one only\n")
	m := arrange(r.observations)
	for _, ports := range m.groups() {
		r.pictures(&b, s, width, m, ports)
	}
	for i, d := range r.Differences {
		if i == 0 {
			fmt.Fprintf(&b, "\n%s\n", s.Alarm(" wire and table disagree "))
		}
		if i == mostDifferences {
			fmt.Fprintf(&b, "  and %d more\n", len(r.Differences)-i)
			break
		}
		fmt.Fprintf(&b, "  %s\n", s.Red(cli.Escape(fmt.Sprintf("%s > %s %s IPv%d: %s, predicted %s (%s)",
			d.From, d.To, d.Port, d.Family, d.Observed, d.Predicted.Verdict, because(&d.Predicted)))))
	}
	for i, f := range r.Failures {
		if i == mostDifferences {
			fmt.Fprintf(&b, "  and %d more\n", len(r.Failures)-i)
			break
		}
		fmt.Fprintf(&b, "  %s\n", s.Red("probe failed: "+cli.Escape(f)))
	}

	fmt.Fprintf(&b, "\n%s\n", s.Bold("2. Audit records: the last one of every rule that left any"))
	for i := range r.Audit.Tail {
		b.WriteString(cli.AuditLine(s, time.Local, &r.Audit.Tail[i]) + "\n")
	}
	fmt.Fprintf(&b, "%s\n", s.Dim(fmt.Sprintf("(%s in all)", cli.Plural(r.Audit.Records, "record"))))

	fmt.Fprintf(&b, "\n%s\n", s.Bold("3. Statistics"))
	fmt.Fprintf(&b, "%s judged in userspace, %d bypassed it, %d dropped; verdict latency p50 < %s, p99 < %s\n",
		cli.Plural(r.Stats.Upcalls, "packet"), r.Stats.Bypassed, r.Stats.Dropped,
		roundUp(r.Stats.LatencyP50Ns), roundUp(r.Stats.LatencyP99Ns))
	if lost := r.Stats.KernelDrops + r.Stats.Overflow; lost > 0 {
		fmt.Fprintf(&b, "%s dropped by the kernel alone, %d dropped (queue full)\n", cli.Plural(r.Stats.KernelDrops, "packet"), r.Stats.Overflow)
	}
	fmt.Fprintf(&b, "dataplane %s: %s\n", s.Cyan(r.Dataplane), r.Why)

	verdict := s.Green("0 mismatches")
	if r.Mismatches > 0 {
		verdict = s.Alarm(fmt.Sprintf(" %d mismatches ", r.Mismatches))
		if r.Mismatches == 1 {
			verdict = s.Alarm(" 1 mismatch ")
		}
	}
	if r.Broken > 0 {
		verdict += ", " + s.Alarm(" "+cli.Plural(r.Broken, "probe")+" failed ")
	}
	if r.DaemonLog != "" {
		fmt.Fprintf(&b, "the daemon's last words:\n%s\n", r.DaemonLog)
	}
	if r.Retried > 0 {
		fmt.Fprintf(&b, "%s passed at the second attempt only\n", cli.Plural(r.Retried, "connection"))
	}
	fmt.Fprintf(&b, "\n%s in %s (%d passed, %d refused), %s, %s, %.1f s\n",
		verdict, cli.Plural(r.Probes, "connection"), r.Passed, r.Refused, cli.Plural(r.Policies, "policy"), cli.Plural(r.Rules, "rule"), r.Seconds)
	_, err := io.WriteString(w, b.String())
	return err
}

// roundUp is a bound of a histogram in two digits: "2.1ms" for 2,097,152.
func roundUp(ns uint64) time.Duration {
	step := uint64(1)
	for ns/step >= 100 {
		step *= 10
	}
	return time.Duration((ns + step - 1) / step * step)
}

// because names what decided a predicted flow.
func because(f *query.Flow) string {
	side := &f.Ingress
	if f.Egress.Verdict != "Allow" {
		side = &f.Egress
	}
	if len(side.Isolations) > 1 {
		return "isolated by " + strings.Join(side.Isolations, ", ")
	}
	if side.Policy == "" {
		return side.Reason
	}
	return strings.TrimSpace(side.Policy + " " + side.Rule)
}

// pictures prints the observed and the predicted matrix of ports that share
// them: side by side where the width allows.
func (r *Report) pictures(b *strings.Builder, s cli.Style, width int, m *matrix, ports []string) {
	grid := func(set func(*cell) uint8) (g query.Grid) {
		g = query.Grid{Rows: m.hosts, Cols: m.hosts, Width: width}
		g.Cell = func(row, col int) (string, string) {
			c := m.cells[cellKey{ports[0], m.hosts[row], m.hosts[col]}]
			if c == nil {
				return " ", " "
			}
			sym := symbol(set(c), c.asked)
			switch {
			case c.broken != 0:
				return "?", s.Alarm("?")
			case c.observed != c.predicted:
				return sym, s.Alarm(sym)
			case sym == ".":
				return sym, s.Green(sym)
			case sym == "X":
				return sym, s.Red(sym)
			}
			return sym, s.Yellow(sym)
		}
		return g
	}
	observed := grid(func(c *cell) uint8 { return c.observed })
	predicted := grid(func(c *cell) uint8 { return c.predicted })
	fmt.Fprintf(b, "\n%s\n", s.Bold(strings.Join(ports, "  ")))
	left, right := observed.Lines(), predicted.Lines()
	// The heading is the widest line and never painted.
	column := len(left[0])
	const gap = 4
	if 2*column+gap > width || len(left) != len(right) {
		fmt.Fprintf(b, "observed\n%s\npredicted\n%s\n", strings.Join(left, "\n"), strings.Join(right, "\n"))
		return
	}
	fmt.Fprintf(b, "%-*s%s\n", column+gap, "observed", "predicted")
	for i := range left {
		b.WriteString(strings.TrimRight(left[i]+strings.Repeat(" ", gap)+right[i], " ") + "\n")
	}
}
