package query

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// fewest is how many rules that did not match a band shows in full before the
// rest is only counted.
const fewest = 4

// WriteExplanation prints an explanation for people; full lists every rule
// considered instead of the nearest ones.
func WriteExplanation(w io.Writer, s cli.Style, e *Explanation, full bool) error {
	e = cli.EscapeAll(e)
	var b strings.Builder
	verdict := s.Verdict(e.Verdict)
	if len(e.DependsOnName) > 0 {
		verdict = s.Yellow("depends on the name")
	}
	fmt.Fprintf(&b, "%s  %s -> %s  port %s", s.Bold(verdict), end(e.From, e.FromIP, e.FromMadeUp), end(e.To, e.ToIP, e.ToMadeUp), e.Port)
	switch {
	case e.ResolvedPort != 0:
		fmt.Fprintf(&b, " = %d", e.ResolvedPort)
	case e.Packet != "" && strings.HasSuffix(e.Packet, ":0"):
		b.WriteString(" (the destination has no such port)")
	}
	fmt.Fprintf(&b, "  IPv%d", e.Family)
	if e.Via != "" {
		fmt.Fprintf(&b, ", opened to %s", e.Via)
	}
	b.WriteByte('\n')
	for _, n := range e.Notes {
		fmt.Fprintf(&b, "  %s\n", n)
	}
	writeNames(&b, s, e)
	writeSide(&b, s, "egress of "+e.From, &e.Egress, e.Trace.Egress, e.Trace.EgressOthers, full)
	writeSide(&b, s, "ingress of "+e.To, &e.Ingress, e.Trace.Ingress, e.Trace.IngressOthers, full)
	_, err := io.WriteString(w, b.String())
	return err
}

func end(name, ip string, madeUp bool) string {
	switch {
	case name == ip || ip == "":
		return name
	case madeUp:
		return name + " (made-up address " + ip + ")"
	}
	return name + " (" + ip + ")"
}

// writeNames lists what DNS names make of the answer.
func writeNames(b *strings.Builder, s cli.Style, e *Explanation) {
	for i, a := range e.DependsOnName {
		if i == 0 {
			continue
		}
		fmt.Fprintf(b, "  %s if %s resolves to this address: %s\n", s.Verdict(a.Verdict), strings.Join(a.Names, " and "), reasonText(&a.Egress))
	}
	if len(e.DependsOnName) > 0 {
		fmt.Fprintf(b, "  %s if none of these names does, as shown below; ask about a name with --to NAME\n", s.Verdict(e.Verdict))
	}
}

func writeSide(b *strings.Builder, s cli.Style, title string, d *Side, bands []BandTrace, others int, full bool) {
	fmt.Fprintf(b, "\n%s: %s, %s\n", s.Bold(title), s.Verdict(d.Verdict), reasonText(d))
	if d.Staged != nil {
		fmt.Fprintf(b, "  if the staged policies were enforced: %s, %s\n", s.Verdict(d.Staged.Verdict), reasonText(d.Staged))
	}
	for _, band := range bands {
		fmt.Fprintf(b, "  %-16s %s\n", band.Band, resultText(band.Result))
		hidden := 0
		shown := 0
		for _, r := range nearest(band.Rules) {
			if !r.Matched && !full {
				if shown >= fewest {
					hidden++
					continue
				}
				shown++
			}
			writeRule(b, s, &r)
		}
		if hidden > 0 {
			fmt.Fprintf(b, "    %s\n", s.Dim(fmt.Sprintf("  … %d more did not match (--all shows them)", hidden)))
		}
		for _, ref := range band.Isolations {
			if slices.Contains(band.StagedIsolations, ref) {
				fmt.Fprintf(b, "      would be isolated by %s%s\n", s.Cyan(nameShort(ref)), s.Yellow(staged))
			} else {
				fmt.Fprintf(b, "      isolated by %s\n", s.Cyan(nameShort(ref)))
			}
		}
	}
	if others > 0 {
		fmt.Fprintf(b, "  %s\n", s.Dim(cli.Plural(others, "other rule")+" "+doNot(others)+" apply to this pod"))
	}
}

// staged marks what a policy in the audit stage says.
const staged = " (staged: not enforced)"

func writeRule(b *strings.Builder, s cli.Style, r *RuleTrace) {
	mark, stage := "  ", ""
	if r.Matched {
		mark = s.Bold("> ")
	}
	if r.Stage == "audit" {
		stage = s.Yellow(staged)
	}
	fmt.Fprintf(b, "    %s%s, %s: ", mark, s.Cyan(nameShort(r.Policy)), nameRule(r.Rule))
	switch {
	case r.Matched:
		b.WriteString(r.Action + stage)
	case r.Why == "not-reached" || r.Why == "skipped":
		b.WriteString(s.Dim(r.Detail) + stage)
	default:
		b.WriteString(s.Dim("not matched: "+cmp.Or(r.Detail, r.Why)) + stage)
	}
	b.WriteByte('\n')
}

func doNot(n int) string {
	if n == 1 {
		return "does not"
	}
	return "do not"
}

// reasonText says in words why a side was decided as it was.
func reasonText(d *Side) string {
	switch d.Reason {
	case "rule":
		return fmt.Sprintf("by %s, %s (band %s)", nameShort(d.Policy), nameRule(d.Rule), d.Band)
	case "auth-required":
		return fmt.Sprintf("because %s, %s, asks for authentication, which nothing here can give (band %s)", nameShort(d.Policy), nameRule(d.Rule), d.Band)
	case "isolation":
		text := "isolated by " + nameAll(d.Isolations)
		return text + " and nothing allows it (band " + d.Band + ")"
	case "default":
		return "no policy applies"
	case "node-local":
		return "the node may always reach its own pods"
	case "self":
		return "a pod may always reach itself"
	case "not-local":
		return "not a pod whose policy is enforced here"
	case "unknown-peer":
		return "the other end is inside a pod network but not a known pod"
	}
	return d.Reason
}

func resultText(result string) string {
	switch result {
	case "no-match":
		return "no rule matched"
	case "not-reached":
		return "not reached"
	}
	return result
}
