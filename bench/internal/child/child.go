// Package child runs the programs that benchmarks measure, each in a network
// namespace of the benchmark's own.
package child

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Daemon returns the path of tierwalld: of a given one, or of one it builds in dir from
// this module. The agent is internal to cmd; what is measured is the program operators
// run.
func Daemon(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	out := filepath.Join(dir, "tierwalld")
	cmd := exec.CommandContext(ctx, "go", "build", "-o", out, "github.com/tierwall/tierwall/cmd/tierwalld")
	if b, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tierwalld (or name one with --daemon): %w\n%s", err, b)
	}
	return out, nil
}

// Process is a program that was started. One goroutine uses it.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how it ended; valid after done
	log  string
	end  bool // somebody asked it to
}

// Start runs a program in a namespace. Its output is appended to the file log. It dies
// with this process, but Ctrl-C in a terminal does not reach it.
func Start(ns *netlab.NS, log, program string, args ...string) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	p := &Process{cmd: exec.Command(program, args...), done: make(chan struct{}), log: log}
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The child inherits the namespace of the thread that starts it, and
		// Pdeathsig fires when that thread ends: the thread waits for the child.
		err := ns.Do(func() error {
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
	return p, nil
}

// name is the program's, for messages.
func (p *Process) name() string { return filepath.Base(p.cmd.Path) }

// Proc is the path of one of the process's files below /proc.
func (p *Process) Proc(file string) string {
	return filepath.Join("/proc", strconv.Itoa(p.cmd.Process.Pid), file)
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// pollInterval is the time between two looks at a file.
const pollInterval = 5 * time.Millisecond

// Poll waits until a file that the process writes holds a complete JSON value, and reads
// it into v. It does not wait for a process that has ended.
func (p *Process) Poll(ctx context.Context, file string, v any, limit time.Duration) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		if b, err := os.ReadFile(file); err == nil && json.Unmarshal(b, v) == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.done:
			return fmt.Errorf("%s ended: %w\n%s", p.name(), p.err, p.LastWords())
		case <-deadline.C:
			return fmt.Errorf("%s wrote no %s in %s\n%s", p.name(), filepath.Base(file), limit, p.LastWords())
		case <-tick.C:
		}
	}
}

// CPU returns the processor time that the process has used, in steps of 10 ms.
func (p *Process) CPU() (time.Duration, error) {
	b, err := os.ReadFile(p.Proc("stat"))
	if err != nil {
		return 0, err
	}
	t, err := ParseStat(string(b))
	return t.Own, err
}

// stopTimeout is how long a process may take to stop.
const stopTimeout = 10 * time.Second

// Stop ends the process with a signal and waits for it. An end nobody asked for is an
// error. It may be called more than once.
func (p *Process) Stop(s syscall.Signal) error {
	if p.end {
		return nil
	}
	p.end = true
	select {
	case <-p.done:
		return fmt.Errorf("%s ended on its own: %w\n%s", p.name(), p.err, p.LastWords())
	default:
	}
	// An error means that it ended this moment.
	_ = p.Signal(s)
	select {
	case <-p.done:
		return nil
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within %s and was killed", p.name(), stopTimeout)
	}
}

// LastWords are the last lines of the process's output, indented.
func (p *Process) LastWords() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return "  (no log: " + err.Error() + ")"
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	const most = 10
	return "  " + strings.Join(lines[max(0, len(lines)-most):], "\n  ")
}
