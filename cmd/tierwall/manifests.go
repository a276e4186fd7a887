package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/kube"
)

// readTimeout bounds reading a cluster.
const readTimeout = 2 * time.Minute

// world has the flags that say where policies and pods are read from: manifests,
// or a cluster.
type world struct {
	manifests agent.Paths
	cluster   cluster.Options
	lower     lower.Options
	endpoints bool // the question is about a Service, perhaps: read EndpointSlices
}

func (w *world) flags(cmd *cobra.Command) {
	manifestsFlag(cmd, &w.manifests, "directory or file of Kubernetes YAML, \"-\" for standard input; may be given several times (default: the cluster)")
	clusterFlags(cmd, &w.cluster)
	lowerFlags(cmd, &w.lower)
}

// manifestsFlag adds the flag --manifests: every use adds a directory or file.
func manifestsFlag(cmd *cobra.Command, p *agent.Paths, help string) {
	cmd.Flags().VarP(p, "manifests", "m", help)
}

// clusterFlags are kubectl's.
func clusterFlags(cmd *cobra.Command, o *cluster.Options) {
	f := cmd.Flags()
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig of the cluster (default: $KUBECONFIG, ~/.kube/config)")
	f.StringVar(&o.Context, "context", "", "context of the kubeconfig (default: its current one)")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of names without one, and the one to read where reading all is forbidden (default: the context's)")
}

// load reads and compiles what the flags name. A cluster is only read when no
// manifests are given.
func (w *world) load(cmd *cobra.Command, node string) (*cli.Input, error) {
	switch {
	case len(w.manifests) > 0 && w.cluster.Given():
		return nil, usage(cmd, errors.New("--manifests and a cluster (--kubeconfig, --context) are two different sources: give one"))
	case len(w.manifests) > 0:
		return cli.LoadWith(w.lower, w.manifests, node, cmd.InOrStdin())
	}
	return w.live(cmd, node)
}

func (w *world) live(cmd *cobra.Command, node string) (*cli.Input, error) {
	c, err := w.cluster.Open()
	if errors.Is(err, cluster.ErrNone) {
		return nil, usage(cmd, fmt.Errorf("nothing to read: --manifests is not given, and %w", err))
	}
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), readTimeout)
	defer cancel()
	return cli.Live(ctx, c.Config, w.lower, node, kube.ReadOptions{Fallback: c.Namespace, EndpointSlices: w.endpoints})
}

// question has the flags of commands that ask policies something.
type question struct {
	world
	node   string
	family query.Family
	output *cli.Format
}

func (q *question) flags(cmd *cobra.Command) {
	q.world.flags(cmd)
	q.output = cli.NewFormat("text", "json")
	f := cmd.Flags()
	f.StringVar(&q.node, "node", "", "answer as this node's daemon would: only its own pods are policed (default: all pods)")
	f.Var((*familyFlag)(&q.family), "family", "address family (default: IPv4 where both ends have it, else IPv6)")
	f.VarP(q.output, "output", "o", "output format")
}

// lowerFlags adds the flags for what the daemon's configuration says about policies.
func lowerFlags(cmd *cobra.Command, opt *lower.Options) {
	cmd.Flags().BoolVar(&opt.AllowMixedDialects, "allow-mixed-dialects", false,
		"accept KEP and released AdminNetworkPolicies together, as a daemon with allowMixedDialects does")
	cmd.Flags().StringSliceVar(&opt.NamespacedTiers, "namespaced-tiers", nil,
		"tiers that Antrea's namespaced policies may use, as antrea.namespacedTiers of a daemon (default: all)")
}

// load compiles the manifests or the cluster. Warnings and what could not be read
// go to the error output; errors are printed as "tierwall check" prints them, in
// the form that was asked for.
func (q *question) load(cmd *cobra.Command) (*cli.Input, error) {
	in, err := q.world.load(cmd, q.node)
	if err != nil {
		return nil, err
	}
	if err := showFindings(cmd, in, q.output.JSON()); err != nil {
		return nil, err
	}
	return in, in.CheckNamespace(q.cluster.Namespace)
}

// showFindings prints what is wrong with the policies. It returns the finding to
// exit with when there is nothing left to answer from: of a cluster, what is
// wrong with one policy is left out, of manifests it is all or nothing, as the
// daemon has it.
func showFindings(cmd *cobra.Command, in *cli.Input, asJSON bool) error {
	w := cmd.ErrOrStderr()
	if err := in.WriteGaps(w, cli.StyleFor(w)); err != nil {
		return err
	}
	if in.Table != nil || len(in.Findings.Errors) == 0 {
		return cli.WriteFindings(w, cli.StyleFor(w), false, &in.Findings)
	}
	if asJSON {
		w = cmd.OutOrStdout()
	}
	if err := cli.WriteFindings(w, cli.StyleFor(w), asJSON, &in.Findings); err != nil {
		return err
	}
	return &cli.FindingError{Err: in.Findings.Err(), Shown: true}
}

// writeAnswer prints an answer as JSON: an object, with what could not be read of
// a cluster as its last key, "incomplete".
func writeAnswer(w io.Writer, in *cli.Input, v any) error {
	if len(in.Gaps) == 0 {
		return cli.WriteJSON(w, v)
	}
	var body, gaps bytes.Buffer
	if err := errors.Join(cli.WriteJSON(&body, v), cli.WriteJSON(&gaps, map[string][]cli.Gap{"incomplete": in.Gaps})); err != nil {
		return err
	}
	object, ok := bytes.CutSuffix(body.Bytes(), []byte("\n}\n"))
	if !ok {
		return fmt.Errorf("an answer that is no JSON object: %T", v)
	}
	_, err := w.Write(append(append(object, ','), bytes.TrimPrefix(gaps.Bytes(), []byte("{"))...))
	return err
}

// familyFlag is the flag form of query.Family.
type familyFlag query.Family

func (f *familyFlag) String() string {
	switch query.Family(*f) {
	case query.IPv4:
		return "4"
	case query.IPv6:
		return "6"
	}
	return ""
}

func (f *familyFlag) Set(s string) error {
	family, err := query.ParseFamily(s)
	if err == nil && family == query.AnyFamily {
		err = errors.New("want 4 or 6")
	}
	*f = familyFlag(family)
	return err
}

func (f *familyFlag) Type() string { return "4|6" }
