package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Flood measures what one pod that floods does to the rest of the node: denied
// datagrams, each of a new flow, as fast as a CPU can send them, beside 1,000
// accepted flows of other pods at a steady rate.
func Flood(ctx context.Context, c Config) (rep *Report, err error) {
	c.fill(3, 2*time.Second, ourSubjects)
	s, err := begin(ctx, c, "flood")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	runs := map[string]*tally{}
	for round := range c.Rounds {
		s.round()
		for _, subject := range c.Subjects {
			c.say("round %d of %d, %.0f s: %s", round+1, c.Rounds, time.Since(s.began).Seconds(), subject)
			if runs[subject] == nil {
				runs[subject] = newTally(floodUnits)
			}
			if err := s.quiet.once(ctx, func() error { return s.flood(ctx, subject, runs[subject]) }); err != nil {
				return nil, fmt.Errorf("flood/%s: %w", subject, err)
			}
		}
	}
	s.tallies(floodUnits, runs)
	var targets []target
	for _, subject := range c.Subjects {
		targets = append(targets,
			target{name: "flood_goodput/" + subject, base: baseline, bound: 0.9},
			target{name: "flood_lost_flows/" + subject, atMost: true},
			target{name: "flood_denied_passed/" + subject, atMost: true})
	}
	return s.finish(targets), nil
}

// floodUnits are the measurements of a flood, in order.
var floodUnits = []unit{
	{name: "flood_goodput", unit: "pps", base: true},             // accepted packets that arrive, to those without flood
	{name: "flood_lost_packets", unit: "packets"},                // accepted ones, of about 20,000 a second
	{name: "flood_offered", unit: "flows/s"},                     // denied flows
	{name: "flood_cpu", unit: "cores"},                           // used by the daemon
	{name: "flood_evictions", unit: "flows of 1000"},             // accepted flows judged again afterwards
	{name: "flood_lost_flows", unit: "flows of 1000", sum: true}, // accepted flows dead afterwards
	{name: "flood_denied_passed", unit: "packets", sum: true},
}

func (s *session) flood(ctx context.Context, subject string, t *tally) (err error) {
	l, err := newLab()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	p, err := l.install(ctx, subject, s.programs)
	if err != nil {
		return err
	}
	if p == nil {
		return errors.New("there is no daemon to flood")
	}
	if err := l.prime(ctx); err != nil {
		return err
	}
	calm, err := l.during(ctx, func() error { return wait(ctx, s.Window) })
	if err != nil {
		return err
	}
	var cores, offered, passed float64
	storm, err := l.during(ctx, func() error {
		start := time.Now()
		before, err := p.CPU()
		if err != nil {
			return err
		}
		d, err := l.startDenied(0)
		if err != nil {
			return err
		}
		err = wait(ctx, s.Window)
		after, cerr := p.CPU()
		cores = (after - before).Seconds() / time.Since(start).Seconds()
		var derr error
		offered, passed, derr = d.end(ctx)
		return errors.Join(err, cerr, derr)
	})
	if err != nil {
		return err
	}
	lost, judged, err := l.alive(ctx, p)
	if err != nil {
		return err
	}
	t.base("flood_goodput", calm.rate())
	for name, v := range map[string]float64{
		"flood_goodput": storm.rate(), "flood_lost_packets": storm.lost(), "flood_offered": offered, "flood_cpu": cores,
		"flood_evictions": judged, "flood_lost_flows": lost, "flood_denied_passed": passed,
	} {
		t.put(name, v)
	}
	return nil
}
