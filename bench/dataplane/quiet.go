package dataplane

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// quiet waits for moments in which nobody else uses the machine. The labs are
// idle between two measurements, so what is busy then is somebody else.
type quiet struct {
	left time.Duration // may still be waited for, in this round
	busy []float64     // the share seen when a measurement began
}

// Looks at the machine: how long, and how busy others may be.
const (
	quietLook = 50 * time.Millisecond
	quietBusy = 0.2
)

// round begins a round that may wait for its share of patience.
func (s *session) round() { s.quiet.left = s.Patience / time.Duration(s.Rounds) }

// wait returns when the machine is quiet or there is no time left to wait.
func (q *quiet) wait(ctx context.Context) error {
	for {
		busy, err := busyShare(ctx, quietLook)
		if err != nil {
			return err
		}
		if busy <= quietBusy || q.left <= 0 {
			q.busy = append(q.busy, busy)
			return nil
		}
		q.left -= quietLook
	}
}

// busyShare is the part of all CPU time in the next d that is neither idle nor
// of low priority (which yields to us).
func busyShare(ctx context.Context, d time.Duration) (float64, error) {
	idle, total, err := cpuTimes()
	if err != nil {
		return 0, err
	}
	if err := wait(ctx, d); err != nil {
		return 0, err
	}
	idle2, total2, err := cpuTimes()
	if err != nil || total2 == total {
		return 0, err
	}
	return 1 - float64(idle2-idle)/float64(total2-total), nil
}

// cpuTimes reads the first line of /proc/stat (proc(5)): user, nice, system,
// idle, iowait, irq, softirq, steal.
func cpuTimes() (idle, total uint64, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	fields := strings.Fields(line)
	if len(fields) < 9 || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("unexpected /proc/stat: %q", line)
	}
	for i, f := range fields[1:9] {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("unexpected /proc/stat: %w", err)
		}
		total += n
		if i == 1 || i == 3 || i == 4 {
			idle += n
		}
	}
	return idle, total, nil
}
