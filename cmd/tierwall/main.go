// Command tierwall answers questions about network policies, of manifests and of
// clusters, and shows them at work; run "tierwall --help". Under the name
// kubectl-tierwall it is a plugin of kubectl.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

func main() {
	args := os.Args[1:]
	if strings.HasPrefix(filepath.Base(os.Args[0]), "kubectl_complete-") { // kubectl asks it for completions
		args = append([]string{cobra.ShellCompRequestCmd}, args...)
	}
	os.Exit(runAs(context.Background(), calledAs(os.Args[0]), args, os.Stdin, os.Stdout, os.Stderr))
}

// calledAs is how users call the program that was started as path: kubectl runs
// its plugin kubectl-tierwall for "kubectl tierwall".
func calledAs(path string) string {
	name := strings.TrimSuffix(filepath.Base(path), ".exe")
	if plugin, ok := strings.CutPrefix(name, "kubectl-"); ok && plugin != "" {
		return "kubectl " + strings.ReplaceAll(plugin, "_", "-") // kubectl looks for "_" where "-" was typed
	}
	return program
}

// program is the name the program has in its own texts.
const program = "tierwall"

// run is the program under its own name.
func run(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) int {
	return runAs(ctx, program, args, in, out, errOut)
}

// runAs is the program: its name and arguments in, exit code out.
func runAs(ctx context.Context, name string, args []string, in io.Reader, out, errOut io.Writer) int {
	root := newRoot()
	if name != program {
		rename(root, name)
	}
	root.SetArgs(args)
	root.SetIn(in)
	guarded, guardedErr := cli.NewOutput(out), cli.NewOutput(errOut)
	out, errOut = guarded, guardedErr
	defer func() { _ = errors.Join(guarded.Flush(), guardedErr.Flush()) }() // at most a broken character is missing
	root.SetOut(out)
	root.SetErr(errOut)
	err := checkCommand(root, args)
	if err == nil {
		end := func() error { return nil }
		root.PersistentPreRun = func(cmd *cobra.Command, _ []string) { end = convertOutput(cmd, out) }
		err = root.ExecuteContext(ctx)
		if failed := end(); err == nil {
			err = failed
		}
	}
	if err == nil || cli.Shown(err) {
		return cli.Code(err)
	}
	fmt.Fprintf(errOut, "%s: %v\n", name, err)
	var usage *cli.UsageError
	if errors.As(err, &usage) {
		fmt.Fprintf(errOut, "Run \"%s --help\" for usage.\n", usage.Command)
	}
	return cli.Code(err)
}

// rename makes help and examples of all commands say name.
func rename(cmd *cobra.Command, name string) {
	if !cmd.HasParent() {
		cmd.Annotations = map[string]string{cobra.CommandDisplayNameAnnotation: name}
	}
	lines := strings.Split(cmd.Example, "\n")
	for i, l := range lines {
		// A command at the start of a line, behind sudo, or behind a pipe or list.
		for _, before := range []string{"  ", "sudo ", "| ", "&& "} {
			l = strings.ReplaceAll(l, before+program+" ", before+name+" ")
		}
		lines[i] = l
	}
	cmd.Example = strings.Join(lines, "\n")
	for _, sub := range cmd.Commands() {
		rename(sub, name)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "tierwall",
		Short: "Ask network policies what they do, and watch them do it",
		Long: `Tierwall enforces Kubernetes network policies in userspace. This program
explains them: it reads ordinary Kubernetes YAML (policies, pods, namespaces,
nodes, Services) or a cluster, compiles it into the same decision table the daemon
uses, and answers questions. It also asks the daemons of a cluster what they do.

A cluster is the one of your kubeconfig, read with your permissions; --manifests
always wins. Named kubectl-tierwall, in your PATH, it is "kubectl tierwall". Only
"demo" and "cleanup" need root.

Exit codes: 0 answered, 1 found something wrong, 2 could not ask or answer, 3 a claim
that "prove" could not decide.`,
		Example: `  # In a cluster: is it enforced, and what happens now?
  tierwall status
  tierwall flows --namespace shop
  tierwall explain --from shop/frontend --to svc/shop/backend --port 80/TCP

  # Who can talk to whom on port 80?
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
	root.AddCommand(
		newMatrix(), newExplain(),
		newDiff(), newTest(), newProve(), newRecommend(), newReport(),
		newCheck(),
		newGet(), newStatus(), newFlows(), newUsage(), newWait(),
		newAudit(),
		newUI(), newDemo(), newCleanup(), newDoctor(), newVersion(), newDaemon(),
	)
	habits(root)
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
	cmd.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return wrap(c, flagError(c, err)) })
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
