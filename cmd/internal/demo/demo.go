package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/cli"
	"github.com/tierwall/tierwall/cmd/internal/world"
)

// Config is what the command line says. Dataplane, Executable, Out and Progress
// are required.
type Config struct {
	Dataplane  string   // auto, afxdp or nfqueue
	Policies   []string // directories and files of policies; none = the built-in ones
	Executable string   // the program whose "daemon" command is the daemon
	Keep       bool     // leave the world running until the context ends
	PinDir     string   // where Keep names the namespaces; "" = /run/netns
	Traffic    bool     // with Keep: go on making connections, so that there is something to see

	Out      func(*Report) error // prints the report
	Progress *Progress
	// Kept is called when Keep has everything ready to look at.
	Kept func(Kept)
	// Findings is called with manifests that have findings.
	Findings func(*cli.Input)
	// Probing tunes the probes; the zero value is right outside tests.
	Probing world.ProbeConfig
}

// Kept says where to look at a world that is left running.
type Kept struct {
	Namespaces []string // names for "ip netns exec"
	Manifests  string   // the directory the daemon watches
	AuditFile  string
	LogFile    string
	// Dial connects to an address of the node, where the daemon listens.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
}

// ErrManifests is returned when the policies have error findings; Config.Findings
// has been told which.
var ErrManifests = errors.New("the policies have errors")

// Run is the whole demo. Whatever it returns, and when ctx ends, it has removed
// everything it made. The error says why there is no report; a report with
// mismatches is not an error.
func Run(ctx context.Context, c Config) (rep *Report, err error) {
	began := time.Now()
	if err := world.Missing(); err != nil {
		return nil, fmt.Errorf("the demo cannot run here: %w; explain, matrix and check need no privilege, "+
			"try: tierwall matrix --manifests deploy/examples/quickstart", err)
	}
	dir, err := os.MkdirTemp("", "tierwall-demo-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	manifests := filepath.Join(dir, "manifests")
	if err := writeManifests(manifests, c.Policies); err != nil {
		return nil, err
	}
	in, err := cli.Load(manifests, world.NodeName, nil)
	if err != nil {
		return nil, err
	}
	if c.Findings != nil {
		c.Findings(in)
	}
	if in.Table == nil {
		return nil, ErrManifests
	}
	rep = &Report{Policies: len(in.Objects), Rules: len(in.Set.Rules)}

	c.Progress.Step("building a node, %d pods and a host outside", len(world.Namespaces)*len(world.PodNames))
	w, err := world.New(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	var kept Kept
	if c.Keep {
		unpin, names, perr := pin(w, c.PinDir)
		defer unpin()
		if perr != nil {
			return nil, perr
		}
		kept.Namespaces = names
	}

	c.Progress.Step("starting the daemon with %d policies, dataplane %s", rep.Policies, c.Dataplane)
	d, err := startDaemon(w.Node.NS, c.Executable, dir, world.NodeName, c.Dataplane)
	if err != nil {
		return nil, err
	}
	defer func() {
		if _, serr := d.stop(); err == nil && serr != nil {
			rep, err = nil, serr
		}
	}()
	ready, err := d.wait(ctx)
	if err != nil {
		return nil, err
	}
	rep.Dataplane, rep.Why = ready.Dataplane, ready.Why

	probes := world.All(w.Hosts)
	c.Progress.Step("trying %d connections over %s", len(probes), ready.Dataplane)
	probing := c.Probing
	probing.Progress = c.Progress.Count
	results, err := world.Run(ctx, probes, probing)
	if err != nil {
		return nil, err
	}
	if d.ended() {
		_, err := d.stop()
		return nil, errors.Join(errors.New("the daemon ended while connections were tried"), err)
	}
	if err := again(ctx, in.Table, results); err != nil {
		return nil, err
	}
	obs, err := predict(in.Table, results)
	if err != nil {
		return nil, err
	}
	rep.observe(obs)

	c.Progress.Step("collecting records and statistics")
	if c.Keep {
		rep.Stats, err = d.askStats(ctx)
	} else {
		// A daemon that has ended has written every record.
		rep.Stats, err = d.stop()
	}
	if err != nil {
		return nil, err
	}
	if rep.Audit, err = readAudit(ctx, d.auditFile()); err != nil {
		return nil, err
	}
	if !rep.OK() {
		rep.DaemonLog = d.lastWords()
	}
	rep.Seconds = time.Since(began).Seconds()
	c.Progress.Done()
	if err := c.Out(rep); err != nil {
		return nil, err
	}
	if c.Keep {
		kept.Manifests, kept.AuditFile, kept.LogFile = manifests, d.auditFile(), d.path("daemon.log")
		kept.Dial = func(ctx context.Context, at netip.AddrPort) (net.Conn, error) {
			return w.Node.NS.Dial(ctx, "tcp", netip.AddrPort{}, at)
		}
		if c.Traffic {
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(ctx)
			wg.Go(func() { traffic(ctx, probes, c.Probing) })
			defer wg.Wait() // before the world goes
			defer cancel()
		}
		if c.Kept != nil {
			c.Kept(kept)
		}
		select {
		case <-ctx.Done():
		case <-d.done: // the deferred stop says why
		}
	}
	return rep, nil
}

// trafficPause is how long traffic rests between two rounds.
const trafficPause = 150 * time.Millisecond

// traffic makes some of the connections again and again, until ctx ends: those of a
// round are far apart in the list, so that every pod has its turn.
func traffic(ctx context.Context, probes []world.Probe, c world.ProbeConfig) {
	const each = 12
	c.Attempts, c.Parallel, c.Progress = 1, each, nil
	for at := 0; ctx.Err() == nil; at++ {
		var some []world.Probe
		for i := range each {
			some = append(some, probes[(at*7+i*(len(probes)/each+1))%len(probes)])
		}
		if _, err := world.Run(ctx, some, c); err != nil {
			return // ctx has ended, or the world has
		}
		select {
		case <-ctx.Done():
		case <-time.After(trafficPause):
		}
	}
}

// pin names the namespaces and returns what removes the directory again if it
// was not there before; the names themselves go with the world.
func pin(w *world.World, dir string) (undo func(), names []string, err error) {
	if dir == "" {
		dir = "/run/netns"
	}
	undo = func() {}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		undo = func() {
			if w.Close() == nil {
				_ = os.Remove(dir) // not empty: somebody else uses it by now
			}
		}
	}
	names, err = w.Pin(dir)
	return undo, names, err
}

// Progress tells people what goes on: on a terminal one line that changes,
// elsewhere one line per step. A nil Progress is silent.
type Progress struct {
	W     io.Writer
	Live  bool // W is a terminal
	Style cli.Style

	step  string
	shown time.Time
}

// Step starts the next step.
func (p *Progress) Step(format string, args ...any) {
	if p == nil {
		return
	}
	p.step = fmt.Sprintf(format, args...)
	if p.Live {
		fmt.Fprintf(p.W, "\r\x1b[K%s", p.Style.Dim(p.step+" …"))
		return
	}
	fmt.Fprintln(p.W, p.step)
}

// Count shows how far the step is. It is called one at a time.
func (p *Progress) Count(done, total int) {
	if p == nil || !p.Live || (done < total && time.Since(p.shown) < 50*time.Millisecond) {
		return
	}
	p.shown = time.Now()
	fmt.Fprintf(p.W, "\r\x1b[K%s", p.Style.Dim(fmt.Sprintf("%s … %d/%d", p.step, done, total)))
}

// Done removes the changing line.
func (p *Progress) Done() {
	if p != nil && p.Live {
		fmt.Fprint(p.W, "\r\x1b[K")
	}
}
