// Command tierwalld is the node daemon.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/operator"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch err := newCommand(agent.Run).ExecuteContext(ctx); {
	case err == nil:
	case errors.As(err, new(usageError)):
		fmt.Fprintln(os.Stderr, "tierwalld:", err)
		os.Exit(2)
	default:
		fmt.Fprintln(os.Stderr, "tierwalld:", err)
		os.Exit(1)
	}
}

// usageError is a mistake on the command line.
type usageError struct{ error }

// newCommand returns the command line; run is what it starts.
func newCommand(run func(context.Context, agent.Config) error) *cobra.Command {
	defaults := agent.Default()
	var file string
	flags := defaults // values the flags are parsed into
	var paths agent.Paths
	cmd := &cobra.Command{
		Use:   "tierwalld",
		Short: "Tierwall's node daemon: enforces policy on this node's pods",
		Long: `tierwalld enforces the policies found in a directory of Kubernetes YAML on the
pods of this node, and records what it decided. It needs root, and runs in the
node's network namespace.

Settings come from the file named by --config (deploy/config.yaml explains every
key) and from flags, which win. Edits of the manifests are applied by themselves.

Signals: SIGHUP reloads the manifests and reopens the audit log, SIGUSR1 writes
the stats file, SIGTERM stops. With failMode closed (the default) the rules stay
in the kernel when the daemon stops, those of --dataplane afxdp alone only with a
--pin-path: accepted connections keep flowing, nothing new opens. --cleanup
removes them.

Exit status: 0 stopped in order, 1 could not start or go on, 2 wrong usage.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usageError{fmt.Errorf("%q: want flags only", args[0])}
			}
			return nil
		},
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c := defaults
			if file != "" {
				var err error
				if c, err = agent.Load(file); err != nil {
					return usageError{err}
				}
			}
			for name, set := range map[string]func(){
				"manifests":   func() { c.Manifests = paths },
				"node":        func() { c.Node = flags.Node },
				"dataplane":   func() { c.Dataplane = flags.Dataplane },
				"fail-mode":   func() { c.FailMode = flags.FailMode },
				"audit-file":  func() { c.Audit.File = flags.Audit.File },
				"log-level":   func() { c.LogLevel = flags.LogLevel },
				"ready-file":  func() { c.ReadyFile = flags.ReadyFile },
				"stats-file":  func() { c.StatsFile = flags.StatsFile },
				"pin-path":    func() { c.AFXDP.PinPath = flags.AFXDP.PinPath },
				"accelerate":  func() { c.Accelerate = flags.Accelerate },
				"established": func() { c.Established = flags.Established },
			} {
				if cmd.Flags().Changed(name) {
					set()
				}
			}
			c.CleanupOnly = flags.CleanupOnly
			c.Controller.Enabled = c.Controller.Enabled || flags.Controller.Enabled
			if err := c.Validate(); err != nil {
				return usageError{err}
			}
			if c.Controller.Enabled {
				return operate(cmd.Context(), &c)
			}
			if os.Geteuid() != 0 {
				return errors.New("needs root (CAP_NET_ADMIN, CAP_BPF): it installs nftables rules and BPF programs")
			}
			return run(cmd.Context(), c)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	f := cmd.Flags()
	f.StringVar(&file, "config", "", "configuration file")
	f.Var(&paths, "manifests", "directory or file of policies and inventory as Kubernetes YAML; may be given several times (default: "+defaults.Manifests.String()+")")
	f.StringVar(&flags.Node, "node", defaults.Node, "name of this node's Node object; default: the host name")
	f.StringVar(&flags.Dataplane, "dataplane", defaults.Dataplane, "auto, afxdp or nfqueue")
	f.StringVar(&flags.FailMode, "fail-mode", defaults.FailMode, "closed or open: new connections while nobody can judge them")
	f.BoolVar(&flags.Accelerate, "accelerate", defaults.Accelerate, "accepted flows between pods of this node go past the host's stack (afxdp)")
	f.StringVar(&flags.Established, "established", defaults.Established, "strict or keep: live connections that a new policy denies")
	f.StringVar(&flags.Audit.File, "audit-file", defaults.Audit.File, "audit log; empty: none")
	f.StringVar(&flags.LogLevel, "log-level", defaults.LogLevel, "debug, info, warn or error")
	f.StringVar(&flags.AFXDP.PinPath, "pin-path", defaults.AFXDP.PinPath, "directory in a BPF file system for what outlives the daemon; empty: nothing")
	f.StringVar(&flags.ReadyFile, "ready-file", "", "file to write once the policy is in force")
	f.StringVar(&flags.StatsFile, "stats-file", "", "file to write totals to, on SIGUSR1 and at the end")
	f.BoolVar(&flags.Controller.Enabled, "controller", false, "run the controller part (status, admission, default Tiers) and no daemon; needs no root")
	f.BoolVar(&flags.CleanupOnly, "cleanup", false, "remove rules, devices and programs of earlier runs, and exit")
	return cmd
}

// operate runs the controller part.
func operate(ctx context.Context, c *agent.Config) error {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.LogLevel)); err != nil {
		return usageError{err}
	}
	o := c.Controller
	o.Kubeconfig, o.Options = c.Kubernetes.Kubeconfig, c.LowerOptions()
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	return operator.Run(ctx, o)
}
