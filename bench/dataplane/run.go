package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Measurements of the dataplane run.
const (
	measureEstablished = "established_udp"
	measureStream      = "tcp_throughput"
	measureStreams8    = "tcp_throughput_8"
	measureNewUDP      = "new_udp"
	measureConnect     = "tcp_connect"
	measureLatency     = "connect_p99"
	measureAudited     = "tcp_connect_audited" // every connection recorded
)

var allMeasurements = []string{measureEstablished, measureStream, measureStreams8, measureNewUDP, measureConnect, measureLatency, measureAudited}

var units = map[string]string{
	measureEstablished: "pps", measureStream: "bit/s", measureStreams8: "bit/s",
	measureNewUDP: "flows/s", measureConnect: "connections/s", measureLatency: "us", measureAudited: "connections/s",
}

// yardsticks are the subjects ratios are taken to.
var yardsticks = []string{subjectKernel, subjectConntrack, subjectStock, subjectKernel + onCluster}

// dataplaneTargets are what Tierwall promises, on a machine with two cores.
var dataplaneTargets = []target{
	{name: measureEstablished + "/" + subjectAFXDP, base: subjectKernel, bound: 0.92},
	{name: measureEstablished + "/" + subjectNFQueue, base: subjectKernel, bound: 0.80},
	{name: measureStream + "/" + subjectAFXDP, base: subjectKernel, bound: 0.95},
	{name: measureStream + "/" + subjectNFQueue, base: subjectKernel, bound: 0.95},
	{name: measureStreams8 + "/" + subjectAFXDP, base: subjectKernel, bound: 0.95},
	{name: measureStreams8 + "/" + subjectNFQueue, base: subjectKernel, bound: 0.95},
	{name: measureNewUDP + "/" + subjectAFXDP, base: subjectConntrack, bound: 0.70},
	{name: measureNewUDP + "/" + subjectNFQueue, base: subjectStock, bound: 1.5},
	{name: measureConnect + "/" + subjectAFXDP, base: subjectKernel, bound: 0.70},
	{name: measureEstablished + "/" + subjectAccelerated, base: subjectKernel, bound: 1.2},
	{name: measureStream + "/" + subjectAccelerated, base: subjectKernel, bound: 1.2},
}

// baseOf is the yardstick a case is reported against.
func baseOf(measurement, subject string) string {
	switch {
	case subject != withoutNode(subject):
		return subjectKernel + onCluster
	case measurement == measureNewUDP && (subject == subjectAFXDP || subject == subjectAuto):
		return subjectConntrack // both keep a connection per flow
	case measurement == measureNewUDP && subject == subjectNFQueue:
		return subjectStock
	}
	return subjectKernel
}

// Config is what the command line says. Progress must be set.
type Config struct {
	Rounds       int           // 0 = the command's default
	Window       time.Duration // of one measurement; 0 = the command's default
	Subjects     []string      // nil = the command's default
	Measurements []string      // of the dataplane run; nil = all
	Daemon       string        // path of tierwalld; "" = build it
	Quick        bool          // shorter and fewer: proves that it works, not how fast
	Patience     time.Duration // to wait, in all, for moments in which nobody else uses the machine
	Progress     io.Writer
}

func (c *Config) fill(rounds int, window time.Duration, subjects []string) {
	if c.Quick {
		rounds, window, c.Patience = 1, window/5, 0
	}
	if c.Rounds == 0 {
		c.Rounds = rounds
	}
	if c.Window == 0 {
		c.Window = window
	}
	if c.Subjects == nil {
		c.Subjects = subjects
	}
}

func (c *Config) say(format string, args ...any) {
	fmt.Fprintf(c.Progress, format+"\n", args...)
}

// session is what every command starts with.
type session struct {
	Config
	programs programs
	began    time.Time
	report   *Report
	dir      string
	quiet    quiet
}

func begin(ctx context.Context, c Config, command string) (*session, error) {
	if err := netlab.Missing(); err != nil {
		return nil, fmt.Errorf("the benchmark cannot run here: %w", err)
	}
	dir, err := os.MkdirTemp("", "tierwall-bench-")
	if err != nil {
		return nil, err
	}
	s := &session{Config: c, dir: dir, began: time.Now(), report: &Report{Machine: thisMachine(), Command: command, Rounds: c.Rounds}}
	if c.Daemon == "" {
		c.say("building tierwalld")
	}
	if s.programs, err = findPrograms(ctx, c.Daemon, dir); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

func (s *session) close() error { return os.RemoveAll(s.dir) }

func (s *session) finish(targets []target) *Report {
	s.report.Seconds = time.Since(s.began).Seconds()
	s.report.Machine.Load[1] = load()
	s.report.Machine.Busy, s.report.Machine.Repeated = spread(s.quiet.busy), s.quiet.redo
	s.report.judge(targets)
	return s.report
}

// bench is one subject in its own lab. All of them stand side by side, idle but
// for the one being measured, so that a measurement is compared with others
// taken seconds before and after.
type bench struct {
	subject string
	lab     *lab
	daemon  *process            // nil where the subject has none
	samples map[string][]sample // by measurement, one per round
}

type sample struct{ value, p50, p999 float64 }

// Dataplane measures every subject. It takes under four minutes by default.
func Dataplane(ctx context.Context, c Config) (rep *Report, err error) {
	c.fill(7, 500*time.Millisecond, allSubjects)
	if c.Measurements == nil {
		c.Measurements = allMeasurements
	}
	s, err := begin(ctx, c, "dataplane")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	var all []*bench
	defer func() {
		for _, b := range all {
			err = errors.Join(err, b.lab.close())
		}
	}()
	for _, subject := range c.Subjects {
		c.say("preparing %s", subject)
		b := &bench{subject: subject, samples: map[string][]sample{}}
		if b.lab, err = newLab(); err != nil {
			return nil, err
		}
		all = append(all, b)
		if len(all) == 1 {
			if err := b.lab.missing(); err != nil {
				return nil, err
			}
		}
		if b.daemon, err = b.lab.install(ctx, subject, s.programs); err != nil {
			return nil, fmt.Errorf("subject %s: %w", subject, err)
		}
	}
	for round := range s.Rounds {
		s.round()
		for _, m := range c.Measurements {
			c.say("round %d of %d, %.0f s: %s", round+1, c.Rounds, time.Since(s.began).Seconds(), m)
			for i := range all {
				// A different one goes first each round: no subject profits from
				// its place.
				b := all[(i+round)%len(all)]
				var v sample
				if err := s.quiet.alone(ctx, func() (err error) {
					v, err = b.measure(ctx, m, s.Window)
					return err
				}); err != nil {
					return nil, fmt.Errorf("%s/%s, round %d: %w", m, b.subject, round+1, err)
				}
				b.samples[m] = append(b.samples[m], v)
			}
		}
	}
	s.collect(all)
	return s.finish(dataplaneTargets), nil
}

func (b *bench) measure(ctx context.Context, measurement string, d time.Duration) (s sample, err error) {
	defer steady()()
	switch measurement {
	case measureEstablished:
		s.value, err = b.lab.established(ctx, d)
	case measureStream:
		s.value, err = b.lab.throughput(ctx, 1, d)
	case measureStreams8:
		s.value, err = b.lab.throughput(ctx, 8, d)
	case measureNewUDP:
		s.value, err = b.lab.newFlows(ctx, d)
	case measureConnect, measureAudited:
		if measurement == measureConnect {
			s.value, _, err = b.lab.connects(ctx, mostCallers, d)
		} else {
			s.value, _, err = b.lab.audited(ctx, b.auditor(), mostCallers, d)
		}
		if err == nil && s.value == 0 {
			err = fmt.Errorf("no connection was opened within %s", d)
		}
	case measureLatency:
		var took []time.Duration
		_, took, err = b.lab.connects(ctx, 1, d)
		us := func(q float64) float64 { return float64(quantile(took, q).Nanoseconds()) / 1000 }
		s = sample{value: us(0.99), p50: us(0.5), p999: us(0.999)}
	default:
		err = fmt.Errorf("unknown measurement %q", measurement)
	}
	return s, err
}

// auditor returns the daemon if it writes an audit log.
func (b *bench) auditor() *process {
	if withoutNode(withoutCopy(b.subject)) == subjectStock {
		return nil
	}
	return b.daemon
}

func (b *bench) values(measurement string, field func(sample) float64) (v []float64) {
	for _, s := range b.samples[measurement] {
		v = append(v, field(s))
	}
	return v
}

// best of a measurement's values.
func best(measurement string, values []float64) float64 {
	if measurement == measureLatency {
		return slices.Min(values)
	}
	return slices.Max(values)
}

// collect turns samples into results.
func (s *session) collect(all []*bench) {
	value := func(x sample) float64 { return x.value }
	for _, m := range s.Measurements {
		for _, b := range all {
			v := b.values(m, value)
			sp := spread(v)
			r := Result{
				Case: m + "/" + b.subject, Unit: units[m], Value: sp.Median, Min: sp.Min, Max: sp.Max, Ratios: map[string]Spread{},
				P50:  spread(b.values(m, func(x sample) float64 { return x.p50 })).Median,
				P999: spread(b.values(m, func(x sample) float64 { return x.p999 })).Median,
			}
			for _, base := range all {
				for _, y := range yardsticks {
					if base.subject == y {
						r.Ratios[y] = ratios(v, base.values(m, value))
					}
				}
			}
			if sp, ok := r.Ratios[baseOf(m, b.subject)]; ok {
				r.Ratio, r.Base = sp.Median, m+"/"+baseOf(m, b.subject)
				for _, base := range all {
					if base.subject == baseOf(m, b.subject) {
						r.BestRatio = best(m, v) / best(m, base.values(m, value))
					}
				}
			}
			s.report.Results = append(s.report.Results, r)
		}
	}
}
