// Command tierwall answers questions about network policies and shows them at
// work. It talks to files, never to a running daemon; run "tierwall --help".
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the program: arguments in, exit code out.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(in)
	root.SetOut(out)
	root.SetErr(errOut)
	err := root.ExecuteContext(ctx)
	if err == nil || cli.Shown(err) {
		return cli.Code(err)
	}
	fmt.Fprintf(errOut, "tierwall: %v\n", err)
	var usage *cli.UsageError
	if errors.As(err, &usage) {
		fmt.Fprintf(errOut, "Run \"%s --help\" for how to ask.\n", usage.Command)
	}
	return cli.Code(err)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tierwall",
		Short: "Ask network policies what they do, and watch them do it",
		Long: `Tierwall enforces Kubernetes network policies in userspace. This program
explains them: it reads ordinary Kubernetes YAML (policies, pods, namespaces,
nodes, Services), compiles it into the same decision table the daemon uses, and
answers questions. Only "demo" needs root.

Exit codes: 0 answered, 1 found something wrong, 2 could not ask or answer.`,
		Example: `  # Who can talk to whom on port 80?
  tierwall matrix --manifests deploy/examples/quickstart --port 80/TCP

  # Why can the frontend not reach the database?
  tierwall explain --manifests deploy/examples/quickstart --from shop/frontend --to shop/db --port 5432/TCP

  # Are my manifests right?
  tierwall check --manifests deploy/examples/broken

  # See it on real packets (root)
  tierwall demo`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
	}
	root.AddCommand(newMatrix(), newExplain(), newCheck(), newGet(), newAudit(), newDemo(), newVersion(), newDaemon())
	markUsage(root)
	return root
}

// markUsage makes every mistake in flags and arguments a UsageError that names
// the command it belongs to.
func markUsage(cmd *cobra.Command) {
	wrap := func(c *cobra.Command, err error) error {
		if err == nil {
			return nil
		}
		return &cli.UsageError{Command: c.CommandPath(), Err: err}
	}
	cmd.SetFlagErrorFunc(wrap)
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error { return wrap(c, check(c, args)) }
	}
	for _, sub := range cmd.Commands() {
		markUsage(sub)
	}
}

// usage builds a UsageError of a command.
func usage(cmd *cobra.Command, err error) error {
	return &cli.UsageError{Command: cmd.CommandPath(), Err: err}
}
