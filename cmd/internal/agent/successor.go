package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
)

// successor is a backend that runs alone. What a run with the other one left in
// force, for the time without a daemon, it removes once it has a policy in force
// itself: the rules would drop what nobody listens for, and the programs would go
// on accepting what they remember.
type successor struct {
	dataplane.Backend
	remove func() error // nil once it was done
	log    *slog.Logger
}

// alone returns b with the duty to remove what the other backend may have left.
func alone(b dataplane.Backend, c *Config, log *slog.Logger) dataplane.Backend {
	remove := func() error { return nfqueue.Cleanup(nfqueueMarks) }
	if b.Name() == "nfqueue" {
		remove = func() error { return afxdp.Cleanup(c.AFXDP.PinPath) }
	}
	s := &successor{b, remove, log}
	if l, ok := b.(dataplane.Learner); ok {
		return learning{s, l}
	}
	return s
}

// learning is the successor of a backend that wants to be told of connections.
type learning struct {
	*successor
	learner dataplane.Learner
}

// Learn implements dataplane.Learner.
func (l learning) Learn(backend string, news []conntrack.Record, missed bool) {
	l.learner.Learn(backend, news, missed)
}

// Update implements dataplane.Backend.
func (s *successor) Update(t *classifier.Table, c dataplane.Change) (cut int, err error) {
	cut, err = s.Backend.Update(t, c)
	if err != nil || s.remove == nil {
		return cut, err
	}
	if err := s.remove(); err != nil {
		s.log.Error("what an earlier run with another backend left cannot be removed yet", "backend", s.Name(), "error", err)
		return cut, nil
	}
	s.remove = nil
	// Until a moment ago it may have marked what t denies, and told nobody. Who goes by
	// what its own workers judged has missed nothing.
	l, ok := s.Backend.(dataplane.Learner)
	if !ok {
		return cut, nil
	}
	l.Learn(s.Name(), nil, true)
	again, err := s.Backend.Update(t, dataplane.Change{})
	return cut + again, err
}

// Inherit implements dataplane.Heir.
func (s *successor) Inherit(judge func(*dataplane.Inherited) bool) {
	if h, ok := s.Backend.(dataplane.Heir); ok {
		h.Inherit(judge)
	}
}

// Drain implements dataplane.Drainer.
func (s *successor) Drain() error {
	if d, ok := s.Backend.(dataplane.Drainer); ok {
		return d.Drain()
	}
	return nil
}

// Drops implements dataplane.Dropper.
func (s *successor) Drops(report func(dataplane.Drop)) {
	if d, ok := s.Backend.(dataplane.Dropper); ok {
		d.Drops(report)
	}
}

// lockName is an abstract socket address: it belongs to a network namespace and
// goes with its process.
const lockName = "@tierwalld"

// lockPatience bounds the wait for a daemon that is stopping.
const lockPatience = 3 * time.Second

var errRunning = errors.New("another tierwalld runs in this network namespace")

// lockNamespace makes sure that one daemon at a time works here, whatever its
// backends. The lock ends with Close, or with the process.
func lockNamespace(ctx context.Context) (net.PacketConn, error) {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		lock, err := net.ListenPacket("unixgram", lockName)
		if err == nil {
			return lock, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(errRunning, err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
