package proposal

import (
	"slices"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/cmd/internal/auditlog"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/policy/assure/recommend"
)

// Replay judges the decisions of a log again, by the recommended policies.
type Replay struct {
	reader *Reader
	alone  *auditlog.Simulation
	beside *auditlog.Simulation // with the existing policies
	Judged uint64
}

// NewReplay replays for a recommendation.
func NewReplay(r *Reader, rec *recommend.Recommendation) *Replay {
	again := *r // what it counts is counted already
	return &Replay{reader: &again, alone: simulation(rec.Table), beside: simulation(rec.Combined)}
}

func simulation(t *classifier.Table) *auditlog.Simulation {
	s := auditlog.NewSimulation(t)
	s.VerdictsOnly = true
	return s
}

// Add judges an event. A pod that is gone is the one that stands for it.
func (p *Replay) Add(ev auditlog.Event) {
	c, ok := p.reader.connection(&ev)
	if !ok || !c.Allowed {
		return
	}
	v, from, to := p.reader.Seen.Judge(&c)
	if v != recommend.Counted {
		return
	}
	ev.Records = slices.Clone(ev.Records)
	for i := range ev.Records {
		x := &ev.Records[i]
		x.Source, x.Destination = today(x.Source, from), today(x.Destination, to)
	}
	p.Judged++
	p.alone.Add(ev)
	p.beside.Add(ev)
}

func today(e *audit.Endpoint, pod *rule.Endpoint) *audit.Endpoint {
	if pod == nil || e.Pod == pod.Name {
		return e
	}
	now := *e
	now.Namespace, now.Pod = pod.Namespace, pod.Name
	return &now
}

// denied lists what a simulation would deny, and counts the decisions.
func denied(s *auditlog.Simulation) (list []auditlog.Change, n uint64) {
	r := s.Report(-1)
	for _, c := range r.Changes {
		if c.Before.Verdict == audit.Allow && c.After.Verdict != audit.Allow {
			list = append(list, c)
			n += c.Events
		}
	}
	return list, n + r.Unlisted
}
