// Command tierwall-bench writes the clusters that benchmarks measure with.
//
//	tierwall-bench gen [flags] DIR    write a cluster as manifests
//
// The same flags give the same files on every machine.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"github.com/tierwall/tierwall/bench/workload"
)

func main() {
	switch err := run(os.Args[1:], os.Stdout, os.Stderr); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "tierwall-bench:", err)
		os.Exit(2)
	}
}

var errUsage = errors.New("usage: tierwall-bench gen [flags] DIR")

func run(args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 || args[0] != "gen" {
		return errUsage
	}
	flags := flag.NewFlagSet("tierwall-bench gen", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var s workload.Spec
	flags.IntVar(&s.Pods, "pods", 1000, "pods")
	flags.IntVar(&s.Namespaces, "namespaces", 0, "namespaces; 0: one for 20 pods, or for 50 above 10000")
	flags.IntVar(&s.Policies, "policies", 200, "NetworkPolicies")
	flags.IntVar(&s.Admin, "admin", 50, "ClusterNetworkPolicies of tier Admin")
	flags.IntVar(&s.Baseline, "baseline", 4, "ClusterNetworkPolicies of tier Baseline")
	flags.IntVar(&s.Domains, "domains", 20, "domain names that they mention")
	flags.IntVar(&s.PerNode, "per-node", 100, "pods on a node, at most 250")
	flags.BoolVar(&s.DualStack, "dual-stack", false, "give pods IPv6 addresses, too")
	flags.Uint64Var(&s.Seed, "seed", 1, "seed")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errUsage
	}
	if s.Pods < 1 || s.Namespaces < 0 || s.Policies < 0 || s.Admin < 0 || s.Baseline < 0 || s.Domains < 0 ||
		s.PerNode < 1 || s.PerNode > 250 {
		return errors.New("numbers must not be negative, -pods at least 1, -per-node from 1 to 250")
	}
	c := workload.New(s)
	if err := c.WriteManifests(flags.Arg(0)); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stdout, "%d nodes, %d pods, %d rules in %s\n",
		len(c.World.Nodes), len(c.World.Endpoints), len(c.Set.Rules), flags.Arg(0))
	return err
}
