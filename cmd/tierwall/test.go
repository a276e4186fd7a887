package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/cluster"
	"github.com/tierwall/tierwall/cmd/internal/demo"
	"github.com/tierwall/tierwall/cmd/internal/intent"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/controller"
)

type testFlags struct {
	world
	live      bool
	probe     bool
	all       bool
	expect    string
	address   string
	daemons   nodesFlags
	dataplane *cli.Format
	output    *cli.Format
}

func newTest() *cobra.Command {
	var q testFlags
	cmd := &cobra.Command{
		Use:   "test FILE... [--manifests DIR]",
		Short: "Test policies against what they are meant to do",
		Long: `Reads tests from files (or directories, or "-") and asks the policies about every
connection between the two ends of each: all their pods, both families, all ports
that are named. One connection that is decided otherwise makes a test fail.

  apiVersion: tierwall.io/v1
  kind: Intent
  tests:
  - {from: shop/frontend, to: shop/db, port: 5432/TCP, expect: deny}
  - {from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny}
  - {from: external:203.0.113.7, to: svc:shop/web, port: 443/TCP, expect: allow, by: admin/allow-web}

expect is allow, deny or reject (deny is any refusal); by names the policy that has
to decide. port is any, 443, 443/TCP, 8000-8100/UDP, http/TCP, any/TCP, ICMP. Ends:

` + assure.EndForms + `

Tests of netassert (src, dst, targetPort, exitCode) and policy-assistant's traffic.json
(with a field Expect, or --expect for all) are read as they are. docs/intent.schema.json
describes our own form for editors.

--live tests what daemons enforce: every daemon has to report the hash of just these
policies. --manifests then names what they are said to read; without it the cluster's
own policies are tested.

--probe sends packets, too, in the world of "tierwall demo" under the policies of
--manifests (root; not between pods of a cluster): from and to are its pods x/a to z/c
(labels pod=a|b|c, namespaces ns=x|y|z) and the host outside, external:192.0.2.10 and
external:2001:db8:1::10. Every pair of them is connected, over TCP and UDP and both
families as the test says. A test passes when what came through, what the policies say
and what is expected are the same; deny is silence, reject a reset or an ICMP error. Of
more than 16 ports those are probed where the answer changes, and 80 and 81; what was not
sent is listed. Tests of which nothing can be sent (Services, ICMP) are errors.

JSON: {"tests":[{"file","line","name","from","to","port","expect","got","ok","policy",
"rule"}],"passed","failed"}; with --probe got is what the packets showed, and there are
"probed", the number of connections, "notSent" and "dataplane". tap is TAP 14, junit JUnit's XML, sarif SARIF 2.1.0 at the
line of the policy that decides.

Exit code 0 when all tests pass, 1 when one fails, 2 when a test cannot be asked.`,
		Example: `  tierwall test intents.yaml --manifests policies/
  tierwall test tests/ -m policies/ -o junit > report.xml
  tierwall test netassert.yaml --live
  tierwall test intents.yaml --probe -m policies/
  tierwall test traffic.json --expect allow -m policies/`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return q.run(cmd, args) },
	}
	q.flags(cmd)
	q.endpoints = true
	q.output = cli.NewFormat("text", "json", "tap", "junit", "sarif")
	q.dataplane = cli.NewFormat("auto", "afxdp", "nfqueue")
	f := cmd.Flags()
	f.BoolVar(&q.live, "live", false, "test what daemons enforce, not only what is written")
	f.BoolVar(&q.probe, "probe", false, "make the connections, in the demo's world (root)")
	f.Var(q.dataplane, "dataplane", "--probe: how packets reach userspace")
	f.BoolVar(&q.all, "all", false, "text: show the tests that pass, too")
	f.StringVar(&q.expect, "expect", "", "what tests expect that do not say: allow, deny or reject")
	f.StringVar(&q.address, "address", agent.Default().Metrics.Address, "--live with --manifests: where the daemon on this machine listens")
	f.StringVar(&q.daemons.namespace, "daemon-namespace", cluster.DefaultNamespace, "--live: namespace of the daemons")
	f.IntVar(&q.daemons.port, "daemon-port", cluster.DefaultPort, "--live: port the daemons listen on")
	f.VarP(q.output, "output", "o", "form of the answer")
	return cmd
}

func (q *testFlags) run(cmd *cobra.Command, args []string) error {
	if q.expect != "" && !slices.Contains(intent.Expectations, q.expect) {
		return usage(cmd, fmt.Errorf("--expect %q: want %s", q.expect, strings.Join(intent.Expectations, ", ")))
	}
	if err := q.probeFlags(cmd); err != nil {
		return err
	}
	if slices.Contains(q.manifests, "-") && slices.Contains(args, "-") {
		return usage(cmd, errors.New("standard input can be the tests or the manifests, not both"))
	}
	tests, err := intent.Load(args, intent.Options{Stdin: cmd.InOrStdin(), Expect: q.expect})
	if err != nil {
		return err
	}
	load := func() (*cli.Input, error) { return q.load(cmd, "") }
	if q.probe {
		load = func() (*cli.Input, error) { return demo.Load(q.manifests) }
	}
	in, err := load()
	if err != nil {
		return err
	}
	w := cmd.ErrOrStderr()
	if err := in.WriteGaps(w, cli.StyleFor(w)); err != nil {
		return err
	}
	if in.Table == nil {
		if err := cli.WriteFindings(w, cli.StyleFor(w), false, &in.Findings); err != nil {
			return err
		}
		return errors.New("the policies have errors: no test was run")
	}
	if q.live {
		if err := q.enforced(cmd, in); err != nil {
			return err
		}
	}
	answer := func() (*intent.Results, error) { return intent.Run(tests, in, q.cluster.Namespace) }
	if q.probe {
		answer = func() (*intent.Results, error) { return q.sendProbes(cmd, tests, in) }
	}
	res, err := answer()
	if err != nil {
		return err
	}
	if err := q.write(cmd, res); err != nil {
		return err
	}
	if res.Failed > 0 {
		return &cli.FindingError{Err: fmt.Errorf("%d tests failed", res.Failed), Shown: true}
	}
	return nil
}

func (q *testFlags) write(cmd *cobra.Command, res *intent.Results) error {
	out := cmd.OutOrStdout()
	switch q.output.String() {
	case "json":
		return cli.WriteJSON(out, res)
	case "tap":
		return intent.WriteTAP(out, res)
	case "junit":
		return intent.WriteJUnit(out, res)
	case "sarif":
		return intent.WriteSARIF(out, res, buildVersion().Version)
	}
	return intent.WriteText(out, cli.StyleFor(out), res, q.all)
}

// enforced wants every daemon to enforce exactly the policies that were read.
func (q *testFlags) enforced(cmd *cobra.Command, in *cli.Input) error {
	n := &q.daemons
	n.cluster, n.address = q.cluster, q.address
	n.local = len(q.manifests) > 0 && !q.cluster.Given()
	ctx := cmd.Context()
	targets, err := n.targets(ctx, cmd)
	if err != nil {
		return err
	}
	want := controller.PolicyHash(in.Set)
	var mu sync.Mutex
	var wrong []string
	errs := ask(ctx, targets, func(ctx context.Context, _ int, t *target) error {
		s, err := t.Client.Status(ctx)
		if err != nil {
			return err
		}
		if s.Policy.Hash != want || !s.Ready {
			mu.Lock()
			defer mu.Unlock()
			state := "enforces other policies (hash " + shortHash(s.Policy.Hash) + ")"
			if !s.Ready {
				state = "is not ready"
			}
			wrong = append(wrong, nodeName(t)+" "+state)
		}
		return nil
	})
	for i, err := range errs {
		if err != nil {
			wrong = append(wrong, nodeName(&targets[i])+": "+err.Error())
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	slices.Sort(wrong)
	more := ""
	if len(wrong) > 5 {
		wrong, more = wrong[:5], fmt.Sprintf(" and %d more", len(wrong)-5)
	}
	return cli.Finding("what was read (hash %s) is not what is enforced: %s%s", shortHash(want), strings.Join(wrong, "; "), more)
}
