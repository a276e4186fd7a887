package dataplane

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Accepted background traffic: packets per second, far below what the machine
// forwards, so that every loss has a cause, and the time between two bursts.
const (
	backgroundPPS   = 20_000
	backgroundPause = time.Second * burst / backgroundPPS
)

// background is traffic of the established flows at a steady rate.
type background struct {
	lab       *lab
	stop      chan struct{}
	done      chan error
	began     time.Time
	delivered uint64 // the server's counter when it began
	client    int
	next      [clientCount]int
}

// traffic says what background traffic came to.
type traffic struct {
	sent, delivered uint64
	elapsed         time.Duration
}

func (t traffic) rate() float64 { return float64(t.delivered) / t.elapsed.Seconds() }

// lost may be 0 only if every packet arrived: a packet that arrives is counted
// once.
func (t traffic) lost() float64 { return float64(t.sent) - float64(t.delivered) }

// add makes the sum of two phases.
func (t traffic) add(u traffic) traffic {
	return traffic{sent: t.sent + u.sent, delivered: t.delivered + u.delivered, elapsed: t.elapsed + u.elapsed}
}

// startBackground begins to send; prime must have opened the flows.
func (l *lab) startBackground() (*background, error) {
	b := &background{lab: l, stop: make(chan struct{}), done: make(chan error, 1), began: time.Now()}
	for _, s := range l.senders {
		s.sent, s.used = 0, 0
	}
	var err error
	if b.delivered, err = l.atSrv.read(countAllowed); err != nil {
		return nil, err
	}
	go func() { b.done <- pace(b.stop, backgroundPause, b.burst) }()
	return b, nil
}

func (b *background) burst() error {
	c := b.client
	b.client = (c + 1) % clientCount
	for range burst {
		if err := b.lab.senders[c].add(uint16(firstPort+b.next[c]), portUDP); err != nil {
			return err
		}
		b.next[c] = (b.next[c] + 1) % flowsPerClient
	}
	return nil
}

// end stops sending, waits until everything that will arrive has, and returns
// the sums.
func (b *background) end(ctx context.Context) (t traffic, err error) {
	close(b.stop)
	err = <-b.done
	t.elapsed = time.Since(b.began)
	if err := errors.Join(err, b.lab.drain(ctx)); err != nil {
		return t, err
	}
	n, err := b.lab.atSrv.read(countAllowed)
	for _, s := range b.lab.senders {
		t.sent += s.sent
	}
	t.delivered = n - b.delivered
	return t, err
}

// during runs background traffic while f runs.
func (l *lab) during(ctx context.Context, f func() error) (traffic, error) {
	b, err := l.startBackground()
	if err != nil {
		return traffic{}, err
	}
	ferr := f()
	t, err := b.end(ctx)
	return t, errors.Join(ferr, err)
}

// alive sends one datagram of every established flow and returns how many do not
// arrive, and how many of them the daemon had to judge again.
func (l *lab) alive(ctx context.Context, p *process) (lost, judged float64, err error) {
	before, err := p.stats(ctx)
	if err != nil {
		return 0, 0, err
	}
	start, err := l.atSrv.read(countAllowed)
	if err != nil {
		return 0, 0, err
	}
	for i := range flowsPerClient {
		for _, s := range l.senders {
			if err := errors.Join(s.add(uint16(firstPort+i), portUDP), s.flush()); err != nil {
				return 0, 0, err
			}
		}
		if i%8 == 7 {
			if err := wait(ctx, time.Millisecond); err != nil {
				return 0, 0, err
			}
		}
	}
	if err := l.drain(ctx); err != nil {
		return 0, 0, err
	}
	end, err := l.atSrv.read(countAllowed)
	if err != nil {
		return 0, 0, err
	}
	after, err := p.stats(ctx)
	return establishedFlows - float64(end-start), float64(after.Upcalls - before.Upcalls), err
}

// denied sends datagrams that policy denies, each of a new flow, from pod bad:
// as fast as one CPU can, or a burst every pause.
type denied struct {
	lab    *lab
	sender *sender
	passed uint64 // the server's counter when it began
	began  time.Time
	stop   chan struct{}
	wg     sync.WaitGroup
	err    error
	sport  uint16
	dport  uint16
}

func (l *lab) startDenied(pause time.Duration) (d *denied, err error) {
	d = &denied{lab: l, stop: make(chan struct{}), began: time.Now(), dport: portDenied}
	if d.sender, err = newSender(l.bad.NS, l.bad.Addr4, l.server.Addr4); err != nil {
		return nil, err
	}
	if d.passed, err = l.atSrv.read(countOther); err != nil {
		return nil, errors.Join(err, d.sender.close())
	}
	step := func() error {
		for range burst {
			// All source ports of one destination port, then the next one: four
			// billion flows before one repeats.
			if d.sport++; d.sport == 0 {
				if d.dport++; d.dport == 0 {
					d.dport = portDenied
				}
			}
			if err := d.sender.add(d.sport, d.dport); err != nil {
				return err
			}
		}
		return nil
	}
	d.wg.Go(func() {
		if pause > 0 {
			d.err = pace(d.stop, pause, step)
			return
		}
		d.err = pinned(func() error {
			for {
				select {
				case <-d.stop:
					return nil
				default:
				}
				if err := step(); err != nil {
					return err
				}
			}
		})
	})
	return d, nil
}

// end stops sending and returns flows offered, per second, and how many packets
// got through: each one is a hole.
func (d *denied) end(ctx context.Context) (offered, passed float64, err error) {
	close(d.stop)
	d.wg.Wait()
	elapsed := time.Since(d.began)
	err = errors.Join(d.err, d.sender.close())
	// What waits in a queue is judged yet.
	if werr := wait(ctx, 200*time.Millisecond); werr != nil {
		return 0, 0, errors.Join(err, werr)
	}
	n, rerr := d.lab.atSrv.read(countOther)
	return float64(d.sender.sent) / elapsed.Seconds(), float64(n - d.passed), errors.Join(err, rerr)
}
