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

// Colours of a plot, as SVG writes them.
const (
	white  = "#ffffff"
	ink    = "#202020"
	pale   = "#707070"
	theirs = "#9aa5b1"
	ours   = "#2f6fb3"
)

// Plot writes each measurement into a directory, as SVG: a bar per subject,
// a whisker from the least to the greatest round.
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
		var b svg
		b.begin(plotHeight(results))
		r.plot(&b, m, results)
		if err := os.WriteFile(filepath.Join(dir, m+".svg"), b.end(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func plotHeight(results []Result) int { return plotTop + len(results)*plotRow + plotBottom }

// anchor says which end of a text is at its place.
type anchor string

const (
	anchorStart anchor = "start"
	anchorEnd   anchor = "end"
)

func (r *Report) plot(c *svg, measurement string, results []Result) {
	most := 0.0
	for _, res := range results {
		most = max(most, res.Max, res.Value)
	}
	if most == 0 {
		most = 1
	}
	x := func(v float64) float64 { return plotLeft + v/most*(plotWidth-plotLeft-plotRight) }
	c.rect(0, 0, plotWidth, float64(plotHeight(results)), white)
	c.text(plotLeft, 20, anchorStart, ink, fmt.Sprintf("%s, %s", measurement, results[0].Unit))
	m := r.Machine
	c.text(16, 38, anchorStart, pale, fmt.Sprintf("%s, %d x %s, %s; bar: median of %d rounds, line: least to most",
		m.Kernel, m.CPUs, m.CPU, m.Date.Format("2006-01-02"), r.Rounds))
	for i, res := range results {
		_, subject := split(res.Case)
		y := float64(plotTop + i*plotRow)
		fill := theirs
		switch subject {
		case subjectNFQueue, subjectAFXDP, subjectAuto, subjectAccelerated:
			fill = ours
		}
		c.text(plotLeft-8, y+plotBar-4, anchorEnd, ink, subject)
		c.rect(plotLeft, y, x(res.Value)-plotLeft, plotBar, fill)
		c.rect(x(res.Min), y+plotBar/2, x(res.Max)-x(res.Min), 1, ink)
		label := number(res.Value)
		if res.Base != "" && res.Base != res.Case {
			_, base := split(res.Base)
			label += fmt.Sprintf(" = %.2f x %s", res.Ratio, base)
		}
		c.text(max(x(res.Max), x(res.Value))+8, y+plotBar-4, anchorStart, ink, label)
	}
}

// svg is a drawing; y grows downwards.
type svg struct{ bytes.Buffer }

func (b *svg) begin(height int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
}

func (b *svg) end() []byte {
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (b *svg) rect(x, y, width, height float64, fill string) {
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, width, height, fill)
}

// text writes s on the line y.
func (b *svg) text(x, y float64, at anchor, fill string, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">`, x, y, at, fill)
	_ = xml.EscapeText(b, []byte(s)) // a bytes.Buffer does not fail
	b.WriteString("</text>\n")
}
