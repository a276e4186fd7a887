package dataplane

// baseline is the yardstick of runs that compare a subject under stress with
// itself without.
const baseline = "baseline"

// unit is a measurement of the stress runs.
type unit struct {
	name, unit string
	base       bool // compared with the subject's own baseline
	sum        bool // a total of all rounds: for what must not happen even once
}

// tally is one subject's values, one per round.
type tally struct {
	values, bases map[string][]float64
}

func newTally(units []unit) *tally {
	t := &tally{values: map[string][]float64{}, bases: map[string][]float64{}}
	for _, u := range units {
		t.values[u.name] = nil
	}
	return t
}

// put adds a round's value. An unknown name is a mistake in this package.
func (t *tally) put(name string, v float64) {
	if _, ok := t.values[name]; !ok {
		panic("unknown measurement " + name)
	}
	t.values[name] = append(t.values[name], v)
}

func (t *tally) base(name string, v float64) { t.bases[name] = append(t.bases[name], v) }

// tallies adds the results of all subjects to the report.
func (s *session) tallies(units []unit, runs map[string]*tally) {
	for _, u := range units {
		for _, subject := range s.Subjects {
			t := runs[subject]
			sp := spread(t.values[u.name])
			r := Result{Case: u.name + "/" + subject, Unit: u.unit, Value: sp.Median, Min: sp.Min, Max: sp.Max}
			if u.sum {
				r.Value = 0
				for _, v := range t.values[u.name] {
					r.Value += v
				}
			}
			if u.base {
				sp := ratios(t.values[u.name], t.bases[u.name])
				r.Ratio, r.Base = sp.Median, u.name+"/"+baseline
				r.Ratios = map[string]Spread{baseline: sp}
			}
			s.report.Results = append(s.report.Results, r)
		}
	}
}
