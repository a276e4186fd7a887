package changes

import (
	"bufio"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/assure"
)

var titles = map[assure.Kind]string{
	assure.Opened:    "opened: refused before, allowed now",
	assure.Closed:    "closed: allowed before, refused now",
	assure.OtherRule: "same answer, decided by another rule",
}

// Head is one line about all changes.
func Head(s assure.Summary) string {
	if s.Total() == 0 {
		return "No connection is decided in another way."
	}
	return fmt.Sprintf("%d opened, %d closed, %d decided by another rule", s.Opened, s.Closed, s.Rule)
}

// WriteText prints groups for a terminal. most bounds the lines of the groups that
// keep their verdict; 0 means all.
func WriteText(w io.Writer, s cli.Style, d *assure.Diff, weighed bool, most int) (assure.Summary, error) {
	groups, sum := Groups(d)
	names := NewNamer(d)
	var b strings.Builder
	b.WriteString(s.Bold(Head(sum)) + "\n")
	var kind assure.Kind
	shown := 0
	for i := range groups {
		g := &groups[i]
		if g.Kind != kind {
			kind, shown = g.Kind, 0
			fmt.Fprintf(&b, "\n%s\n", s.Bold(titles[kind]))
		}
		if shown++; kind == assure.OtherRule && most > 0 && shown > most {
			if shown == most+1 {
				fmt.Fprintf(&b, "  and %d more; --all shows them\n", len(groups)-i)
			}
			continue
		}
		paint := map[assure.Kind]func(string) string{assure.Opened: s.Yellow, assure.Closed: s.Red, assure.OtherRule: s.Dim}[kind]
		fmt.Fprintf(&b, "  %s → %s  %s%s\n", names.Name(g.From, g.To), names.Name(g.To, g.From), paint(g.Ports), g.note(weighed))
		fmt.Fprintf(&b, "      before  %s\n      now     %s\n", By(&g.Before), By(&g.After))
	}
	for _, l := range []struct {
		title string
		names []string
	}{{"Only in the new state, not compared", d.Added}, {"Only in the old state, not compared", d.Removed}} {
		if len(l.names) > 0 {
			fmt.Fprintf(&b, "\n%s: %s\n", s.Bold(l.title), cli.Escape(some(l.names, 20)))
		}
	}
	_, err := io.WriteString(w, b.String())
	return sum, err
}

func (g *Group) note(weighed bool) string {
	out := ""
	if g.Some {
		out += "  (some of the pods; --pods names them)"
	}
	if weighed {
		out += fmt.Sprintf("  [%d connections in the log]", g.Seen)
	}
	return out
}

func some(names []string, most int) string {
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
}

// Bounds of a comment: lines in all, and bytes, of which GitHub takes 65,536.
const (
	maxLines = 60
	maxBytes = 60_000
)

// WriteMarkdown writes a comment for a pull request: at most 60 lines, of which the
// most important changes are a table and the rest is collapsed.
func WriteMarkdown(w io.Writer, d *assure.Diff, weighed bool) (assure.Summary, error) {
	groups, sum := Groups(d)
	names := NewNamer(d)
	var b strings.Builder
	fmt.Fprintf(&b, "### Network policy: %s\n\n", Head(sum))
	lines := 2
	row := func(g *Group) string {
		return fmt.Sprintf("| %s | %s | %s | %s%s | %s | %s |\n", map[assure.Kind]string{assure.Opened: "🟡 opened", assure.Closed: "🔴 closed", assure.OtherRule: "⚪ rule"}[g.Kind],
			cell(names.Name(g.From, g.To)), cell(names.Name(g.To, g.From)), cell(g.Ports), cell(g.note(weighed)), cell(By(&g.Before)), cell(By(&g.After)))
	}
	visible := 0
	if len(groups) > 0 {
		b.WriteString("| | from | to | what | before | now |\n|---|---|---|---|---|---|\n")
		lines += 2
	}
	const tail = 8 // lines kept for what follows the table
	for visible < len(groups) && lines < maxLines-tail && (groups[visible].Kind != assure.OtherRule || visible == 0) {
		r := row(&groups[visible])
		if b.Len()+len(r) > maxBytes/2 {
			break
		}
		b.WriteString(r)
		visible++
		lines++
	}
	if rest := groups[visible:]; len(rest) > 0 {
		// One line: a collapsed table is not to make the comment long.
		fmt.Fprintf(&b, "\n<details><summary>%d more</summary><table>", len(rest))
		for i := range rest {
			g := &rest[i]
			r := fmt.Sprintf("<tr><td>%s</td><td>%s → %s</td><td>%s</td><td>%s</td><td>%s</td></tr>", g.Kind, text(names.Name(g.From, g.To)),
				text(names.Name(g.To, g.From)), text(g.Ports+g.note(weighed)), text(By(&g.Before)), text(By(&g.After)))
			if b.Len()+len(r) > maxBytes {
				fmt.Fprintf(&b, "<tr><td colspan=5>and %d more: see the JSON of the run</td></tr>", len(rest)-i)
				break
			}
			b.WriteString(r)
		}
		b.WriteString("</table></details>\n")
	}
	for _, l := range []struct {
		title string
		names []string
	}{{"Only in the new state, not compared", d.Added}, {"Only in the old state, not compared", d.Removed}} {
		if len(l.names) > 0 {
			fmt.Fprintf(&b, "\n%s: %s\n", l.title, cell(cli.Escape(some(l.names, 20))))
		}
	}
	_, err := io.WriteString(w, b.String())
	return sum, err
}

// cell escapes what Markdown and its readers take for markup in a table: names of
// rules and workloads come from files.
func cell(s string) string {
	return strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "[", `\[`, "]", `\]`, "~", `\~`).Replace(text(s))
}

// text escapes HTML, and what code hosts make of plain text: mentions of people and
// of issues, and links.
func text(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	s = strings.NewReplacer("@", "@\u200b", "#", "#\u200b", "://", ":\u200b//", "www.", "www\u200b.").Replace(s) // a blank of no width
	return html.EscapeString(s)
}

// WriteJSON writes every change as it is found: a diff may be long.
func WriteJSON(w io.Writer, d *assure.Diff) (assure.Summary, error) {
	var sum assure.Summary
	b := bufio.NewWriter(w) // keeps the first error for Flush
	separator := `{"changes":[` + "\n"
	for c := range d.Changes() {
		sum.Count(c.Kind)
		line, err := json.Marshal(c)
		if err != nil {
			return sum, err
		}
		if _, err := fmt.Fprintf(b, "%s%s", separator, line); err != nil {
			return sum, err // a closed pipe ends the work
		}
		separator = ",\n"
	}
	if sum.Total() == 0 {
		fmt.Fprint(b, separator)
	}
	rest, err := json.Marshal(struct {
		Summary assure.Summary `json:"summary"`
		Added   []string       `json:"added"`
		Removed []string       `json:"removed"`
	}{sum, notNil(d.Added), notNil(d.Removed)})
	if err != nil {
		return sum, err
	}
	fmt.Fprintf(b, "\n],%s\n", strings.TrimPrefix(string(rest), "{"))
	return sum, b.Flush()
}

func notNil(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// WriteCSV writes the columns of np-guard's connectivity diff, and behind them what
// that does not know: verdicts, and the rules that decide.
func WriteCSV(w io.Writer, d *assure.Diff) (assure.Summary, error) {
	var sum assure.Summary
	out := csv.NewWriter(w)
	_ = out.Write([]string{ // csv.Writer keeps the first error
		"diff-type", "source", "destination", "dir1", "dir2", "workloads-diff-info",
		"family", "before", "before-policy", "before-rule", "after", "after-policy", "after-rule", "seen",
	})
	for c := range d.Changes() {
		sum.Count(c.Kind)
		typ := map[assure.Kind]string{assure.Opened: "added", assure.Closed: "removed", assure.OtherRule: "changed"}[c.Kind]
		what := list(map[string][]portRange{c.Protocol: {{ports: c.Ports}}}, []string{c.Protocol})
		if c.SourcePorts != nil {
			what += " from port " + rangeText(*c.SourcePorts)
		}
		_ = out.Write(fields(
			typ, c.From, c.To, connections(what, &c.Before), connections(what, &c.After), "",
			strconv.Itoa(c.Family), c.Before.Verdict, deciders(&c.Before), c.Before.Rule, c.After.Verdict, deciders(&c.After), c.After.Rule, strconv.FormatUint(c.Seen, 10),
		))
	}
	for _, l := range []struct {
		names      []string
		typ, where string
	}{{d.Added, "added", "workload %s added"}, {d.Removed, "removed", "workload %s removed"}} {
		for _, n := range l.names {
			_ = out.Write(fields(append([]string{l.typ, n, "", "", "", fmt.Sprintf(l.where, n)}, make([]string, 8)...)...))
		}
	}
	out.Flush()
	return sum, out.Error()
}

// fields makes values fit for a spreadsheet: one line each, and none that it would
// run as a formula.
func fields(values ...string) []string {
	for i, v := range values {
		v = cli.Escape(v)
		if v != "" && strings.ContainsRune("=+-@", rune(v[0])) {
			v = "'" + v
		}
		values[i] = v
	}
	return values
}

// deciders are the policies that decide, for a field: all that isolate.
func deciders(d *assure.Decision) string {
	if list := d.Isolations.List(); len(list) > 0 {
		return strings.Join(list, ",")
	}
	return d.Policy
}

func connections(what string, d *assure.Decision) string {
	if d.Allowed() {
		return what
	}
	return "No Connections"
}

// WriteDOT writes a graph for Graphviz: an edge for every group of changes between
// two ends.
func WriteDOT(w io.Writer, d *assure.Diff) (assure.Summary, error) {
	groups, sum := Groups(d)
	names := NewNamer(d)
	var b strings.Builder
	b.WriteString("digraph changes {\n  rankdir=LR;\n  node [shape=box];\n")
	colours := map[assure.Kind]string{assure.Opened: "orange", assure.Closed: "red", assure.OtherRule: "gray"}
	var edges []string
	for i := range groups {
		g := &groups[i]
		edges = append(edges, fmt.Sprintf("  %s -> %s [color=%s, label=%s];\n", quote(names.Name(g.From, g.To)), quote(names.Name(g.To, g.From)),
			colours[g.Kind], quote(string(g.Kind)+" "+g.Ports)))
	}
	for _, e := range slices.Compact(edges) {
		b.WriteString(e)
	}
	b.WriteString("}\n")
	_, err := io.WriteString(w, b.String())
	return sum, err
}

// quote makes a DOT string.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}
