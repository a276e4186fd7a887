package changes

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/extension"
	goldmarkhtml "github.com/yuin/goldmark/renderer/html"
	"golang.org/x/net/html"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/inventory"
)

// hostile are names that terminals, Markdown, HTML, spreadsheets and Graphviz would
// obey.
var hostile = []string{
	"\x1b[31m\x1b]0;title\x07", "a\nnot ok 2 - b", "x | y \\| z", "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "[x](http://e.example)",
	"`c` **b** _i_ ~~s~~", "@all #1 https://e.example www.e.example", "=1+1", "+1", "-1", "@SUM(1)", `"]; evil -> "b`, "\u202egnp", "</td></table></details>", "&lt;b&gt;", "\xff\xfe", "a\r\n\r\n# b", "<!-- ",
}

// hostileDiff is a change between pods, by policies and rules, of a hostile name.
func hostileDiff(t *testing.T, name string) *assure.Diff {
	t.Helper()
	pod := func(name, ip string) inventory.Pod {
		return inventory.Pod{Namespace: "n", Name: name, Labels: map[string]string{name: name}, IPs: []netip.Addr{netip.MustParseAddr(ip)}, Workload: inventory.Workload{Kind: name, Name: name}}
	}
	state := func(port uint16, more string) assure.State {
		s := assure.State{Snapshot: &inventory.Snapshot{
			Namespaces: []inventory.Namespace{{Name: "n"}}, Pods: []inventory.Pod{pod("a", "10.0.0.1"), pod("b", "10.0.0.2"), pod(name, "10.0.0.3"), pod(more+name, "10.0.0.4")},
		}}
		origin := rule.Origin{Group: "g", Kind: "Policy", Namespace: "n", Name: name, Rule: name}
		s.Set.Rules = []rule.Rule{{
			Direction: flow.Ingress, Action: rule.Allow, Order: rule.Order{Band: rule.BandNetworkPolicy}, Origin: origin,
			Peers: []rule.Peer{{Kind: rule.PeerPods}}, L4: []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: port, Last: port}, SrcPorts: rule.AllPorts}},
		}}
		renamed := s.Set.Rules[0] // a change that only another rule decides
		renamed.L4 = []rule.L4{{Proto: flow.TCP, Ports: rule.PortRange{First: 22, Last: 22}, SrcPorts: rule.AllPorts}}
		renamed.Origin.Rule = more + name
		s.Set.Rules = append(s.Set.Rules, renamed)
		origin.Rule, origin.Index = "", -1
		second := origin
		second.Name = name + "2"
		s.Set.Isolations = []rule.Isolation{{Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Origin: origin}, {Direction: flow.Ingress, Band: rule.BandNetworkPolicy, Origin: second}}
		return s
	}
	d, err := assure.Compare(state(80, "old"), state(81, "new"), assure.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(d.Added) != 1 || len(d.Removed) != 1 {
		t.Fatalf("added %q, removed %q", d.Added, d.Removed)
	}
	return d
}

// printed is what a format makes of a hostile change, without control characters.
func printed(t *testing.T, name string, write func(io.Writer, *assure.Diff) (assure.Summary, error)) string {
	t.Helper()
	var b bytes.Buffer
	if sum, err := write(&b, hostileDiff(t, name)); err != nil || sum.Opened == 0 || sum.Rule == 0 {
		t.Fatalf("%+v, %v", sum, err)
	}
	for _, c := range b.String() {
		if c != '\n' && c != '\u200b' && !unicode.IsPrint(c) {
			t.Fatalf("name %q: %q in\n%s", name, c, b.String())
		}
	}
	return b.String()
}

func TestHostileNamesInText(t *testing.T) {
	tame := strings.Count(printed(t, "tame", text80), "\n")
	for _, name := range hostile {
		if out := printed(t, name, text80); strings.Count(out, "\n") != tame {
			t.Errorf("name %q: other lines than a tame one:\n%s", name, out)
		}
	}
}

func text80(w io.Writer, d *assure.Diff) (assure.Summary, error) {
	return WriteText(w, cli.Style{}, d, false, 0)
}

// TestHostileNamesInMarkdown renders the comment as code hosts do, and wants the
// elements of a tame one, and the name in them as it is.
func TestHostileNamesInMarkdown(t *testing.T) {
	elements := func(name string) (string, string) {
		out := printed(t, name, func(w io.Writer, d *assure.Diff) (assure.Summary, error) { return WriteMarkdown(w, d, false) })
		var b bytes.Buffer
		md := goldmark.New(goldmark.WithExtensions(extension.GFM), goldmark.WithRendererOptions(goldmarkhtml.WithUnsafe()))
		if err := md.Convert([]byte(out), &b); err != nil {
			t.Fatal(err)
		}
		doc, err := html.Parse(&b)
		if err != nil {
			t.Fatal(err)
		}
		var tags, texts []string
		for n := range doc.Descendants() {
			switch n.Type {
			case html.ElementNode:
				tags = append(tags, n.Data)
			case html.TextNode:
				texts = append(texts, n.Data)
			}
		}
		return strings.Join(tags, " "), strings.Join(texts, "")
	}
	want, _ := elements("tame")
	for _, name := range hostile {
		tags, texts := elements(name)
		if tags != want {
			t.Errorf("name %q: %s\nwant %s", name, tags, want)
		}
		shown := strings.Join(strings.Fields(cli.Escape(name)), " ")
		if !strings.Contains(strings.ReplaceAll(texts, "\u200b", ""), shown) {
			t.Errorf("name %q: no %q in %s", name, shown, texts)
		}
		if regexp.MustCompile(`@\w|#\d|://|www\.`).MatchString(texts) {
			t.Errorf("name %q: code hosts link %s", name, texts)
		}
	}
}

func TestHostileNamesInCSV(t *testing.T) {
	for _, name := range hostile {
		out := printed(t, name, WriteCSV)
		rows, err := csv.NewReader(strings.NewReader(out)).ReadAll()
		if err != nil || strings.Count(out, "\n") != len(rows) {
			t.Errorf("name %q: %d rows, %v", name, len(rows), err)
		}
		for _, row := range rows {
			for _, field := range row {
				if field != "" && strings.ContainsRune("=+-@\t\r", rune(field[0])) {
					t.Errorf("name %q: a spreadsheet runs %q", name, field)
				}
			}
		}
	}
}

func TestHostileNamesInDOT(t *testing.T) {
	const quoted = `"(?:[^"\\]|\\.)*"`
	line := regexp.MustCompile(`^(digraph changes \{|  rankdir=LR;|  node \[shape=box\];|  ` + quoted + ` -> ` + quoted + ` \[color=\w+, label=` + quoted + `\];|\})$`)
	for _, name := range hostile {
		for l := range strings.Lines(printed(t, name, WriteDOT)) {
			if !line.MatchString(strings.TrimSuffix(l, "\n")) {
				t.Errorf("name %q: %s", name, l)
			}
		}
	}
}

// TestHostileNamesInJSON: JSON has names as they are; a terminal's filter is behind
// it (cli.Terminal).
func TestHostileNamesInJSON(t *testing.T) {
	for _, name := range hostile {
		var b bytes.Buffer
		if _, err := WriteJSON(&b, hostileDiff(t, name)); err != nil {
			t.Fatal(err)
		}
		var got struct{ Changes []assure.Change }
		if err := json.Unmarshal(b.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		want := "n/" + string([]rune(name)) // what is not UTF-8 becomes U+FFFD
		if !slices.ContainsFunc(got.Changes, func(c assure.Change) bool { return c.From == want }) {
			t.Errorf("name %q: not in %s", name, &b)
		}
	}
}
