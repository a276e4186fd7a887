package dataplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"syscall"
	"time"
)

// Restart kills the daemon (SIGKILL) at a moment of no importance, leaves it dead
// for a while and starts it again, under accepted and denied traffic; and stops
// and starts it in order.
func Restart(ctx context.Context, c Config) (rep *Report, err error) {
	c.fill(5, 200*time.Millisecond, ourSubjects)
	s, err := begin(ctx, c, "restart")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	runs := map[string]*tally{}
	// The same moments for every subject and every run.
	random := rand.New(rand.NewPCG(1, 2))
	var moments []time.Duration
	for range c.Rounds {
		moments = append(moments, time.Duration(random.Int64N(int64(c.Window))))
	}
	for _, subject := range c.Subjects {
		runs[subject] = newTally(restartUnits)
		if err := s.restart(ctx, subject, moments, runs[subject]); err != nil {
			return nil, fmt.Errorf("restart/%s: %w", subject, err)
		}
	}
	s.tallies(restartUnits, runs)
	var targets []target
	for _, subject := range c.Subjects {
		targets = append(targets,
			target{name: "restart_denied_passed/" + subject, atMost: true},
			target{name: "restart_lost_flows/" + subject, atMost: true},
			target{name: "restart_lost_orderly/" + subject, atMost: true})
	}
	return s.finish(targets), nil
}

var restartUnits = []unit{
	{name: "restart_lost_packets", unit: "packets"},                // of accepted flows, per SIGKILL and restart
	{name: "restart_lost_orderly", unit: "packets"},                // the same with SIGTERM
	{name: "restart_came_up", unit: "packets"},                     // of accepted flows, to the daemon started after either signal
	{name: "restart_ready", unit: "ms"},                            // from the start until the policy is in force
	{name: "restart_lost_flows", unit: "flows of 1000", sum: true}, // accepted flows dead afterwards
	{name: "restart_denied_passed", unit: "packets", sum: true},
	{name: "restart_denied_offered", unit: "packets/s"},
}

// deniedPause makes about 10,000 denied packets a second.
const deniedPause = time.Second * burst / 10_000

func (s *session) restart(ctx context.Context, subject string, moments []time.Duration, t *tally) (err error) {
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
		return errors.New("there is no daemon to restart")
	}
	if err := l.prime(ctx); err != nil {
		return err
	}
	for i, moment := range moments {
		s.round()
		for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
			s.say("round %d of %d, %.0f s: %s, %s", i+1, len(moments), time.Since(s.began).Seconds(), subject, sig)
			if err := s.quiet.once(ctx, func() (err error) {
				p, err = s.restartOnce(ctx, l, p, subject, sig, moment, t)
				return err
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// restartOnce ends p with sig under load, waits, and starts another daemon in its
// place.
func (s *session) restartOnce(ctx context.Context, l *lab, p *process, subject string, sig syscall.Signal, moment time.Duration, t *tally) (*process, error) {
	d, err := l.startDenied(deniedPause)
	if err != nil {
		return p, err
	}
	accepted, err := l.during(ctx, func() error {
		if err := wait(ctx, 50*time.Millisecond+moment); err != nil {
			return err
		}
		if err := p.stop(sig); err != nil {
			return err
		}
		if err := wait(ctx, s.Window); err != nil {
			return err
		}
		start := time.Now()
		if p, err = l.startDaemon(ctx, s.programs, subject); err != nil {
			return err
		}
		t.put("restart_ready", float64(time.Since(start).Microseconds())/1000)
		return wait(ctx, s.Window)
	})
	offered, passed, derr := d.end(ctx)
	if err := errors.Join(err, derr); err != nil {
		return p, err
	}
	st, err := p.stats(ctx)
	if err != nil {
		return p, err
	}
	lost, _, err := l.alive(ctx, p)
	if err != nil {
		return p, err
	}
	t.put("restart_came_up", float64(st.Passed))
	name := "restart_lost_packets"
	if sig == syscall.SIGTERM {
		name = "restart_lost_orderly"
	}
	t.put(name, accepted.lost())
	t.put("restart_lost_flows", lost)
	t.put("restart_denied_passed", passed)
	t.put("restart_denied_offered", offered)
	return p, nil
}
