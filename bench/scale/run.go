package scale

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/tierwall/tierwall/bench/dataplane"
	"github.com/tierwall/tierwall/bench/internal/child"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Config says what Run measures.
type Config struct {
	Size      Size
	Dataplane string        // tierwalld's
	Daemon    string        // path; "" = built from this module
	Idle      time.Duration // of each measurement at rest
	Churn     time.Duration // of each rate of changes
	Rates     []int         // changes per second
	Changes   int           // whose lag is measured, at rest
	Command   string        // for the report
	Progress  io.Writer
}

// Targets of the project.
const (
	wantMiB = 400 // resident, with 100,000 pods and 10,000 policies
	wantCPU = 1   // percent of a core, at rest
	wantLag = 100 // ms, 99th percentile, with 10,000 pods
)

// Run measures one daemon in a simulated cluster. It needs root.
func Run(ctx context.Context, c Config) (rep *Report, err error) {
	began := time.Now()
	rep = &Report{Machine: dataplane.ThisMachine(), Command: c.Command}
	b, err := newBed(ctx, &c)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, b.close()) }()
	b.rep = rep
	for _, step := range []func(context.Context) error{b.start, b.rest, b.churn, b.lag, b.relist} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("%w\n%s", err, b.daemon.LastWords())
		}
	}
	rep.Machine.End()
	rep.Seconds = time.Since(began).Seconds()
	return rep, nil
}

// bed is the node, the API server in its namespace, and the daemon.
type bed struct {
	cfg     *Config
	rep     *Report
	dir     string
	program string
	node    *netlab.Node
	cluster *simulated
	daemon  *daemon
	probes  probes
	closers []func() error
}

func (b *bed) say(format string, args ...any) {
	if b.cfg.Progress != nil {
		fmt.Fprintf(b.cfg.Progress, time.Now().Format(time.TimeOnly)+" "+format+"\n", args...)
	}
}

func newBed(ctx context.Context, c *Config) (b *bed, err error) {
	b = &bed{cfg: c}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.dir, err = os.MkdirTemp("", "tierwall-scale-"); err != nil {
		return b, err
	}
	if b.program, err = child.Daemon(ctx, c.Daemon, b.dir); err != nil {
		return b, err
	}
	if b.node, err = netlab.NewNode(netlab.NodeConfig{}); err != nil {
		return b, err
	}
	b.say("making %d nodes, %d pods, %d policies", c.Size.Nodes, c.Size.Pods, c.Size.Policies)
	if b.cluster, err = newSimulated(c.Size, b.node.Addr4); err != nil {
		return b, err
	}
	if err := b.setProbes(); err != nil {
		return b, err
	}
	var l net.Listener
	if err := b.node.NS.Do(func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 0).String())
		return err
	}); err != nil {
		return b, err
	}
	if err := b.cluster.serve(l); err != nil {
		return b, err
	}
	b.closers = append(b.closers, b.cluster.Close)
	return b, b.cluster.writeKubeconfig(b.dir + "/kubeconfig")
}

func (b *bed) close() error {
	var errs []error
	if b.daemon != nil {
		errs = append(errs, b.daemon.Stop(syscall.SIGTERM))
	}
	for _, c := range b.closers {
		errs = append(errs, c())
	}
	if b.node != nil {
		errs = append(errs, b.node.Close())
	}
	if b.dir != "" {
		errs = append(errs, os.RemoveAll(b.dir))
	}
	return errors.Join(errs...)
}

const mib = 1 << 20

// start measures from the start of the process to the first table.
func (b *bed) start(ctx context.Context) (err error) {
	b.rep.add("cluster/nodes", float64(b.cfg.Size.Nodes), "")
	b.rep.add("cluster/pods", float64(b.cfg.Size.Pods), "")
	b.rep.add("cluster/services", float64(b.cfg.Size.Services), "")
	b.rep.add("cluster/policies", float64(b.cfg.Size.Policies), "")
	pods := b.cluster.find("pods")
	var bytes int
	for _, e := range pods.objects {
		bytes += len(e.data)
	}
	b.rep.add("cluster/bytes_of_a_pod", float64(bytes)/float64(len(pods.objects)), "B")
	began := time.Now()
	if b.daemon, err = startDaemon(b.node.NS, b.program, b.dir, b.cluster.workload.World.Node, b.cfg.Dataplane); err != nil {
		return err
	}
	if err := b.daemon.ready(ctx); err != nil {
		return err
	}
	b.say("ready after %s", time.Since(began).Round(time.Millisecond))
	b.rep.add("start/ready", time.Since(began).Seconds(), "s")
	cpu, err := b.daemon.CPU()
	if err != nil {
		return err
	}
	b.rep.add("start/cpu", cpu.Seconds(), "s")
	t := b.cluster.traffic()
	b.rep.add("start/read_from_api", float64(t.Sent)/mib, "MiB")
	b.rep.add("start/objects", float64(t.Events), "")
	requests := 0
	for _, n := range t.Requests {
		requests += n
	}
	b.rep.add("start/requests", float64(requests), "")
	// The snapshot is written in the seconds after; the peak includes it.
	if err := sleep(ctx, 10*time.Second); err != nil {
		return err
	}
	_, peak, err := b.daemon.memory()
	if err != nil {
		return err
	}
	b.rep.want("start/rss_peak", float64(peak)/mib, "MiB", wantMiB)
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// rest measures a cluster in which nothing happens, and one in which nodes report
// as kubelets do: a status every five minutes each.
func (b *bed) rest(ctx context.Context) error {
	if err := sleep(ctx, b.cfg.Idle/2); err != nil {
		return err
	}
	cpu, err := b.during(func() error { return sleep(ctx, b.cfg.Idle) })
	if err != nil {
		return err
	}
	b.rep.want("rest/cpu", cpu, "% core", wantCPU)
	rss, _, err := b.daemon.memory()
	if err != nil {
		return err
	}
	b.rep.want("rest/rss", float64(rss)/mib, "MiB", wantMiB)
	rate := float64(b.cfg.Size.Nodes) / (5 * time.Minute).Seconds()
	before := b.cluster.traffic()
	cpu, err = b.during(func() error {
		return b.pace(ctx, rate, b.cfg.Idle, func(i int) { b.heartbeat(i) })
	})
	if err != nil {
		return err
	}
	after := b.cluster.traffic()
	b.rep.add("rest/heartbeats", rate, "/s")
	b.rep.add("rest/heartbeats_read", float64(after.Sent-before.Sent)/1024/b.cfg.Idle.Seconds(), "KiB/s")
	b.rep.want("rest/heartbeats_cpu", cpu, "% core", wantCPU)
	b.say("at rest: %.0f MiB, %.2f %% of a core with heartbeats", float64(rss)/mib, cpu)
	return nil
}

// during returns the percentage of a core the daemon used while f ran.
func (b *bed) during(f func() error) (float64, error) {
	began := time.Now()
	before, err := b.daemon.CPU()
	if err != nil {
		return 0, err
	}
	if err := f(); err != nil {
		return 0, err
	}
	after, err := b.daemon.CPU()
	return 100 * (after - before).Seconds() / time.Since(began).Seconds(), err
}

// pace calls f at a rate for a while.
func (b *bed) pace(ctx context.Context, rate float64, while time.Duration, f func(i int)) error {
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(float64(i) / rate * float64(time.Second)))
		if due.Sub(began) >= while {
			return sleep(ctx, time.Until(began.Add(while)))
		}
		if err := sleep(ctx, time.Until(due)); err != nil {
			return err
		}
		f(i)
	}
}

// churn measures what changes of others cost, rate by rate, and what they do to
// the lag.
func (b *bed) churn(ctx context.Context) error {
	for _, rate := range b.cfg.Rates {
		name := fmt.Sprintf("churn_%d", rate)
		inner, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() {
			done <- b.pace(inner, float64(rate), b.cfg.Churn, b.change)
			cancel()
		}()
		var all []time.Duration
		var lagErr error
		before := b.cluster.traffic()
		cpu, err := b.during(func() error {
			all, lagErr = b.probes.lags(inner, 1<<20)
			return <-done
		})
		cancel()
		if err != nil {
			return err
		}
		if lagErr != nil && !errors.Is(lagErr, context.Canceled) {
			return lagErr
		}
		after := b.cluster.traffic()
		b.rep.add(name+"/cpu", cpu, "% core")
		b.rep.add(name+"/read", float64(after.Sent-before.Sent)/1024/b.cfg.Churn.Seconds(), "KiB/s")
		b.rep.lags(name+"/lag", all, 0)
		rss, peak, err := b.daemon.memory()
		if err != nil {
			return err
		}
		b.rep.add(name+"/rss", float64(rss)/mib, "MiB")
		b.rep.add(name+"/rss_peak", float64(peak)/mib, "MiB")
		b.say("%d changes a second: %.1f %% of a core", rate, cpu)
		if err := b.probes.reset(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lag measures the lag of single changes.
func (b *bed) lag(ctx context.Context) error {
	all, err := b.probes.lags(ctx, b.cfg.Changes)
	if err != nil {
		return err
	}
	want := 0.0
	if b.cfg.Size.Pods <= 10_000 {
		want = wantLag
	}
	b.rep.lags("lag", all, want)
	for _, kind := range b.probes.kindNames() {
		b.rep.lags("lag_"+strings.ReplaceAll(kind, " ", "_"), b.probes.byKind[kind], 0)
	}
	return nil
}

// relist ends every watch and makes the daemon read everything anew, as after an
// API server that was away for long.
func (b *bed) relist(ctx context.Context) error {
	if err := b.daemon.forgetPeak(); err != nil {
		return err
	}
	before := b.cluster.traffic()
	cpuBefore, err := b.daemon.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	b.cluster.hangUp(true)
	// It is over when for three seconds nothing has been read.
	last, at := before.Sent, began
	for time.Since(at) < 3*time.Second || last == before.Sent && time.Since(began) < 30*time.Second {
		if err := sleep(ctx, 100*time.Millisecond); err != nil {
			return err
		}
		if now := b.cluster.traffic().Sent; now-last > 4096 {
			last, at = now, time.Now()
		}
	}
	after := b.cluster.traffic()
	cpu, err := b.daemon.CPU()
	if err != nil {
		return err
	}
	_, peak, err := b.daemon.memory()
	if err != nil {
		return err
	}
	b.rep.add("relist/seconds", at.Sub(began).Seconds(), "s")
	b.rep.add("relist/cpu", (cpu - cpuBefore).Seconds(), "s")
	b.rep.add("relist/read_from_api", float64(after.Sent-before.Sent)/mib, "MiB")
	b.rep.want("relist/rss_peak", float64(peak)/mib, "MiB", wantMiB)
	b.say("read anew in %s", at.Sub(began).Round(time.Millisecond))
	return nil
}
