package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/demo"
	"github.com/tierwall/tierwall/cmd/internal/intent"
)

// probeFlags wants flags that go together with --probe.
func (q *testFlags) probeFlags(cmd *cobra.Command) error {
	var err error
	switch {
	case !q.probe && cmd.Flags().Changed("dataplane"):
		err = errors.New("--dataplane goes with --probe")
	case !q.probe:
	case q.live:
		err = errors.New("--probe sends packets in the demo's world, --live asks the daemons of nodes: give one")
	case q.cluster.Given():
		err = errors.New("--probe sends packets in the demo's world (pods x/a to z/c, a host outside), not between pods of a cluster: give --manifests instead of --kubeconfig and --context")
	case len(q.manifests) == 0:
		err = errors.New("--probe needs --manifests: the policies that the demo's world is to have")
	case q.lower.AllowMixedDialects:
		err = errors.New("--probe starts a daemon without allowMixedDialects: leave --allow-mixed-dialects out")
	default:
		for _, m := range q.manifests {
			if m == "-" {
				err = errors.New("--probe reads manifests from files and directories, not from standard input")
			}
		}
	}
	if err != nil {
		return usage(cmd, err)
	}
	return nil
}

// sendProbes makes the connections of the tests in the demo's world.
func (q *testFlags) sendProbes(cmd *cobra.Command, tests []intent.Test, in *cli.Input) (*intent.Results, error) {
	plan, err := intent.PlanProbes(tests, in, q.cluster.Namespace)
	if err != nil {
		return nil, err
	}
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	c := demo.Config{
		Dataplane: q.dataplane.String(), Policies: q.manifests, Executable: executable, Progress: progressOn(cmd),
	}
	results, dataplane, err := demo.Probe(ctx, c, in.Table, plan.List)
	c.Progress.Done()
	switch {
	case err != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return nil, errors.New("the test was interrupted; everything it made is gone")
	case err != nil:
		return nil, err
	}
	return plan.Judge(results, dataplane)
}
