package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tierwall/tierwall/cmd/internal/api"
	"github.com/tierwall/tierwall/cmd/internal/cli"
)

func newStatus() *cobra.Command {
	var n nodesFlags
	output := cli.NewFormat("text", "wide", "json")
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show which policy each node enforces, and how",
		Long: `Asks node daemons what they do: whether a policy is in force, which table, by which
dataplane, and what is wrong with policies.

Without flags it asks all nodes of the kubeconfig's cluster, by port-forward; on a
machine without a kubeconfig, and with --local, the daemon of this machine. Rights
as for "flows". Of one node alone it tells more.

POLICY is the hash of the rules in force: equal where the same policies are.
SOURCE is "snapshot" while the API server has not been reached since the daemon
started and policy comes from the node's disk. STAGED, when there are any, counts
policies that are recorded and not enforced.

JSON: {"nodes":[{"node","pod","error","status":{…}}]}.
Exit code 1 when a node does not answer, is not ready or has errors.`,
		Example: `  tierwall status
  tierwall status --node worker-1
  tierwall status -o json | jq -r '.nodes[] | select(.status.ready | not) | .node'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := interruptible(cmd)
			defer stop()
			a, targets, errs, err := n.status(ctx, cmd)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if err := n.nobodyHere(targets, errs); err != nil && !output.JSON() {
				return err
			}
			switch {
			case output.JSON():
				err = cli.WriteJSON(out, a)
			case len(a.Nodes) == 1 && a.Nodes[0].Status != nil:
				err = writeStatus(out, cli.StyleFor(out), a.Nodes[0].Status, time.Now())
			default:
				err = a.write(out, output.String() == "wide", time.Now())
			}
			if bad := a.bad(); err == nil && bad > 0 {
				if err = answered(cmd, targets, errs); err == nil {
					err = &cli.FindingError{Err: fmt.Errorf("%s with a problem", cli.Plural(bad, "node")), Shown: true}
				}
			}
			return err
		},
	}
	n.flags(cmd)
	cmd.Flags().VarP(output, "output", "o", "output format")
	return cmd
}

// status asks the daemons what they do.
func (n *nodesFlags) status(ctx context.Context, cmd *cobra.Command) (a statusAnswer, targets []target, errs []error, err error) {
	if targets, err = n.targets(ctx, cmd); err != nil {
		return a, nil, nil, err
	}
	a, errs = statusOf(ctx, targets)
	return a, targets, errs, nil
}

// statusOf asks some daemons.
func statusOf(ctx context.Context, targets []target) (statusAnswer, []error) {
	a := statusAnswer{Nodes: make([]nodeStatus, len(targets))}
	errs := ask(ctx, targets, func(ctx context.Context, i int, t *target) error {
		var err error
		a.Nodes[i].Status, err = t.Client.Status(ctx)
		return err
	})
	for i := range targets {
		one := &a.Nodes[i]
		one.Node, one.Pod = targets[i].Node, targets[i].Pod
		if one.Node == "" && one.Status != nil {
			one.Node = one.Status.Node
		}
		if errs[i] != nil {
			one.Error = errs[i].Error()
		}
	}
	return a, errs
}

// statusAnswer is the JSON form of "tierwall status".
type statusAnswer struct {
	Nodes []nodeStatus `json:"nodes"`
}

type nodeStatus struct {
	Node   string      `json:"node"`
	Pod    string      `json:"pod,omitempty"`
	Error  string      `json:"error,omitempty"`
	Status *api.Status `json:"status,omitempty"`
}

// bad counts the nodes that are not as they should be.
func (a *statusAnswer) bad() (n int) {
	for i := range a.Nodes {
		if s := a.Nodes[i].Status; s == nil || !s.Ready || s.Policy.ErrorsTotal > 0 {
			n++
		}
	}
	return n
}

func (a *statusAnswer) write(w io.Writer, wide bool, now time.Time) error {
	header := []string{"NODE", "READY", "DATAPLANE", "POLICY", "OBJECTS", "ERRORS", "CONNECTIONS", "SOURCE", "AGE"}
	staged := wide || slices.ContainsFunc(a.Nodes, func(n nodeStatus) bool { return n.Status != nil && n.Status.Policy.Staged > 0 })
	if staged {
		header = append(header, "STAGED")
	}
	if wide {
		header = append(header, "TABLE", "PODS", "AUDIT-LOST", "VERSION", "WHY")
	}
	rows := [][]string{header}
	ready := 0
	hashes := map[string]int{}
	for i := range a.Nodes {
		one := &a.Nodes[i]
		s := one.Status
		if s == nil {
			row := []string{one.Node, "unknown", "-", "-", "-", "-", "-", "-", "-"}
			if staged {
				row = append(row, "-")
			}
			if wide {
				row = append(row, "-", "-", "-", "-", oneLine(one.Error))
			}
			rows = append(rows, row)
			continue
		}
		if s.Ready {
			ready++
			hashes[s.Policy.Hash]++
		}
		row := []string{
			one.Node, yes(s.Ready), orNone(s.Dataplane.Backends), shortHash(s.Policy.Hash), strconv.Itoa(s.Policy.Objects),
			strconv.Itoa(s.Policy.ErrorsTotal), strconv.Itoa(s.Traffic.Connections), sourceWord(s), age(now.Sub(s.Started)),
		}
		if staged {
			row = append(row, strconv.Itoa(s.Policy.Staged))
		}
		if wide {
			lost := "-"
			if s.Audit != nil {
				lost = strconv.FormatUint(s.Audit.Lost, 10)
			}
			row = append(row, strconv.FormatUint(s.Policy.Generation, 10), strconv.Itoa(s.Policy.Pods), lost, s.Version,
				oneLine(orElse(s.NotReady, s.Dataplane.Why)))
		}
		rows = append(rows, row)
	}
	if err := writeTable(w, rows); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%d of %d nodes enforce policy", ready, len(a.Nodes))
	if len(hashes) > 1 {
		fmt.Fprintf(&b, "; not all the same one: there are %d different (a change on its way, or a node that is behind)", len(hashes))
	}
	b.WriteString("\n")
	a.writeErrors(&b)
	_, err := io.WriteString(w, b.String())
	return err
}

// writeErrors lists what is wrong, and policy kinds that are not enforced, once for
// all nodes that say so.
func (a *statusAnswer) writeErrors(b *strings.Builder) {
	nodes := map[string][]string{}
	var order []string
	say := func(node, text string) {
		if nodes[text] == nil {
			order = append(order, text)
		}
		nodes[text] = append(nodes[text], node)
	}
	for i := range a.Nodes {
		s, node := a.Nodes[i].Status, a.Nodes[i].Node
		if s == nil {
			continue
		}
		for _, d := range s.Policy.Errors {
			say(node, "error: "+d.String())
		}
		if !s.Ready && len(s.Policy.Errors) == 0 {
			say(node, "error: "+oneLine(s.NotReady))
		}
		for _, n := range s.Source.NotUnderstood {
			if n.Matters {
				say(node, "warning: "+n.Message)
			}
		}
	}
	for _, text := range order {
		where := nodes[text]
		name := cli.Escape(strings.Join(where[:min(len(where), 3)], ", "))
		if len(where) > 3 {
			name = fmt.Sprintf("%s and %d more", name, len(where)-3)
		}
		fmt.Fprintf(b, "%s (%s)\n", text, name)
	}
}

func writeStatus(w io.Writer, s cli.Style, st *api.Status, now time.Time) error {
	st = cli.EscapeAll(st)
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("node", "%s", s.Bold(st.Node))
	if st.Ready {
		line("ready", "%s", s.Green("yes"))
	} else {
		line("ready", "%s: %s", s.Red("no"), oneLine(st.NotReady))
	}
	line("version", "%s, started %s ago", st.Version, age(now.Sub(st.Started)))
	line("dataplane", "%s (%s)", orNone(st.Dataplane.Backends), st.Dataplane.Why)
	for _, p := range st.Dataplane.Probes {
		if p.Running && p.How != "" {
			line("", "%s: %s", p.Backend, p.How)
		}
	}
	line("", "failMode %s, established %s", st.Dataplane.FailMode, st.Dataplane.Established)
	if st.Dataplane.Kernel != "" {
		line("", "kernel %s", st.Dataplane.Kernel)
	}
	p := &st.Policy
	line("policy", "table %d, hash %s", p.Generation, orNone(p.Hash))
	line("", "%s, %s, %s, %s", cli.Plural(p.Objects, "object"), cli.Plural(p.Rules, "rule"), cli.Plural(p.Isolations, "isolation"), cli.Plural(p.Pods, "pod"))
	if p.Staged > 0 {
		line("", "%s", s.Yellow(fmt.Sprintf("%d staged: recorded, not enforced (annotation tierwall.io/stage: audit)", p.Staged)))
	}
	if p.Unmatched != nil && p.Matches != nil {
		line("", "%d hits; %s without any yet (tierwall usage)", *p.Matches, cli.Plural(*p.Unmatched, "rule"))
	}
	if p.LastSuccess != nil {
		line("", "last change in force %s ago", age(now.Sub(*p.LastSuccess)))
	}
	source := fmt.Sprintf("%s (%s)", st.Source.Kind, st.Source.Where)
	switch {
	case st.Source.Snapshot:
		source += ", from the snapshot on this node's disk"
	case !st.Source.Synced:
		source += ", not read completely yet"
	}
	line("source", "%s", source)
	if st.Source.Problem != "" {
		line("", "%s", st.Source.Problem)
	}
	t := &st.Traffic
	connections := cli.Plural(t.Connections, "connection") + " remembered"
	if t.Connections > 0 && t.Open+t.InKernel+t.Ended > 0 {
		connections += fmt.Sprintf(": %d open, %d in the kernel (some may have ended), %d ended", t.Open, t.InKernel, t.Ended)
	}
	line("traffic", "%s", connections)
	line("", "packets: %d in userspace (%d passed, %d dropped), %d in the kernel", t.Userspace, t.Passed, t.Dropped, t.Kernel)
	line("", "%d dropped (queue full), %s closed by policy changes", t.Overflow, cli.Plural(t.Cut, "connection"))
	if st.Audit != nil {
		line("audit", "%s, %d lost (%s)", cli.Plural(st.Audit.Records, "record"), st.Audit.Lost, orNone(st.Audit.File))
	}
	if e := st.Enforced; e != nil {
		resources := make([]string, 0, len(e.Observed))
		for name, version := range e.Observed {
			resources = append(resources, fmt.Sprintf("%s@%d", name, version))
		}
		slices.Sort(resources)
		line("taken in", "%s", orNone(strings.Join(resources, " ")))
	}
	for _, d := range p.Errors {
		fmt.Fprintf(&b, "%s: %s\n", s.Red("error"), d)
	}
	if more := p.ErrorsTotal - len(p.Errors); more > 0 {
		fmt.Fprintf(&b, "and %s\n", cli.Plural(more, "more error"))
	}
	for _, n := range st.Source.NotUnderstood {
		if n.Matters {
			fmt.Fprintf(&b, "%s: %s (%s)\n", s.Yellow("warning"), n.Message, n.Hint)
		} else {
			fmt.Fprintf(&b, "%s: %s\n", s.Dim("note"), n.Message)
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func sourceWord(s *api.Status) string {
	switch {
	case s.Source.Snapshot:
		return "snapshot"
	case s.Source.Problem != "":
		return s.Source.Kind + "!"
	}
	return s.Source.Kind
}

func shortHash(h string) string { return orNone(h[:min(len(h), 12)]) }

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func orElse(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}
