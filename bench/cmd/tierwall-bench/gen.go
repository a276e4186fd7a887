package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/bench/workload"
)

// newGen writes the clusters that benchmarks measure with.
func newGen() *cobra.Command {
	var s workload.Spec
	cmd := &cobra.Command{
		Use:   "gen DIR",
		Short: "Write a cluster as manifests",
		Long: `Writes a made-up cluster (nodes, namespaces, pods and policies of the usual
shapes) as Kubernetes YAML. The same flags give the same files on every machine.`,
		Example: `  tierwall-bench gen --pods 10000 --policies 2000 /tmp/cluster
  tierwall check --manifests /tmp/cluster`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if s.Pods < 1 || s.Namespaces < 0 || s.Policies < 0 || s.Admin < 0 || s.Baseline < 0 || s.Domains < 0 ||
				s.PerNode < 1 || s.PerNode > 250 {
				return errors.New("numbers must not be negative, --pods at least 1, --per-node from 1 to 250")
			}
			c := workload.New(s)
			if err := c.WriteManifests(args[0]); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "%d nodes, %d pods, %d rules in %s\n",
				len(c.World.Nodes), len(c.World.Endpoints), len(c.Set.Rules), args[0])
			return err
		},
	}
	f := cmd.Flags()
	f.IntVar(&s.Pods, "pods", 1000, "pods")
	f.IntVar(&s.Namespaces, "namespaces", 0, "namespaces; 0: one for 20 pods, or for 50 above 10000")
	f.IntVar(&s.Policies, "policies", 200, "NetworkPolicies")
	f.IntVar(&s.Admin, "admin", 50, "ClusterNetworkPolicies of tier Admin")
	f.IntVar(&s.Baseline, "baseline", 4, "ClusterNetworkPolicies of tier Baseline")
	f.IntVar(&s.Domains, "domains", 20, "domain names that they mention")
	f.IntVar(&s.PerNode, "per-node", 100, "pods on a node, at most 250")
	f.BoolVar(&s.DualStack, "dual-stack", false, "give pods IPv6 addresses, too")
	f.Uint64Var(&s.Seed, "seed", 1, "seed")
	return cmd
}
