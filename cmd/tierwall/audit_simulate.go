package main

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/manifests"
)

func newAuditSimulate() *cobra.Command {
	var q logQuestion
	var candidate, world agent.Paths
	var check, rules bool
	n := 50
	cmd := &cobra.Command{
		Use:   "simulate --manifests NEW [FILE...]",
		Short: "Judge logged connections by other policies, and list what would change",
		Long: `Takes every decision in the log and asks what the policies in NEW would have
decided, with the pods as NEW has them now: a pod in the log is the pod of that name,
or one of its namespace with the labels that were recorded; other ends are their
addresses. --inventory takes pods, namespaces, nodes and Services from elsewhere, so
that NEW need hold policies only.

Listed is what gets another verdict, with what decided and what would decide; with
--rules also what keeps its verdict for another reason. Only what was recorded can
be judged: set audit.all in the daemon's configuration for a complete picture, and
think of traffic that has not happened yet.

With --check the exit status is 1 when a verdict changes.

` + ofNodes,
		Example: `  tierwall audit simulate --manifests new/ --since 7d
  kubectl get pods,namespaces,nodes,services -A -o yaml > world.yaml
  tierwall audit simulate --manifests policies/ --inventory world.yaml --check`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(candidate) == 0 {
				return usage(cmd, errors.New("--manifests is required"))
			}
			if err := errors.Join(q.source(cmd, args), q.parse(cmd)); err != nil {
				return err
			}
			table, err := candidateTable(cmd, candidate, world, q.output.JSON())
			if err != nil {
				return err
			}
			s := auditlog.NewSimulation(table)
			lost, bad, err := q.events(cmd, logs(args), func(ev auditlog.Event) {
				if ev.Any(q.filter.Match) {
					q.cover.matched++
					s.Add(ev)
				}
			})
			if err != nil {
				return err
			}
			r := s.Report(n)
			r.Lost, r.Bad = lost, bad
			if q.output.JSON() {
				err = cli.WriteJSON(cmd.OutOrStdout(), r)
			} else {
				q.cover.tell(cmd.ErrOrStderr(), q.words.words(), q.zone())
				err = writeSimulation(cmd.OutOrStdout(), &r, rules)
			}
			if err == nil && check && r.VerdictDiff > 0 {
				err = &cli.FindingError{Err: errors.New("verdicts change"), Shown: true}
			}
			return errors.Join(err, q.incomplete())
		},
	}
	q.flags(cmd, "text", "json")
	q.addNodes(cmd)
	f := cmd.Flags()
	manifestsFlag(cmd, &candidate, "directory or file with the candidate policies; may be given several times (required)")
	f.Var(&world, "inventory", "directory or file with pods, namespaces, nodes and Services, policies in it are ignored; may be given several times (default: those in --manifests)")
	f.BoolVar(&check, "check", false, "exit with 1 if a verdict changes")
	f.BoolVar(&rules, "rules", false, "also list what keeps its verdict and is decided by another policy or rule")
	f.IntVarP(&n, "lines", "n", n, "how many changes to list; -1 for all")
	return cmd
}

// candidateTable compiles the candidate policies with every pod local. Findings
// are printed; errors among them end the command.
func candidateTable(cmd *cobra.Command, candidate, world []string, asJSON bool) (*classifier.Table, error) {
	if len(world) == 0 {
		in, err := cli.LoadWith(lower.Options{}, candidate, "", cmd.InOrStdin())
		if err != nil {
			return nil, err
		}
		return in.Table, showFindings(cmd, in, asJSON)
	}
	loader := manifests.Loader{
		Kinds: lower.Kinds(), Inventory: inventory.Options{AssignAddresses: true, Workloads: true}, Stdin: cmd.InOrStdin(),
	}
	objs, _, found := loader.Load(candidate...)
	_, snap, foundWorld := loader.Load(world...)
	// What is wrong with pods in the one and with policies in the other does not
	// matter; what cannot be read does, and both loaders say so as errors.
	found.Errors = append(found.Errors, foundWorld.Errors...)
	in := &cli.Input{Objects: objs, Snapshot: snap, Findings: diag.List{Errors: found.Errors}}
	if len(in.Findings.Errors) == 0 {
		var more diag.List
		in.Set, more = lower.Build(objs, snap)
		in.Findings.Add(more)
	}
	in.Findings.Sort()
	if err := showFindings(cmd, in, asJSON); err != nil {
		return nil, err
	}
	w := snap.World("")
	snap.FillSets(w, &in.Set)
	table, _, err := classifier.Compile(in.Set, w, classifier.Options{})
	if err != nil {
		return nil, fmt.Errorf("compile the policies: %w", err)
	}
	return table, nil
}

func writeSimulation(w io.Writer, r *auditlog.SimulationReport, rules bool) error {
	r = cli.EscapeAll(r)
	s := cli.StyleFor(w)
	var b strings.Builder
	fmt.Fprintf(&b, "%s in the log, %d judged again: %d would get another verdict, %d the same for another reason, %d stay as they are.\n",
		cli.Plural(r.Events, "decision"), r.Judged, r.VerdictDiff, r.RuleDiff, r.Same)
	list := func(title string, changes []auditlog.Change, total uint64) {
		if total == 0 {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", s.Bold(title))
		for i := range changes {
			c := &changes[i]
			fmt.Fprintf(&b, "%s -> %s  %s  %s  %s\n", s.Verdict(c.Before.Verdict), s.Verdict(c.After.Verdict),
				s.Bold(c.From+" -> "+c.To), c.Port, s.Dim(cli.Plural(c.Events, "decision")+", "+cli.Plural(c.Count, "packet")))
			fmt.Fprintf(&b, "    before  %s\n    after   %s\n", orUnknown(c.Before.By), orUnknown(c.After.By))
		}
	}
	list("Another verdict", r.Changes, r.VerdictDiff)
	if rules {
		list("The same verdict for another reason", r.RuleChanges, r.RuleDiff)
	}
	if len(r.Unjudged) > 0 {
		fmt.Fprintf(&b, "\n%s\n", s.Bold("Not judged"))
		for _, u := range r.Unjudged {
			fmt.Fprintf(&b, "%6d  %s\n", u.Events, u.Why)
		}
	}
	if r.Unlisted > 0 {
		fmt.Fprintf(&b, "%s counted and not listed: too many different ones.\n", cli.Plural(r.Unlisted, "changed decision"))
	}
	writeGaps(&b, s, r.Lost, r.Bad)
	_, err := io.WriteString(w, b.String())
	return err
}

func orUnknown(by string) string {
	if by == "" {
		return "not recorded"
	}
	return by
}
