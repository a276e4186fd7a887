package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
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
	var pod, address string
	var local bool
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
-o wide always has it, and BAND, DIALECT and SUBJECT, in words. Where daemons answer it
has HITS, the new connections allowed and packets refused by rules and isolations of
the policy on all nodes that answered, and LAST, when that last was; tierwall usage has
them by rule. A policy without any effective rule,
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
			wide := q.output.String() == "wide"
			if q.output.JSON() {
				return writeAnswer(out, in, map[string][]listing.Policy{"policies": policies})
			}
			var used map[classifier.PolicyRef]policyUsage
			if wide && (local || len(q.manifests) == 0) {
				if used, err = q.policyHits(cmd, local, address); err != nil {
					return err
				}
			}
			return writePolicies(out, policies, used, wide)
		},
	}
	q.world.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&pod, "pod", "", "only the policies about this pod, workload (deploy/NAME) or label selector")
	f.Var(order, "sort-by", "order of the lines")
	f.BoolVar(&local, "local", false, "with -o wide: take hits from the daemon on this machine")
	f.StringVar(&address, "address", agent.Default().Metrics.Address, "where the daemon on this machine listens (its key metrics.address)")
	q.output = cli.NewFormat("table", "wide", "json")
	f.VarP(q.output, "output", "o", "output format")
	return cmd
}

// policyUsage is what all rules and isolations of a policy decided, on all nodes that
// answered.
type policyUsage struct {
	hits uint64
	last *time.Time
}

// policyHits asks the daemons of the cluster, or the one on this machine. Those that do
// not answer are said; without any there are no hits to show, which is no error.
func (q *question) policyHits(cmd *cobra.Command, local bool, address string) (map[classifier.PolicyRef]policyUsage, error) {
	n := nodesFlags{local: local, address: address, namespace: cluster.DefaultNamespace, port: cluster.DefaultPort}
	if !local {
		n.all, n.cluster = true, q.cluster
	}
	ctx, stop := interruptible(cmd)
	defer stop()
	targets, err := n.targets(ctx, cmd)
	if err != nil {
		fmt.Fprintf(cmd.ErrOrStderr(), "HITS and LAST are not known: %v\n", err)
		return nil, nil
	}
	rules, nodes, _ := hitsOf(ctx, targets)
	answered := 0
	for _, one := range nodes {
		if one.Error == "" {
			answered++
			continue
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: its hits are missing: %s\n", cli.Escape(one.Node), cli.Escape(one.Error))
	}
	if answered == 0 {
		return nil, nil
	}
	out := map[classifier.PolicyRef]policyUsage{}
	for i := range rules {
		r := &rules[i]
		ref := classifier.PolicyRef{Group: r.ref.Group, Kind: r.ref.Kind, Namespace: r.ref.Namespace, Name: r.ref.Name}
		u := out[ref]
		u.hits += r.Hits
		if r.Last != nil && (u.last == nil || r.Last.After(*u.last)) {
			u.last = r.Last
		}
		out[ref] = u
	}
	return out, nil
}

// cells are HITS and LAST.
func (u policyUsage) cells(now time.Time) []string {
	return []string{strconv.FormatUint(u.hits, 10), lastText(u.last, now)}
}

func writePolicies(w io.Writer, policies []listing.Policy, used map[classifier.PolicyRef]policyUsage, wide bool) error {
	header := []string{"NAME", "APPLIED-TO", "RULES", "SOURCE", "TIER-PRIORITY", "PRIORITY"}
	// antctl has no such column, and knows no staged policies.
	staged := wide || slices.ContainsFunc(policies, func(p listing.Policy) bool { return p.Stage != rule.Enforce.String() })
	if staged {
		header = append(header, "STAGE")
	}
	if wide {
		if used != nil {
			header = append(header, "HITS", "LAST")
		}
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
			if used != nil {
				row = append(row, used[classifier.PolicyRef{Group: p.Group, Kind: p.Kind, Namespace: p.Namespace, Name: p.Name}].cells(time.Now())...)
			}
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
