package dataplane

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Report is what one run measured.
type Report struct {
	Machine Machine   `json:"machine"`
	Command string    `json:"command"` // dataplane, flood, churn or restart
	Rounds  int       `json:"rounds"`
	Seconds float64   `json:"seconds"` // the whole run took
	Results []Result  `json:"results"`
	Targets []Verdict `json:"targets,omitempty"`
}

// Machine says where and when.
type Machine struct {
	Date   time.Time `json:"date"`
	Kernel string    `json:"kernel"`
	CPU    string    `json:"cpu"`
	CPUs   int       `json:"cpus"`
	Go     string    `json:"go"`
	// Load is the load average (one minute) when the run began and when it
	// ended: a run beside other work says so.
	Load [2]string `json:"load"`
	// Busy is the share of the CPUs that other processes used during measurements.
	Busy Spread `json:"busy"`
	// Repeated is how many measurements were taken again because of that.
	Repeated int `json:"repeated,omitempty"`
}

// Result is one case. Value is the median over rounds; Ratio is the median of
// the ratios of one round each, so that it compares measurements taken within
// seconds of each other.
type Result struct {
	Case  string  `json:"case"` // measurement/subject
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Ratio float64 `json:"ratio,omitempty"` // to Base
	Base  string  `json:"base,omitempty"`

	Min float64 `json:"min"`
	Max float64 `json:"max"`
	// Ratios to every subject that serves as a yardstick.
	Ratios map[string]Spread `json:"ratios,omitempty"`
	// BestRatio compares the best round with the best round of Base. Foreign load
	// takes from a result and never adds: on a busy machine this is the better
	// estimate, on an idle one it is about Ratio.
	BestRatio float64 `json:"bestRatio,omitempty"`
	// P50 and P999 accompany connect_p99, in its unit.
	P50  float64 `json:"p50,omitempty"`
	P999 float64 `json:"p999,omitempty"`
}

// Spread is a median with the extremes it was taken from.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// Verdict compares one result with what it should be.
type Verdict struct {
	Case   string  `json:"case"`
	Base   string  `json:"base,omitempty"` // "" = the value itself counts
	Want   string  `json:"want"`           // ">= 0.92"
	Got    float64 `json:"got"`
	Passed bool    `json:"passed"`
}

func (r *Report) find(name string) *Result {
	i := slices.IndexFunc(r.Results, func(x Result) bool { return x.Case == name })
	if i < 0 {
		return nil
	}
	return &r.Results[i]
}

func split(name string) (measurement, subject string) {
	measurement, subject, _ = strings.Cut(name, "/")
	return measurement, subject
}

// spread of values in any order; none gives zeros.
func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	m := v[len(v)/2]
	if len(v)%2 == 0 {
		m = (v[len(v)/2-1] + m) / 2
	}
	return Spread{Median: m, Min: v[0], Max: v[len(v)-1]}
}

// ratios divides round by round. Rounds a side missed do not count.
func ratios(values, base []float64) Spread {
	var r []float64
	for i := range min(len(values), len(base)) {
		if base[i] != 0 {
			r = append(r, values[i]/base[i])
		}
	}
	return spread(r)
}

// target is a bound on a result: on its ratio to base, or on its value if base
// is empty.
type target struct {
	name, base string
	atMost     bool
	bound      float64
}

// judge compares the report with targets it has results for.
func (r *Report) judge(targets []target) {
	for _, t := range targets {
		res := r.find(t.name)
		if res == nil {
			continue
		}
		v := Verdict{Case: t.name, Got: res.Value, Want: fmt.Sprintf(">= %g", t.bound)}
		if t.base != "" {
			s, ok := res.Ratios[t.base]
			if !ok {
				continue
			}
			m, _ := split(t.name)
			v.Base, v.Got = m+"/"+t.base, s.Median
		}
		v.Passed = v.Got >= t.bound
		if t.atMost {
			v.Want = fmt.Sprintf("<= %g", t.bound)
			v.Passed = v.Got <= t.bound
		}
		r.Targets = append(r.Targets, v)
	}
}

func thisMachine() Machine {
	m := Machine{Date: time.Now().UTC().Truncate(time.Second), CPUs: runtime.NumCPU(), Go: runtime.Version(), CPU: "unknown", Load: [2]string{load(), ""}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return m
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
			m.CPU = strings.TrimSpace(value)
			break
		}
	}
	return m
}

func load() string {
	b, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return "unknown"
	}
	first, _, _ := strings.Cut(string(b), " ")
	return first
}

// ThisMachine describes where and when a run begins. Others who measure fill in
// the load at its end with [Machine.End].
func ThisMachine() Machine { return thisMachine() }

// End notes the load average at the end of a run.
func (m *Machine) End() { m.Load[1] = load() }
