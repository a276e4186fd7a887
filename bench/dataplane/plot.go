package dataplane

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/draw"
	"image/png"
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

// Colours of a plot.
var (
	white  = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink    = color.RGBA{0x20, 0x20, 0x20, 0xff}
	pale   = color.RGBA{0x70, 0x70, 0x70, 0xff}
	theirs = color.RGBA{0x9a, 0xa5, 0xb1, 0xff}
	ours   = color.RGBA{0x2f, 0x6f, 0xb3, 0xff}
)

// Plot writes each measurement into a directory, as SVG and as PNG: a bar per
// subject, a whisker from the least to the greatest round.
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
		vector, pixels := &svg{}, newPicture(plotHeight(results))
		vector.begin(plotHeight(results))
		r.plot(vector, m, results)
		r.plot(pixels, m, results)
		encoded, err := pixels.encode()
		if err != nil {
			return fmt.Errorf("plot %s: %w", m, err)
		}
		file := filepath.Join(dir, m)
		if err := errors.Join(os.WriteFile(file+".svg", vector.end(), 0o644), os.WriteFile(file+".png", encoded, 0o644)); err != nil {
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

// canvas is what a plot is drawn on; y grows downwards.
type canvas interface {
	rect(x, y, width, height float64, fill color.RGBA)
	// text is written on the line y.
	text(x, y float64, at anchor, fill color.RGBA, s string)
}

func (r *Report) plot(c canvas, measurement string, results []Result) {
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

// svg is a canvas of shapes.
type svg struct{ bytes.Buffer }

func (b *svg) begin(height int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
}

func (b *svg) end() []byte {
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

func (b *svg) rect(x, y, width, height float64, fill color.RGBA) {
	fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s"/>`+"\n", x, y, width, height, hex(fill))
}

func (b *svg) text(x, y float64, at anchor, fill color.RGBA, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s" fill="%s">`, x, y, at, hex(fill))
	_ = xml.EscapeText(b, []byte(s)) // a bytes.Buffer does not fail
	b.WriteString("</text>\n")
}

// density is pixels of a picture per pixel of a plot: letters need some.
const density = 2

// picture is a canvas of pixels.
type picture struct{ *image.RGBA }

func newPicture(height int) picture {
	return picture{image.NewRGBA(image.Rect(0, 0, plotWidth*density, height*density))}
}

func (p picture) encode() ([]byte, error) {
	var b bytes.Buffer
	err := png.Encode(&b, p)
	return b.Bytes(), err
}

func (p picture) rect(x, y, width, height float64, fill color.RGBA) {
	at := func(v float64) int { return int(v*density + 0.5) }
	draw.Draw(p, image.Rect(at(x), at(y), at(x+width), at(y+height)), image.NewUniform(fill), image.Point{}, draw.Src)
}

// text leaves out what it has no letter for.
func (p picture) text(x, y float64, at anchor, fill color.RGBA, s string) {
	const advance = glyphWidth + 1
	if at == anchorEnd {
		x -= float64(len(s) * advance)
	}
	for _, letter := range s {
		for row, cells := range glyphs[letter] {
			for column, black := range cells {
				if black {
					p.rect(x+float64(column), y-glyphHeight+glyphBelow+float64(row), 1, 1, fill)
				}
			}
		}
		x += advance
	}
}
