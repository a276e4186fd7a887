package dataplane

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
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
	procs := map[int]procTimes{}
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
		if procs[pid], err = parseStat(string(b)); err != nil {
			return 0, fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return others(procs, os.Getpid()), nil
}

func others(procs map[int]procTimes, self int) (sum time.Duration) {
	const kthreadd = 2
	for pid, p := range procs {
		ours := false
		for at, hops := pid, 0; at > 1 && !ours && hops < len(procs); at, hops = procs[at].parent, hops+1 {
			ours = at == self || at == kthreadd
		}
		if !ours {
			sum += p.used
		}
	}
	return sum
}

// procTimes is the part of /proc/PID/stat that matters here.
type procTimes struct {
	parent int
	own    time.Duration // processor time of its threads
	used   time.Duration // the same with that of its children that have ended
}

// parseStat reads /proc/PID/stat (proc(5)). The command name, in parentheses, may
// hold anything. After it, the parent is the second field; user and system time
// are the 12th and 13th, and those of ended children the next two, in clock ticks.
func parseStat(s string) (p procTimes, err error) {
	i := strings.LastIndex(s, ") ")
	fields := strings.Fields(s[i+1:])
	if i < 0 || len(fields) < 15 {
		return p, fmt.Errorf("unexpected /proc/PID/stat: %q", s)
	}
	var v [5]int64
	for j, f := range []string{fields[1], fields[11], fields[12], fields[13], fields[14]} {
		if v[j], err = strconv.ParseInt(f, 10, 64); err != nil {
			return p, fmt.Errorf("unexpected /proc/PID/stat: %w", err)
		}
	}
	const tick = time.Second / 100 // USER_HZ is 100 on every architecture Go runs on
	p.parent, p.own = int(v[0]), time.Duration(v[1]+v[2])*tick
	p.used = p.own + time.Duration(v[3]+v[4])*tick
	return p, nil
}
