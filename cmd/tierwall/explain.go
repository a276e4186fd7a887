package main

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
)

func newExplain() *cobra.Command {
	var q question
	var from, to, port, icmp string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain [--manifests DIR] --from POD|IP --to POD|IP|svc/NS/NAME --port PORT/PROTOCOL",
		Short: "Show what happens to one connection, and why",
		Long: `Decides one connection and shows the way to the verdict: every band of policies
that has something to say about either pod, the rule that matched, and why the
nearest others did not.

A pod is NAMESPACE/POD, or just POD where that is unique. An IP address may be a
pod's, a node's, a Service's or any other. A Service is resolved as kube-proxy does
it, to its ready backends and their target ports, and each backend is explained. It is
named, or asked about by any address the proxy answers for: ClusterIP, external IP,
load balancer IP with one of its ports, node address with a node port. Backends come
from EndpointSlices where there are any, else from the pods the Service selects.

JSON: the fields of "matrix" for the one flow, plus fromIP, toIP, family, packet
and trace, and notes where there is more to say. For a Service:
{"from","to","port","agree","backends":[…]} and, when all backends have one verdict,
"verdict" and what they share of "egress" and "ingress". What could not be read of a
cluster is a list "incomplete" in every answer.`,
		Example: `  tierwall explain -n shop --from frontend --to svc/shop/backend --port 80/TCP
  tierwall explain --manifests deploy/examples/quickstart --from shop/frontend --to shop/db --port 5432/TCP
  tierwall explain --manifests deploy/examples/quickstart --from frontend --to svc/shop/backend --port 80/TCP
  tierwall explain -n shop --from frontend --to 192.0.2.10 --port 30080/TCP
  tierwall explain --manifests deploy/examples/quickstart --from 203.0.113.9 --to shop/backend-0 --port http/TCP
  tierwall explain --manifests deploy/examples/quickstart --from frontend --to db --port 0/ICMP --icmp 8 --family 6`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			for name, v := range map[string]string{"--from": from, "--to": to, "--port": port} {
				if v == "" {
					return usage(cmd, errors.New("--from, --to and --port are required: "+name+" is missing"))
				}
			}
			p, err := query.ParsePort(port)
			if err != nil {
				return usage(cmd, err)
			}
			if icmp != "" {
				if p, err = p.WithICMP(icmp); err != nil {
					return usage(cmd, err)
				}
			}
			_, notAddress := netip.ParseAddr(to)
			q.endpoints = notAddress == nil || strings.HasPrefix(to, "svc/")
			in, err := q.load(cmd)
			if err != nil {
				return err
			}
			return q.explain(cmd, in, from, to, p, all)
		},
	}
	q.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "who opens the connection: NAMESPACE/POD or an IP address")
	f.StringVar(&to, "to", "", "who is called: NAMESPACE/POD, an IP address or svc/NAMESPACE/NAME")
	f.StringVarP(&port, "port", "p", "", "NUMBER/PROTOCOL or NAME/PROTOCOL; 0/ICMP for ICMP")
	f.StringVar(&icmp, "icmp", "", "ICMP message, TYPE or TYPE/CODE (default: echo request)")
	f.BoolVar(&all, "all", false, "show every rule considered, not only the nearest")
	return cmd
}

func (q *question) explain(cmd *cobra.Command, in *cli.Input, from, to string, p query.Port, all bool) error {
	one, service, err := query.Answer(in.Table, in.Snapshot, q.qualify(from), q.qualify(to), p, q.family)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	style := cli.StyleFor(out)
	switch {
	case service != nil && q.output.JSON():
		return writeAnswer(out, in, service)
	case service != nil:
		return query.WriteServiceExplanation(out, style, service, all)
	case q.output.JSON():
		return writeAnswer(out, in, one)
	}
	return query.WriteExplanation(out, style, one, all)
}

// qualify puts the namespace that was asked for before a pod's name without one.
// A name that is unique needs none; --namespace says which one is meant.
func (q *question) qualify(name string) string {
	if q.cluster.Namespace == "" || strings.Contains(name, "/") {
		return name
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return name
	}
	return q.cluster.Namespace + "/" + name
}
