package dataplane

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"os"
	"path/filepath"
)

// Sizes of a plot in pixels.
const (
	plotWidth  = 720
	plotLeft   = 140 // names
	plotRight  = 190 // values
	plotTop    = 48
	plotRow    = 28
	plotBar    = 18
	plotBottom = 24
)

// Plot writes one SVG per measurement into a directory: a bar per subject, a
// whisker from the least to the greatest round.
func (r *Report) Plot(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	by := map[string][]Result{}
	for _, res := range r.Results {
		m, _ := split(res.Case)
		by[m] = append(by[m], res)
	}
	for m, results := range by {
		if err := os.WriteFile(filepath.Join(dir, m+".svg"), r.svg(m, results), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) svg(measurement string, results []Result) []byte {
	most := 0.0
	for _, res := range results {
		most = max(most, res.Max, res.Value)
	}
	if most == 0 {
		most = 1
	}
	x := func(v float64) float64 { return plotLeft + v/most*(plotWidth-plotLeft-plotRight) }
	height := plotTop + len(results)*plotRow + plotBottom
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="13">`+"\n", plotWidth, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#ffffff"/>`+"\n", plotWidth, height)
	text := func(x float64, y int, anchor, fill, s string) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="%s" fill="%s">`, x, y, anchor, fill)
		_ = xml.EscapeText(&b, []byte(s)) // a bytes.Buffer does not fail
		b.WriteString("</text>\n")
	}
	text(plotLeft, 20, "start", "#202020", fmt.Sprintf("%s, %s", measurement, results[0].Unit))
	m := r.Machine
	text(plotLeft, 38, "start", "#707070", fmt.Sprintf("%s, %d x %s, %s; bar: median of %d rounds, line: least to most", m.Kernel, m.CPUs, m.CPU, m.Date.Format("2006-01-02"), r.Rounds))
	for i, res := range results {
		_, subject := split(res.Case)
		y := plotTop + i*plotRow
		fill := "#9aa5b1"
		switch subject {
		case subjectNFQueue, subjectAFXDP, subjectAuto, subjectAccelerated:
			fill = "#2f6fb3"
		}
		text(plotLeft-8, y+plotBar-4, "end", "#202020", subject)
		fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", plotLeft, y, x(res.Value)-plotLeft, plotBar, fill)
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="#202020"/>`+"\n", x(res.Min), y+plotBar/2, x(res.Max), y+plotBar/2)
		label := number(res.Value)
		if res.Base != "" && res.Base != res.Case {
			_, base := split(res.Base)
			label += fmt.Sprintf(" = %.2f x %s", res.Ratio, base)
		}
		text(max(x(res.Max), x(res.Value))+8, y+plotBar-4, "start", "#202020", label)
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
