package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// How long the daemon may take to start and to stop. Both are far beyond what
// is normal and only bound the wait for a broken one.
const (
	startTimeout = time.Minute
	stopTimeout  = 20 * time.Second
	statsTimeout = 30 * time.Second
	pollInterval = 20 * time.Millisecond
)

// Ready is what the daemon writes once its policy is in force.
type Ready struct {
	Ready     bool   `json:"ready"`
	Dataplane string `json:"dataplane"` // the backends that run, "afxdp+nfqueue"
	Why       string `json:"why"`       // why these
}

// Stats is what the daemon writes when asked and at its end.
type Stats struct {
	Upcalls      uint64 `json:"upcalls"`      // packets judged in userspace
	Bypassed     uint64 `json:"bypassed"`     // packets the kernel passed on its own
	Dropped      uint64 `json:"dropped"`      // of the upcalls: refused
	KernelDrops  uint64 `json:"kernelDrops"`  // packets the kernel refused on its own
	Overflow     uint64 `json:"overflow"`     // packets lost because a queue was full
	LatencyP50Ns uint64 `json:"latencyP50Ns"` // from reading a packet to its verdict
	LatencyP99Ns uint64 `json:"latencyP99Ns"`
	Dataplane    string `json:"dataplane"`
	Why          string `json:"why"`
}

// daemon is the child process.
type daemon struct {
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
	err    error         // how it ended; valid after done
	dir    string        // of the files below
	stderr *os.File
}

func (d *daemon) path(name string) string { return d.dir + "/" + name }

func (d *daemon) auditFile() string { return d.path("audit.log") }

// startDaemon starts executable with the daemon's arguments inside a namespace.
// Manifests are in dir/manifests.
func startDaemon(ns *netlab.NS, executable, dir, node, dataplane string) (*daemon, error) {
	d := &daemon{done: make(chan struct{}), dir: dir}
	var err error
	if d.stderr, err = os.Create(d.path("daemon.log")); err != nil {
		return nil, err
	}
	d.cmd = exec.Command(executable, "daemon",
		"--manifests", d.path("manifests"), "--node", node, "--dataplane", dataplane,
		"--pin-path", "", // its end is the end of its network: nothing outlives it
		"--audit-file", d.auditFile(), "--ready-file", d.path("ready.json"), "--stats-file", d.path("stats.json"))
	d.cmd.Stdout, d.cmd.Stderr = d.stderr, d.stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{
		// A process group of its own: Ctrl-C in a terminal must reach only the
		// demo, which then stops the daemon in order.
		Setpgid:   true,
		Pdeathsig: syscall.SIGKILL,
	}
	started := make(chan error, 1)
	go func() {
		// The child inherits the namespace of the thread that starts it, and
		// Pdeathsig fires when that thread ends. So the thread stays in the
		// namespace until the child is gone.
		err := ns.Do(func() error {
			if err := d.cmd.Start(); err != nil {
				started <- fmt.Errorf("start the daemon: %w", err)
				return nil
			}
			started <- nil
			d.err = d.cmd.Wait()
			return nil
		})
		if err != nil {
			started <- err
		}
		close(d.done)
	}()
	if err := <-started; err != nil {
		d.stderr.Close()
		return nil, err
	}
	return d, nil
}

// wait blocks until the daemon enforces its policy.
func (d *daemon) wait(ctx context.Context) (Ready, error) {
	var r Ready
	err := d.poll(ctx, "ready.json", startTimeout, &r)
	switch {
	case errors.Is(err, errEnded):
		return r, fmt.Errorf("the daemon could not start:\n%s", d.lastWords())
	case errors.Is(err, errSilent):
		return r, fmt.Errorf("the daemon was not ready after %s:\n%s", startTimeout, d.lastWords())
	case err != nil:
		return r, err
	case !r.Ready:
		return r, fmt.Errorf("the daemon is not ready: %s", r.Why)
	}
	return r, nil
}

var (
	errEnded  = errors.New("the daemon ended")
	errSilent = errors.New("the daemon did not answer")
)

// poll waits until a file of the daemon holds a complete JSON value.
func (d *daemon) poll(ctx context.Context, name string, limit time.Duration, v any) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if err := readJSON(d.path(name), v); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.done:
			return errEnded
		case <-deadline.C:
			return errSilent
		case <-tick.C:
		}
	}
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// ended reports whether the daemon has ended on its own.
func (d *daemon) ended() bool {
	select {
	case <-d.done:
		return true
	default:
		return false
	}
}

// askStats makes a running daemon write its statistics.
func (d *daemon) askStats(ctx context.Context) (Stats, error) {
	var s Stats
	if err := os.Remove(d.path("stats.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := d.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return s, err
	}
	err := d.poll(ctx, "stats.json", statsTimeout, &s)
	return s, err
}

// stop ends the daemon and waits for it: politely, then not. It may be called
// more than once; stats are the daemon's last ones.
func (d *daemon) stop() (s Stats, err error) {
	alone := d.ended()
	if !alone {
		// An error means that it ended this moment.
		_ = d.cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-d.done:
		case <-time.After(stopTimeout):
			err = fmt.Errorf("the daemon did not stop within %s and was killed", stopTimeout)
			_ = d.cmd.Process.Kill()
			<-d.done
		}
	}
	d.stderr.Close()
	if err == nil && d.err != nil {
		err = fmt.Errorf("the daemon failed: %w\n%s", d.err, d.lastWords())
	}
	if rerr := readJSON(d.path("stats.json"), &s); rerr != nil && err == nil {
		err = fmt.Errorf("the daemon left no statistics: %w", rerr)
	}
	return s, err
}

// lastWords are the last lines of the daemon's log, indented.
func (d *daemon) lastWords() string {
	b, err := os.ReadFile(d.path("daemon.log"))
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	const most = 8
	if len(lines) > most {
		lines = lines[len(lines)-most:]
	}
	return "  " + strings.Join(lines, "\n  ")
}
