package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/lower"
)

// question has the flags of commands that ask the manifests something.
type question struct {
	manifests string
	node      string
	family    query.Family
	output    *cli.Format
	lower     lower.Options
}

func (q *question) flags(cmd *cobra.Command) {
	q.output = cli.NewFormat("text", "json")
	f := cmd.Flags()
	f.StringVarP(&q.manifests, "manifests", "m", "", "directory or file of Kubernetes YAML, \"-\" for standard input (required)")
	f.StringVar(&q.node, "node", "", "answer as this node's daemon would: only its own pods are policed (default: all pods)")
	f.Var((*familyFlag)(&q.family), "family", "address family (default: IPv4 where both ends have it, else IPv6)")
	f.VarP(q.output, "output", "o", "form of the answer")
	mixedFlag(cmd, &q.lower)
}

// mixedFlag adds the flag for what the daemon's key allowMixedDialects allows.
func mixedFlag(cmd *cobra.Command, opt *lower.Options) {
	cmd.Flags().BoolVar(&opt.AllowMixedDialects, "allow-mixed-dialects", false,
		"accept KEP and released AdminNetworkPolicies together, as a daemon with allowMixedDialects does")
}

// load compiles the manifests. Warnings go to the error output; errors are
// printed as "tierwall check" prints them, in the form that was asked for.
func (q *question) load(cmd *cobra.Command) (*cli.Input, error) {
	if q.manifests == "" {
		return nil, usage(cmd, errors.New("--manifests is required"))
	}
	in, err := cli.LoadWith(q.lower, q.manifests, q.node, cmd.InOrStdin())
	if err != nil {
		return nil, err
	}
	return in, showFindings(cmd, in, q.output.JSON())
}

// showFindings prints what is wrong with the manifests; with errors it returns
// the finding to exit with.
func showFindings(cmd *cobra.Command, in *cli.Input, asJSON bool) error {
	if len(in.Findings.Errors) == 0 {
		return cli.WriteFindings(cmd.ErrOrStderr(), cli.StyleFor(cmd.ErrOrStderr()), false, &in.Findings)
	}
	w := cmd.ErrOrStderr()
	if asJSON {
		w = cmd.OutOrStdout()
	}
	if err := cli.WriteFindings(w, cli.StyleFor(w), asJSON, &in.Findings); err != nil {
		return err
	}
	return &cli.FindingError{Err: in.Findings.Err(), Shown: true}
}

// familyFlag is the flag form of query.Family.
type familyFlag query.Family

func (f *familyFlag) String() string {
	switch query.Family(*f) {
	case query.IPv4:
		return "4"
	case query.IPv6:
		return "6"
	}
	return ""
}

func (f *familyFlag) Set(s string) error {
	switch s {
	case "4":
		*f = familyFlag(query.IPv4)
	case "6":
		*f = familyFlag(query.IPv6)
	default:
		return errors.New("want 4 or 6")
	}
	return nil
}

func (f *familyFlag) Type() string { return "4|6" }
