package demo

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/query"
	"github.com/tierwall/tierwall/cmd/internal/world"
)

// Observation is one probe beside what the table says about it.
type Observation struct {
	world.Result
	Predicted query.Flow
}

// Differs reports whether wire and table disagree.
func (o *Observation) Differs() bool { return o.Passed != (o.Predicted.Verdict == "Allow") }

// Difference is an Observation that differs, in the report's JSON form.
type Difference struct {
	From      string     `json:"from"`
	To        string     `json:"to"`
	Port      string     `json:"port"`
	Family    int        `json:"family"`
	Observed  string     `json:"observed"` // "passed" or "refused"
	Predicted query.Flow `json:"predicted"`
}

// predict asks the table about every result.
func predict(t *classifier.Table, results []world.Result) ([]Observation, error) {
	out := make([]Observation, len(results))
	for i, r := range results {
		p, err := query.ParsePort(portText(r.Probe))
		if err != nil {
			return nil, err
		}
		out[i] = Observation{r, query.Ask(t, r.From.Name, r.To.Name, r.From.Addr(r.Family), r.To.Addr(r.Family), p)}
	}
	return out, nil
}

// again tries once more, with patience, what policy allows or rejects and was silent: on a
// machine that is busy with other things an answer may take longer than probes wait.
func again(ctx context.Context, t *classifier.Table, results []world.Result) error {
	obs, err := predict(t, results)
	if err != nil {
		return err
	}
	at := silent(obs)
	if len(at) == 0 {
		return nil
	}
	probes := make([]world.Probe, len(at))
	for n, i := range at {
		probes[n] = results[i].Probe
	}
	slow, err := world.Run(ctx, probes, world.ProbeConfig{Timeout: 5 * time.Second})
	if err != nil {
		return err
	}
	for n, i := range at {
		slow[n].Attempts += results[i].Attempts
		results[i] = slow[n]
	}
	return nil
}

// few is how many silent probes are tried again whatever their share.
const few = 32

// silent returns which observations a busy machine may explain: what should have passed
// and has not, or should have been refused with an answer, unless that is so much that
// something else is wrong. What has passed has passed, whatever is predicted.
func silent(obs []Observation) (at []int) {
	for i := range obs {
		o := &obs[i]
		unanswered := o.Predicted.Verdict == classifier.Reject.String() && o.Silent()
		if (o.Differs() && !o.Passed || unanswered) && o.Broken == nil {
			at = append(at, i)
		}
	}
	if len(at) > max(len(obs)/4, few) {
		return nil
	}
	return at
}

func portText(p world.Probe) string { return fmt.Sprintf("%d/%s", p.Port, strings.ToUpper(p.Network)) }

func difference(o *Observation) Difference {
	d := Difference{
		From: o.From.Name, To: o.To.Name, Port: o.Predicted.Port, Family: o.Family,
		Observed: "refused", Predicted: o.Predicted,
	}
	if o.Passed {
		d.Observed = "passed"
	}
	return d
}

// cell is one place of the connectivity matrix: one port, one pair, both
// families. Bit 0 is IPv4, bit 1 is IPv6.
type cell struct {
	asked, observed, predicted, broken uint8
}

type cellKey struct{ port, from, to string }

// matrix arranges observations for printing.
type matrix struct {
	ports, hosts []string
	cells        map[cellKey]*cell
}

func arrange(obs []Observation) *matrix {
	m := &matrix{cells: map[cellKey]*cell{}}
	seen := map[string]bool{}
	add := func(list *[]string, kind, name string) {
		if !seen[kind+name] {
			seen[kind+name] = true
			*list = append(*list, name)
		}
	}
	for i := range obs {
		o := &obs[i]
		add(&m.ports, "port ", o.Predicted.Port)
		add(&m.hosts, "host ", o.From.Name)
		add(&m.hosts, "host ", o.To.Name)
		k := cellKey{o.Predicted.Port, o.From.Name, o.To.Name}
		c := m.cells[k]
		if c == nil {
			c = &cell{}
			m.cells[k] = c
		}
		bit := uint8(1)
		if o.Family == 6 {
			bit = 2
		}
		c.asked |= bit
		if o.Passed {
			c.observed |= bit
		}
		if o.Predicted.Verdict == "Allow" {
			c.predicted |= bit
		}
		if o.Broken != nil {
			c.broken |= bit
		}
	}
	return m
}

// symbol is a set of families as one character.
func symbol(set, asked uint8) string {
	switch {
	case asked == 0:
		return " "
	case set == asked:
		return "."
	case set == 0:
		return "X"
	case set == 1:
		return "4"
	}
	return "6"
}

// groups collects ports whose whole matrices are equal, observed and predicted,
// so that each picture is printed once.
func (m *matrix) groups() [][]string {
	var order []string
	groups := map[string][]string{}
	for _, p := range m.ports {
		var b strings.Builder
		for _, from := range m.hosts {
			for _, to := range m.hosts {
				if c := m.cells[cellKey{p, from, to}]; c != nil {
					fmt.Fprintf(&b, "%d%d%d%d,", c.asked, c.observed, c.predicted, c.broken)
				} else {
					b.WriteByte(',')
				}
			}
		}
		if groups[b.String()] == nil {
			order = append(order, b.String())
		}
		groups[b.String()] = append(groups[b.String()], p)
	}
	out := make([][]string, len(order))
	for i, k := range order {
		out[i] = groups[k]
	}
	return out
}
