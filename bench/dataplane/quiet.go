package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"time"

	"github.com/tierwall/tierwall/bench/internal/child"
)

// quiet finds moments in which nobody else uses the machine: it looks before a
// measurement, when the labs are idle, and at what others used during it. A
// measurement that was not alone is taken again while there is patience left.
type quiet struct {
	left time.Duration // may still be spent, in this round
	busy []float64     // the share others used during measurements that count
	redo int           // measurements taken again
}

// How long a look at the machine takes, and how busy others may be.
const (
	quietLook = 50 * time.Millisecond
	quietBusy = 0.05
)

// round begins a round that may spend its share of patience.
func (s *session) round() { s.quiet.left = s.Patience / time.Duration(s.Rounds) }

// alone runs measure when the machine is quiet, or when there is no time left to
// wait for that, and again if it did not stay so.
func (q *quiet) alone(ctx context.Context, measure func() error) error {
	for {
		if err := q.wait(ctx); err != nil {
			return err
		}
		began := time.Now()
		busy, err := othersDuring(measure)
		if err != nil {
			return err
		}
		if busy <= quietBusy || q.left <= 0 {
			q.busy = append(q.busy, busy)
			return nil
		}
		q.redo++
		q.left -= time.Since(began)
	}
}

// wait returns when the machine is quiet or there is no time left to wait.
func (q *quiet) wait(ctx context.Context) error {
	for q.left > 0 {
		busy, err := othersDuring(func() error { return wait(ctx, quietLook) })
		if err != nil || busy <= quietBusy {
			return err
		}
		q.left -= quietLook
	}
	return nil
}

// once runs f, which cannot be repeated.
func (q *quiet) once(ctx context.Context, f func() error) error {
	if err := q.wait(ctx); err != nil {
		return err
	}
	busy, err := othersDuring(f)
	q.busy = append(q.busy, busy)
	return err
}

// othersDuring runs f and returns the share of all CPU time that other processes
// used meanwhile. Only those in sight count: not those outside of this process's
// PID namespace, nor other virtual machines.
func othersDuring(f func() error) (share float64, err error) {
	before, err := othersTime()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	if err := f(); err != nil {
		return 0, err
	}
	elapsed := time.Since(start)
	after, err := othersTime()
	// Time can go missing, when a process ends whose parent does not want to know.
	return max(0, (after-before).Seconds()) / (elapsed.Seconds() * float64(runtime.NumCPU())), err
}

// othersTime sums the processor time of all processes but this one, those it has
// started and the kernel's own threads, which work for whoever makes them.
func othersTime() (sum time.Duration, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	procs := map[int]child.Times{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		if err != nil {
			return 0, err
		}
		if procs[pid], err = child.ParseStat(string(b)); err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return others(procs, os.Getpid()), nil
}

func others(procs map[int]child.Times, self int) (sum time.Duration) {
	const kthreadd = 2
	for pid, p := range procs {
		ours := false
		for at, hops := pid, 0; at > 1 && !ours && hops < len(procs); at, hops = procs[at].Parent, hops+1 {
			ours = at == self || at == kthreadd
		}
		if !ours {
			sum += p.Used
		}
	}
	return sum
}
