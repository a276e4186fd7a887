package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/tierwall/tierwall/classifier"
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
	return &successor{b, remove, log}
}

// Prepare implements dataplane.Backend: no other backend leaves anything to this one.
func (s *successor) Prepare(*classifier.Table) error { return nil }

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
	// Until a moment ago the other backend may have marked what t denies, unreported.
	// Backends that track only their own verdicts need no second update.
	if !s.Learns() {
		return cut, nil
	}
	s.Learn(s.Name(), nil, true)
	again, err := s.Backend.Update(t, dataplane.Change{})
	return cut + again, err
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
