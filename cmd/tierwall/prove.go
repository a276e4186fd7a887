package main

import (
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/intent"
	"github.com/tierwall/tierwall/policy/assure"
)

type proveFlags struct {
	world
	expect string
	limit  int
	output *cli.Format
}

func newProve() *cobra.Command {
	var q proveFlags
	cmd := &cobra.Command{
		Use:   "prove FILE... [--manifests DIR]",
		Short: "Prove what policies do to all pods that anybody could create",
		Long: `Reads claims from files (or directories, or "-") and decides each for every pod that
could be, not only for those there are: any labels, account, named ports and address.
The answer is "proved"; or "refuted", with two pods and a packet between them; or
"undecided", with the bound that was hit.

  apiVersion: tierwall.io/v1
  kind: Intent
  tests:
  - {from: "ns:tier=dev", to: "ns:tier=pci", port: any, expect: deny, forever: true}
  - name: the admins of team-a cannot open the vault
    from: any
    to: ns:vault
    port: 8200/TCP
    expect: deny
    forever: true
    rights: {pods: ns:team-a, policies: ns:team-a}

Claims are the tests that say forever: true; of a file in which none does, all tests.
A named pod or workload stands for its pods as they are, every other end for all pods
that could have these labels. rights, in a test or for all tests of a file, say what
anybody may create or change; everything else stays as it is:

  namespaces: given            those there are, as they are labelled (the default);
                               any: new ones may come, all may get any labels
  keepNamespaceLabels: [tier]  but for these keys, which new ones do not have
  pods: any                    where pods may come and be relabelled: any (the
                               default), none, ns:shop, ns:team=a, or a list
  keepLabels: [role]           labels that new pods do not have and others keep
  hostNetwork: false           whether pods may come that use their node's network
  policies: ns:team-a          where any NetworkPolicy may come (by default none may)
  podNetworks: [10.0.0.0/8]    where pods get addresses (default: podCIDRs of nodes)

What DNS says is not known: a rule with a DNS name may be about any address. Deleting
policies, and policies of other kinds that may come, cannot be claimed about.

JSON: {"claims":[{"name","answer":"proved|refuted|undecided","why","covers","assumes",
"witness":{"from","to","packet","verdict","policy","rule","manifest"}}]}; manifest has
the witness's pods as YAML, for "tierwall explain --manifests".

Exit code 0 when all claims are proved, 1 when one is refuted, 3 when one is undecided
and none refuted, 2 when a claim means nothing.`,
		Example: `  tierwall prove claims.yaml --manifests policies/
  tierwall prove claims.yaml
  tierwall prove claims.yaml -m policies/ -o json | jq '.claims[] | select(.answer == "refuted") | .witness'`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return q.run(cmd, args) },
	}
	q.flags(cmd)
	q.output = cli.NewFormat("text", "json")
	f := cmd.Flags()
	f.StringVar(&q.expect, "expect", "", "what claims expect that do not say: allow, deny or reject")
	f.IntVar(&q.limit, "max-combinations", assure.DefaultLimit, "combinations of labels to look at before a claim is undecided")
	f.VarP(q.output, "output", "o", "form of the answer")
	return cmd
}

func (q *proveFlags) run(cmd *cobra.Command, args []string) error {
	switch {
	case q.expect != "" && !slices.Contains(intent.Expectations, q.expect):
		return usage(cmd, fmt.Errorf("--expect %q: want allow, deny or reject", q.expect))
	case q.limit < 1:
		return usage(cmd, fmt.Errorf("--max-combinations %d: want a number above 0", q.limit))
	case slices.Contains(q.manifests, "-") && slices.Contains(args, "-"):
		return usage(cmd, errors.New("standard input can be the claims or the manifests, not both"))
	}
	tests, err := intent.Load(args, intent.Options{Stdin: cmd.InOrStdin(), Expect: q.expect})
	if err != nil {
		return err
	}
	in, err := q.load(cmd, "")
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
		return errors.New("the policies have errors: no claim was decided")
	}
	tests = intent.ForProof(tests)
	p := cli.NewProgress(w, "claims", len(tests))
	all, err := intent.Prove(tests, in, q.cluster.Namespace, q.limit, p.Done)
	p.End()
	if err != nil {
		return err
	}
	if q.output.JSON() {
		err = writeAnswer(cmd.OutOrStdout(), in, all)
	} else {
		err = intent.WriteClaims(cmd.OutOrStdout(), cli.StyleFor(cmd.OutOrStdout()), all)
	}
	switch {
	case err != nil:
		return err
	case all.Refuted > 0:
		return &cli.FindingError{Err: fmt.Errorf("%d claims refuted", all.Refuted), Shown: true}
	case all.Undecided > 0:
		return &cli.FindingError{Err: fmt.Errorf("%d claims undecided", all.Undecided), Shown: true, Undecided: true}
	}
	return nil
}
