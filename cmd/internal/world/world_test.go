package world_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// Nothing filters in a fresh world: every probe must come through, so that a
// probe that does not can be blamed on policy.
func TestEverythingConnects(t *testing.T) {
	nstest.Need(t)
	w, err := world.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	probes := world.All(w.Hosts)
	// 10 hosts to 10 hosts without outside to itself, 2 ports, 2 protocols, 2 families.
	if want := 99 * 8; len(probes) != want {
		t.Errorf("%d probes, want %d", len(probes), want)
	}
	last := 0
	results, err := world.Run(t.Context(), probes, world.ProbeConfig{Timeout: 2 * time.Second, Progress: func(done, total int) {
		if done != last+1 || total != len(probes) {
			t.Errorf("progress %d of %d after %d", done, total, last)
		}
		last = done
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if !r.Passed {
			t.Errorf("%s: %v %v", r.Probe, r.Err, r.Broken)
		}
	}
}

// A refused port is a refusal, not a broken probe, and costs no patience.
func TestProbeTellsRefusalFromBreakage(t *testing.T) {
	nstest.Need(t)
	w, err := world.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	a, b := w.Host("x/a"), w.Host("y/b")
	results, err := world.Run(t.Context(), []world.Probe{
		{From: a, To: b, Network: "tcp", Port: 82, Family: 4},
		{From: a, To: b, Network: "udp", Port: 82, Family: 6},
		{From: a, To: b, Network: "sctp", Port: 80, Family: 4},
	}, world.ProbeConfig{Timeout: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range results[:2] {
		if r.Passed || r.Err == nil || r.Broken != nil {
			t.Errorf("probe %d to a closed port: passed %v, err %v, broken %v", i, r.Passed, r.Err, r.Broken)
		}
	}
	if results[2].Broken == nil {
		t.Error("a probe over a network that does not exist must be broken")
	}
}

func TestRunStopsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := world.Run(ctx, make([]world.Probe, 10), world.ProbeConfig{}); err == nil {
		t.Error("Run with an ended context must return its error")
	}
	nstest.Need(t)
	if w, err := world.New(ctx); err == nil {
		w.Close()
		t.Error("New with an ended context must fail")
	}
}

// Pin leaves names only until Close.
func TestPinAndClose(t *testing.T) {
	nstest.Need(t)
	dir := t.TempDir() // bind mounts over our own files: /run/netns stays untouched
	w, err := world.New(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	names, err := w.Pin(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 11 || names[0] != "tierwall-node" || names[1] != "tierwall-x-a" {
		t.Errorf("names %v", names)
	}
	for _, n := range names {
		if _, err := os.Stat(filepath.Join(dir, n)); err != nil {
			t.Error(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), dir) {
		t.Errorf("a mount below %s is left (%v)", dir, err)
	}
	if err := w.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}
