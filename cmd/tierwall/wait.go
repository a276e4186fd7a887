package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/policy/enforcement"
)

// waitInterval is how often reports are read: daemons write at most one a second.
const waitInterval = 500 * time.Millisecond

func newWait() *cobra.Command {
	var o cluster.Options
	var namespace, what string
	var port int
	timeout := 30 * time.Second
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "wait --for=enforced KIND/NAME",
		Short: "Wait until every node enforces a policy",
		Long: `Waits until every node reports that it enforces a policy as it is in the API server
now. KIND is anything kubectl takes: networkpolicy, netpol, acnp,
clusternetworkpolicies.policy.networking.k8s.io. KIND/NAMESPACE/NAME, and a policy's
name as any other output writes it, are taken, too.

The reports are Leases in the daemons' namespace (right: list leases there). Where
you may not read them, the daemons are asked one by one (rights as for "flows").
With the right to list nodes, nodes without a report are waited for, too.

JSON: {"object","resourceVersion","enforced","nodes":[{"node","state","why"}],
"allNodesKnown"}; state is enforced, pending, refused, unknown or no-report.
Exit code 1 when it is not enforced in time, a node refuses it, or it is staged.`,
		Example: `  tierwall wait --for=enforced networkpolicy/db -n shop
  kubectl apply -f deny.yaml && tierwall wait --for=enforced acnp/deny --timeout 10s`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if what != "enforced" {
				return usage(cmd, fmt.Errorf("--for %q: want enforced", what))
			}
			c, err := o.Open()
			if err != nil {
				return err
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			v, err := c.Find(ctx, args[0])
			if err != nil {
				return err
			}
			if v.Staged {
				return writeStagedWait(cmd.OutOrStdout(), &v, output.JSON())
			}
			w := waiter{daemons: &cluster.Daemons{Cluster: c, Namespace: namespace, Port: port}, version: v, notes: cmd.ErrOrStderr()}
			a, err := w.wait(ctx, timeout)
			if err != nil {
				return err
			}
			return a.write(cmd.OutOrStdout(), output.JSON(), timeout)
		},
	}
	clusterFlags(cmd, &o)
	f := cmd.Flags()
	f.StringVar(&what, "for", "enforced", "what to wait for: enforced")
	f.DurationVar(&timeout, "timeout", timeout, "how long; 0 looks once")
	f.StringVar(&namespace, "daemon-namespace", cluster.DefaultNamespace, "namespace of the daemons")
	f.IntVar(&port, "daemon-port", cluster.DefaultPort, "port the daemons listen on")
	f.VarP(output, "output", "o", "output format")
	return cmd
}

// waitAnswer is the JSON form of "tierwall wait".
type waitAnswer struct {
	Object          string              `json:"object"`
	ResourceVersion uint64              `json:"resourceVersion"`
	Enforced        bool                `json:"enforced"`
	Nodes           []cluster.NodeState `json:"nodes"`
	AllNodesKnown   bool                `json:"allNodesKnown"`
	Stage           string              `json:"stage,omitempty"` // "audit" of a staged policy: there is nothing to wait for
}

// writeStagedWait answers about a policy that no node will ever enforce as it is.
func writeStagedWait(out io.Writer, v *cluster.Version, asJSON bool) error {
	finding := &cli.FindingError{Err: errors.New("staged"), Shown: true}
	if asJSON {
		a := waitAnswer{Object: v.String(), ResourceVersion: v.ResourceVersion, Nodes: []cluster.NodeState{}, Stage: "audit"}
		return errors.Join(cli.WriteJSON(out, a), finding)
	}
	_, err := fmt.Fprintf(out, "%s is staged (annotation tierwall.io/stage: audit): nodes record what it would do, none enforces it\n", v)
	return errors.Join(err, finding)
}

type waiter struct {
	daemons *cluster.Daemons
	version cluster.Version
	notes   io.Writer
	asking  bool // the daemons, because reports cannot be read
}

// wait looks until all nodes enforce, one refuses, or the time is over.
func (w *waiter) wait(ctx context.Context, timeout time.Duration) (*waitAnswer, error) {
	end := time.Now().Add(timeout)
	a := &waitAnswer{Object: w.version.String(), ResourceVersion: w.version.ResourceVersion}
	for {
		var err error
		if a.Nodes, a.AllNodesKnown, err = w.look(ctx); err != nil {
			return nil, err
		}
		enforced, refused := 0, 0
		for _, n := range a.Nodes {
			switch n.State {
			case enforcement.InForce:
				enforced++
			case enforcement.RefusedState:
				refused++
			}
		}
		a.Enforced = enforced == len(a.Nodes) && enforced > 0
		if a.Enforced || refused > 0 || !time.Now().Before(end) {
			if len(a.Nodes) == 0 {
				return nil, cluster.ErrNoNodes
			}
			return a, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(min(waitInterval, time.Until(end)+time.Millisecond)):
		}
	}
}

func (w *waiter) look(ctx context.Context) ([]cluster.NodeState, bool, error) {
	if !w.asking {
		states, certain, err := w.daemons.States(ctx, w.version, time.Now())
		if err == nil || !apierrors.IsForbidden(errors.Unwrap(err)) {
			return states, certain, err
		}
		fmt.Fprintf(w.notes, "%v: asking the daemons instead\n", err)
		w.asking = true
	}
	states, err := w.daemons.AskStates(ctx, w.version, time.Now())
	return states, err == nil, err
}

func (a *waitAnswer) write(out io.Writer, asJSON bool, timeout time.Duration) error {
	var finding error
	if !a.Enforced {
		finding = &cli.FindingError{Err: errors.New("not enforced"), Shown: true}
	}
	if asJSON {
		return errors.Join(cli.WriteJSON(out, a), finding)
	}
	a = cli.EscapeAll(a)
	if a.Enforced {
		_, err := fmt.Fprintf(out, "%s is enforced on all %d nodes\n", a.Object, len(a.Nodes))
		if !a.AllNodesKnown && err == nil {
			_, err = fmt.Fprintln(out, "you may not list nodes: one without a daemon would not show")
		}
		return err
	}
	n := 0
	for _, s := range a.Nodes {
		if s.State == enforcement.InForce {
			n++
		}
	}
	if _, err := fmt.Fprintf(out, "%s is enforced on %d of %d nodes (waited %s)\n", a.Object, n, len(a.Nodes), timeout); err != nil {
		return err
	}
	for _, s := range a.Nodes {
		if s.State == enforcement.InForce {
			continue
		}
		if _, err := fmt.Fprintf(out, "  %s: %s: %s\n", s.Node, s.State, s.Why); err != nil {
			return err
		}
	}
	return finding
}
