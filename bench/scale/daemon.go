package scale

import (
	"context"
	"encoding/json"
	"errors"
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

// daemon is a tierwalld in a namespace.
type daemon struct {
	cmd  *exec.Cmd
	dir  string
	done chan struct{}
	err  error // how it ended; valid after done
}

// build returns the path of tierwalld: as given, or built from this module.
func build(ctx context.Context, given, dir string) (string, error) {
	if given != "" {
		return filepath.Abs(given)
	}
	out := filepath.Join(dir, "tierwalld")
	if b, err := exec.CommandContext(ctx, "go", "build", "-o", out, "github.com/tierwall/tierwall/cmd/tierwalld").CombinedOutput(); err != nil {
		return "", fmt.Errorf("build tierwalld (or name one with --daemon): %w\n%s", err, b)
	}
	return out, nil
}

// configuration reads everything from the simulated API server; the rest is as
// shipped, but for paths.
const configuration = `node: %q
manifests: ""
dataplane: %s
kubernetes: {enabled: true, kubeconfig: %q, namespace: tierwall, snapshot: %q}
audit: {file: %q}
afxdp: {pinPath: ""}
`

func startDaemon(ns *netlab.NS, program, dir, node, dataplane string) (*daemon, error) {
	at := func(name string) string { return filepath.Join(dir, name) }
	text := fmt.Sprintf(configuration, node, dataplane, at("kubeconfig"), at("snapshot"), at("audit.log"))
	if err := os.WriteFile(at("config.yaml"), []byte(text), 0o600); err != nil {
		return nil, err
	}
	for _, name := range []string{"ready.json", "snapshot"} {
		if err := os.Remove(at(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	out, err := os.Create(at("daemon.log"))
	if err != nil {
		return nil, err
	}
	defer out.Close() // the child has its own
	d := &daemon{dir: dir, done: make(chan struct{})}
	d.cmd = exec.Command(program, "--config", at("config.yaml"), "--ready-file", at("ready.json"))
	d.cmd.Stdout, d.cmd.Stderr = out, out
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error, 1)
	go func() {
		// The child inherits the namespace of the thread that starts it, and
		// Pdeathsig fires when that thread ends: the thread waits for the child.
		err := ns.Do(func() error {
			err := d.cmd.Start()
			started <- err
			if err == nil {
				d.err = d.cmd.Wait()
				close(d.done)
			}
			return nil
		})
		if err != nil {
			started <- err
		}
	}()
	return d, <-started
}

// readyLimit bounds the start with any size.
const readyLimit = 5 * time.Minute

func (d *daemon) ready(ctx context.Context) error {
	deadline := time.After(readyLimit)
	for {
		var r struct{ Ready bool }
		if b, err := os.ReadFile(filepath.Join(d.dir, "ready.json")); err == nil && json.Unmarshal(b, &r) == nil && r.Ready {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.done:
			return fmt.Errorf("tierwalld ended: %w\n%s", d.err, d.lastWords())
		case <-deadline:
			return fmt.Errorf("tierwalld is not ready after %s\n%s", readyLimit, d.lastWords())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (d *daemon) lastWords() string {
	b, err := os.ReadFile(filepath.Join(d.dir, "daemon.log"))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// stop ends the daemon; it may have ended.
func (d *daemon) stop() error {
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // an error: it has ended
	select {
	case <-d.done:
		return nil
	case <-time.After(10 * time.Second):
		_ = d.cmd.Process.Kill()
		<-d.done
		return errors.New("tierwalld did not stop and was killed")
	}
}

// memory returns the resident set now and at its largest, in bytes.
func (d *daemon) memory() (now, peak uint64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.cmd.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.SplitSeq(string(b), "\n") {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		switch name {
		case "VmRSS":
			now = kib << 10
		case "VmHWM":
			peak = kib << 10
		}
	}
	if now == 0 || peak == 0 {
		return 0, 0, errors.New("/proc says nothing about the daemon's memory")
	}
	return now, peak, nil
}

// forgetPeak makes memory's peak start anew (proc(5), clear_refs).
func (d *daemon) forgetPeak() error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.cmd.Process.Pid), []byte("5"), 0)
}

// cpu returns the processor time used, in steps of 10 ms.
func (d *daemon) cpu() (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", d.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	// proc(5): user and system time are the 12th and 13th field after the name.
	_, rest, _ := strings.Cut(string(b), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("unexpected /proc/PID/stat: %q", b)
	}
	var ticks uint64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}
