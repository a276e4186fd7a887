package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/listing"
	"github.com/tierwall/tierwall/cmd/internal/query"
)

func newGet() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get policies",
		Short: "List policies in evaluation order",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return usage(cmd, errors.New("say what to get: policies"))
		},
	}
	cmd.AddCommand(newGetPolicies())
	return cmd
}

func newGetPolicies() *cobra.Command {
	var q question
	order := cli.NewFormat("effectivePriority", "name")
	var pod string
	cmd := &cobra.Command{
		Use:     "policies [--manifests DIR]",
		Aliases: []string{"policy", "netpol"},
		Short:   "List the policies of every API in the one order they are evaluated in",
		Long: `Lists the policies of every API in one order: the one they are evaluated in, by
band, tier, priority and name. That order is exact between bands and tiers; within
one, rules of policies with equal priorities may take turns (see explain).

The columns are those of Antrea's antctl, so that what reads its output reads
this: NAME is the object's UID, or its name in manifests that have none;
APPLIED-TO is an identifier, equal for policies with equal subjects; RULES counts
what is written; SOURCE says where it is written. TIER-PRIORITY and PRIORITY are
<NONE> in APIs that have none.

--pod lists only the policies that are about a pod, or any pod of a workload or label
selector (see explain), still in their order: what decides for it, strongest first.

STAGE is there when a policy listed is staged: "audit" is recorded and not enforced.
-o wide always has it, and BAND, DIALECT and SUBJECT, in words. A policy without any effective rule,
for example one without rules, has no place in the order: it comes last, with the
band <NONE>.

Without --manifests the cluster of the kubeconfig is read, with your permissions;
what they do not cover is said. -n leaves out the policies of other namespaces;
cluster-wide ones stay.

JSON: {"policies":[{"name","uid","kind","group","namespace","source","appliedTo",
"subjects","rules","tierPriority","priority","band","dialect","stage"}]}.
tierPriority and priority are null where the API has none.`,
		Example: `  tierwall get policies -n shop -o wide
  tierwall get policies --manifests deploy/examples/quickstart -o wide
  tierwall get policies --manifests deploy/examples/quickstart --pod shop/db
  tierwall get policies --manifests . -o json | jq -r '.policies[] | .band + " " + .source'
  kubectl get netpol,acnp,annp,adminnetworkpolicies -A -o yaml | tierwall get policies --manifests -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			in, err := q.load(cmd)
			if err != nil {
				return err
			}
			policies := listing.Policies(in.Objects, &in.Set)
			if pod != "" {
				pods, err := query.PodsOf(in.Table, in.Snapshot, pod, q.cluster.Namespace)
				if err != nil {
					return usage(cmd, fmt.Errorf("--pod: %w", err))
				}
				policies = slices.DeleteFunc(policies, func(p listing.Policy) bool { return !slices.ContainsFunc(pods, p.Selects) })
			}
			if n := q.cluster.Namespace; n != "" {
				policies = slices.DeleteFunc(policies, func(p listing.Policy) bool { return p.Namespace != "" && p.Namespace != n })
			}
			if order.String() == "name" {
				listing.SortByName(policies)
			}
			out := cmd.OutOrStdout()
			if q.output.JSON() {
				return writeAnswer(out, in, map[string][]listing.Policy{"policies": policies})
			}
			return writePolicies(out, policies, q.output.String() == "wide")
		},
	}
	q.world.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&pod, "pod", "", "only the policies about this pod, workload (deploy/NAME) or label selector")
	f.Var(order, "sort-by", "order of the lines")
	q.output = cli.NewFormat("table", "wide", "json")
	f.VarP(q.output, "output", "o", "output format")
	return cmd
}

func writePolicies(w io.Writer, policies []listing.Policy, wide bool) error {
	header := []string{"NAME", "APPLIED-TO", "RULES", "SOURCE", "TIER-PRIORITY", "PRIORITY"}
	// antctl has no such column, and knows no staged policies.
	staged := wide || slices.ContainsFunc(policies, func(p listing.Policy) bool { return p.Stage != rule.Enforce.String() })
	if staged {
		header = append(header, "STAGE")
	}
	if wide {
		header = append(header, "BAND", "DIALECT", "SUBJECT")
	}
	rows := [][]string{header}
	for i := range policies {
		p := &policies[i]
		row := p.Cells()
		if staged {
			row = append(row, p.Stage)
		}
		if wide {
			row = append(row, orNone(p.Band), orNone(p.Dialect), orNone(strings.Join(p.Subjects, ", ")))
		}
		rows = append(rows, row)
	}
	return writeTable(w, rows)
}

// writeTable aligns columns as antctl does: one space behind the widest cell.
func writeTable(w io.Writer, rows [][]string) error {
	rows = cli.EscapeAll(rows)
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	b := bufio.NewWriter(w)
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+1))
		}
		fmt.Fprintln(b, strings.TrimRight(line.String(), " ")) // Flush reports the error
	}
	return b.Flush()
}

func orNone(s string) string {
	if s == "" {
		return listing.None
	}
	return s
}
