package query

import (
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
	fmt.Fprintf(&b, "%s  %s -> %s  port %s", s.Bold(s.Verdict(e.Verdict)), end(e.From, e.FromIP), end(e.To, e.ToIP), e.Port)
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
	writeSide(&b, s, "egress of "+e.From, &e.Egress, e.Trace.Egress, e.Trace.EgressOthers, full)
	writeSide(&b, s, "ingress of "+e.To, &e.Ingress, e.Trace.Ingress, e.Trace.IngressOthers, full)
	_, err := io.WriteString(w, b.String())
	return err
}

func end(name, ip string) string {
	if name == ip {
		return ip
	}
	return name + " (" + ip + ")"
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
				fmt.Fprintf(b, "      would be isolated by %s%s\n", s.Cyan(ref), s.Yellow(staged))
			} else {
				fmt.Fprintf(b, "      isolated by %s\n", s.Cyan(ref))
			}
		}
	}
	if others > 0 {
		fmt.Fprintf(b, "  %s\n", s.Dim(fmt.Sprintf("(rules about other pods: %d)", others)))
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
	fmt.Fprintf(b, "    %s%s %s: %s%s", mark, s.Cyan(r.Policy), r.Rule, r.Action, stage)
	if !r.Matched {
		detail := r.Detail
		if detail == "" {
			detail = r.Why
		}
		b.WriteString(s.Dim(", no: " + detail))
	}
	b.WriteByte('\n')
}

// reasonText says in words why a side was decided as it was.
func reasonText(d *Side) string {
	switch d.Reason {
	case "rule":
		return fmt.Sprintf("by rule %s of %s (band %s)", d.Rule, d.Policy, d.Band)
	case "auth-required":
		return fmt.Sprintf("because rule %s of %s asks for authentication, which nothing here can give (band %s)", d.Rule, d.Policy, d.Band)
	case "isolation":
		text := "isolated by " + strings.Join(d.Isolations, ", ")
		return text + " and nothing allows it (band " + d.Band + ")"
	case "default":
		return "no policy decides it"
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
