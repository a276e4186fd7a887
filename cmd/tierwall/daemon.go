package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
)

// newDaemon is tierwalld inside this binary, so that the demo needs no second
// one. Operators run tierwalld: it has all settings.
func newDaemon() *cobra.Command {
	c := agent.Default()
	var paths agent.Paths
	cmd := &cobra.Command{
		Use:    "daemon --manifests DIR --node NAME",
		Short:  "Run the node daemon; the demo does",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			if len(paths) > 0 {
				c.Manifests = paths
			}
			return agent.Run(ctx, c)
		},
	}
	f := cmd.Flags()
	f.Var(&paths, "manifests", "directory or file of Kubernetes YAML to enforce; may be given several times (default: "+c.Manifests.String()+")")
	f.StringVar(&c.Node, "node", c.Node, "name of this node's Node object")
	f.StringVar(&c.Dataplane, "dataplane", c.Dataplane, "auto, afxdp or nfqueue")
	f.StringVar(&c.Audit.File, "audit-file", c.Audit.File, "audit log, JSON lines")
	f.StringVar(&c.AFXDP.PinPath, "pin-path", c.AFXDP.PinPath, "directory in a BPF file system for what outlives the daemon; empty: nothing")
	f.StringVar(&c.ReadyFile, "ready-file", "", "written once the policy is in force")
	f.StringVar(&c.StatsFile, "stats-file", "", "written on SIGUSR1 and at the end")
	f.StringVar(&c.LogLevel, "log-level", c.LogLevel, "debug, info, warn or error")
	return cmd
}
