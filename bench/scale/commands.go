package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// ErrTargets is returned, after the report was printed, by runs that were asked
// to fail when a target is missed.
var ErrTargets = errors.New("targets missed")

// Commands are the subcommands of tierwall-bench that this package is.
func Commands() []*cobra.Command { return []*cobra.Command{scaleCommand(), lagCommand()} }

// output are the flags every command has for what becomes of its report.
type output struct {
	format, record string
	strict         bool
}

func (o *output) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.format, "output", "o", "text", "text, json or markdown")
	f.StringVar(&o.record, "record", "", "directory to write the report to, as JSON and markdown named by command, date and machine")
	f.BoolVar(&o.strict, "strict", false, "exit with 1 if a target is missed")
}

// run measures and writes; name is for the recorded files.
func (o *output) run(cmd *cobra.Command, name string, measure func(context.Context) (*Report, error)) error {
	if !slices.Contains([]string{"text", "json", "markdown"}, o.format) {
		return fmt.Errorf("-o %s: want text, json or markdown", o.format)
	}
	rep, err := measure(cmd.Context())
	if err != nil {
		return err
	}
	if err := rep.Write(cmd.OutOrStdout(), o.format); err != nil {
		return err
	}
	if o.record != "" {
		if err := rep.record(o.record, name); err != nil {
			return err
		}
	}
	if o.strict && slices.ContainsFunc(rep.Results, func(r Result) bool { return !r.Passed() }) {
		return ErrTargets
	}
	return nil
}

func commandLine() string { return "tierwall-bench " + strings.Join(os.Args[1:], " ") }

func scaleCommand() *cobra.Command {
	var c Config
	var o output
	cmd := &cobra.Command{
		Use:   "scale",
		Short: "One daemon in a simulated cluster: start, memory, CPU, lag, reading anew",
		Long: `Starts a simulated API server with a made-up cluster, and tierwalld with it, in
network namespaces of their own. Measures the time until the policy is in force,
memory, CPU at rest and under changes, what is read from the API server, the lag
from an event of the API server to the packet it decides, and what it costs to
read everything anew.

Needs root, veth and nf_tables, and about 2 GiB of memory for 100,000 pods.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Size.Nodes < 1 || c.Size.Pods < c.Size.Nodes || c.Size.Pods > 200*c.Size.Nodes || c.Size.Policies < 0 || c.Size.Services < 0 || c.Changes < 0 {
				return errors.New("want at least one node, from 1 to 200 pods a node, and no negative numbers")
			}
			c.Progress, c.Command = cmd.ErrOrStderr(), commandLine()
			return o.run(cmd, fmt.Sprintf("scale-%dpods", c.Size.Pods), func(ctx context.Context) (*Report, error) { return Run(ctx, c) })
		},
	}
	f := cmd.Flags()
	f.IntVar(&c.Size.Nodes, "nodes", 5000, "nodes")
	f.IntVar(&c.Size.Pods, "pods", 100_000, "pods")
	f.IntVar(&c.Size.Services, "services", 5000, "Services")
	f.IntVar(&c.Size.Policies, "policies", 10_000, "policies in namespaces, of three languages; 54 cluster-wide ones come on top")
	f.StringVar(&c.Dataplane, "dataplane", "auto", "tierwalld's dataplane")
	f.StringVar(&c.Daemon, "daemon", "", "tierwalld to measure; default: built from this module")
	f.DurationVar(&c.Idle, "idle", 30*time.Second, "length of a measurement at rest")
	f.DurationVar(&c.Churn, "churn", 20*time.Second, "length of a measurement under changes")
	f.IntSliceVar(&c.Rates, "rates", []int{10, 50, 200}, "changes per second")
	f.IntVar(&c.Changes, "changes", 1000, "changes whose lag is measured")
	o.flags(cmd)
	return cmd
}

func lagCommand() *cobra.Command {
	var c LagConfig
	var o output
	cmd := &cobra.Command{
		Use:   "lag --kubeconfig FILE --image IMAGE",
		Short: "In a real cluster: from a request to the API server to the packet it decides",
		Long: `Makes a namespace with one pod, and changes that let this program reach the pod
and deny it again: edits of a policy and of a label. Measures how long after the
request was sent the first packet gets through, or the last. The namespace is
removed at the end.

Run it where pods can be reached, but not on the pod's node: a node may always
reach its own pods.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if c.Changes < 1 {
				return errors.New("--changes: want at least 1")
			}
			c.Progress, c.Command = cmd.ErrOrStderr(), commandLine()
			return o.run(cmd, "lag", func(ctx context.Context) (*Report, error) { return Lag(ctx, c) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Kubeconfig, "kubeconfig", os.Getenv("KUBECONFIG"), "how to reach the API server")
	f.StringVar(&c.Namespace, "namespace", "tierwall-lag", "namespace to make; must not exist")
	f.StringVar(&c.Image, "image", "", "image of agnhost, whose netexec answers datagrams")
	f.StringVar(&c.Node, "node", "", "node for the pod; default: any")
	f.IntVar(&c.Changes, "changes", 1000, "changes")
	_ = cmd.MarkFlagRequired("image") // the flag is there
	o.flags(cmd)
	return cmd
}
