package dataplane

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// establishedFlows is how many UDP flows carry the established traffic; each
// client has its share, from source port firstPort on.
const (
	establishedFlows = 1000
	firstPort        = 20000
	flowsPerClient   = establishedFlows / clientCount
)

// prime opens the established flows, one datagram and one answer each, and
// returns when both directions have seen every flow: for connection tracking a
// flow without an answer stays new.
func (l *lab) prime(ctx context.Context) error {
	answers, err := l.answers()
	if err != nil {
		return err
	}
	defer func() {
		for _, s := range answers {
			_ = s.close()
		}
	}()
	if err := l.rounds(ctx, "datagrams", l.senders, []*counter{l.atSrv}, func(s *sender, port uint16) error {
		return s.add(port, portUDP)
	}); err != nil {
		return err
	}
	return l.rounds(ctx, "answers", answers, l.atCli, func(s *sender, port uint16) error {
		return s.add(portUDP, port)
	})
}

// answers are senders from the server to each client.
func (l *lab) answers() (all []*sender, err error) {
	for _, c := range l.clients {
		s, err := newSender(l.server.NS, l.server.Addr4, c.Addr4)
		if err != nil {
			for _, s := range all {
				_ = s.close()
			}
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// rounds sends one datagram of every established flow until one round arrives
// completely.
func (l *lab) rounds(ctx context.Context, what string, senders []*sender, at []*counter, send func(*sender, uint16) error) error {
	var arrived uint64
	for range 10 {
		arrived = 0
		before, err := sum(at, countAllowed)
		if err != nil {
			return err
		}
		for i := range flowsPerClient {
			for _, s := range senders {
				if err := send(s, uint16(firstPort+i)); err != nil {
					return err
				}
			}
			// Slowly: nothing is measured yet, and nothing should be lost.
			if i%burst == burst-1 || i == flowsPerClient-1 {
				for _, s := range senders {
					if err := s.flush(); err != nil {
						return err
					}
				}
				if err := wait(ctx, time.Millisecond); err != nil {
					return err
				}
			}
		}
		for quiet := 0; quiet < 20; quiet++ {
			now, err := sum(at, countAllowed)
			if err != nil {
				return err
			}
			if now-before > arrived {
				quiet = 0 // the machine is busy: they are on their way
			}
			if arrived = now - before; arrived >= establishedFlows {
				return nil
			}
			if err := wait(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("only %d of %d %s of the flows to be established arrive", arrived, establishedFlows, what)
}

func sum(at []*counter, kind uint32) (n uint64, err error) {
	for _, c := range at {
		k, err := c.read(kind)
		if err != nil {
			return 0, err
		}
		n += k
	}
	return n, nil
}

// blast sends as fast as one CPU can for d, and returns what arrived per second
// while it did. What is queued on the way when it ends does not count, as what
// is queued when it begins has not arrived.
func (l *lab) blast(ctx context.Context, d time.Duration, fill func(*sender, int) error, most uint64) (pps float64, sent uint64, err error) {
	err = pinned(func() error {
		for _, s := range l.senders {
			s.sent, s.used = 0, 0
		}
		before, err := l.atSrv.read(countAllowed)
		if err != nil {
			return err
		}
		start := time.Now()
		for sent < most && time.Since(start) < d {
			if err := ctx.Err(); err != nil {
				return err
			}
			for i, s := range l.senders {
				if err := fill(s, i); err != nil {
					return err
				}
			}
			sent += burst * clientCount
		}
		elapsed := time.Since(start)
		after, err := l.atSrv.read(countAllowed)
		if err != nil {
			return err
		}
		pps = float64(after-before) / elapsed.Seconds()
		return nil
	})
	if err != nil {
		return 0, sent, err
	}
	if pps == 0 {
		return 0, sent, errors.New("nothing arrived")
	}
	return pps, sent, l.drain(ctx)
}

// drain waits until nothing arrives any more.
func (l *lab) drain(ctx context.Context) error {
	var last uint64
	for range 100 {
		n, err := l.atSrv.read(countAllowed)
		if err != nil {
			return err
		}
		if n == last {
			return nil
		}
		last = n
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("packets still arrive two seconds after the last was sent")
}

// established measures packets per second of flows that are known.
func (l *lab) established(ctx context.Context, d time.Duration) (float64, error) {
	if err := l.prime(ctx); err != nil {
		return 0, err
	}
	next := make([]int, clientCount)
	pps, _, err := l.blast(ctx, d, func(s *sender, client int) error {
		for range burst {
			if err := s.add(uint16(firstPort+next[client]), portUDP); err != nil {
				return err
			}
			if next[client]++; next[client] == flowsPerClient {
				next[client] = 0
			}
		}
		return nil
	}, 1<<62)
	return pps, err
}

// mostNewFlows bounds the flows of one measurement below the kernel's own bound
// (nf_conntrack_max is 262,144 where memory allows).
const mostNewFlows = 180_000

// newFlows measures first packets per second: every datagram has a source port
// that its client has not used for half a million flows.
func (l *lab) newFlows(ctx context.Context, d time.Duration) (float64, error) {
	pps, sent, err := l.blast(ctx, d, func(s *sender, client int) error {
		for range burst {
			if err := s.add(l.port(client), portUDP); err != nil {
				return err
			}
		}
		return nil
	}, mostNewFlows)
	if sent == 0 {
		return 0, errors.New("no packet was sent")
	}
	return pps, errors.Join(err, l.forget())
}

// port returns a client's next source port for new flows: all but the well-known
// and the established ones.
func (l *lab) port(client int) uint16 {
	p := &l.ports[client]
	*p++
	switch {
	case *p < 1024:
		*p = 1024
	case *p >= firstPort && *p < firstPort+flowsPerClient:
		*p = firstPort + flowsPerClient
	}
	return *p
}
