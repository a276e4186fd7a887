package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/tierwall/tierwall/bench/internal/child"
)

// startTimeout allows for a busy machine, whose kernel checks the programs for 20 s.
const startTimeout = time.Minute

// programs are the executables the benchmark starts.
type programs struct {
	daemon string // tierwalld
	self   string // this program, whose StockCommand is the stock loop
}

// findPrograms builds tierwalld from this module unless a path is given.
func findPrograms(ctx context.Context, daemon, dir string) (p programs, err error) {
	if p.self, err = os.Executable(); err != nil {
		return p, err
	}
	p.daemon, err = child.Daemon(ctx, daemon, dir)
	return p, err
}

// process is a child inside the node's namespace, with its files in dir.
type process struct {
	*child.Process
	dir string
}

// start runs a program in the node's namespace, until the lab is closed at the latest.
func (l *lab) start(program string, args ...string) (*process, error) {
	c, err := child.Start(l.node.NS, l.path("child.log"), program, args...)
	if err != nil {
		return nil, err
	}
	l.closers = append(l.closers, func() error { return c.Stop(syscall.SIGTERM) })
	return &process{c, l.dir}, nil
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
		return nil, fmt.Errorf("tierwalld --dataplane %s runs %s, want %s:\n%s", dataplane, ready.Dataplane, want, p.LastWords())
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
	return p.Poll(ctx, filepath.Join(p.dir, name), v, startTimeout)
}

// stats is what is used of the daemon's stats file: totals since its start.
type stats struct {
	Upcalls, Passed         uint64
	AuditRecords, AuditLost uint64
}

func (p *process) stats(ctx context.Context) (s stats, err error) {
	if err := os.Remove(filepath.Join(p.dir, "stats.json")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return s, err
	}
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		return s, err
	}
	return s, p.poll(ctx, "stats.json", &s)
}
