package report

import (
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/changes"
	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/policy/assure"
)

//go:embed report.css
var css string

//go:embed report.html
var page string

var tmpl = template.Must(template.New("report").Funcs(template.FuncMap{
	"by": func(d assure.Decision) string { return by(&d) }, "policy": changes.PolicyName, "time": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05 UTC") },
	"join": func(l []string) string { return strings.Join(l, ", ") }, "some": some, "share": share, "plural": plural,
	"policies": func(refs []string) string {
		names := make([]string, len(refs))
		for i, r := range refs {
			names[i] = changes.PolicyName(r)
		}
		return some(names, 12)
	},
	"bar": newBar,
	"inc": func(i int) int { return i + 1 }, "short": func(s string) string { return s[:min(len(s), 12)] },
}).Parse(page))

func plural(n int, one string) string {
	if n == 1 {
		return "1 " + one
	}
	if s, ok := strings.CutSuffix(one, "y"); ok {
		return fmt.Sprintf("%d %sies", n, s)
	}
	return fmt.Sprintf("%d %ss", n, one)
}

// view is what the template shows.
type view struct {
	*Report
	CSS        template.CSS
	Policy     string // the content security policy
	Namespaces *picture
	Workloads  *picture // nil where there are too many
	Rows       int      // of Workloads: workloads, or groups of them
	Into       []into
	Cut        int // rows left out of Into
	Order      []orderLine
	Unused     []RuleUse
	UnusedCut  int
}

// into is the table behind a column of the first picture: who reaches a namespace.
type into struct {
	Index int
	Name  string
	From  []fromNS
	Open  bool // shown without a click
}

// fromNS is one source, or several of which the same is to be said.
type fromNS struct {
	Anchors []string
	Names   []string
	Pairs   NamespacePair
	Rows    []reachRow
	// Refused says in words what refuses the rest.
	Refused []string
}

// reachRow is what some ends may do to some others.
type reachRow struct {
	From, To string
	Class    string
	Allowed  []portsBy
	All      bool // of all sources and destinations
}

type portsBy struct{ Ports, By string }

type orderLine struct {
	Kind, Name, Band, Subjects, Stage string
	Rules                             int
	Overrides                         []string
}

// WriteHTML writes the page.
func (d *Data) WriteHTML(w io.Writer) error {
	sum := sha256.Sum256([]byte(css))
	v := &view{
		Report: d.Report, CSS: template.CSS(css), //nolint:gosec // our own file
		Policy: "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'",
	}
	d.pictures(v)
	d.order(v)
	if d.Log != nil {
		for _, u := range d.Log.Rules {
			switch {
			case u.Records > 0:
			case len(v.Unused) < 500:
				v.Unused = append(v.Unused, u)
			default:
				v.UnusedCut++
			}
		}
	}
	return tmpl.Execute(w, v)
}

// WriteJSON writes the report as JSON, indented unless it is long.
func (d *Data) WriteJSON(w io.Writer) error {
	if len(d.Reach.Cells) <= 40 {
		return cli.WriteJSON(w, d.Report)
	}
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(d.Report)
}

// order lists policies with what they override.
func (d *Data) order(v *view) {
	texts := map[string][]string{}
	for i := range d.Overrides {
		o := &d.Overrides[i]
		key := strings.ToLower(o.Object.Kind) + "/" + o.Object.Group + "/" + o.Object.Namespace + "/" + o.Object.Name
		texts[key] = append(texts[key], o.Message)
	}
	for i := range d.Policies {
		p := &d.Policies[i]
		key := strings.ToLower(p.Kind) + "/" + p.Group + "/" + p.Namespace + "/" + p.Name
		v.Order = append(v.Order, orderLine{
			Kind: p.Kind, Name: strings.TrimPrefix(p.Namespace+"/"+p.Name, "/"), Band: p.Band, Rules: p.Rules,
			Subjects: some(p.Subjects, 3), Stage: p.Stage, Overrides: texts[key],
		})
	}
}

// namespaceOf is the name of an end's namespace on the page.
func namespaceOf(name string) string { return cmp.Or(name, "(outside)") }

// pictures draws the two heat maps and writes the tables behind them.
func (d *Data) pictures(v *view) {
	ends := d.reach.Ends
	var names []string
	index := map[string]int{}
	byNS := [][]int{}
	for i := range ends {
		ns := ends[i].Namespace
		at, ok := index[ns]
		if !ok {
			at = len(names)
			index[ns] = at
			names = append(names, namespaceOf(ns))
			byNS = append(byNS, nil)
		}
		byNS[at] = append(byNS[at], i)
	}
	pairs := map[[2]int]*NamespacePair{}
	for i := range d.Reach.Namespaces {
		p := &d.Reach.Namespaces[i]
		pairs[[2]int{index[p.From], index[p.To]}] = p
	}
	level := levels(d.reach.Answers)
	t := d.Totals
	desc := fmt.Sprintf("Rows connect to columns. Of %s of pods, %d%% have no connection that is allowed, %d%% have some, %d%% have all of them; for %d%% no policy says anything. The tables below say the same in words.",
		plural(t.Pairs, "pair"), share(t.Refused, t.Pairs), share(t.Some, t.Pairs), share(t.All, t.Pairs), share(t.Open, t.Pairs))
	if len(names) <= maxDrawn {
		v.Namespaces = newPicture("namespaces", "Who can reach whom, by namespace", desc, names, nil)
		class := func(row, col int) string { return pairs[[2]int{row, col}].class() }
		if len(names) > maxNamed {
			v.Namespaces.draw(len(names), class)
		} else {
			for row := range names {
				for col := range names {
					p := pairs[[2]int{row, col}]
					if p == nil {
						v.Namespaces.put(row, col, classes[levelNone], names[row]+" → "+names[col]+": nothing is decided here", "", "", "")
						continue
					}
					n := share(p.Some+p.All, p.Pairs)
					text, opacity := "", ""
					if p.class() == classes[levelSome] {
						opacity = fmt.Sprintf("%.2f", 0.45+0.55*float64(n)/100)
					}
					if v.Namespaces.Cell >= 24 {
						text = fmt.Sprint(n)
					}
					v.Namespaces.put(row, col, p.class(), fmt.Sprintf("%s → %s: %s", names[row], names[col], p.Words()), text,
						fmt.Sprintf("#p%d-%d", row, col), opacity)
				}
			}
		}
	}
	d.workloads(v, level)
	d.tables(v, names, byNS, pairs)
}

// class is the look of a pair of namespaces.
func (p *NamespacePair) class() string {
	switch {
	case p == nil || p.Pairs == 0:
		return classes[levelNone]
	case p.Refused == p.Pairs:
		return classes[levelRefused]
	case p.Open == p.Pairs:
		return classes[levelOpen]
	case p.All == p.Pairs:
		return classes[levelAll]
	}
	return classes[levelSome]
}

// Words says how much is allowed.
func (p NamespacePair) Words() string {
	switch {
	case p.Refused == p.Pairs:
		return "nothing is allowed"
	case p.Open == p.Pairs:
		return "everything is allowed: no policy says anything"
	case p.All == p.Pairs:
		return "everything is allowed"
	}
	var parts []string
	for _, x := range []struct {
		n    int
		text string
	}{{p.Some, "have some ports open"}, {p.All, "have everything open"}, {p.Refused, "have nothing open"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.text))
		}
	}
	return fmt.Sprintf("of %s, %s", plural(p.Pairs, "pair"), strings.Join(parts, ", "))
}

// row is a line of the second picture: ends of a namespace with the same answers.
type row struct {
	ns    string
	names []string
	end   int // one of them
}

// workloads draws every workload, those of a namespace that are alike in one row.
func (d *Data) workloads(v *view, levelOf []level) {
	type key struct {
		ns    string
		group int
	}
	var rows []row
	at := map[key]int{}
	for i := range d.reach.Ends {
		e := &d.reach.Ends[i]
		k := key{e.Namespace, e.Group}
		j, ok := at[k]
		if !ok {
			j = len(rows)
			at[k] = j
			rows = append(rows, row{ns: e.Namespace, end: i})
		}
		rows[j].names = append(rows[j].names, shortName(e))
	}
	if len(rows) > maxDrawn {
		return
	}
	names, groups := make([]string, len(rows)), make([]string, len(rows))
	for i := range rows {
		names[i], groups[i] = some(rows[i].names, 1), namespaceOf(rows[i].ns)
	}
	p := newPicture("workloads", "Who can reach whom, by workload", "Rows connect to columns. Workloads of a namespace with the same answers are one row. The tables below say the same in words.", names, groups)
	answer := func(i, j int) level { // two pods of one row, unless it has only one
		a, b := &d.reach.Ends[rows[i].end], &d.reach.Ends[rows[j].end]
		if i == j && a.Size() < 2 && len(rows[i].names) < 2 {
			return levelNone
		}
		return levelOf[d.reach.Cells[a.Group][b.Group]]
	}
	if len(rows) > maxNamed {
		p.draw(len(rows), func(i, j int) string { return classes[answer(i, j)] })
	} else {
		for i := range rows {
			for j := range rows {
				a := d.reach.Cells[d.reach.Ends[rows[i].end].Group][d.reach.Ends[rows[j].end].Group]
				l := answer(i, j)
				title := fmt.Sprintf("%s/%s → %s/%s: ", groups[i], names[i], groups[j], names[j])
				switch l {
				case levelNone:
					title += "nothing is decided here"
				case levelRefused:
					title += "nothing is allowed"
				default:
					for k, c := range d.looks[d.lookOf(a)].allowed {
						if k > 0 {
							title += "; "
						}
						title += c.Ports + ", " + c.By
					}
				}
				p.put(i, j, classes[l], title, "", "", "")
			}
		}
	}
	v.Workloads, v.Rows = p, len(rows)
}

func shortName(e *assure.MatrixEnd) string {
	if len(e.Pods) == 0 {
		return strings.TrimPrefix(outsideName(e), "outside ")
	}
	return e.Workload[strings.LastIndex(e.Workload, "/")+1:]
}

// allowed lists what an answer allows.
func (d *Data) allowed(a assure.Ranges) []portsBy {
	var out []portsBy
	for _, c := range connections(d.reach, "", "", a) {
		out = append(out, portsBy{c.Ports, c.By})
	}
	return out
}

// maxRows bounds the rows of all tables: a page is for reading.
const maxRows = 6000

// tables writes who reaches each namespace, from where, and by which policy.
func (d *Data) tables(v *view, names []string, byNS [][]int, pairs map[[2]int]*NamespacePair) {
	rows := 0
	for to := range names {
		one := into{Index: to, Name: names[to], Open: len(names) <= 8}
		for from := range names {
			p := pairs[[2]int{from, to}]
			if p == nil {
				continue
			}
			if rows >= maxRows || len(names) > maxNamed && p.Refused == p.Pairs {
				if p.Refused < p.Pairs {
					v.Cut++
				}
				continue
			}
			f := fromNS{Anchors: []string{fmt.Sprintf("p%d-%d", from, to)}, Names: []string{names[from]}, Pairs: *p}
			f.Rows, f.Refused = d.block(byNS[from], byNS[to])
			if at := slices.IndexFunc(one.From, f.same); at >= 0 {
				same := &one.From[at]
				same.Anchors, same.Names = append(same.Anchors, f.Anchors[0]), append(same.Names, f.Names[0])
				same.Pairs.join(p)
				continue
			}
			rows += 1 + len(f.Rows)
			one.From = append(one.From, f)
		}
		v.Into = append(v.Into, one)
	}
}

// same reports whether the same is to be said about all pairs of two sources.
func (f *fromNS) same(o fromNS) bool {
	switch {
	case len(f.Rows) != len(o.Rows) || !slices.Equal(f.Refused, o.Refused):
		return false
	case len(f.Rows) == 0:
		return true
	}
	a, b := &f.Rows[0], &o.Rows[0]
	return len(f.Rows) == 1 && len(f.Refused) == 0 && a.All && b.All && a.Class == b.Class && slices.Equal(a.Allowed, b.Allowed)
}

func (p *NamespacePair) join(o *NamespacePair) {
	p.Pairs += o.Pairs
	p.Refused += o.Refused
	p.Some += o.Some
	p.All += o.All
	p.Open += o.Open
}

// look is how an answer is shown: many answers have one.
type look struct {
	class   string
	allowed []portsBy
	refused []string
}

// lookOf returns the look of an answer, and its number.
func (d *Data) lookOf(answer int32) int {
	if d.lookNumbers == nil {
		d.lookNumbers, d.lookIDs = map[int32]int{}, map[string]int{}
	}
	n, ok := d.lookNumbers[answer]
	if ok {
		return n
	}
	a := d.reach.Answers[answer]
	l := look{class: classes[levelOf(a)]}
	if l.class != classes[levelRefused] {
		l.allowed = d.allowed(a)
	} else {
		for i := range a {
			if text := by(&a[i].Decision); !slices.Contains(l.refused, text) {
				l.refused = append(l.refused, text)
			}
		}
	}
	key := fmt.Sprintf("%q", []any{l.class, l.allowed, l.refused})
	if n, ok = d.lookIDs[key]; !ok {
		n = len(d.looks)
		d.looks = append(d.looks, l)
		d.lookIDs[key] = n
	}
	d.lookNumbers[answer] = n
	return n
}

// block groups the pairs of two namespaces: sources that may do the same to the
// same destinations are one row.
func (d *Data) block(from, to []int) (out []reachRow, refusedBy []string) {
	type found struct {
		look     int
		from, to []int
	}
	var rows []found
	index, refusals := map[string]int{}, map[string]bool{}
	for _, i := range from {
		byLook := map[int][]int{}
		var order []int
		for _, j := range to {
			a := d.reach.Cell(i, j)
			if a == 0 {
				continue
			}
			n := d.lookOf(a)
			if byLook[n] == nil {
				order = append(order, n)
			}
			byLook[n] = append(byLook[n], j)
		}
		for _, n := range order {
			if d.looks[n].class == classes[levelRefused] {
				for _, text := range d.looks[n].refused {
					refusals[text] = true
				}
				continue
			}
			k := fmt.Sprint(n, byLook[n])
			at, ok := index[k]
			if !ok {
				at = len(rows)
				index[k] = at
				rows = append(rows, found{look: n, to: byLook[n]})
			}
			rows[at].from = append(rows[at].from, i)
		}
	}
	name := func(list, all []int) string {
		if len(list) == len(all) && len(all) > 1 {
			return fmt.Sprintf("all %d", len(all))
		}
		names := make([]string, len(list))
		for i, e := range list {
			names[i] = shortName(&d.reach.Ends[e])
		}
		return some(slices.Compact(names), 8)
	}
	for _, r := range rows {
		l := &d.looks[r.look]
		out = append(out, reachRow{
			From: name(r.from, from), To: name(r.to, to), Class: l.class, Allowed: l.allowed,
			All: len(r.from) == len(from) && len(r.to) == len(to),
		})
	}
	refusedBy = slices.Sorted(maps.Keys(refusals))
	if n := len(refusedBy); n > 4 {
		refusedBy = append(refusedBy[:4:4], fmt.Sprintf("and %d more", n-4))
	}
	return out, refusedBy
}

// bar is the parts of a direction as a picture, 100 wide.
type bar struct {
	Isolated, Rules, Open int // widths
	RulesAt, OpenAt       int
	Text                  string
}

func newBar(d Direction) bar {
	all := d.Isolated + d.Rules + d.Open
	b := bar{Text: fmt.Sprintf("%d isolated, %d by rules only, %d open", d.Isolated, d.Rules, d.Open)}
	if all == 0 {
		return b
	}
	b.Isolated, b.Rules = share(d.Isolated, all), share(d.Rules, all)
	b.Rules = min(b.Rules, 100-b.Isolated)
	b.RulesAt, b.OpenAt = b.Isolated, b.Isolated+b.Rules
	if d.Open > 0 {
		b.Open = 100 - b.OpenAt
	}
	return b
}
