// Package audit measures the audit log: how many decisions a second one core can
// write, what is lost, how late a line is, what a record costs the packet path,
// and how much memory a port scan takes.
//
//	go run ./bench/cmd/tierwall-bench audit -o markdown
//
// Everything runs in this process, without privileges, on a table compiled by
// the classifier and with the writer the daemon uses. Files go to a folder of
// its own, which is removed. The cases:
//
//	audit_rate/tierwall         decisions/s from the event ring to the disk, fsync included
//	audit_rate/raw_append       the same bytes appended by write(2) in the same pieces, fsync included
//	audit_format/tierwall       decisions/s without a disk: what the core can do
//	audit_format/chained        the same with a hash chain
//	audit_lost/at_200k          records lost when 200,000 decisions/s are offered
//	audit_latency_p99/at_10k    from the packet to the line in the file, at 10,000 decisions/s
//	verdict_cost/unaudited      processor time per new connection, no rule asks for a record
//	verdict_cost/audited        the same with two records each
//	verdict_cost/audited_busy   the same while the writer works on another processor
//	portscan_memory             peak resident size of the whole process during the scan
//	portscan_records            lines the scan left
//
// Rounds of cases that are compared with each other alternate, and the median
// counts.
package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
)

// Result is one measured value.
type Result struct {
	Case   string  `json:"case"` // measurement/subject
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Min    float64 `json:"min,omitempty"` // of the rounds; Value is their median
	Max    float64 `json:"max,omitempty"`
	Ratio  float64 `json:"ratio,omitempty"` // to Base
	Base   string  `json:"base,omitempty"`
	Note   string  `json:"note,omitempty"`
	Target string  `json:"target,omitempty"`
}

// Report is a whole run.
type Report struct {
	Machine machine  `json:"machine"`
	Results []Result `json:"results"`
}

// Options size a run. Zero values mean the defaults in brackets.
type Options struct {
	Dir      string    // parent of the folder for log files [the system's temporary folder]
	Rounds   int       // of compared cases [5]
	Seconds  float64   // of the paced cases [10]
	Sources  int       // of the port scan [1000]
	Only     []string  // parts to run: scan, rate, loss, latency, cost [all]
	Progress io.Writer // one line per case [none]
}

func (o *Options) defaults() {
	if o.Rounds <= 0 {
		o.Rounds = 5
	}
	if o.Seconds <= 0 {
		o.Seconds = 10
	}
	if o.Sources <= 0 {
		o.Sources = 1000
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
}

// Commands returns the subcommands of tierwall-bench that this package has.
func Commands() []*cobra.Command {
	var opt Options
	format := "text"
	cmd := &cobra.Command{
		Use:   "audit",
		Short: "Rate, loss, latency, packet path cost and memory of the audit log",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opt.Progress = cmd.ErrOrStderr()
			return Run(cmd.Context(), cmd.OutOrStdout(), format, opt)
		},
	}
	f := cmd.Flags()
	f.StringVarP(&format, "output", "o", format, "text, json or markdown")
	f.StringVar(&opt.Dir, "dir", "", "where to write log files; default: the system's temporary folder")
	f.IntVar(&opt.Rounds, "rounds", 5, "rounds of compared cases")
	f.Float64Var(&opt.Seconds, "seconds", 10, "length of the paced cases")
	f.StringSliceVar(&opt.Only, "only", nil, "parts to run: scan, rate, loss, latency, cost")
	f.IntVar(&opt.Sources, "sources", 1000, "scanning addresses; each tries 65,535 ports")
	return []*cobra.Command{cmd}
}

// Run measures everything and writes the report to out. format is text, json or
// markdown. A figure that contradicts itself (a record missing that nobody
// reported) is an error, not a result.
func Run(ctx context.Context, out io.Writer, format string, opt Options) (err error) {
	write, ok := map[string]func(io.Writer, *Report) error{"text": writeText, "json": writeJSON, "markdown": writeMarkdown}[format]
	if !ok {
		return fmt.Errorf("output %q: want text, json or markdown", format)
	}
	opt.defaults()
	dir, err := os.MkdirTemp(opt.Dir, "tierwall-bench-audit-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	s, err := newScene()
	if err != nil {
		return err
	}
	rep := &Report{Machine: thisMachine(dir)}
	for _, part := range []struct {
		name string
		f    func(context.Context, *scene, string, *Options) ([]Result, error)
	}{{"scan", portScan}, {"rate", rate}, {"loss", loss}, {"latency", latency}, {"cost", verdictCost}} {
		if len(opt.Only) > 0 && !slices.Contains(opt.Only, part.name) {
			continue
		}
		fmt.Fprintf(opt.Progress, "%s…\n", part.name)
		results, err := part.f(ctx, s, dir, &opt)
		if err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
		for _, r := range results {
			fmt.Fprintf(opt.Progress, "  %-26s %12s %s\n", r.Case, number(r.Value), r.Unit)
		}
		rep.Results = append(rep.Results, results...)
	}
	return write(out, rep)
}

// median returns a Result with the median, least and greatest of the rounds.
func median(name, unit string, rounds []float64) Result {
	s := slices.Sorted(slices.Values(rounds))
	return Result{Case: name, Unit: unit, Value: s[len(s)/2], Min: s[0], Max: s[len(s)-1]}
}

func number(v float64) string {
	switch {
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	case v == float64(int64(v)):
		return fmt.Sprintf("%d", int64(v))
	}
	return fmt.Sprintf("%.2f", v)
}

func writeJSON(w io.Writer, r *Report) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

func writeText(w io.Writer, r *Report) error {
	fmt.Fprintln(w, r.Machine)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "case\tvalue\tunit\trounds\tratio\ttarget\tnote")
	for _, x := range r.Results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", x.Case, number(x.Value), x.Unit, x.spread(), x.ratio(), x.Target, x.Note)
	}
	return t.Flush()
}

func writeMarkdown(w io.Writer, r *Report) error {
	fmt.Fprintf(w, "%s\n\n| case | value | unit | rounds | ratio | target | note |\n|---|---|---|---|---|---|---|\n", r.Machine)
	for _, x := range r.Results {
		if _, err := fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s |\n",
			x.Case, number(x.Value), x.Unit, x.spread(), x.ratio(), x.Target, x.Note); err != nil {
			return err
		}
	}
	return nil
}

func (r *Result) spread() string {
	if r.Max == 0 {
		return ""
	}
	return number(r.Min) + "–" + number(r.Max)
}

func (r *Result) ratio() string {
	if r.Base == "" {
		return ""
	}
	return fmt.Sprintf("%.2f × %s", r.Ratio, r.Base)
}
