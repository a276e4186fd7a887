package dataplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

const (
	startTimeout = time.Minute // a busy machine's kernel checks the programs for 20 s
	stopTimeout  = 8 * time.Second
	pollInterval = 5 * time.Millisecond
)

// programs are the executables the benchmark starts.
type programs struct {
	daemon string // tierwalld
	self   string // this program, whose StockCommand is the stock loop
}

// findPrograms builds tierwalld from this module unless a path is given.
func findPrograms(ctx context.Context, daemon, dir string) (programs, error) {
	self, err := os.Executable()
	if err != nil {
		return programs{}, err
	}
	if daemon != "" {
		daemon, err = filepath.Abs(daemon)
		return programs{daemon: daemon, self: self}, err
	}
	out := filepath.Join(dir, "tierwalld")
	// The agent is internal to cmd; what is measured is the program operators run.
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "github.com/tierwall/tierwall/cmd/tierwalld")
	if b, err := cmd.CombinedOutput(); err != nil {
		return programs{}, fmt.Errorf("build tierwalld (or name one with --daemon): %w\n%s", err, b)
	}
	return programs{daemon: out, self: self}, nil
}

// process is a child inside the node's namespace.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid after done
	dir  string
	log  string
	end  bool // somebody asked it to
}

// start runs a program in the node's namespace. Its output goes to a file; it
// dies with this process.
func (l *lab) start(program string, args ...string) (*process, error) {
	p := &process{done: make(chan struct{}), dir: l.dir, log: l.path("child.log")}
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	// Ctrl-C in a terminal reaches only this process, which then stops the child.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The child inherits the namespace of the thread that starts it, and
		// Pdeathsig fires when that thread ends: the thread waits for the child.
		err := l.node.NS.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err == nil {
				p.err = p.cmd.Wait()
			}
			return nil
		})
		if err != nil {
			select {
			case started <- err:
			default:
			}
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	l.closers = append(l.closers, func() error { return p.stop(syscall.SIGTERM) })
	return p, nil
}

// startDaemon starts tierwalld and waits until its policy is in force.
func (l *lab) startDaemon(ctx context.Context, programs programs, dataplane string, more ...string) (*process, error) {
	if err := os.Remove(l.path("ready.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	p, err := l.start(programs.daemon, append([]string{
		"--manifests", l.path("manifests"), "--node", nodeName, "--dataplane", dataplane,
		"--audit-file", l.path("audit.log"), "--pin-path", l.path("bpf"), "--ready-file", l.path("ready.json"), "--stats-file", l.path("stats.json"),
	}, more...)...)
	if err != nil {
		return nil, err
	}
	var ready struct {
		Dataplane string `json:"dataplane"`
	}
	if err := p.poll(ctx, "ready.json", &ready); err != nil {
		return nil, err
	}
	want := map[string]string{subjectAuto: "afxdp+nfqueue"}[dataplane]
	if want == "" {
		want = dataplane
	}
	if ready.Dataplane != want {
		return nil, fmt.Errorf("tierwalld --dataplane %s runs %s, want %s:\n%s", dataplane, ready.Dataplane, want, p.lastWords())
	}
	return p, nil
}

// startStock starts the accept-all loop and waits until its queues are bound.
func (l *lab) startStock(ctx context.Context, programs programs) (*process, error) {
	p, err := l.start(programs.self, StockCommand, l.path("ready.json"))
	if err != nil {
		return nil, err
	}
	var ready bool
	return p, p.poll(ctx, "ready.json", &ready)
}

// poll waits until a file of the process holds a complete JSON value.
func (p *process) poll(ctx context.Context, name string, v any) error {
	deadline := time.NewTimer(startTimeout)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(filepath.Join(p.dir, name)); err == nil && json.Unmarshal(b, v) == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return fmt.Errorf("%s ended: %w\n%s", filepath.Base(p.cmd.Path), p.err, p.lastWords())
		case <-deadline.C:
			return fmt.Errorf("%s wrote no %s in %s\n%s", filepath.Base(p.cmd.Path), name, startTimeout, p.lastWords())
		case <-tick.C:
		}
	}
}

// stats is what is used of the daemon's stats file: totals since its start.
type stats struct {
	Upcalls uint64
}

func (p *process) stats(ctx context.Context) (s stats, err error) {
	if err := os.Remove(filepath.Join(p.dir, "stats.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := p.cmd.Process.Signal(syscall.SIGUSR1); err != nil {
		return s, err
	}
	return s, p.poll(ctx, "stats.json", &s)
}

// cpu is the processor time the process has used.
func (p *process) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	t, err := parseStat(string(b))
	return t.own, err
}

// stop ends the process with a signal and waits for it. An end nobody asked for
// is an error. It may be called more than once.
func (p *process) stop(s syscall.Signal) error {
	if p.end {
		return nil
	}
	p.end = true
	select {
	case <-p.done:
		return fmt.Errorf("%s ended on its own: %w\n%s", filepath.Base(p.cmd.Path), p.err, p.lastWords())
	default:
	}
	// An error means that it ended this moment.
	_ = p.cmd.Process.Signal(s)
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within %s and was killed", filepath.Base(p.cmd.Path), stopTimeout)
	}
}

// lastWords are the last lines of the process's output, indented.
func (p *process) lastWords() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	const most = 8
	return "  " + strings.Join(lines[max(0, len(lines)-most):], "\n  ")
}
