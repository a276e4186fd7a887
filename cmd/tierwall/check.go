package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/lower"
)

func newCheck() *cobra.Command {
	var dir string
	var opt lower.Options
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "check --manifests DIR",
		Short: "Say what is wrong with manifests",
		Long: `Reads manifests exactly as the daemon does and reports every error with its file,
object and field, and what to write instead. The daemon refuses manifests with
errors as a whole and keeps the last good table; warnings do not stop it. They
point at policies that are valid and probably not what was meant.

JSON: {"errors":[{"file","object","path","message","hint"}],"warnings":[…]}.
Exit code 1 when there are errors.`,
		Example: `  tierwall check --manifests deploy/examples/broken
  tierwall check --manifests policies/ -o json | jq -r '.errors[].message'
  kubectl get netpol,pods,ns -A -o yaml | tierwall check --manifests -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if dir == "" {
				return usage(cmd, errors.New("--manifests is required"))
			}
			in, err := cli.LoadWith(opt, dir, "", cmd.InOrStdin())
			if err != nil {
				return err
			}
			in.Lint()
			out := cmd.OutOrStdout()
			if err := cli.WriteFindings(out, cli.StyleFor(out), output.JSON(), &in.Findings); err != nil {
				return err
			}
			if !output.JSON() {
				if _, err := fmt.Fprintln(out, in.Summary()); err != nil {
					return err
				}
			}
			if len(in.Findings.Errors) > 0 {
				return &cli.FindingError{Err: in.Findings.Err(), Shown: true}
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&dir, "manifests", "m", "", "directory or file of Kubernetes YAML, \"-\" for standard input (required)")
	cmd.Flags().VarP(output, "output", "o", "form of the answer")
	mixedFlag(cmd, &opt)
	return cmd
}
