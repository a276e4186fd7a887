package world

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Probe is one connection to try.
type Probe struct {
	From, To *Host
	Network  string // "tcp" or "udp"
	Port     uint16
	Family   int // 4 or 6
}

// String names the probe in messages: "x/a > y/b 80/tcp IPv4".
func (p Probe) String() string {
	return fmt.Sprintf("%s > %s %d/%s IPv%d", p.From.Name, p.To.Name, p.Port, p.Network, p.Family)
}

// Result is what happened to a probe.
type Result struct {
	Probe
	// Passed is set when a message sent over the connection came back.
	Passed bool
	// Attempts is how often it was tried. A connection that passes at the second
	// attempt only is a slow machine, or a filter that forgets.
	Attempts int
	// Err is why not: a timeout or a refusal. Other errors are in Broken.
	Err error
	// Broken is set when the probe itself failed: it says nothing about policy.
	Broken error
}

// Silent reports whether nothing came back, not even a refusal: the connection did not
// pass, and the last attempt met no reset and no ICMP error.
func (r *Result) Silent() bool { return !r.Passed && silence(r.Err) }

// ProbeConfig tunes Run. The zero value suits a world on one machine.
type ProbeConfig struct {
	// Timeout is how long an attempt waits for its answer; default 400 ms. A
	// refused connection costs all of it, an allowed one microseconds.
	Timeout time.Duration
	// Attempts is how often a silent probe is tried before it counts as
	// refused; default 2. Trying again keeps a busy machine from looking like a
	// policy.
	Attempts int
	// Parallel is how many probes are under way at once; default 64.
	Parallel int
	// Progress is called after each probe, one call at a time.
	Progress func(done, total int)
}

// All lists every connection between two of the hosts, a pod to itself included,
// on every port, protocol and family. The host outside to itself is left out.
func All(hosts []*Host) []Probe {
	var out []Probe
	for _, p := range Ports {
		for _, network := range Networks {
			for _, from := range hosts {
				for _, to := range hosts {
					if from.Name == OutsideName && to.Name == OutsideName {
						continue
					}
					for _, family := range []int{4, 6} {
						out = append(out, Probe{from, to, network, p.Number, family})
					}
				}
			}
		}
	}
	return out
}

// Run tries all probes and returns their results in the same order. When ctx
// ends, Run returns its error.
func Run(ctx context.Context, probes []Probe, c ProbeConfig) ([]Result, error) {
	if c.Timeout == 0 {
		c.Timeout = 400 * time.Millisecond
	}
	if c.Attempts == 0 {
		c.Attempts = 2
	}
	if c.Parallel == 0 {
		c.Parallel = 64
	}
	results := make([]Result, len(probes))
	var next atomic.Int64
	var wg sync.WaitGroup
	var mu sync.Mutex
	done := 0
	for range min(c.Parallel, len(probes)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(probes) {
					return
				}
				results[i] = attempt(ctx, probes[i], c)
				mu.Lock()
				done++
				if c.Progress != nil {
					c.Progress(done, len(probes))
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return results, ctx.Err()
}

func attempt(ctx context.Context, p Probe, c ProbeConfig) Result {
	r := Result{Probe: p}
	dst := netip.AddrPortFrom(p.To.Addr(p.Family), p.Port)
	for range c.Attempts {
		if ctx.Err() != nil {
			break
		}
		r.Attempts++
		r.Err = p.From.NS.Probe(p.Network, dst, c.Timeout)
		if r.Err == nil {
			r.Passed = true
			return r
		}
		if !refusal(r.Err) {
			r.Broken = fmt.Errorf("%s: %w", p, r.Err)
			return r
		}
	}
	return r
}

// refusal reports whether an error is one a packet filter can cause: silence,
// a reset, an ICMP error.
func refusal(err error) bool {
	if silence(err) {
		return true
	}
	for _, errno := range []unix.Errno{
		unix.ECONNREFUSED, unix.ECONNRESET, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EACCES, unix.EPERM, unix.EPIPE,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

func silence(err error) bool {
	return errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, unix.ETIMEDOUT)
}
