package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/cmd/internal/admit"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/audit"
	"github.com/tierwall/tierwall/dataplane/bypass"
	"github.com/tierwall/tierwall/dataplane/hits"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/controller"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/manifests"
)

// Ready is what the daemon writes to its ready file once the policy is in force.
type Ready struct {
	Ready      bool   `json:"ready"`
	Dataplane  string `json:"dataplane"` // backends, fast path first: "afxdp+nfqueue"
	Why        string `json:"why"`
	Generation uint64 `json:"generation"`
}

// daemon is one running agent.
type daemon struct {
	cfg Config
	log *slog.Logger
	choice
	names    string // of the backends
	bypassed atomic.Pointer[[]bypass.Device]
	engine   *dataplane.Engine
	hits     *hits.Ledger
	audit    *audit.Writer // nil without an audit log
	control  *controller.Controller
	cluster  *cluster // nil with manifests
	learner  *names
	// admissions is where tierwall-cni asks; nil without.
	admissions net.Listener
}

// Run is the daemon, from start to end. It returns nil when ctx ends, after an
// orderly stop, and otherwise what made it impossible to go on. Log lines go to
// standard error.
//
// Signals: SIGHUP reloads the manifests and reopens the audit log; SIGUSR1
// writes the stats file. The caller turns SIGTERM and SIGINT into the end of ctx.
//
// The calling thread's network namespace is the node's. It must not be changed
// while Run runs.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	d := &daemon{cfg: cfg, log: newLogger(cfg.LogLevel)}
	if cfg.CleanupOnly {
		return cleanup(cfg.AFXDP.PinPath)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	control := controller.Config{Node: cfg.Node, PodCIDRs: cfg.podNetworks(), Lower: cfg.LowerOptions(), Logger: d.log}
	var err error
	if cfg.Kubernetes.Enabled {
		// A cluster is never without mistakes for long: they are kept to themselves.
		if d.cluster, err = newCluster(&d.cfg, d.log); err != nil {
			return err
		}
		control.Source, control.Isolate, control.After = d.cluster.source, true, d.cluster.after
	} else {
		src, err := newSource(ctx, cfg.Manifests)
		if err != nil {
			return err
		}
		// Refuse to start on bad input: there is no last good table to keep, and a
		// daemon that runs without a policy looks as if it protected somebody.
		if err := src.check(ctx, cfg.Node, control.Lower); err != nil {
			return err
		}
		control.Source = src
	}
	lock, err := lockNamespace(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	if cfg.CNI.Socket != "" {
		if d.admissions, err = admit.Listen(cfg.CNI.Socket); err != nil {
			return fmt.Errorf("cni.socket: %w", err)
		}
		defer d.admissions.Close()
	}
	if err := d.open(); err != nil {
		return err
	}
	control.Publisher, control.Learner = d.learner.publisher(publisher{d.engine, d.log}), d.learner
	if d.control, err = controller.New(control); err != nil {
		return errors.Join(err, d.close())
	}
	return errors.Join(d.serve(ctx, cancel), d.close())
}

// open starts everything that does not need a policy.
func (d *daemon) open() error {
	if err := refuseBypass(); err != nil {
		return err
	}
	chosen, err := openBackends(&d.cfg, d.log)
	if err != nil {
		return err
	}
	d.choice = *chosen
	for i, b := range d.backends {
		if i > 0 {
			d.names += "+"
		}
		d.names += b.Name()
	}
	d.log.Info("backends chosen", "dataplane", d.names, "why", d.why)
	if err := d.lacking(); err != nil {
		d.log.Error("this node does less than was configured, and is not ready", "error", err)
	}
	established := dataplane.Strict
	if d.cfg.Established == "keep" {
		established = dataplane.Keep
	}
	failMode := dataplane.FailClosed
	if d.cfg.FailMode == "open" {
		failMode = dataplane.FailOpen
	}
	d.hits = hits.New(dataplane.MonotonicClock)
	d.engine = dataplane.New(dataplane.Config{
		Backends: d.backends, FailMode: failMode, Established: established,
		CutReset: d.cfg.CutReset, RejectRate: rejectRate(d.cfg.RejectRate),
		Conntrack: conntrack.Limits{Records: d.cfg.Conntrack.MaxConnections},
		RingSize:  ringSize(d.backends), Hits: d.hits,
		AuditAll: d.cfg.Audit.All, AuditDenies: d.cfg.Audit.Denies, Logger: d.log,
	})
	if d.learner, err = openNames(d.cfg.DNS, d.cfg.Kubernetes.Enabled, d.log); err != nil {
		return errors.Join(err, d.close())
	}
	if !d.cfg.Audit.anywhere() {
		return nil
	}
	if err := d.openAudit(); err != nil {
		return errors.Join(err, d.close())
	}
	return nil
}

func (d *daemon) openAudit() error {
	c := &d.cfg.Audit
	if c.File != "" {
		if err := os.MkdirAll(filepath.Dir(c.File), 0o750); err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
	}
	format, err := audit.ParseFormat(c.Format)
	if err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	mode, err := c.mode()
	if err != nil {
		return err
	}
	conf := audit.Config{
		Source: audit.FromEngine(d.engine), Format: format, Path: c.File, Mode: mode, Node: d.cfg.Node, Labels: c.labels(),
		MaxSize: c.MaxSizeMiB << 20, MaxAge: c.MaxAge.Duration, Keep: c.Keep, KeepFor: c.KeepFor.Duration,
		Compress: c.Compress, Chain: c.Chain, State: c.File != "", Stream: c.Stream,
		Window: c.Window.Duration, InterfaceName: newInterfaceNames().name, Logger: d.log,
	}
	if c.Stdout {
		conf.Stdout = os.Stdout
	}
	if c.Syslog != "" {
		target, err := audit.ParseSyslog(c.Syslog)
		if err != nil {
			return fmt.Errorf("audit log: %w", err)
		}
		conf.Syslog = &target
	}
	if d.audit, err = audit.New(conf); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// rejectRate is the engine's word for a rate: there 0 is the default.
func rejectRate(rate int) int {
	if rate == 0 {
		return -1
	}
	return rate
}

// ringSize is how many events each worker's ring holds: as many as the disk may
// need to get over a hiccup at full rate, within some 30 MiB for all of them.
func ringSize(backends []dataplane.Backend) int {
	const all, most = 1 << 18, 1 << 16
	workers := 0
	for _, b := range backends {
		workers += len(b.Drivers())
	}
	size := dataplane.DefaultRingSize
	for size < most && size*2*workers <= all {
		size *= 2
	}
	return size
}

// serve runs until ctx ends or a part fails. Parts stop in the order packets
// flow: no new policy, no more packets, the last audit records.
func (d *daemon) serve(ctx context.Context, cancel context.CancelCauseFunc) error {
	var packets, records sync.WaitGroup
	var engineErr, auditErr error
	auditCtx, stopAudit := context.WithCancel(context.WithoutCancel(ctx))
	defer stopAudit()
	if d.audit != nil {
		records.Go(func() { auditErr = d.audit.Run(auditCtx) })
	}
	packets.Go(func() {
		d.hold(ctx)
		if engineErr = d.engine.Run(ctx); engineErr != nil {
			cancel(engineErr)
		}
	})
	packets.Go(func() { d.control.Run(ctx) })
	packets.Go(func() { d.learner.run(ctx) })
	packets.Go(func() { d.watchBypass(ctx) })
	packets.Go(func() { d.watchHits(ctx) })
	var clusterErr error
	if d.cluster != nil {
		packets.Go(func() {
			if clusterErr = d.cluster.run(ctx, d.control); clusterErr != nil {
				cancel(clusterErr)
			}
		})
	}
	if d.admissions != nil {
		packets.Go(func() { admit.Serve(ctx, d.admissions, d.log, d.cluster.admit) })
	}
	if d.cfg.Metrics.Address != "" {
		packets.Go(func() { d.serveMetrics(ctx) })
	}
	d.watch(ctx)
	packets.Wait()
	stopAudit()
	records.Wait()
	if d.cfg.StatsFile != "" {
		if err := writeFile(d.cfg.StatsFile, d.stats()); err != nil {
			d.log.Error("stats file not written", "error", err)
		}
	}
	d.log.Info("stopped", "dataplane", d.names)
	return errors.Join(engineErr, clusterErr, auditErr)
}

// holdFirst bounds hold.
const holdFirst = time.Second

// hold waits for the first policy, if that does not take long: packets that wait in
// the queues meanwhile are judged by it, and not dropped because there is none.
func (d *daemon) hold(ctx context.Context) {
	select {
	case <-d.engine.Ready():
	case <-ctx.Done():
	case <-time.After(holdFirst):
	}
}

// watch handles readiness and signals until ctx ends.
func (d *daemon) watch(ctx context.Context) {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(signals)
	ready := d.control.Ready()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ready:
			ready = nil
			d.log.Info("ready", "dataplane", d.names, "generation", d.generation())
			if d.cfg.ReadyFile != "" {
				r := Ready{Ready: true, Dataplane: d.names, Why: d.why, Generation: d.generation()}
				if err := writeFile(d.cfg.ReadyFile, r); err != nil {
					d.log.Error("ready file not written", "error", err)
				}
			}
		case s := <-signals:
			d.signal(s)
		}
	}
}

func (d *daemon) signal(s os.Signal) {
	switch {
	case s == syscall.SIGHUP:
		d.control.Reload()
		if d.audit != nil {
			if err := d.audit.Reopen(); err != nil {
				d.log.Error("audit log not reopened", "error", err)
			}
		}
	case d.cfg.StatsFile != "":
		if err := writeFile(d.cfg.StatsFile, d.stats()); err != nil {
			d.log.Error("stats file not written", "error", err)
		}
	}
}

// close releases the backends, fast path first: the hook behind it stays in
// force until the end, and beyond it with fail mode closed.
func (d *daemon) close() error {
	var errs []error
	if d.learner != nil {
		if err := d.learner.close(); err != nil {
			errs = append(errs, fmt.Errorf("close the DNS tap: %w", err))
		}
	}
	for _, b := range d.backends {
		if err := b.Close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", b.Name(), err))
		}
	}
	d.backends = nil
	return errors.Join(errs...)
}

func (d *daemon) generation() uint64 { return d.control.Status().Generation }

// publisher puts tables into force.
type publisher struct {
	engine *dataplane.Engine
	log    *slog.Logger
}

func (p publisher) Publish(t *classifier.Table, report *classifier.Report) error {
	began := time.Now()
	cut, err := p.engine.SetTable(t, dataplane.ChangeOf(report))
	if err != nil {
		return err
	}
	if cut > 0 {
		p.log.Info("connections cut by policy", "connections", cut, "generation", t.Generation())
	}
	p.log.Debug("table published", "generation", t.Generation(), "elapsed", time.Since(began))
	return nil
}

// source reads manifests for the controller.
type source struct {
	paths   []string
	changes <-chan struct{}
}

func newSource(ctx context.Context, paths []string) (*source, error) {
	changes, err := manifests.WatchAll(ctx, paths, 0)
	if err != nil {
		return nil, fmt.Errorf("watch %w", err)
	}
	return &source{paths: paths, changes: changes}, nil
}

func (s *source) Load(context.Context) ([]*api.Object, *inventory.Snapshot, diag.List) {
	return manifests.Loader{Kinds: lower.Kinds()}.Load(s.paths...)
}

func (s *source) Changes() <-chan struct{} { return s.changes }

// check returns everything that is wrong with the manifests as one error.
func (s *source) check(ctx context.Context, node string, opt lower.Options) error {
	objs, snap, findings := s.Load(ctx)
	if len(findings.Errors) == 0 {
		_, found := opt.Build(objs, snap)
		findings.Add(found)
	}
	if err := findings.Err(); err != nil {
		return fmt.Errorf("the policy has errors:\n%w", err)
	}
	if _, err := snap.WorldOf(node); err != nil {
		return err
	}
	return nil
}

// interfaceNames caches names of interface indexes for audit records. It is
// used by one goroutine.
type interfaceNames struct {
	names map[int32]string
	read  time.Time
}

func newInterfaceNames() *interfaceNames { return &interfaceNames{} }

// name returns the name of the interface. Unknown indexes make it read the list
// again, at most once a second: an index may be gone already.
func (n *interfaceNames) name(index int32) string {
	if index == 0 { // not known
		return ""
	}
	if s, ok := n.names[index]; ok {
		return s
	}
	if now := time.Now(); now.Sub(n.read) >= time.Second {
		n.read = now
		if links, err := net.Interfaces(); err == nil {
			n.names = make(map[int32]string, len(links))
			for _, l := range links {
				n.names[int32(l.Index)] = l.Name
			}
		}
	}
	if s, ok := n.names[index]; ok {
		return s
	}
	return fmt.Sprintf("if%d", index)
}

func newLogger(level string) *slog.Logger {
	var l slog.Level
	if err := l.UnmarshalText([]byte(strings.ToUpper(level))); err != nil {
		l = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: l}))
}
