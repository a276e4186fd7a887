package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
)

func newCleanup() *cobra.Command {
	c := agent.Default()
	force := false
	var plan planFlags
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove from this node what the daemon left when it was uninstalled, or list what would open",
		Long: `Removes what a daemon leaves in the kernel when it stops: with failMode closed its
rules stay, so that nothing opens while it is away. After this the node is as if
there had been no tierwall, and open. It needs root, in the node's network
namespace, and does what "tierwalld --cleanup" does; it says what it removed.

A node whose daemon answers is left alone: stop it first. --force removes under a
daemon that runs, which then enforces nothing until it is started again.

--plan removes nothing and needs no root: it says which connections that are denied
now would be allowed if the policies of one kind went (a definition that is deleted
takes its objects with it; an older version may not read the kind), for each kind
there is, and if Tierwall went altogether. It compares the tables that daemons would
enforce, of manifests or of the cluster. Text has a line for each pair of namespaces,
JSON every pair of workloads. -n limits it to connections from and to a namespace.
Exit code 1 when something opens.

JSON: {"removed":["nftables table inet tierwall",…]}, with --plan
{"plan":[{"what","kinds","policies","opens":[{"from","to","ports","deniedBy"}],"complete"}]}.`,
		Example: `  sudo tierwall cleanup
  sudo ip netns exec node1 tierwall cleanup -o json
  tierwall cleanup --plan && kubectl delete -k deploy/
  tierwall cleanup --plan --without Tier.crd.antrea.io --manifests policies/`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case plan.on && force:
				return usage(cmd, errors.New("--plan removes nothing: leave --force out"))
			case plan.on:
				return plan.run(cmd, output)
			case plan.given():
				return usage(cmd, errors.New("policies are read for --plan only: give it, or leave the flags about policies out"))
			}
			if os.Geteuid() != 0 {
				return errors.New("needs root (CAP_NET_ADMIN): it removes nftables rules and devices")
			}
			if !force {
				n := nodesFlags{address: c.Metrics.Address}
				here := n.here()
				defer here.close()
				ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
				defer cancel()
				if st, err := here.Client.Status(ctx); err == nil {
					return fmt.Errorf("the daemon of node %s runs: stop it first, or give --force", st.Node)
				}
			}
			removed, err := cleanup(cmd.Context(), c)
			if err != nil {
				return errors.Join(err, cli.WriteJSON(cmd.ErrOrStderr(), map[string][]string{"removed": removed}))
			}
			out := cmd.OutOrStdout()
			if output.JSON() {
				return cli.WriteJSON(out, map[string][]string{"removed": removed})
			}
			for _, what := range removed {
				fmt.Fprintln(out, "removed", what)
			}
			if len(removed) == 0 {
				fmt.Fprintln(out, "there was nothing to remove")
			}
			return nil
		},
	}
	plan.flags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "also under a daemon that runs")
	cmd.Flags().StringVar(&c.Metrics.Address, "address", c.Metrics.Address, "where a daemon on this machine would answer")
	cmd.Flags().StringVar(&c.AFXDP.PinPath, "pin-path", c.AFXDP.PinPath, "where the daemon kept what outlives it (afxdp.pinPath)")
	cmd.Flags().VarP(output, "output", "o", "output format")
	return cmd
}

// cleanup does it, and returns what was there before and is not any more.
func cleanup(ctx context.Context, c agent.Config) ([]string, error) {
	before, err := leftovers(c.AFXDP.PinPath)
	if err != nil {
		return nil, err
	}
	c.CleanupOnly = true
	if err := agent.Run(ctx, c); err != nil {
		return nil, err
	}
	after, err := leftovers(c.AFXDP.PinPath)
	if err != nil {
		return nil, err
	}
	removed := []string{}
	for _, what := range before {
		if !slices.Contains(after, what) {
			removed = append(removed, what)
		}
	}
	if len(after) > 0 {
		return removed, fmt.Errorf("still there: %s", strings.Join(after, ", "))
	}
	return removed, nil
}

// leftovers lists what a daemon has in this network namespace, by the names it
// gives: tables called tierwall and tierwall-dns, devices called tw-…, filters called
// tierwall_…, and what it pinned for it in a BPF file system.
func leftovers(pinPath string) ([]string, error) {
	var out []string
	nft, err := nftables.New()
	if err != nil {
		return nil, fmt.Errorf("read the nftables rules: %w", err)
	}
	tables, err := nft.ListTables()
	if err != nil {
		return nil, fmt.Errorf("read the nftables rules: %w", err)
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyINet: "inet", nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyNetdev: "netdev",
	}
	for _, t := range tables {
		if t.Name == nfqueue.TableName || t.Name == nfqueue.TapTableName {
			out = append(out, "nftables table "+families[t.Family]+" "+t.Name)
		}
	}
	links, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("read the devices: %w", err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, "tw-uc") {
			out = append(out, "device "+l.Name)
		}
	}
	pins, err := kern.Pinned(pinPath)
	if err != nil {
		return nil, err
	}
	filtered, err := attach.Filters()
	if err != nil {
		return nil, err
	}
	for _, dev := range filtered {
		out = append(out, "traffic control filters on "+dev)
	}
	for _, path := range pins {
		out = append(out, "BPF object "+path)
	}
	slices.Sort(out)
	return out, nil
}
