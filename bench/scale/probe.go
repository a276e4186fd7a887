package scale

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// prober sends numbered datagrams to an echo server and knows when the last, or
// the first, of them got through.
type prober struct {
	dial func(dst netip.AddrPort) (net.Conn, error)
	// encode and decode are the words of the echo server around a number.
	encode func(uint64) []byte
	decode func([]byte) (uint64, bool)
}

const (
	probeEvery = 500 * time.Microsecond // and the resolution of every lag
	quiet      = 250 * time.Millisecond // after the last echo: it is cut
	probeLimit = 20 * time.Second
)

// inside probes from a namespace to an echo server of netlab.
func inside(ns *netlab.NS) prober {
	return prober{
		dial: func(dst netip.AddrPort) (conn net.Conn, err error) {
			err = ns.Do(func() error {
				conn, err = net.Dial("udp", dst.String())
				return err
			})
			return conn, err
		},
		encode: func(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) },
		decode: func(b []byte) (uint64, bool) {
			if len(b) != 8 {
				return 0, false
			}
			return binary.BigEndian.Uint64(b), true
		},
	}
}

// flight is the datagrams of one flow.
type flight struct {
	conn net.Conn
	mu   sync.Mutex
	sent []time.Time // by number
	seen []bool
	last int // highest number that came back, -1
	news chan struct{}
}

func (p *prober) start(dst netip.AddrPort) (*flight, error) {
	conn, err := p.dial(dst)
	if err != nil {
		return nil, err
	}
	f := &flight{conn: conn, last: -1, news: make(chan struct{}, 1)}
	go func() {
		buf := make([]byte, 64)
		for {
			n, err := conn.Read(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error: the answer to a refused datagram
			}
			number, ok := p.decode(buf[:n])
			if !ok {
				continue
			}
			f.mu.Lock()
			if i := int(number); i < len(f.sent) {
				f.seen[i] = true
				f.last = max(f.last, i)
			}
			f.mu.Unlock()
			select {
			case f.news <- struct{}{}:
			default:
			}
		}
	}()
	return f, nil
}

func (p *prober) send(f *flight) {
	f.mu.Lock()
	n := uint64(len(f.sent))
	f.sent, f.seen = append(f.sent, time.Now()), append(f.seen, false)
	f.mu.Unlock()
	_, _ = f.conn.Write(p.encode(n)) // refused or lost: it does not come back
}

// first returns when the first datagram was sent that got through, of those sent
// after a time; zero when none has.
func (f *flight) first(after time.Time) time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, seen := range f.seen {
		if seen && f.sent[i].After(after) {
			return f.sent[i]
		}
	}
	return time.Time{}
}

func (f *flight) got(after time.Time) bool { return !f.first(after).IsZero() }

// allowed makes a change that allows a flow and returns how long after its begin
// the first datagram was sent that got through.
func (p *prober) allowed(ctx context.Context, dst netip.AddrPort, change func() error) (time.Duration, error) {
	f, err := p.start(dst)
	if err != nil {
		return 0, err
	}
	defer f.conn.Close()
	p.send(f)
	time.Sleep(5 * time.Millisecond)
	// On a machine that stalls, the change before may not be through.
	for began := time.Now(); time.Since(f.latest()) < quiet; time.Sleep(probeEvery) {
		if time.Since(began) > probeLimit {
			return 0, fmt.Errorf("%s was allowed before the change", dst)
		}
		p.send(f)
	}
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	limit := time.After(probeLimit)
	done := make(chan error, 1)
	since := time.Now()
	go func() { done <- change() }()
	for changed := false; ; {
		p.send(f)
		// What was sent before may have waited in a queue meanwhile.
		if changed && f.got(since) {
			return f.first(since).Sub(since), nil
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-limit:
			return 0, fmt.Errorf("%s is not allowed %s after the change", dst, probeLimit)
		case err := <-done:
			if changed = true; err != nil {
				return 0, err
			}
			done = nil
		case <-f.news:
		case <-tick.C:
		}
	}
}

// denied makes a change that denies a flow which lives, and returns how long after
// its begin the last datagram was sent that got through.
func (p *prober) denied(ctx context.Context, dst netip.AddrPort, change func() error) (time.Duration, error) {
	f, err := p.start(dst)
	if err != nil {
		return 0, err
	}
	defer f.conn.Close()
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	limit := time.After(probeLimit)
	done := make(chan error, 1)
	began, changed := time.Now(), false
	var since time.Time // the change began
	for {
		p.send(f)
		last := f.latest()
		switch {
		case changed && time.Since(last) > quiet && time.Since(since) > quiet:
			return max(0, last.Add(probeEvery).Sub(since)), nil
		case since.IsZero() && !last.IsZero() && time.Since(began) > 10*time.Millisecond:
			since = time.Now()
			go func() { done <- change() }()
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case err := <-done:
			if changed = true; err != nil {
				return 0, err
			}
		case <-limit:
			if since.IsZero() {
				return 0, fmt.Errorf("%s is not allowed to begin with", dst)
			}
			return 0, fmt.Errorf("%s is not denied %s after the change", dst, probeLimit)
		case <-tick.C:
		}
	}
}

// latest returns when the latest datagram was sent that got through.
func (f *flight) latest() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.last < 0 {
		return time.Time{}
	}
	return f.sent[f.last]
}
