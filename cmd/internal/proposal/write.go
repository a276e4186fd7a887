package proposal

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/assure/recommend"
)

// Span is the time a log covers.
type Span struct {
	From time.Time `json:"from"`
	To   time.Time `json:"to"`
}

// Note is something to know about a policy, or about all.
type Note struct {
	Policy string `json:"policy,omitempty"` // "namespace/name"
	Text   string `json:"text"`
}

// Beside is what the recommended policies come to together with the existing ones.
type Beside struct {
	WouldDeny uint64          `json:"wouldDeny"`
	Pods      recommend.Tally `json:"connections"`
	Outside   recommend.Tally `json:"outside"`
}

// Proposal is what is printed. Its JSON form is a contract.
type Proposal struct {
	Policies      []map[string]any      `json:"policies"`
	Notes         []Note                `json:"notes"`
	Span          Span                  `json:"span"`
	Nodes         []string              `json:"nodes"`       // whose decisions the log has
	Records       int                   `json:"records"`     // lines that are records
	Decisions     uint64                `json:"decisions"`   // about connections
	Connections   uint64                `json:"connections"` // of the chosen pods, allowed; those between nodes count once
	Lost          uint64                `json:"lost"`        // decisions or records that the log says are missing
	Bad           uint64                `json:"bad"`         // lines that are no records
	Partial       uint64                `json:"partial"`     // decisions without a record of a side that the node enforces
	Uncovered     []recommend.Uncovered `json:"uncovered"`
	UncoveredMore uint64                `json:"uncoveredMore"` // decisions beyond the bound of the list
	Replayed      uint64                `json:"replayed"`      // decisions judged again
	WouldDeny     uint64                `json:"wouldDeny"`     // of those, allowed in the log and denied by the policies
	Denied        []auditlog.Change     `json:"denied"`        // which
	NeverSeen     recommend.Tightness   `json:"neverSeen"`
	Beside        Beside                `json:"beside"`
	Staged        bool                  `json:"staged"`
}

// New puts a proposal together.
func New(rec *recommend.Recommendation, r *Reader, p *Replay) *Proposal {
	out := &Proposal{
		Policies: []map[string]any{}, Notes: []Note{}, Span: Span{r.First.UTC(), r.Last.UTC()}, Nodes: slices.Sorted(maps.Keys(r.Nodes)),
		Decisions: r.Decisions, Connections: rec.Connections, Uncovered: rec.Uncovered, UncoveredMore: rec.MoreUncovered, Partial: r.Partial, Replayed: p.Judged, NeverSeen: rec.NeverSeen,
	}
	for _, n := range rec.Notes {
		out.Notes = append(out.Notes, Note{Text: n})
	}
	for i := range rec.Policies {
		out.Policies = append(out.Policies, rec.Policies[i].Object)
		for _, n := range rec.Policies[i].Notes {
			out.Notes = append(out.Notes, Note{name(rec.Policies[i].Object), n})
		}
	}
	note := func(n uint64, format string) {
		if n > 0 {
			out.Notes = append(out.Notes, Note{Text: fmt.Sprintf(format, cli.Plural(n, "decision"))})
		}
	}
	if missing := r.Seen.Unrecorded(r.Nodes); len(missing) > 0 && len(r.Nodes) > 0 {
		out.Notes = append(out.Notes, Note{Text: fmt.Sprintf("the log has nothing recorded by %s, where some of these pods run: what only these nodes saw is missing", cli.Escape(list(missing)))})
	}
	note(r.Half, "%s without a connection: packets that one side allowed and the other denied")
	note(r.Folded, "%s stand for denied packets to many ports")
	out.Denied, out.WouldDeny = denied(p.alone)
	if out.Denied == nil {
		out.Denied = []auditlog.Change{}
	}
	_, beside := denied(p.beside)
	out.Beside = Beside{beside, rec.Beside.Connections, rec.Beside.Outside}
	if beside > out.WouldDeny {
		note(beside-out.WouldDeny, "%s of the log, allowed then, are denied by the existing policies")
	}
	return out
}

func name(object map[string]any) string {
	meta, _ := object["metadata"].(map[string]any)
	ns, _ := meta["namespace"].(string)
	n, _ := meta["name"].(string)
	if ns != "" {
		n = ns + "/" + n
	}
	return n
}

// Problem says what is wrong with a proposal; "" if nothing is.
func (p *Proposal) Problem() string {
	var parts []string
	if p.WouldDeny > 0 {
		parts = append(parts, cli.Plural(p.WouldDeny, "decision")+" of the log would be denied")
	}
	if p.Lost > 0 {
		parts = append(parts, fmt.Sprintf("%s missing in the log", are(p.Lost, "record")))
	}
	if p.Bad > 0 {
		parts = append(parts, fmt.Sprintf("%s no record", are(p.Bad, "line")))
	}
	return strings.Join(parts, ", ")
}

func are(n uint64, word string) string {
	if n == 1 {
		return "1 " + word + " is"
	}
	return cli.Plural(n, word) + " are"
}

// maxLines bounds each list in comments; JSON has all.
const maxLines = 20

// WriteYAML prints the policies, with everything else as comments.
func (p *Proposal) WriteYAML(w io.Writer) error {
	var b strings.Builder
	comment := func(format string, args ...any) {
		text := cli.Escape(fmt.Sprintf(format, args...)) // one line, whatever names are in it
		for _, line := range wrap(text, 96) {
			b.WriteString("# " + line + "\n")
		}
	}
	comment("Recommended from the audit log, %s to %s: %s of these pods in %s, %d missing.", p.Span.From.Format(time.RFC3339),
		p.Span.To.Format(time.RFC3339), cli.Plural(p.Connections, "connection"), cli.Plural(uint64(p.Records), "record"), p.Lost)
	if p.Partial > 0 {
		comment("INCOMPLETE: %s without a record of a side that the node enforces: the log was written without audit.all, so connections that no audited policy decided are missing in it, and these policies deny them.",
			cli.Plural(p.Partial, "decision"))
	}
	if len(p.Nodes) > 0 {
		comment("Nodes in the log: %s.", list(p.Nodes))
	}
	if p.Staged {
		comment("Staged: recorded and not enforced. Look at \"tierwall audit staged\", then remove the annotation tierwall.io/stage.")
	}
	comment("Replay: %s judged again by these policies, %d would be denied.", cli.Plural(p.Replayed, "decision"), p.WouldDeny)
	for i := range p.Denied {
		if i == maxLines {
			comment("  … and %d more kinds, see -o json", len(p.Denied)-i)
			break
		}
		c := &p.Denied[i]
		comment("  would be denied: %s -> %s %s, %s", c.From, c.To, c.Port, cli.Plural(c.Events, "decision"))
	}
	t := &p.NeverSeen
	comment("Opened and never seen: %s between pods, %s between workloads, %s with addresses outside.",
		tally(&t.Connections), tally(&t.Workloads), tally(&t.Outside))
	for i := range t.List {
		if i == maxLines {
			comment("  … and %d more ranges, see -o json", len(t.List)-i+t.More)
			break
		}
		o := &t.List[i]
		comment("  %s -> %s %s: %s of %s seen", o.From, o.To, portRange(o), number(o.Seen), number(o.Opened))
	}
	for i := range p.Uncovered {
		if i == 0 {
			comment("Not covered:")
		}
		if i == maxLines {
			comment("  … and %d more kinds, see -o json", len(p.Uncovered)-i)
			break
		}
		u := &p.Uncovered[i]
		comment("  %s -> %s %s (%s): %s", u.From, u.To, u.Port, cli.Plural(u.Decisions, "decision"), u.Why)
	}
	for _, n := range p.Notes {
		if n.Policy == "" {
			comment("Note: %s.", n.Text)
		}
	}
	for _, o := range p.Policies {
		b.WriteString("---\n")
		for _, n := range p.Notes {
			if n.Policy == name(o) {
				comment("%s", n.Text)
			}
		}
		doc, err := yaml.Marshal(o)
		if err != nil {
			return fmt.Errorf("write %s: %w", name(o), err)
		}
		b.Write(doc)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// list joins names, the first few of many.
func list(names []string) string {
	if len(names) <= maxLines {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:maxLines], ", "), len(names)-maxLines)
}

func tally(t *recommend.Tally) string {
	return fmt.Sprintf("%s of %s (%.1f%%)", number(t.NeverSeen), number(t.Opened), 100*t.Share)
}

// number writes a count; large ones by their order.
func number(f float64) string {
	if f < 1e9 {
		return fmt.Sprintf("%.0f", f)
	}
	return fmt.Sprintf("%.2g", f)
}

func portRange(o *recommend.Opening) string {
	switch {
	case o.Ports[0] == o.Ports[1] && o.Ports[0] == 0:
		return o.Protocol
	case o.Ports[0] == o.Ports[1]:
		return fmt.Sprintf("%d/%s", o.Ports[0], o.Protocol)
	}
	return fmt.Sprintf("%d-%d/%s", o.Ports[0], o.Ports[1], o.Protocol)
}

// wrap breaks a line between words.
func wrap(s string, width int) []string {
	var out []string
	line := s[:len(s)-len(strings.TrimLeft(s, " "))]
	for i, word := range strings.Fields(s) {
		if i > 0 && len(line)+1+len(word) > width {
			out = append(out, line)
			line = "  " + word
			continue
		}
		if i > 0 {
			line += " "
		}
		line += word
	}
	return append(out, line)
}
