package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// ErrTargets is returned, after the report was printed, by runs that were asked
// to fail when a target is missed.
var ErrTargets = errors.New("targets missed")

// Commands are the subcommands of tierwall-bench that this package is.
func Commands() []*cobra.Command {
	return []*cobra.Command{
		command("dataplane", "Packet rate, throughput, new flows and connects of seven ways from pod to pod", Dataplane),
		command("flood", "What one flooding pod does to the accepted flows of others", Flood),
		command("churn", "How long edits of policies and pods take to be in force, and what they cost others", Churn),
		command("restart", "What kills, stops and restarts of the daemon cost accepted flows, and let through", Restart),
		stockCommand(),
	}
}

func command(name, short string, run func(context.Context, Config) (*Report, error)) *cobra.Command {
	var c Config
	var format, plots, record string
	var strict, cluster bool
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Long: short + `.

Everything happens in network namespaces of its own; needs root, veth, tcx and
nf_tables. Progress goes to standard error.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains(formats, format) {
				return fmt.Errorf("-o %s: want one of %q", format, formats)
			}
			for _, s := range c.Subjects {
				if !slices.Contains(allSubjects, withoutNode(withoutCopy(s))) {
					return fmt.Errorf("--subjects %s: want some of %q", s, allSubjects)
				}
			}
			for _, m := range c.Measurements {
				if !slices.Contains(allMeasurements, m) {
					return fmt.Errorf("--measurements %s: want some of %q", m, allMeasurements)
				}
			}
			if cluster {
				if c.Subjects == nil {
					c.Subjects = allSubjects
				}
				c.Subjects = atCluster(c.Subjects)
			}
			if c.Rounds < 0 || c.Window < 0 {
				return errors.New("--rounds and --window: want positive values")
			}
			for _, dir := range []string{plots, record} { // before, not after the measurement
				if dir == "" {
					continue
				}
				if err := os.MkdirAll(dir, 0o755); err != nil {
					return err
				}
			}
			c.Progress = cmd.ErrOrStderr()
			rep, err := run(cmd.Context(), c)
			if err != nil {
				return err
			}
			if err := rep.Write(cmd.OutOrStdout(), format); err != nil {
				return err
			}
			if plots != "" {
				if err := rep.Plot(plots); err != nil {
					return err
				}
			}
			if record != "" {
				if err := rep.record(record); err != nil {
					return err
				}
			}
			if strict && slices.ContainsFunc(rep.Targets, func(v Verdict) bool { return !v.Passed }) {
				return ErrTargets
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVarP(&format, "output", "o", "text", "text, json or markdown")
	f.StringVar(&plots, "plots", "", "directory to write plots to, as SVG")
	f.StringVar(&record, "record", "", "directory to write the report to, as JSON and markdown named by command, date and machine")
	f.BoolVar(&c.Quick, "quick", false, "one short round: shows that it works, not how fast")
	f.BoolVar(&strict, "strict", false, "exit with 1 if a target is missed")
	f.IntVar(&c.Rounds, "rounds", 0, "rounds; 0 is the command's default")
	f.DurationVar(&c.Patience, "patience", 30*time.Second, "how long to wait, in all, for moments in which nobody else uses the machine")
	f.DurationVar(&c.Window, "window", 0, "length of one measurement; 0 is the command's default")
	f.StringSliceVar(&c.Subjects, "subjects", nil, fmt.Sprintf("some of %q; kernel#2 is another kernel, to see how far two of a kind are apart", allSubjects))
	if name == "dataplane" {
		f.StringSliceVar(&c.Measurements, "measurements", nil, fmt.Sprintf("some of %q", allMeasurements))
		f.BoolVar(&cluster, "cluster", false, fmt.Sprintf("measure on nodes with the rules of a Service proxy for %d Services; a subject can also be named so: kernel%s", clusterServices, onCluster))
	}
	f.StringVar(&c.Daemon, "daemon", "", "tierwalld to measure; default: built from this module")
	return cmd
}

// stockCommand is a child of the dataplane command.
func stockCommand() *cobra.Command {
	return &cobra.Command{
		Use: StockCommand + " READYFILE", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return RunStock(ctx, args[0])
		},
	}
}

// record writes the report where results are kept.
func (r *Report) record(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%s-%dcpu", r.Command, r.Machine.Date.Format(time.DateOnly), r.Machine.CPUs)
	for ext, format := range map[string]string{".json": "json", ".md": "markdown"} {
		f, err := os.Create(filepath.Join(dir, name+ext))
		if err != nil {
			return err
		}
		if err := errors.Join(r.Write(f, format), f.Close()); err != nil {
			return err
		}
	}
	return nil
}
