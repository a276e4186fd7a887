package main

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/policy/assure"
)

func newExplain() *cobra.Command {
	var q question
	var from, to, port, icmp string
	var all bool
	cmd := &cobra.Command{
		Use:   "explain [--manifests DIR] --from END --to END --port PORT/PROTOCOL",
		Short: "Show what happens to one connection, and why",
		Long: `Decides one connection and shows the way to the verdict: every band of policies
that has something to say about either pod, the rule that matched, and why the
nearest others did not.

END is one of these:

` + assure.EndForms + `
  api.example.com     a DNS name outside the cluster (--to): what rules by name
                      decide for its addresses

Several pods are asked about one by one, and those that are decided alike by the same
rules are one case. Where only a DNS name could tell, the answer to an address is
"depends on the name", with the names. A Service is resolved as kube-proxy does it, to its ready backends and their target ports, and each backend is explained. It is
named, or asked about by any address the proxy answers for: ClusterIP, external IP,
load balancer IP with one of its ports, node address with a node port. Backends come
from EndpointSlices where there are any, else from the pods the Service selects.

JSON: the fields of "matrix" for the one flow, plus fromIP, toIP, family, packet
and trace, and notes where there is more to say. For a Service:
{"from","to","port","agree","backends":[…]} and, when all backends have one verdict,
"verdict" and what they share of "egress" and "ingress". For several pods:
{"from","to","port","agree","verdict","fromPods","toPods","connections","cases":[
{"connections","from","to","example"|"service"}]}. "dependsOnName" has the verdicts
by name; "verdict" is then that of an address without a name. What could not be read of a
cluster is a list "incomplete" in every answer.`,
		Example: `  tierwall explain -n shop --from frontend --to svc/shop/backend --port 80/TCP
  tierwall explain --manifests deploy/examples/quickstart --from shop/frontend --to shop/db --port 5432/TCP
  tierwall explain --manifests deploy/examples/quickstart --from frontend --to svc/shop/backend --port 80/TCP
  tierwall explain -m deploy/examples/quickstart --from shop/app=frontend --to deploy/backend -p 8080
  tierwall explain -n shop --from deploy/backend --to api.example.com --port 443/TCP
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
			q.endpoints = mayBeService(to)
			in, err := q.load(cmd)
			if err != nil {
				return err
			}
			return q.explain(cmd, in, from, to, p, all)
		},
	}
	q.flags(cmd)
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "who opens the connection: a pod, workload, selector or address")
	f.StringVar(&to, "to", "", "who is called: a pod, workload, selector, Service, address or DNS name")
	f.StringVarP(&port, "port", "p", "", "NUMBER/PROTOCOL or NAME/PROTOCOL; 0/ICMP for ICMP")
	f.StringVar(&icmp, "icmp", "", "ICMP message, TYPE or TYPE/CODE (default: echo request)")
	f.BoolVar(&all, "all", false, "show every rule considered, not only the nearest")
	return cmd
}

func (q *question) explain(cmd *cobra.Command, in *cli.Input, from, to string, p query.Port, all bool) error {
	asked := query.Question{From: from, To: to, Namespace: q.cluster.Namespace, Port: p, Family: q.family}
	r, err := asked.Answer(in.Table, in.Snapshot)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	style := cli.StyleFor(out)
	switch asJSON := q.output.JSON(); {
	case r.Group != nil && asJSON:
		return writeAnswer(out, in, r.Group)
	case r.Group != nil:
		return query.WriteGroup(out, style, r.Group, all)
	case r.Service != nil && asJSON:
		return writeAnswer(out, in, r.Service)
	case r.Service != nil:
		return query.WriteServiceExplanation(out, style, r.Service, all)
	case asJSON:
		return writeAnswer(out, in, r.One)
	}
	return query.WriteExplanation(out, style, r.One, all)
}

// mayBeService reports whether an end is a Service or an address of one, perhaps.
func mayBeService(end string) bool {
	if _, err := netip.ParseAddr(end); err == nil {
		return true
	}
	return strings.HasPrefix(end, "svc") || strings.HasPrefix(end, "service") || strings.Contains(end, ".")
}
