package scale

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/tierwall/tierwall/bench/dataplane"
)

// Report is what one run measured.
type Report struct {
	Machine dataplane.Machine `json:"machine"`
	Command string            `json:"command"`
	Seconds float64           `json:"seconds"` // the whole run took
	Results []Result          `json:"results"`
}

// Result is one figure. Want, if not 0, is the most it should be.
type Result struct {
	Case  string  `json:"case"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Want  float64 `json:"want,omitempty"`
}

// Passed reports whether a figure is as it should be.
func (r *Result) Passed() bool { return r.Want == 0 || r.Value <= r.Want }

func (r *Report) add(name string, value float64, unit string) { r.want(name, value, unit, 0) }

func (r *Report) want(name string, value float64, unit string, want float64) {
	r.Results = append(r.Results, Result{name, math.Round(value*100) / 100, unit, want})
}

// lags adds the distribution of lags. want bounds the 99th percentile, in ms.
func (r *Report) lags(name string, all []time.Duration, want float64) {
	if len(all) == 0 {
		return
	}
	ms := func(d time.Duration) float64 { return d.Seconds() * 1e3 }
	r.add(name+"/p50", ms(percentile(all, 50)), "ms")
	r.want(name+"/p99", ms(percentile(all, 99)), "ms", want)
	r.add(name+"/max", ms(slices.Max(all)), "ms")
	r.add(name+"/changes", float64(len(all)), "")
}

// percentile returns the smallest value that at least p percent do not exceed.
func percentile(all []time.Duration, p int) time.Duration {
	v := slices.Sorted(slices.Values(all))
	return v[max(0, (len(v)*p+99)/100-1)]
}

// Write writes the report as "text", "json" or "markdown".
func (r *Report) Write(w io.Writer, format string) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	row, head := "%-44s %12s %-8s %s\n", ""
	if format == "markdown" {
		row, head = "| %s | %s | %s | %s |\n", "| figure | value | unit | target |\n|---|---|---|---|\n"
	}
	m := &r.Machine
	if _, err := fmt.Fprintf(w, "%s, %s, %d CPUs, kernel %s, %s, load %s → %s, %.0f s\n\n    %s\n\n%s", m.Date.Format(time.RFC3339), m.CPU, m.CPUs, m.Kernel, m.Go,
		m.Load[0], m.Load[1], r.Seconds, r.Command, head); err != nil {
		return err
	}
	for i := range r.Results {
		x := &r.Results[i]
		target := ""
		if x.Want != 0 {
			target = fmt.Sprintf("<= %g: met", x.Want)
			if !x.Passed() {
				target = fmt.Sprintf("<= %g: MISSED", x.Want)
			}
		}
		if _, err := fmt.Fprintf(w, row, x.Case, fmt.Sprintf("%.4g", x.Value), x.Unit, target); err != nil {
			return err
		}
	}
	return nil
}

// record writes the report where results are kept.
func (r *Report) record(dir, name string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	name = fmt.Sprintf("%s-%s-%dcpu", name, r.Machine.Date.Format(time.DateOnly), r.Machine.CPUs)
	for ext, format := range map[string]string{".json": "json", ".md": "markdown"} {
		f, err := os.Create(filepath.Join(dir, name+ext))
		if err != nil {
			return err
		}
		err = r.Write(f, format)
		if closed := f.Close(); err == nil {
			err = closed
		}
		if err != nil {
			return err
		}
	}
	return nil
}
