package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/agent"
	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/lint"
)

func newUsage() *cobra.Command {
	var n nodesFlags
	var policies agent.Paths
	var since string
	output := cli.NewFormat("text", "json")
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "List rules that nothing matches, and rules that cannot matter",
		Long: `Asks node daemons how often each rule and each isolation has decided, audited or
not, and lists

  never matched  nothing on any node asked: no new connection, no refused packet and no
                 remembered connection, in the time the rule was watched
  shadowed       a stronger rule matches all that it does (docs/checks.md, TW103)
  half-open      one side allows, the other side's policies refuse all of it (TW110)

A daemon watches from its start, and a new or edited rule from when it comes into
force. WATCHED is the shortest of these on the nodes that were asked: a rule that
matched nothing for an hour may be needed once a month. --since counts what matched
before as never matched, and says where less than that was watched.

A hit goes to the rule that decides. Of NetworkPolicy rules that allow the same it is
the first, so that one of two may be removed, not both.

Shadowed and half-open rules are found in the policies of the cluster, or of
--manifests. Exit code 1 when a node did not answer.

JSON: {"asked","nodes":[{"node","error"}],"rules":[{"policy","direction","rule","stage",
"hits","last","since","live","nodes","unused"}],"shadowed","halfOpen"}.`,
		Example: `  tierwall usage --since 30d
  tierwall usage --local --manifests /etc/tierwall/manifests
  tierwall usage -o json | jq -r '.rules[] | select(.unused) | .policy + " " + .rule'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			after := time.Time{}
			if since != "" {
				var err error
				if after, err = auditlog.ParseTime(since, time.Now()); err != nil {
					return usage(cmd, fmt.Errorf("--since: %w", err))
				}
			}
			ctx, stop := interruptible(cmd)
			defer stop()
			targets, err := n.targets(ctx, cmd)
			if err != nil {
				return err
			}
			u, errs := usageOf(ctx, targets, after)
			if err := answered(cmd, targets, errs); err != nil && len(u.Rules) == 0 {
				return err
			}
			if err := u.look(cmd, &n, policies); err != nil {
				return err
			}
			if output.JSON() {
				err = cli.WriteJSON(cmd.OutOrStdout(), u)
			} else {
				err = u.write(cmd.OutOrStdout(), time.Now())
			}
			if failed := u.failed(); err == nil && failed > 0 {
				err = &cli.FindingError{Err: fmt.Errorf("%d of %d daemons did not answer", failed, len(targets)), Shown: true}
			}
			return err
		},
	}
	n.flags(cmd)
	f := cmd.Flags()
	manifestsFlag(cmd, &policies, "directory or file with the policies and pods to find shadowed and half-open rules in (default: the cluster)")
	f.StringVar(&since, "since", "", "what matched only before this is unused: 30d, 2w, yesterday, \"2026-01-02 15:04\" (default: since it was watched)")
	f.VarP(output, "output", "o", "output format")
	return cmd
}

// usageAnswer is the JSON form of "tierwall usage".
type usageAnswer struct {
	Asked    *time.Time        `json:"asked,omitempty"` // --since
	Nodes    []usageNode       `json:"nodes"`
	Rules    []ruleUsage       `json:"rules"`
	Shadowed []diag.Diagnostic `json:"shadowed"`
	HalfOpen []diag.Diagnostic `json:"halfOpen"`
	// NotLooked is why there are no shadowed and half-open rules in the answer.
	NotLooked string `json:"notLooked,omitempty"`
}

type usageNode struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"`
}

// ruleUsage is a rule, or an isolation, over all nodes that answered.
type ruleUsage struct {
	Policy    string     `json:"policy"`
	Direction string     `json:"direction"`
	Rule      string     `json:"rule"` // "isolation" for one
	Stage     string     `json:"stage"`
	Hits      uint64     `json:"hits"`
	Last      *time.Time `json:"last,omitempty"`
	Since     time.Time  `json:"since"` // from when on all of the nodes watched it
	Live      int        `json:"live"`
	Nodes     int        `json:"nodes"`
	Unused    bool       `json:"unused"`
	ref       audit.Policy
}

// hitsOf asks daemons for their hits, and adds them up by rule.
func hitsOf(ctx context.Context, targets []target) (rules []ruleUsage, nodes []usageNode, errs []error) {
	answers := make([][]*api.Hits, len(targets))
	errs = ask(ctx, targets, func(ctx context.Context, i int, t *target) error {
		return t.Client.Hits(ctx, func(h *api.Hits) error {
			answers[i] = append(answers[i], h)
			return nil
		})
	})
	at := map[string]int{}
	for i := range targets {
		node := usageNode{Node: nodeName(&targets[i])}
		if len(answers[i]) > 0 {
			node.Node = answers[i][0].Node
		}
		if errs[i] != nil {
			node.Error = errs[i].Error()
			nodes = append(nodes, node)
			continue // half an answer would make rules look unused
		}
		nodes = append(nodes, node)
		for _, h := range answers[i] {
			o := h.Origin()
			rule := h.Rule
			if h.Index < 0 {
				rule = "isolation"
			}
			key := o.Ref() + " " + h.Direction + " " + rule
			n, ok := at[key]
			if !ok {
				n = len(rules)
				at[key] = n
				rules = append(rules, ruleUsage{Policy: policyText(&h.Policy), Direction: h.Direction, Rule: rule, Stage: h.Stage, ref: h.Policy})
			}
			r := &rules[n]
			r.Hits += h.Hits
			r.Live += h.Live
			r.Nodes++
			if h.Since.After(r.Since) {
				r.Since = h.Since
			}
			if h.Last != nil && (r.Last == nil || h.Last.After(*r.Last)) {
				r.Last = h.Last
			}
		}
	}
	return rules, nodes, errs
}

// policyText names a policy as audit lines do.
func policyText(p *audit.Policy) string {
	name := p.Name
	if p.Namespace != "" {
		name = p.Namespace + "/" + name
	}
	if p.Group == "" || p.Group == "networking.k8s.io" {
		return p.Kind + " " + name
	}
	return p.Kind + " " + name + " (" + p.Group + ")"
}

func usageOf(ctx context.Context, targets []target, after time.Time) (u usageAnswer, errs []error) {
	u.Rules, u.Nodes, errs = hitsOf(ctx, targets)
	if !after.IsZero() {
		u.Asked = &after
	}
	for i := range u.Rules {
		r := &u.Rules[i]
		r.Unused = r.Live == 0 && (r.Last == nil || r.Last.Before(after))
	}
	u.Shadowed, u.HalfOpen = []diag.Diagnostic{}, []diag.Diagnostic{}
	return u, errs
}

func (u *usageAnswer) failed() (n int) {
	for _, one := range u.Nodes {
		if one.Error != "" {
			n++
		}
	}
	return n
}

// look finds the rules that cannot matter, in manifests or in the cluster.
func (u *usageAnswer) look(cmd *cobra.Command, n *nodesFlags, manifests agent.Paths) error {
	if len(manifests) == 0 && n.local {
		u.NotLooked = "no policies were given to look for shadowed and half-open rules in (--manifests)"
		return nil
	}
	w := world{manifests: manifests}
	if len(manifests) == 0 {
		w.cluster = n.cluster
		if _, err := w.cluster.Open(); err != nil {
			u.NotLooked = "shadowed and half-open rules were not looked for: " + err.Error()
			return nil
		}
	}
	in, err := w.load(cmd, "")
	if err != nil {
		return err
	}
	if err := showErrors(cmd, in); err != nil {
		return err
	}
	found := lint.Check(in.Objects, &in.Set, in.Snapshot)
	for _, d := range found.Warnings {
		switch d.Code {
		case diag.Shadowed:
			u.Shadowed = append(u.Shadowed, d)
		case diag.HalfOpen:
			u.HalfOpen = append(u.HalfOpen, d)
		}
	}
	return nil
}

// showErrors is showFindings without the warnings, which have commands of their own.
func showErrors(cmd *cobra.Command, in *cli.Input) error {
	w := cmd.ErrOrStderr()
	if err := in.WriteGaps(w, cli.StyleFor(w)); err != nil {
		return err
	}
	if in.Table != nil || len(in.Findings.Errors) == 0 {
		return nil
	}
	only := diag.List{Errors: in.Findings.Errors}
	if err := cli.WriteFindings(w, cli.StyleFor(w), false, &only); err != nil {
		return err
	}
	return errors.Join(&cli.FindingError{Err: only.Err(), Shown: true})
}

func (u *usageAnswer) write(w io.Writer, now time.Time) error {
	s := cli.StyleFor(w)
	var b strings.Builder
	used := 0
	var unused []ruleUsage
	var from time.Time // from when on every rule was watched
	for _, r := range u.Rules {
		if r.Unused {
			unused = append(unused, r)
		} else {
			used++
		}
		if from.IsZero() || r.Since.Before(from) {
			from = r.Since
		}
	}
	fmt.Fprintf(&b, "%d of %s answered. Of %s %d decided something", len(u.Nodes)-u.failed(), cli.Plural(len(u.Nodes), "daemon"),
		cli.Plural(len(u.Rules), "rule"), used)
	if u.Asked != nil {
		fmt.Fprintf(&b, " since %s", u.Asked.Format(time.DateTime))
		if from.After(*u.Asked) {
			fmt.Fprintf(&b, "; %s", s.Yellow("watched is less than that: since "+from.Local().Format(time.DateTime)))
		}
	}
	b.WriteString(".\n")
	for _, node := range u.Nodes {
		if node.Error != "" {
			fmt.Fprintf(&b, "%s\n", s.Yellow(cli.Escape(node.Node+" did not answer: what its rules matched is not in the counts.")))
		}
	}
	fmt.Fprintf(&b, "\n%s\n", s.Bold("Never matched"))
	if len(unused) == 0 {
		b.WriteString("none\n")
	} else {
		slices.SortStableFunc(unused, func(x, y ruleUsage) int {
			return cmp.Or(cmp.Compare(x.Policy, y.Policy), cmp.Compare(x.Direction, y.Direction))
		})
		rows := [][]string{{"POLICY", "DIRECTION", "RULE", "STAGE", "LAST", "WATCHED", "NODES"}}
		for _, r := range unused {
			rows = append(rows, []string{r.Policy, r.Direction, r.Rule, r.Stage, lastText(r.Last, now), age(now.Sub(r.Since)), fmt.Sprint(r.Nodes)})
		}
		align(&b, rows, 0, func(row, _ int, text string) string {
			if row == 0 {
				return s.Dim(text)
			}
			return text
		})
	}
	list := func(title string, found []diag.Diagnostic) {
		if u.NotLooked != "" {
			return
		}
		fmt.Fprintf(&b, "\n%s\n", s.Bold(title))
		if len(found) == 0 {
			b.WriteString("none\n")
		}
		for _, d := range found {
			fmt.Fprintf(&b, "%s\n", d)
		}
	}
	list("Shadowed", u.Shadowed)
	list("Half-open", u.HalfOpen)
	if u.NotLooked != "" {
		fmt.Fprintf(&b, "\n%s\n", cli.Escape(u.NotLooked))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// lastText says how long ago something last happened.
func lastText(t *time.Time, now time.Time) string {
	if t == nil {
		return "never"
	}
	return age(now.Sub(*t)) + " ago"
}
