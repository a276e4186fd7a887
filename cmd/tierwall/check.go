package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/cmd/internal/sarif"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/source/kube"
)

func newCheck() *cobra.Command {
	var w world
	output := cli.NewFormat("text", "json", "sarif")
	failOn := cli.NewFormat("errors", "warnings")
	cmd := &cobra.Command{
		Use:   "check [FILE...] [--manifests DIR]",
		Short: "Report errors and likely mistakes in policies",
		Long: `Reads policies exactly as the daemon does and reports every error with its file,
object and field, and what to write instead. Warnings point at policies that are
valid and probably not what was meant.

  check --manifests DIR   a directory by itself: its policies with its own pods.
                          The daemon refuses such a directory as a whole while it
                          has errors, and keeps the last good table.
  check FILE...           what applying these files (or directories, or "-") to the
                          cluster would do: their policies together with those in
                          the cluster, for its pods and namespaces. Where no
                          cluster is known, by themselves.
  check                   the policies in the cluster.

The cluster is the kubeconfig's, read with your permissions; what they do not cover
is said.

JSON: {"errors":[{"file","object","group","path","message","hint"}],"warnings":[…]}.
Exit code 1 when there are errors, with --fail-on warnings also when there are warnings.`,
		Example: `  tierwall check --manifests deploy/examples/broken
  tierwall check policies/frontend.yaml
  tierwall check --manifests policies/ -o json | jq -r '.errors[].message'
  kubectl get netpol,pods,ns -A -o yaml | tierwall check --manifests -`,
		RunE: func(cmd *cobra.Command, args []string) error {
			in, err := w.check(cmd, args)
			if err != nil {
				return err
			}
			in.Lint()
			if err := in.WriteGaps(cmd.ErrOrStderr(), cli.StyleFor(cmd.ErrOrStderr())); err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if output.String() == "sarif" {
				if err := writeSARIF(out, &in.Findings); err != nil {
					return err
				}
				return failed(&in.Findings, failOn)
			}
			if err := in.WriteFindings(out, cli.StyleFor(out), output.JSON()); err != nil {
				return err
			}
			if !output.JSON() {
				if _, err := fmt.Fprintln(out, in.Summary()); err != nil {
					return err
				}
			}
			return failed(&in.Findings, failOn)
		},
	}
	w.flags(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	cmd.Flags().Var(failOn, "fail-on", "least finding that makes the exit code 1")
	return cmd
}

// failed is the error for findings that were shown; nil where they are none to fail on.
func failed(found *diag.List, on *cli.Format) error {
	switch {
	case len(found.Errors) > 0:
		return &cli.FindingError{Err: found.Err(), Shown: true}
	case on.String() == "warnings" && len(found.Warnings) > 0:
		return &cli.FindingError{Err: errors.New(cli.Plural(len(found.Warnings), "warning")), Shown: true}
	}
	return nil
}

// check reads what is to be checked.
func (w *world) check(cmd *cobra.Command, files []string) (*cli.Input, error) {
	if len(files) == 0 {
		return w.load(cmd, "")
	}
	if len(w.manifests) > 0 {
		return nil, usage(cmd, errors.New("use either --manifests or FILE arguments, not both"))
	}
	c, err := w.cluster.Open()
	alone := errors.Is(err, cluster.ErrNone) && !w.cluster.Given()
	if err != nil && !alone {
		return nil, err
	}
	namespace := w.cluster.Namespace
	if c != nil {
		namespace = c.Namespace
	}
	in, err := cli.ReadFiles(files, namespace, cmd.InOrStdin())
	switch {
	case err != nil:
		return nil, err
	case alone:
		fmt.Fprintln(cmd.ErrOrStderr(), "no cluster is known: the files are checked by themselves")
		return in, in.Alone(w.lower)
	case len(in.Findings.Errors) > 0:
		return in, nil // what was not understood has no effect to tell
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), readTimeout)
	defer cancel()
	live, err := cli.Live(ctx, c.Config, w.lower, "", kube.ReadOptions{Fallback: c.Namespace})
	if err != nil {
		return nil, err
	}
	return live.WithFiles(in, w.lower)
}

// writeSARIF writes findings for code hosts. Those about no file are at the first
// line of nothing in particular: SARIF wants a place.
func writeSARIF(w io.Writer, found *diag.List) error {
	var rules []sarif.Rule
	for _, c := range diag.Checks() {
		level := "warning"
		if c.Error {
			level = "error"
		}
		rules = append(rules, sarif.Rule{
			ID: c.ID, Name: c.Name, Level: level, Text: c.Title,
			Help: "https://github.com/tierwall/tierwall/blob/main/docs/checks.md#" + strings.ToLower(c.ID),
		})
	}
	log := sarif.New(buildVersion().Version, rules...)
	for i, list := range [][]diag.Diagnostic{found.Errors, found.Warnings} {
		for j := range list {
			d := list[j]
			file, line := diag.SplitLine(d.File)
			if file == "" {
				file = "."
			}
			check := diag.CheckOf(&d, i == 0)
			d.File = ""
			log.Add(check.ID, d.String(), sarif.Place{File: file, Line: line}, nil)
		}
	}
	return log.Write(w)
}
