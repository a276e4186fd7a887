package dataplane

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Formats a report can be printed in.
var formats = []string{"text", "json", "markdown"}

// Write prints the report.
func (r *Report) Write(w io.Writer, format string) error {
	switch format {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(r)
	case "markdown":
		return r.write(w, markdown{w})
	case "text":
		return r.write(w, &columns{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)})
	}
	return fmt.Errorf("unknown format %q: want one of %q", format, formats)
}

// table prints rows; the first one after begin is the header.
type table interface {
	row(header bool, cells ...string) error
	end() error
}

func (r *Report) write(w io.Writer, t table) error {
	m := r.Machine
	repeated := ""
	if m.Repeated > 0 {
		repeated = fmt.Sprintf(", and %d were taken again", m.Repeated)
	}
	if _, err := fmt.Fprintf(w, "%s on %s, %d x %s, %s, %s; %d rounds in %.0f s; load average %s before, %s after; others used %.0f%% of the CPUs during measurements (%.0f-%.0f%%)%s\n\n",
		r.Command, m.Kernel, m.CPUs, m.CPU, m.Go, m.Date.Format("2006-01-02 15:04 UTC"), r.Rounds, r.Seconds, m.Load[0], m.Load[1], 100*m.Busy.Median, 100*m.Busy.Min, 100*m.Busy.Max, repeated); err != nil {
		return err
	}
	head := []string{"case", "median", "min", "max", "unit"}
	for _, y := range r.yardsticks() {
		head = append(head, "to "+y)
	}
	bests := slices.ContainsFunc(r.Results, func(x Result) bool { return x.BestRatio > 0 })
	if bests {
		head = append(head, "best to best")
	}
	if err := t.row(true, head...); err != nil {
		return err
	}
	for _, res := range r.Results {
		cells := []string{res.Case, number(res.Value), number(res.Min), number(res.Max), res.Unit}
		if res.P50 > 0 {
			cells[4] += fmt.Sprintf(" (p50 %s, p99.9 %s)", number(res.P50), number(res.P999))
		}
		for _, y := range r.yardsticks() {
			cell := ""
			if s, ok := res.Ratios[y]; ok {
				cell = fmt.Sprintf("%.2f (%.2f-%.2f)", s.Median, s.Min, s.Max)
			}
			cells = append(cells, cell)
		}
		if bests {
			_, base := split(res.Base)
			cells = append(cells, fmt.Sprintf("%.2f x %s", res.BestRatio, base))
		}
		if err := t.row(false, cells...); err != nil {
			return err
		}
	}
	if err := t.end(); err != nil || len(r.Targets) == 0 {
		return err
	}
	if err := t.row(true, "target", "to", "want", "got", "met"); err != nil {
		return err
	}
	for _, v := range r.Targets {
		met := "yes"
		if !v.Passed {
			met = "NO"
		}
		if err := t.row(false, v.Case, v.Base, v.Want, number(v.Got), met); err != nil {
			return err
		}
	}
	return t.end()
}

// yardsticks are the ones this report has ratios to, in their order.
func (r *Report) yardsticks() (used []string) {
	for _, y := range append(slices.Clone(yardsticks), baseline) {
		for _, res := range r.Results {
			if _, ok := res.Ratios[y]; ok {
				used = append(used, y)
				break
			}
		}
	}
	return used
}

// number prints three significant digits, with a metric prefix from 10,000 on.
func number(v float64) string {
	switch {
	case v >= 1e9:
		return fmt.Sprintf("%.3gG", v/1e9)
	case v >= 1e6:
		return fmt.Sprintf("%.3gM", v/1e6)
	case v >= 1e4:
		return fmt.Sprintf("%.3gk", v/1e3)
	case v >= 1000:
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

type markdown struct{ w io.Writer }

func (m markdown) row(header bool, cells ...string) error {
	text := "| " + strings.Join(cells, " | ") + " |\n"
	if header {
		text += "|" + strings.Repeat("---|", len(cells)) + "\n"
	}
	_, err := io.WriteString(m.w, text)
	return err
}

func (m markdown) end() error {
	_, err := io.WriteString(m.w, "\n")
	return err
}

type columns struct{ *tabwriter.Writer }

func (c *columns) row(_ bool, cells ...string) error {
	_, err := fmt.Fprintln(c.Writer, strings.Join(cells, "\t"))
	return err
}

func (c *columns) end() error {
	if _, err := fmt.Fprintln(c.Writer); err != nil {
		return err
	}
	return c.Flush()
}
