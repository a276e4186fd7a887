package dataplane

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// settleTime bounds how long a policy or the last audit records may take to arrive.
const settleTime = 10 * time.Second

// audited is [lab.connects] with an audit record for every connection and each of
// its two decisions. It fails if a record is missing: a rate with a log that is not
// complete is none. Without a daemon there is nothing to record.
func (l *lab) audited(ctx context.Context, daemon *process, callers int, d time.Duration) (rate float64, took []time.Duration, err error) {
	if daemon == nil {
		return l.connects(ctx, callers, d)
	}
	if err := l.write("policy.yaml", recorded(policy(portUDP))); err != nil {
		return 0, nil, err
	}
	defer func() {
		if err = errors.Join(err, l.write("policy.yaml", policy(portUDP))); err == nil {
			err = l.untilRecords(ctx, daemon, false)
		}
	}()
	if err := l.untilRecords(ctx, daemon, true); err != nil {
		return 0, nil, err
	}
	before, err := daemon.stats(ctx)
	if err != nil {
		return 0, nil, err
	}
	if rate, took, err = l.connects(ctx, callers, d); err != nil {
		return 0, nil, err
	}
	want := uint64(2 * len(took))
	for end := time.Now().Add(settleTime); ; {
		after, err := daemon.stats(ctx)
		if err != nil {
			return 0, nil, err
		}
		written, lost := after.AuditRecords-before.AuditRecords, after.AuditLost-before.AuditLost
		switch {
		case lost > 0:
			return 0, nil, fmt.Errorf("%d of %d audit records were lost", lost, want)
		case written >= want:
			return rate, took, nil
		case time.Now().After(end):
			return 0, nil, fmt.Errorf("%d audit records of %d connections, want %d", written, len(took), want)
		}
	}
}

// untilRecords waits until a connection writes audit records, or until it writes none.
func (l *lab) untilRecords(ctx context.Context, daemon *process, want bool) error {
	for end := time.Now().Add(settleTime); time.Now().Before(end); {
		before, err := daemon.stats(ctx)
		if err != nil {
			return err
		}
		if _, _, err := l.connects(ctx, 1, time.Millisecond); errors.Is(err, errNoConnection) {
			continue // the machine is busy
		} else if err != nil {
			return err
		}
		time.Sleep(50 * time.Millisecond) // the writer's pause between batches is shorter
		after, err := daemon.stats(ctx)
		if err != nil {
			return err
		}
		if want == (after.AuditRecords > before.AuditRecords) {
			return nil
		}
	}
	return fmt.Errorf("the daemon did not take up the policy within %s", settleTime)
}

// recorded returns policies whose decisions are all recorded.
func recorded(policies string) string {
	return strings.ReplaceAll(policies, "metadata: {", `metadata: {annotations: {tierwall.io/audit: "true"}, `)
}
