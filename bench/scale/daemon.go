package scale

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/tierwall/tierwall/bench/internal/child"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// daemon is a tierwalld in a namespace, with its files in dir.
type daemon struct {
	*child.Process
	dir string
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
	p, err := child.Start(ns, at("daemon.log"), program, "--config", at("config.yaml"), "--ready-file", at("ready.json"))
	if err != nil {
		return nil, err
	}
	return &daemon{p, dir}, nil
}

// readyLimit bounds the start with any size.
const readyLimit = 5 * time.Minute

// ready waits until the first policy is in force: then the file is written.
func (d *daemon) ready(ctx context.Context) error {
	var r struct{ Ready bool }
	return d.Poll(ctx, filepath.Join(d.dir, "ready.json"), &r, readyLimit)
}

// memory returns the resident set now and at its largest, in bytes.
func (d *daemon) memory() (now, peak uint64, err error) {
	b, err := os.ReadFile(d.Proc("status"))
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
	return os.WriteFile(d.Proc("clear_refs"), []byte("5"), 0)
}
