package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
)

func newMatrix() *cobra.Command {
	var q question
	var ports []string
	cmd := &cobra.Command{
		Use:   "matrix [--manifests DIR] [--port PORT/PROTOCOL]…",
		Short: "Show which pods can connect to which",
		Long: `Decides a connection from every pod to every pod, itself included, and prints a
grid per port: rows connect to columns.

A port is NUMBER/PROTOCOL, or NAME/PROTOCOL for a named container port, which may
have another number on every pod. A pod that has no port of that name is asked
about port 0, which no rule that lists ports matches; a name that no pod has is an
error. 0/ICMP asks about ping.

Host-network pods are shown too: they share their node's address, so no policy
selects them, and their own node's pods always accept them. Pods without an
address, or without one of the family asked for, are left out.

Without --manifests the cluster of the kubeconfig is asked, with your permissions;
what they do not cover is said. -n shows connections from and to the pods of one
namespace.

JSON: {"flows":[{"from","to","port","resolvedPort","verdict","egress","ingress"}]}
where both sides say {"verdict","band","policy","rule","reason"} and, where
policies in the audit stage were met, "staged" with what they would decide.`,
		Example: `  tierwall matrix -n shop
  tierwall matrix --manifests deploy/examples/quickstart
  tierwall matrix --manifests deploy/examples/quickstart --port http/TCP --port 0/ICMP
  tierwall matrix --manifests . --port 5432/TCP -o json | jq '.flows[] | select(.verdict != "Allow")'
  kubectl get pods,ns,nodes,netpol -A -o yaml | tierwall matrix --manifests -`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asked, err := query.ParsePorts(ports)
			if err != nil {
				return usage(cmd, err)
			}
			in, err := q.load(cmd)
			if err != nil {
				return err
			}
			for _, p := range asked {
				if err := query.CheckPort(in.Table.World().Endpoints, p); err != nil {
					return err
				}
			}
			if pods := len(in.Table.World().Endpoints); pods > maxGrid && !q.output.JSON() && q.cluster.Namespace == "" {
				return fmt.Errorf("%d pods are too many for a grid: ask for a namespace (-n), or for -o json", pods)
			}
			flows := q.within(query.Matrix(in.Table, asked, q.family))
			out := cmd.OutOrStdout()
			if q.output.JSON() {
				return writeFlows(out, in, flows)
			}
			return query.WriteMatrix(out, cli.StyleFor(out), cli.Width(out), slices.Collect(flows))
		},
	}
	q.flags(cmd)
	cmd.Flags().StringArrayVarP(&ports, "port", "p", []string{"80/TCP"}, "port to ask about; may be given several times")
	return cmd
}

// maxGrid is how many pods are shown in a grid: it is as wide as high.
const maxGrid = 1000

// within leaves out connections that have no end in the namespace asked for.
func (q *question) within(flows iter.Seq[query.Flow]) iter.Seq[query.Flow] {
	if q.cluster.Namespace == "" {
		return flows
	}
	prefix := q.cluster.Namespace + "/"
	return func(yield func(query.Flow) bool) {
		for f := range flows {
			if (strings.HasPrefix(f.From, prefix) || strings.HasPrefix(f.To, prefix)) && !yield(f) {
				return
			}
		}
	}
}

// writeFlows streams the JSON object, one flow per line: a thousand pods are a
// million flows.
func writeFlows(w io.Writer, in *cli.Input, flows iter.Seq[query.Flow]) error {
	b := bufio.NewWriter(w) // keeps the first error for Flush
	separator := `{"flows":[` + "\n"
	for f := range flows {
		line, err := json.Marshal(f)
		if err != nil {
			return err
		}
		if _, err := fmt.Fprintf(b, "%s%s", separator, line); err != nil {
			return err // a closed pipe ends the work
		}
		separator = ",\n"
	}
	if separator != ",\n" {
		fmt.Fprint(b, separator)
	}
	fmt.Fprint(b, "\n]")
	if len(in.Gaps) > 0 {
		gaps, err := json.Marshal(in.Gaps)
		if err != nil {
			return err
		}
		fmt.Fprintf(b, ",\n\"incomplete\":%s", gaps)
	}
	fmt.Fprint(b, "}\n")
	return b.Flush()
}
