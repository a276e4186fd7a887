package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/cmd/internal/cli"
)

// record is the n-th line of a log; n is its source port.
func record(n int) string {
	return fmt.Sprintf(`{"v":1,"kind":"flow","time":"2026-01-02T03:04:05.006Z","node":"node-1","verdict":"Drop","stage":"enforce",`+
		`"direction":"ingress","band":"networkpolicy","policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"},`+
		`"isolations":[{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"shop","name":"db"},{"kind":"NetworkPolicy","namespace":"shop","name":"all"}],`+
		`"reason":"isolation","source":{"ip":"10.244.1.10","port":%d,"namespace":"shop","pod":"frontend"},`+
		`"destination":{"ip":"10.244.2.12","port":5432,"namespace":"shop","pod":"db"},"protocol":"TCP","length":60,"count":3}`, n)
}

const (
	ruleRecord = `{"v":1,"kind":"flow","time":"2026-01-02T03:04:06Z","verdict":"Allow","stage":"enforce","direction":"ingress","band":"admin",` +
		`"policy":{"group":"policy.networking.k8s.io","kind":"AdminNetworkPolicy","name":"monitoring"},"rule":{"name":"scrape","index":0},"reason":"rule",` +
		`"source":{"ip":"fd00::1"},"destination":{"ip":"fd00::2","port":9100},"protocol":"TCP","count":1}`
	icmpRecord = `{"v":1,"kind":"flow","time":"2026-01-02T03:04:07Z","verdict":"Drop","stage":"audit","direction":"egress",` +
		`"policy":{"group":"networking.k8s.io","kind":"NetworkPolicy","namespace":"x","name":"p"},"rule":{"index":2},"reason":"rule","label":"l1",` +
		`"source":{"ip":"10.0.0.1"},"destination":{"ip":"10.0.0.2"},"protocol":"ICMP","icmpType":8,"icmpCode":0,"count":1}`
	lostRecord = `{"v":1,"kind":"lost","time":"2026-01-02T03:04:08Z","reason":"ring-full","count":17}`
)

func TestAuditTailText(t *testing.T) {
	log := strings.Join([]string{record(1), ruleRecord, icmpRecord, lostRecord, "not a record"}, "\n") + "\n"
	var out bytes.Buffer
	p := recordPrinter{w: &out, format: "text", zone: time.UTC}
	if err := tail(t.Context(), strings.NewReader(log), "-", -1, false, p.print); err != nil {
		t.Fatal(err)
	}
	golden(t, "audit.txt", out.String())
}

// Colour is for terminals: the words stay the same.
func TestAuditLineColour(t *testing.T) {
	var plain, painted bytes.Buffer
	for _, p := range []recordPrinter{{w: &plain, zone: time.UTC}, {w: &painted, zone: time.UTC, style: cli.Painted()}} {
		for _, line := range []string{record(1), ruleRecord, icmpRecord, lostRecord} {
			if err := p.print([]byte(line)); err != nil {
				t.Fatal(err)
			}
		}
	}
	stripped := painted.String()
	for {
		i := strings.Index(stripped, "\x1b[")
		if i < 0 {
			break
		}
		stripped = stripped[:i] + stripped[i+strings.IndexByte(stripped[i:], 'm')+1:]
	}
	if stripped != plain.String() || painted.Len() == plain.Len() {
		t.Errorf("painted %q\nplain %q", painted.String(), plain.String())
	}
}

func TestAuditTailFormats(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(record(1)+"\n"+record(2)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := tierwall(t, "", "audit", "tail", "-n", "1", "-o", "json", path); r.out != record(2)+"\n" {
		t.Errorf("json: %q", r.out)
	}
	r := tierwall(t, "", "audit", "tail", "-o", "antrea", path)
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "K8sNetworkPolicy:shop/db") || !strings.Contains(lines[1], "10.244.1.10 2 10.244.2.12 5432 TCP 60") {
		t.Errorf("antrea: %q", r.out)
	}
}

func TestAuditTailLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	var all strings.Builder
	for i := 1; i <= 25; i++ {
		all.WriteString(record(i) + "\n")
	}
	if err := os.WriteFile(path, []byte(all.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ n, first, count int }{{0, 0, 0}, {1, 25, 1}, {7, 19, 7}, {25, 1, 25}, {40, 1, 25}, {-1, 1, 25}} {
		r := tierwall(t, "", "audit", "tail", "-n", fmt.Sprint(tt.n), "-o", "json", path)
		var want strings.Builder
		for i := range tt.count {
			want.WriteString(record(tt.first+i) + "\n")
		}
		if r.out != want.String() || r.code != 0 {
			t.Errorf("-n %d: %d lines, want %d from %d on", tt.n, strings.Count(r.out, "\n"), tt.count, tt.first)
		}
	}
}

// Following prints the past once, then everything new, also after a rotation.
func TestAuditTailFollow(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "log")
	appendLine := func(n int) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, record(n))
		f.Close()
	}
	for n := range 5 {
		appendLine(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var mu sync.Mutex
	var got []string
	done := make(chan error, 1)
	go func() {
		done <- tail(ctx, nil, path, 2, true, func(line []byte) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, string(line))
			return nil
		})
	}()
	wait := func(count int) {
		t.Helper()
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			mu.Lock()
			n := len(got)
			mu.Unlock()
			if n >= count {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%d lines after 5 s, want %d", n, count)
			}
		}
	}
	wait(2)
	appendLine(5)
	wait(3)
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	appendLine(6)
	wait(4)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for i, n := range []int{3, 4, 5, 6} {
		if got[i] != record(n) {
			t.Errorf("line %d is %s, want record %d", i, got[i], n)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d lines, want 4", len(got))
	}
}

// A file that does not exist yet is waited for.
func TestAuditTailFollowLaterFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	go func() {
		time.Sleep(20 * time.Millisecond) // after the first look, most of the time; either order must work
		if err := os.WriteFile(path, []byte(record(9)+"\n"), 0o600); err != nil {
			t.Error(err)
		}
	}()
	var got string
	if err := tail(ctx, nil, path, 10, true, func(line []byte) error {
		got = string(line)
		cancel()
		return nil
	}); err != nil || got != record(9) {
		t.Errorf("got %q, error %v", got, err)
	}
}
