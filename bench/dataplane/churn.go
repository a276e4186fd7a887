package dataplane

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Churn edits policies and pods under accepted traffic. It measures how long an
// edit takes from the moment its file is in place until it is in force for new
// flows, and until a live flow it denies is cut; and what 100 edits a second of
// policies that concern nobody cost those who are not concerned.
func Churn(ctx context.Context, c Config) (rep *Report, err error) {
	c.fill(3, 2*time.Second, ourSubjects)
	s, err := begin(ctx, c, "churn")
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
				runs[subject] = newTally(churnUnits)
			}
			if err := s.quiet.once(ctx, func() error { return s.churn(ctx, subject, runs[subject]) }); err != nil {
				return nil, fmt.Errorf("churn/%s: %w", subject, err)
			}
		}
	}
	s.tallies(churnUnits, runs)
	var targets []target
	for _, subject := range c.Subjects {
		targets = append(targets,
			target{name: "churn_deny_p99/" + subject, atMost: true, bound: 10},
			target{name: "churn_allow_p99/" + subject, atMost: true, bound: 10},
			target{name: "churn_pod_p99/" + subject, atMost: true, bound: 10},
			target{name: "churn_cut_p99/" + subject, atMost: true, bound: 100},
			target{name: "churn_goodput/" + subject, base: baseline, bound: 0.99})
	}
	return s.finish(targets), nil
}

var churnUnits = []unit{
	{name: "churn_deny_p50", unit: "ms"}, // an edit denies: the last new flow that passes
	{name: "churn_deny_p99", unit: "ms"},
	{name: "churn_allow_p50", unit: "ms"}, // an edit allows: the first new flow that passes
	{name: "churn_allow_p99", unit: "ms"},
	{name: "churn_cut_p50", unit: "ms"}, // an edit denies: the last packet of a live flow
	{name: "churn_cut_p99", unit: "ms"},
	{name: "churn_pod_p50", unit: "ms"}, // a pod's labels change: first or last new flow
	{name: "churn_pod_p99", unit: "ms"},
	{name: "churn_edits", unit: "edits/s"},           // of the storm
	{name: "churn_goodput", unit: "pps", base: true}, // in the storm, to the time before
	{name: "churn_lost_packets", unit: "packets"},    // accepted ones, in all phases
	{name: "churn_offered_packets", unit: "packets"}, // accepted ones, in all phases
	{name: "churn_never", unit: "edits", sum: true},  // edits not in force when the next one came
}

// editPause is the time between two measured edits, stormPause between two of
// the storm.
const (
	editPause  = 100 * time.Millisecond
	stormPause = 10 * time.Millisecond
)

func (s *session) churn(ctx context.Context, subject string, t *tally) (err error) {
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
		return errors.New("there is no daemon to tell about edits")
	}
	if err := l.prime(ctx); err != nil {
		return err
	}
	calm, err := l.during(ctx, func() error { return wait(ctx, s.Window) })
	if err != nil {
		return err
	}
	edits := max(4, int(s.Window/editPause)) / 2 * 2 // as many that allow as that deny

	// Policy edits, seen by a client.
	var deny, allow, cut, pod []lag
	policies, err := l.during(ctx, func() error {
		seen, err := l.observe(ctx, l.clients[0], edits, func(on bool) error {
			if on {
				return l.write("policy.yaml", policy(portUDP, portProbe, portLive))
			}
			return l.write("policy.yaml", policy(portUDP))
		})
		if err != nil {
			return err
		}
		deny, allow, cut = seen.last(portProbe), seen.first(portProbe), seen.last(portLive)
		return nil
	})
	if err != nil {
		return err
	}
	// Pod changes, seen by the pod whose label changes. The policy allows what it
	// sends to clients.
	if err := l.write("policy.yaml", policy(portUDP, portProbe, portLive)); err != nil {
		return err
	}
	pods, err := l.during(ctx, func() error {
		seen, err := l.observe(ctx, l.odd, edits, func(on bool) error {
			return l.write("world.yaml", l.world(map[bool]string{true: "client", false: "nobody"}[on]))
		})
		if err != nil {
			return err
		}
		pod = append(seen.last(portProbe), seen.first(portProbe)...)
		return nil
	})
	if err != nil {
		return err
	}
	// The storm.
	written := 0
	storm, err := l.during(ctx, func() error {
		stop := make(chan struct{})
		time.AfterFunc(s.Window, func() { close(stop) })
		return pace(stop, stormPause, func() error {
			written++
			return errors.Join(ctx.Err(), l.write("other.yaml", bystander(written)))
		})
	})
	if err != nil {
		return err
	}
	for _, x := range []struct {
		name string
		lags []lag
	}{{"churn_deny", deny}, {"churn_allow", allow}, {"churn_cut", cut}, {"churn_pod", pod}} {
		sorted, never := settle(x.lags)
		ms := func(q float64) float64 { return float64(quantile(sorted, q).Microseconds()) / 1000 }
		t.put(x.name+"_p50", ms(0.5))
		t.put(x.name+"_p99", ms(0.99))
		t.put("churn_never", never)
	}
	all := calm.add(policies).add(pods).add(storm)
	t.base("churn_goodput", calm.rate())
	t.put("churn_goodput", storm.rate())
	t.put("churn_edits", float64(written)/storm.elapsed.Seconds())
	t.put("churn_lost_packets", all.lost())
	t.put("churn_offered_packets", float64(all.sent))
	return nil
}

// bystander is a policy about pods that do not exist; n makes each one new.
func bystander(n int) string {
	return fmt.Sprintf(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {namespace: bench, name: bystander}
spec:
  podSelector: {matchLabels: {role: bystander}}
  policyTypes: [Ingress]
  ingress: [{ports: [{protocol: TCP, port: %d}]}]
`, 1+n%65535)
}

// lag is the time from an edit to its effect.
type lag struct {
	d     time.Duration
	never bool // no effect before the next edit
}

// settle sorts the lags. An edit without effect counts as the time it was
// watched for.
func settle(lags []lag) (sorted []time.Duration, never float64) {
	for _, l := range lags {
		sorted = append(sorted, l.d)
		if l.never {
			never++
		}
	}
	slices.Sort(sorted)
	return sorted, never
}

// probeSpacing is the time between two probes, and so the resolution of lags.
const probeSpacing = 500 * time.Microsecond

// observation is what probes saw of a series of edits.
type observation struct {
	sent  []time.Time       // by probe number
	edits []edit            // in order
	got   map[uint16][]bool // by port: which probes arrived
}

type edit struct {
	at time.Time // its file was in place
	on bool      // it allows
}

// observe makes edits, each after editPause, while the pod sends a datagram of a
// new flow and one of a live flow every probeSpacing. The first edit allows.
func (l *lab) observe(ctx context.Context, from *netlab.Pod, edits int, change func(on bool) error) (*observation, error) {
	o := &observation{got: map[uint16][]bool{}}
	most := int((time.Duration(edits+2)*editPause*3)/probeSpacing) + 1
	var receivers sync.WaitGroup
	var sockets []*net.UDPConn
	defer func() {
		for _, c := range sockets {
			c.Close()
		}
		receivers.Wait()
	}()
	for _, port := range []uint16{portProbe, portLive} {
		var c *net.UDPConn
		err := l.server.NS.Do(func() (err error) {
			c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.server.Addr4, port)))
			return err
		})
		if err != nil {
			return nil, err
		}
		sockets = append(sockets, c)
		got := make([]bool, most)
		o.got[port] = got
		receivers.Go(func() {
			buf := make([]byte, 64)
			for {
				n, err := c.Read(buf)
				if err != nil {
					return // closed
				}
				if i := binary.BigEndian.Uint64(buf); n >= 8 && i < uint64(len(got)) {
					got[i] = true
				}
			}
		})
	}
	s, err := newSender(from.NS, from.Addr4, l.server.Addr4)
	if err != nil {
		return nil, err
	}
	defer func() { _ = s.close() }()
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- pace(stop, probeSpacing, func() error {
			i := len(o.sent)
			if i == most {
				return nil
			}
			o.sent = append(o.sent, time.Now())
			s.stamp(uint64(i))
			// Source ports repeat after half a minute at the earliest.
			err := s.add(uint16(1024+i%60000), portProbe)
			s.stamp(uint64(i))
			return errors.Join(err, s.add(50000, portLive), s.flush())
		})
	}()
	for i := range edits {
		on := i%2 == 0
		if err = errors.Join(change(on), ctx.Err()); err != nil {
			break
		}
		o.edits = append(o.edits, edit{time.Now(), on})
		if err = wait(ctx, editPause); err != nil {
			break
		}
	}
	close(stop)
	err = errors.Join(err, <-done)
	if err == nil {
		err = wait(ctx, 50*time.Millisecond) // what is on the way arrives
	}
	for _, c := range sockets {
		c.Close()
	}
	receivers.Wait()
	return o, err
}

// last returns, for every edit that denies, when the last probe that arrived was
// sent.
func (o *observation) last(port uint16) (lags []lag) {
	o.each(false, func(e edit, probes []int, until time.Time) {
		x := lag{}
		for _, i := range probes {
			if o.got[port][i] {
				x.d = o.sent[i].Sub(e.at)
			}
		}
		if n := len(probes); n > 0 && o.got[port][probes[n-1]] {
			x = lag{until.Sub(e.at), true}
		}
		lags = append(lags, x)
	})
	return lags
}

// first returns, for every edit that allows, when the first probe that arrived
// was sent.
func (o *observation) first(port uint16) (lags []lag) {
	o.each(true, func(e edit, probes []int, until time.Time) {
		for _, i := range probes {
			if o.got[port][i] {
				lags = append(lags, lag{d: o.sent[i].Sub(e.at)})
				return
			}
		}
		lags = append(lags, lag{until.Sub(e.at), true})
	})
	return lags
}

// each calls f with the probes sent between an edit and the next one.
func (o *observation) each(on bool, f func(e edit, probes []int, until time.Time)) {
	if len(o.sent) == 0 {
		return
	}
	for n, e := range o.edits {
		if e.on != on {
			continue
		}
		until := o.sent[len(o.sent)-1]
		if n+1 < len(o.edits) {
			until = o.edits[n+1].at
		}
		var probes []int
		for i, at := range o.sent {
			if at.After(e.at) && at.Before(until) {
				probes = append(probes, i)
			}
		}
		f(e, probes, until)
	}
}
