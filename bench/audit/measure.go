package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// ringSize is the event ring's: what agent gives a node with two workers.
const ringSize = 65536

// logging is a writer at work.
type logging struct {
	w    *audit.Writer
	ring *dataplane.Ring
	stop context.CancelFunc
	done chan error
	path string
}

func startLogging(s *scene, path string, more func(*audit.Config)) (*logging, error) {
	l := &logging{ring: dataplane.NewRing(ringSize), done: make(chan error, 1), path: path}
	cfg := audit.Config{
		Source: source{l.ring, s.audited}, Path: path, Node: "node-1", State: true, Labels: []string{"app"},
		InterfaceName: func(int32) string { return "veth7f3a9c1e" },
	}
	if more != nil {
		more(&cfg)
	}
	var err error
	if l.w, err = audit.New(cfg); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	l.stop = stop
	go func() { l.done <- l.w.Run(ctx) }()
	return l, nil
}

// put waits for room: the case measures the writer, not the ring.
func (l *logging) put(e *dataplane.Event) {
	for l.ring.Len() >= l.ring.Cap()-1 {
		time.Sleep(50 * time.Microsecond)
	}
	l.ring.Put(e)
	l.ring.Flush()
}

// finish ends the writer, which writes everything before it does.
func (l *logging) finish() (audit.Stats, error) {
	l.stop()
	err := <-l.done
	return l.w.Stats(), err
}

// rate compares the log with appending the same bytes by hand.
func rate(ctx context.Context, s *scene, dir string, opt *Options) ([]Result, error) {
	const decisions = 1_000_000
	var ours, raw, dry, chained []float64
	var size int64
	for range opt.Rounds {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		path := filepath.Join(dir, "rate.log")
		began := time.Now()
		if err := logMany(s, path, decisions, nil); err != nil {
			return nil, err
		}
		ours = append(ours, decisions/time.Since(began).Seconds())
		st, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		size = st.Size()
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		began = time.Now()
		if err := appendRaw(path, size); err != nil {
			return nil, err
		}
		raw = append(raw, decisions/time.Since(began).Seconds())
		if err := os.Remove(path); err != nil {
			return nil, err
		}
		for _, to := range []*[]float64{&dry, &chained} {
			began = time.Now()
			if err := logMany(s, path, decisions, func(c *audit.Config) {
				c.Path, c.State, c.Open = "", false, func() (io.WriteCloser, error) { return nowhere{}, nil }
				c.Chain = to == &chained
			}); err != nil {
				return nil, err
			}
			*to = append(*to, decisions/time.Since(began).Seconds())
		}
	}
	a, b, c := median("audit_rate/tierwall", "decisions/s", ours), median("audit_rate/raw_append", "decisions/s", raw), median("audit_format/tierwall", "decisions/s", dry)
	a.Ratio, a.Base, a.Target = a.Value/b.Value, b.Case, "≥ 200000, or ratio ≥ 0.67"
	a.Note = fmt.Sprintf("1.9 records and %d bytes per decision, %.0f MB/s, fsync included", size/decisions, a.Value*float64(size)/decisions/1e6)
	b.Note = "the same bytes, write(2) of 64 KiB"
	c.Note = "no file: formatting, windows and ring alone"
	d := median("audit_format/chained", "decisions/s", chained)
	d.Note = "the same with a hash chain"
	d.Ratio, d.Base = d.Value/c.Value, c.Case
	return []Result{a, b, c, d}, nil
}

type nowhere struct{}

func (nowhere) Write(b []byte) (int, error) { return len(b), nil }
func (nowhere) Close() error                { return nil }

func logMany(s *scene, path string, decisions int, more func(*audit.Config)) error {
	l, err := startLogging(s, path, more)
	if err != nil {
		return err
	}
	m := &maker{s: s}
	now := dataplane.MonotonicClock()
	for i := range decisions {
		if i%64 == 0 {
			now = dataplane.MonotonicClock()
		}
		l.put(m.next(now))
	}
	st, err := l.finish()
	if err != nil {
		return err
	}
	if st.RingLost+st.WriteLost > 0 || st.Events != uint64(decisions) {
		return fmt.Errorf("%d of %d events, lost %d and %d", st.Events, decisions, st.RingLost, st.WriteLost)
	}
	if more != nil {
		return nil
	}
	return syncFile(path)
}

func syncFile(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func appendRaw(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	piece := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	for size > 0 {
		n, err := f.Write(piece[:min(int64(len(piece)), size)])
		if err != nil {
			f.Close()
			return err
		}
		size -= int64(n)
	}
	return errors.Join(f.Sync(), f.Close())
}

// paced puts events at a rate for some time, a millisecond's worth at a time.
// Nothing waits for the writer: what finds the ring full is lost.
func paced(ctx context.Context, l *logging, m *maker, perSecond int, seconds float64) (offered uint64) {
	began := time.Now()
	for ctx.Err() == nil {
		since := time.Since(began)
		if since.Seconds() >= seconds {
			break
		}
		now := dataplane.MonotonicClock()
		for due := uint64(since.Seconds() * float64(perSecond)); offered < due; offered++ {
			l.ring.Put(m.next(now))
		}
		l.ring.Flush()
		time.Sleep(time.Millisecond)
	}
	return offered
}

// starved returns how long threads of this process were ready to run and did not
// get a processor, since the process began: what other load takes from a figure.
func starved() (total time.Duration) {
	tasks, _ := filepath.Glob("/proc/self/task/*/schedstat") // none: 0
	for _, name := range tasks {
		b, err := os.ReadFile(name)
		if fields := strings.Fields(string(b)); err == nil && len(fields) == 3 {
			ns, _ := strconv.ParseInt(fields[1], 10, 64)
			total += time.Duration(ns)
		}
	}
	return total
}

// loss offers 200,000 decisions a second and counts what the log does not have.
func loss(ctx context.Context, s *scene, dir string, opt *Options) ([]Result, error) {
	path := filepath.Join(dir, "loss.log")
	l, err := startLogging(s, path, nil)
	if err != nil {
		return nil, err
	}
	waited := starved()
	offered := paced(ctx, l, &maker{s: s}, 200_000, opt.Seconds)
	waited = starved() - waited
	st, err := l.finish()
	if err != nil {
		return nil, err
	}
	// The log itself is the witness: its last line accounts for every event.
	last, err := lastRecord(path)
	if err != nil {
		return nil, err
	}
	if last.Events != offered || st.Events+st.RingLost != offered {
		return nil, fmt.Errorf("%d decisions offered, the log accounts for %d, the writer for %d and %d lost", offered, last.Events, st.Events, st.RingLost)
	}
	r := Result{
		Case: "audit_lost/at_200k", Value: float64(l.ring.Lost() + st.WriteLost), Unit: "records", Target: "0",
		Note: fmt.Sprintf("%d decisions in %.0f s, %d records written; threads waited %.1f s for a processor", offered, opt.Seconds, st.Records, waited.Seconds()),
	}
	return []Result{r}, os.Remove(path)
}

func lastRecord(path string) (audit.Record, error) {
	f, err := os.Open(path)
	if err != nil {
		return audit.Record{}, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return audit.Record{}, err
	}
	b := make([]byte, min(st.Size(), 64<<10))
	if _, err := f.ReadAt(b, st.Size()-int64(len(b))); err != nil {
		return audit.Record{}, err
	}
	lines := bytes.Split(bytes.TrimSuffix(b, []byte{'\n'}), []byte{'\n'})
	return audit.Parse(lines[len(lines)-1])
}

// latency compares the time in each allowed connection's record with the time
// its line was seen in the file by another descriptor. Denied packets wait for
// their window by design and are left out.
func latency(ctx context.Context, s *scene, dir string, opt *Options) ([]Result, error) {
	path := filepath.Join(dir, "latency.log")
	l, err := startLogging(s, path, nil)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var late []float64
	var lines atomic.Uint64
	read := make(chan error, 1)
	go func() {
		read <- audit.Follow(ctx, path, audit.FollowOptions{FromStart: true, Poll: 500 * time.Microsecond}, func(line []byte) error {
			now := time.Now()
			r, err := audit.Parse(line)
			if err == nil && r.Verdict == audit.Allow {
				late = append(late, float64(now.Sub(r.Time))/1e6)
			}
			lines.Add(1)
			return err
		})
	}()
	waited := starved()
	offered := paced(ctx, l, &maker{s: s}, 10_000, opt.Seconds)
	waited = starved() - waited
	st, err := l.finish()
	for end := time.Now().Add(10 * time.Second); lines.Load() < st.Records && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := errors.Join(err, <-read); err != nil {
		return nil, err
	}
	if st.RingLost+st.WriteLost != 0 || len(late) < int(offered)*8/10 {
		return nil, fmt.Errorf("only %d of %d decisions seen", len(late), offered)
	}
	slices.Sort(late)
	at := func(q float64) float64 { return late[int(q*float64(len(late)-1))] }
	r := Result{
		Case: "audit_latency_p99/at_10k", Value: at(0.99), Unit: "ms", Target: "≤ 50",
		Note: fmt.Sprintf("p50 %.2f, p99.9 %.2f, max %.2f; looking every 0.5 ms included; threads waited %.1f s for a processor",
			at(0.5), at(0.999), at(1), waited.Seconds()),
	}
	return []Result{r}, os.Remove(path)
}

// portScan lets Sources addresses try every port of one pod. The log must add up
// to every single packet.
func portScan(ctx context.Context, s *scene, dir string, opt *Options) ([]Result, error) {
	path := filepath.Join(dir, "scan.log")
	debug.FreeOSMemory()
	// 5: reset the peak resident size (proc_pid_clear_refs(5)).
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		return nil, err
	}
	l, err := startLogging(s, path, nil)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	victim := netip.AddrPortFrom(s.pods[0], 0)
	total := uint64(0)
	e := dataplane.Event{Generation: 1, Count: 1, Device: 7, Length: 60, TCPFlags: packet.SYN}
	for port := 1; port <= 0xffff && ctx.Err() == nil; port++ {
		e.Time = dataplane.MonotonicClock()
		for i := range opt.Sources {
			src := netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)})
			e.Key = flow.MakeKey(flow.TCP, netip.AddrPortFrom(src, 40000), netip.AddrPortFrom(victim.Addr(), uint16(port)))
			if i == 0 {
				d := s.audited.Lookup(e.Key)
				if d.Verdict == classifier.Allow || !d.Audit {
					return nil, errors.New("the scan is not denied and logged")
				}
				e.Egress, e.Ingress, e.Verdict = d.Egress, d.Ingress, d.Verdict
			}
			l.put(&e)
			total++
		}
	}
	took := time.Since(began)
	peak, err := peakResident()
	if err != nil {
		return nil, err
	}
	st, err := l.finish()
	if err != nil {
		return nil, err
	}
	var counted, lines uint64
	err = audit.Follow(context.WithoutCancel(ctx), path, audit.FollowOptions{FromStart: true, Once: true}, func(line []byte) error {
		r, err := audit.Parse(line)
		counted += r.Count
		lines++
		return err
	})
	if err != nil {
		return nil, err
	}
	if counted != total || st.RingLost+st.WriteLost != 0 {
		return nil, fmt.Errorf("%d packets sent, the log has %d; lost %d and %d", total, counted, st.RingLost, st.WriteLost)
	}
	return []Result{
		{
			Case: "portscan_memory", Value: float64(peak) / (1 << 20), Unit: "MiB", Target: "≤ 64",
			Note: fmt.Sprintf("%d packets from %d sources, all in the log's counts, %.0f/s", total, opt.Sources, float64(total)/took.Seconds()),
		},
		{Case: "portscan_records", Value: float64(lines), Unit: "lines", Note: fmt.Sprintf("%d packets counted without their port", st.Folded)},
	}, os.Remove(path)
}

// peakResident returns the process's greatest resident size since it was reset,
// in bytes.
func peakResident() (int64, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("no VmHWM in /proc/self/status")
}

// verdictCost measures what asking for records costs the packet path: processor
// time of the worker's thread, from parsing a new connection's first packet to
// its verdict. On a machine whose processors are two threads of one core, a
// writer at work slows its neighbour down as anything else would; that is
// measured apart.
func verdictCost(ctx context.Context, s *scene, dir string, opt *Options) ([]Result, error) {
	var quiet, logged, busy []float64
	for range opt.Rounds {
		for _, c := range []struct {
			table *classifier.Table
			busy  bool
			to    *[]float64
		}{{s.quiet, false, &quiet}, {s.audited, false, &logged}, {s.audited, true, &busy}} {
			runtime.GC()
			ns, err := engineTime(ctx, s, c.table, c.busy, filepath.Join(dir, "cost.log"))
			if err != nil {
				return nil, err
			}
			*c.to = append(*c.to, ns)
		}
	}
	const unit = "ns/packet"
	a, b, c := median("verdict_cost/unaudited", unit, quiet), median("verdict_cost/audited", unit, logged), median("verdict_cost/audited_busy", unit, busy)
	b.Ratio, b.Base = b.Value/a.Value, a.Case
	b.Target = "≤ 100 ns more"
	b.Note = fmt.Sprintf("%.0f ns more; two records each", b.Value-a.Value)
	c.Ratio, c.Base = c.Value/a.Value, a.Case
	c.Note = fmt.Sprintf("%.0f ns more; the writer at work on the other processor meanwhile", c.Value-a.Value)
	return []Result{a, b, c}, nil
}
