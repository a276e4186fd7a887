package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/policy/diag"
)

// askTimeout bounds what one daemon may take to answer a question that ends.
const askTimeout = 30 * time.Second

// atOnce is how many daemons are asked at a time: each is a connection through
// the API server and a kubelet.
const atOnce = 32

// nodesFlags say which daemons to ask, and how to get to them.
type nodesFlags struct {
	nodes     []string
	all       bool
	local     bool
	address   string
	namespace string
	port      int
	cluster   cluster.Options
}

// flags adds all of them. Commands whose own --namespace means something else
// pass theirs to the cluster by other means.
func (n *nodesFlags) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&n.nodes, "node", nil, "ask the daemon of this node; may be given several times")
	f.BoolVar(&n.local, "local", false, "ask the daemon on this machine, without a cluster")
	f.StringVar(&n.address, "address", agent.Default().Metrics.Address, "where the daemon on this machine listens (its key metrics.address)")
	n.clusterOnly(cmd)
}

// clusterOnly adds the flags for daemons of a cluster.
func (n *nodesFlags) clusterOnly(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&n.all, "all-nodes", false, "ask the daemons of all nodes of the cluster")
	f.StringVar(&n.namespace, "daemon-namespace", cluster.DefaultNamespace, "namespace of the daemons")
	f.IntVar(&n.port, "daemon-port", cluster.DefaultPort, "port the daemons listen on")
	f.StringVar(&n.cluster.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: $KUBECONFIG, ~/.kube/config)")
	f.StringVar(&n.cluster.Context, "context", "", "context of the kubeconfig (default: its current one)")
}

// target is a daemon to ask.
type target struct {
	Node   string
	Pod    string
	Why    string // why it cannot be asked
	Client *api.Client
	close  func()
}

// targets finds the daemons: --local is the one here; --node some, and --all-nodes
// or nothing all of the cluster. Without a cluster, nothing means the one here.
func (n *nodesFlags) targets(ctx context.Context, cmd *cobra.Command) ([]target, error) {
	named := 0
	for _, is := range []bool{n.local, n.all, len(n.nodes) > 0} {
		if is {
			named++
		}
	}
	if named > 1 || n.local && n.cluster.Given() {
		return nil, usage(cmd, errors.New("--local, --node and --all-nodes are different daemons: give one"))
	}
	if n.local {
		return []target{n.here()}, nil
	}
	d, err := n.daemons()
	if errors.Is(err, cluster.ErrNone) && named == 0 {
		return []target{n.here()}, nil
	}
	if err != nil {
		return nil, err
	}
	list, err := d.List(ctx)
	if err != nil {
		return nil, err
	}
	if len(n.nodes) > 0 {
		if list, err = pick(list, n.nodes); err != nil {
			return nil, err
		}
	}
	out := make([]target, len(list))
	for i, one := range list {
		out[i] = target{Node: one.Node, Pod: one.Pod, Why: one.Why, close: func() {}}
		if one.Why == "" {
			out[i].Client, out[i].close = d.Client(one)
		}
	}
	return out, nil
}

// daemons are the cluster's.
func (n *nodesFlags) daemons() (*cluster.Daemons, error) {
	c, err := n.cluster.Open()
	if err != nil {
		return nil, err
	}
	return &cluster.Daemons{Cluster: c, Namespace: n.namespace, Port: n.port}, nil
}

// here is the daemon on this machine.
func (n *nodesFlags) here() target {
	t := &http.Transport{DisableCompression: true}
	return target{Client: &api.Client{HTTP: &http.Client{Transport: t}, Base: "http://" + n.address}, close: t.CloseIdleConnections}
}

// nobodyHere is the error of a question to this machine alone, where no daemon runs.
func (n *nodesFlags) nobodyHere(targets []target, errs []error) error {
	if len(targets) != 1 || targets[0].Node != "" || !errors.Is(errs[0], syscall.ECONNREFUSED) {
		return nil
	}
	return fmt.Errorf("no daemon runs on this machine: nothing listens on %s (start tierwalld, or name a cluster with --kubeconfig)", n.address)
}

// pick returns the daemons of the nodes that are named.
func pick(list []cluster.Daemon, nodes []string) ([]cluster.Daemon, error) {
	var out []cluster.Daemon
	for _, name := range nodes {
		i := slices.IndexFunc(list, func(d cluster.Daemon) bool { return d.Node == name })
		if i < 0 {
			known := make([]string, len(list))
			for j, d := range list {
				known[j] = d.Node
			}
			return nil, fmt.Errorf("no node %s%s", name, diag.Among(name, known))
		}
		out = append(out, list[i])
	}
	return out, nil
}

// ask calls one for every daemon that can be asked, several at a time, and
// returns why the others could not be, and what went wrong. One error or nil for
// every target.
func ask(ctx context.Context, targets []target, one func(ctx context.Context, i int, t *target) error) []error {
	errs := make([]error, len(targets))
	list := make([]cluster.Daemon, len(targets))
	cluster.Each(ctx, list, atOnce, func(ctx context.Context, i int, _ cluster.Daemon) {
		t := &targets[i]
		defer t.close()
		if t.Why != "" {
			errs[i] = errors.New(t.Why)
			return
		}
		ctx, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		errs[i] = one(ctx, i, t)
	})
	return errs
}

// answered turns what went wrong into the command's error: a finding when some
// daemons answered, and none when all did.
func answered(cmd *cobra.Command, targets []target, errs []error) error {
	failed := 0
	for i, err := range errs {
		if err == nil {
			continue
		}
		failed++
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", nodeName(&targets[i]), err)
	}
	switch {
	case failed == 0:
		return nil
	case failed == len(targets):
		return errors.New("no daemon answered")
	}
	return cli.Finding("%d of %d daemons did not answer", failed, len(targets))
}

func nodeName(t *target) string {
	if t.Node == "" {
		return "this node"
	}
	return t.Node
}
