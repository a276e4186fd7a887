package report

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// picture is a heat map: rows connect to columns. Sizes are in CSS pixels.
type picture struct {
	ID          string
	Title, Desc string
	Width       int
	Height      int
	Left, Top   int // where cells begin
	Cell        int
	Labels      []label // of rows; columns have the same
	Marks       []mark  // where namespaces begin
	Cells       []cell  // of small pictures, each with a text of its own
	Paths       []path  // of large ones
	Names       bool    // there is room for labels
}

type label struct {
	Text, Full string
	X, Y       int // of the row's label
	CX, CY     int // of the column's
}

// mark is a line before a row and column, with the name of what begins.
type mark struct {
	At, Mid int
	Text    string
}

type cell struct {
	X, Y, Size int
	Class      string
	Title      string
	Text       string // in the cell: share of pairs
	TX, TY     int
	Link       string // anchor of the table behind it
	Opacity    string // how much is allowed, of cells that stand for many pairs
}

// path is all cells of a class in one shape.
type path struct{ Class, D string }

// classes are the looks of levels.
var classes = [...]string{levelNone: "c0", levelRefused: "c1", levelSome: "c2", levelAll: "c3", levelOpen: "c4"}

const (
	maxNamed = 60  // rows of a picture whose cells have texts and links
	maxDrawn = 700 // rows of any picture
)

// pixels is the size of cells for a number of rows.
func pixels(rows int) int {
	switch {
	case rows <= 12:
		return 38
	case rows <= 30:
		return 26
	case rows <= maxNamed:
		return 15
	case rows <= 150:
		return 9
	case rows <= 300:
		return 4
	}
	return 2
}

// newPicture lays out rows and columns. groups are the names of what rows belong
// to, nil where rows are not grouped.
func newPicture(id, title, desc string, names, groups []string) *picture {
	p := &picture{ID: id, Title: title, Desc: desc, Cell: pixels(len(names))}
	p.Names = p.Cell >= 9
	longest := 0
	shown := make([]string, len(names))
	for i, n := range names {
		shown[i] = shorten(n, 26)
		longest = max(longest, utf8.RuneCountInString(shown[i]))
	}
	if !p.Names {
		for _, g := range groups {
			longest = max(longest, utf8.RuneCountInString(shorten(g, 26)))
		}
	}
	size := 12
	if p.Cell < 12 {
		size = 9
	}
	p.Left = 14 + longest*size*6/10
	p.Top = 14 + longest*size*5/10
	p.Width, p.Height = p.Left+len(names)*p.Cell+p.Top*3/4+8, p.Top+len(names)*p.Cell+8
	if p.Names {
		for i := range names {
			mid := i*p.Cell + p.Cell/2
			p.Labels = append(p.Labels, label{
				Text: shown[i], Full: names[i], X: p.Left - 6, Y: p.Top + mid + size/3, CX: p.Left + mid + size/3, CY: p.Top - 5,
			})
		}
	}
	for i := 0; i < len(groups); {
		j := i
		for j < len(groups) && groups[j] == groups[i] {
			j++
		}
		m := mark{At: i * p.Cell, Mid: (i + j) * p.Cell / 2}
		if !p.Names && (j-i)*p.Cell >= 9 {
			m.Text = shorten(groups[i], 26)
		}
		p.Marks = append(p.Marks, m)
		i = j
	}
	return p
}

// X and Y are where a column and a row begin, Right and Bottom where they end.
func (p *picture) X(at int) int { return p.Left + at }

// Y is X of rows.
func (p *picture) Y(at int) int { return p.Top + at }

// Right is where rows end.
func (p *picture) Right() int { return p.Width - p.Top*3/4 - 8 }

// Bottom is where columns end.
func (p *picture) Bottom() int { return p.Height - 8 }

// LabelX is where names of rows end.
func (p *picture) LabelX() int { return p.Left - 6 }

func shorten(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	return string(r[:most/2]) + "…" + string(r[len(r)-most/2+1:])
}

// put adds a cell with a text.
func (p *picture) put(row, col int, class, title, text, link, opacity string) {
	p.Cells = append(p.Cells, cell{
		X: p.Left + col*p.Cell, Y: p.Top + row*p.Cell, Size: p.Cell - 1, Class: class, Title: title, Text: text,
		TX: p.Left + col*p.Cell + p.Cell/2, TY: p.Top + row*p.Cell + p.Cell/2 + 4, Link: link, Opacity: opacity,
	})
}

// draw adds all cells as one shape for each class: neighbours in a row are one
// rectangle.
func (p *picture) draw(n int, at func(row, col int) string) {
	var shapes [len(classes)]strings.Builder
	index := map[string]int{}
	for i, c := range classes {
		index[c] = i
	}
	gap := 0
	if p.Cell >= 9 {
		gap = 1
	}
	for row := range n {
		for col := 0; col < n; {
			class, end := at(row, col), col+1
			for end < n && at(row, end) == class {
				end++
			}
			if i := index[class]; i > 0 {
				w := strconv.Itoa((end-col)*p.Cell - gap)
				fmt.Fprintf(&shapes[i], "M%d %dh%sv%dh-%sz", p.Left+col*p.Cell, p.Top+row*p.Cell, w, p.Cell-gap, w)
			}
			col = end
		}
	}
	for i := range shapes {
		if shapes[i].Len() > 0 {
			p.Paths = append(p.Paths, path{classes[i], shapes[i].String()})
		}
	}
}

// share is a part in percent, never rounded to none or all.
func share(part, all int) int {
	if all == 0 {
		return 0
	}
	n := (part*100 + all/2) / all
	switch {
	case part > 0 && n == 0:
		return 1
	case part < all && n == 100:
		return 99
	}
	return n
}
