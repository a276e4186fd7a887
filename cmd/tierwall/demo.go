package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/demo"
	"github.com/tierwall/tierwall/cmd/internal/ui"
	"github.com/tierwall/tierwall/policy/lower"
)

func newDemo() *cobra.Command {
	var c demo.Config
	var policies agent.Paths
	output := cli.NewFormat("text", "json")
	dataplane := cli.NewFormat("auto", "afxdp", "nfqueue")
	var show bool
	var page pageFlags
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Enforce policies on real packets in a small world of their own (root)",
		Long: `Builds a node, nine pods in the namespaces x, y and z and a host outside out of
network namespaces, starts the daemon in the node, makes every connection there
is over TCP and UDP, IPv4 and IPv6, and prints what came through beside what the
decision table predicts, what the audit log says, and how fast it was.

It needs root and nothing else, leaves nothing behind and never changes the
network of the machine it runs on. Exit code 1 when wire and table disagree.

--manifests brings your own policies into the world. Its pods carry the label
pod=a|b|c, their namespaces ns=x|y|z; all serve the ports 80 (web, web-udp) and
81 (admin, admin-udp); the host outside is 192.0.2.10 and 2001:db8:1::10.

--ui leaves the world running, keeps making connections in it and serves the page of
"tierwall ui" over it: the report then goes to standard error, the URL to standard
output.`,
		Example: `  tierwall demo
  tierwall demo --ui
  tierwall demo --dataplane nfqueue -o json
  tierwall demo --manifests my-policies/
  tierwall demo --keep   # then, elsewhere: ip netns exec tierwall-x-a nc 10.244.7.5 80`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.Dataplane, c.Policies = dataplane.String(), policies
			if !show {
				if cmd.Flags().Changed("listen") || cmd.Flags().Changed("no-open") {
					return usage(cmd, errors.New("--listen and --no-open go with --ui"))
				}
				return runDemo(cmd, c, output.JSON(), nil)
			}
			c.Keep, c.Traffic = true, true
			return runDemo(cmd, c, output.JSON(), &page)
		},
	}
	f := cmd.Flags()
	f.Var(dataplane, "dataplane", "how packets reach userspace")
	manifestsFlag(cmd, &policies, "directory or file with policies of your own; may be given several times (default: built-in ones)")
	f.BoolVar(&c.Keep, "keep", false, "leave the world running until Ctrl-C and say how to enter it")
	f.BoolVar(&show, "ui", false, "leave the world running, with traffic, and serve a page over it")
	page.flags(cmd)
	f.VarP(output, "output", "o", "output format")
	return cmd
}

// demoSource is the demo's world as the page asks it.
func demoSource(k demo.Kept) ui.Source {
	at := netip.MustParseAddrPort(agent.Default().Metrics.Address)
	return ui.Source{
		Kind: "demo", Where: "the demo's world", Flags: "--manifests " + shellQuote(k.Manifests),
		Load: func(context.Context) (*cli.Input, error) {
			return cli.LoadWith(lower.Options{}, []string{k.Manifests}, "", nil)
		},
		Changed: fingerprint([]string{k.Manifests}),
		Status: func(ctx context.Context) (any, error) {
			t := dialed(func(ctx context.Context) (net.Conn, error) { return k.Dial(ctx, at) })
			a, _ := statusOf(ctx, []target{t})
			return a, nil
		},
		Records: logRecords([]string{k.AuditFile}),
	}
}

// executable is this program; the name survives "go run" removing the file.
const executable = "/proc/self/exe"

// untilSignal returns a context for a command that builds a world, and what gives
// signals back.
func untilSignal(parent context.Context) (context.Context, func()) {
	// These signals only end the context, so that the process cleans up before
	// it ends. Once they have, a second one acts at once: nothing but the
	// temporary directory can be left behind.
	ctx, stop := signal.NotifyContext(parent, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	forget := context.AfterFunc(ctx, stop)
	// A reader of the report that has gone is an error of a write, not the end
	// of the process: Go lets SIGPIPE kill it unless somebody asks for it.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	return ctx, func() {
		signal.Stop(pipe)
		forget()
		stop()
	}
}

// runDemo runs the demo, and with page serves it over the world that is kept.
func runDemo(cmd *cobra.Command, c demo.Config, asJSON bool, page *pageFlags) error {
	ctx, stop := untilSignal(cmd.Context())
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	out, errOut := cmd.OutOrStdout(), cmd.ErrOrStderr()
	c.Executable = executable
	c.Progress = progressOn(cmd)
	style := cli.StyleFor(out)
	if page != nil {
		out = errOut // standard output is the URL's
	}
	c.Out = func(r *demo.Report) error {
		if asJSON && page == nil {
			return cli.WriteJSON(out, r)
		}
		return r.WriteText(out, style, cli.Width(out))
	}
	var found error
	c.Findings = func(in *cli.Input) { found = showFindings(cmd, in, asJSON) }
	var served sync.WaitGroup
	var pageErr error
	defer served.Wait()
	c.Kept = func(k demo.Kept) {
		if page != nil {
			served.Go(func() {
				if pageErr = page.serve(ctx, cmd, demoSource(k), asJSON); pageErr != nil {
					cancel(pageErr) // a world that nobody sees is not left running
				}
			})
		}
		fmt.Fprintf(errOut, `
The world keeps running until Ctrl-C.
  enter a pod      ip netns exec tierwall-x-a bash   (also: %s)
  change policies  edit files in %s/policies; the daemon watches them
  audit log        tierwall audit tail -f %s
  daemon's log     %s
`, k.Namespaces[0], k.Manifests, k.AuditFile, k.LogFile)
	}
	rep, err := demo.Run(ctx, c)
	c.Progress.Done()
	interrupted := ctx.Err()
	cancel(nil)
	served.Wait()
	switch {
	case pageErr != nil:
		return pageErr
	case errors.Is(err, demo.ErrManifests):
		return found
	case err != nil && interrupted != nil && errors.Is(err, interrupted):
		return errors.New("the demo was interrupted; everything it made is gone")
	case err != nil:
		return err
	case rep.Mismatches > 0:
		return &cli.FindingError{Err: fmt.Errorf("%d mismatches", rep.Mismatches), Shown: true}
	case rep.Broken > 0:
		return fmt.Errorf("%d probes failed for reasons of their own", rep.Broken)
	}
	return nil
}

func progressOn(cmd *cobra.Command) *demo.Progress {
	w := cmd.ErrOrStderr()
	f := cli.Terminal(w)
	if f == nil || !term.IsTerminal(int(f.Fd())) {
		return &demo.Progress{W: w}
	}
	return &demo.Progress{W: f, Live: true, Style: cli.StyleFor(w)} // it moves the cursor
}
