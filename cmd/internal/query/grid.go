package query

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// Grid is a table of single-character cells: rows connect to columns.
type Grid struct {
	Rows, Cols []string
	// Cell returns the character and its painted form.
	Cell func(row, col int) (plain, painted string)
	// Width is the number of terminal columns to fit in.
	Width int
}

// Lines lays the grid out. Column headings are the columns' names while that
// fits; else their numbers, which then stand beside the row names too (or in a
// list of their own when rows and columns differ). A grid wider than Width is
// cut into blocks of columns that all repeat the row headings.
func (g *Grid) Lines() []string {
	left := 0
	for _, r := range g.Rows {
		left = max(left, len(r))
	}
	total := left
	for _, c := range g.Cols {
		total += 1 + len(c)
	}
	if total <= g.Width {
		return g.block(left, g.Rows, g.Cols, 0, 0)
	}
	digits := len(strconv.Itoa(len(g.Cols)))
	heads := make([]string, len(g.Cols))
	for i := range heads {
		heads[i] = strconv.Itoa(i + 1)
	}
	rows := make([]string, len(g.Rows))
	var lines []string
	if slices.Equal(g.Rows, g.Cols) {
		for i, r := range g.Rows {
			rows[i] = fmt.Sprintf("%*d %s", digits, i+1, r)
		}
		left += digits + 1
	} else {
		copy(rows, g.Rows)
		for i, c := range g.Cols {
			lines = append(lines, fmt.Sprintf("%*d %s", digits, i+1, c))
		}
		lines = append(lines, "")
	}
	each := max(1, (g.Width-left)/(digits+1))
	for from := 0; from < len(heads); from += each {
		if from > 0 {
			lines = append(lines, "")
		}
		lines = append(lines, g.block(left, rows, heads[from:min(from+each, len(heads))], from, digits)...)
	}
	return lines
}

// block renders the columns that start at from; heads are their headings, wide
// is the least width of a column.
func (g *Grid) block(left int, rows, heads []string, from, wide int) []string {
	var b strings.Builder
	fmt.Fprintf(&b, "%*s", left, "")
	for _, h := range heads {
		fmt.Fprintf(&b, " %*s", max(wide, len(h)), h)
	}
	lines := []string{b.String()}
	for r, name := range rows {
		b.Reset()
		fmt.Fprintf(&b, "%-*s", left, name)
		for c, h := range heads {
			plain, painted := g.Cell(r, from+c)
			// Pad by the plain form: painting adds bytes, not columns.
			fmt.Fprintf(&b, " %s%s", strings.Repeat(" ", max(wide, len(h))-len(plain)), painted)
		}
		lines = append(lines, b.String())
	}
	return lines
}

// Symbol is the character a verdict has in grids.
func Symbol(verdict string) string {
	switch verdict {
	case "Allow":
		return "."
	case "Drop":
		return "X"
	case "Reject":
		return "R"
	}
	return "?"
}

// Legend explains the symbols of verdict grids.
func Legend(s cli.Style) string {
	return s.VerdictAs("Allow", ".") + " Allow   " + s.VerdictAs("Drop", "X") + " Drop   " +
		s.VerdictAs("Reject", "R") + " Reject   (blank: no address of this family)"
}

// changedByStaged counts the flows that would be decided otherwise if the staged
// policies were enforced.
func changedByStaged(flows []Flow) (n int) {
	for i := range flows {
		f := &flows[i]
		would := "Allow"
		for _, s := range []*Side{&f.Egress, &f.Ingress} {
			if s.Staged != nil {
				s = s.Staged
			}
			if would == "Allow" {
				would = s.Verdict
			}
		}
		if would != f.Verdict {
			n++
		}
	}
	return n
}

// WriteMatrix prints one grid per port, rows connecting to columns.
func WriteMatrix(w io.Writer, s cli.Style, width int, flows []Flow) error {
	var ports, names []string
	seen := map[string]bool{}
	verdicts := map[[3]string]string{}
	count := map[string]int{}
	for _, f := range flows {
		if !seen["port "+f.Port] {
			seen["port "+f.Port] = true
			ports = append(ports, f.Port)
		}
		for _, n := range []string{f.From, f.To} {
			if !seen[n] {
				seen[n] = true
				names = append(names, n)
			}
		}
		verdicts[[3]string{f.Port, f.From, f.To}] = f.Verdict
		count[f.Verdict]++
	}
	var b strings.Builder
	b.WriteString("rows connect to columns\n" + Legend(s) + "\n")
	shown := cli.EscapeAll(names)
	for _, p := range ports {
		g := Grid{
			Rows: shown, Cols: shown, Width: width,
			Cell: func(row, col int) (string, string) {
				v, ok := verdicts[[3]string{p, names[row], names[col]}]
				if !ok {
					return " ", " "
				}
				return Symbol(v), s.VerdictAs(v, Symbol(v))
			},
		}
		b.WriteString("\n" + s.Bold(p) + "\n")
		for _, l := range g.Lines() {
			b.WriteString(l + "\n")
		}
	}
	fmt.Fprintf(&b, "\n%s: %d Allow, %d Drop, %d Reject\n", cli.Plural(len(flows), "connection"), count["Allow"], count["Drop"], count["Reject"])
	if n := changedByStaged(flows); n > 0 {
		fmt.Fprintf(&b, "staged policies are not enforced; they would change %d of them\n", n)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
