// Command tierwall-bench measures Tierwall on this machine.
//
//	go run ./bench/cmd/tierwall-bench dataplane -o markdown
//
// bench/README.md has the method; every subcommand explains itself with --help.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/bench/audit"
	"github.com/tierwall/tierwall/bench/dataplane"
	"github.com/tierwall/tierwall/bench/scale"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "tierwall-bench:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tierwall-bench",
		Short:         "Measure Tierwall on this machine",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(dataplane.Commands()...)
	root.AddCommand(audit.Commands()...)
	root.AddCommand(scale.Commands()...)
	root.AddCommand(newGen())
	return root
}
