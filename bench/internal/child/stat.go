package child

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Times is the part of /proc/PID/stat that benchmarks look at.
type Times struct {
	Parent int           // process id
	Own    time.Duration // processor time of its threads
	Used   time.Duration // the same with that of its children that have ended
}

// ParseStat reads /proc/PID/stat (proc(5)). The command name, in parentheses, may
// hold anything. After it, the parent is the second field; user and system time
// are the 12th and 13th, and those of ended children the next two, in clock ticks.
func ParseStat(s string) (p Times, err error) {
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
	p.Parent, p.Own = int(v[0]), time.Duration(v[1]+v[2])*tick
	p.Used = p.Own + time.Duration(v[3]+v[4])*tick
	return p, nil
}
