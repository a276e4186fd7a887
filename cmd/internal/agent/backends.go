package agent

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
)

// openBackends starts the backends that c.Dataplane asks for, in the current
// network namespace. why says in one sentence what was chosen for which reason.
//
// The fast path comes first in the result: it must hear of a new table before
// nfqueue does (what the fast path still accepts by the old one, the forward
// hook would mark again), and it is closed first. It is opened last: while it
// runs, the forward hook behind it is in force.
func openBackends(c *Config, log *slog.Logger) (backends []dataplane.Backend, why string, err error) {
	open := func(name string, b dataplane.Backend, err error) bool {
		if err == nil {
			backends = append([]dataplane.Backend{b}, backends...)
			return true
		}
		log.Warn("backend not available", "backend", name, "error", err)
		return false
	}
	switch c.Dataplane {
	case "nfqueue":
		if c.Accelerate {
			log.Warn("accelerate is ignored: the nfqueue backend has no way past the stack")
		}
		b, err := newNFQueue(c, log)
		if err != nil {
			return nil, "", fmt.Errorf("nfqueue backend: %w", err)
		}
		return []dataplane.Backend{alone(b, c, log)}, "nfqueue alone, as configured", nil
	case "afxdp":
		b, err := newAFXDP(c, true, log)
		if err != nil {
			return nil, "", fmt.Errorf("afxdp backend: %w", err)
		}
		return []dataplane.Backend{alone(b, c, log)}, "afxdp alone, as configured: what it cannot judge is dropped", nil
	}
	nf, nfErr := newNFQueue(c, log)
	hooked := open("nfqueue", nf, nfErr)
	xdp, xdpErr := newAFXDP(c, !hooked, log)
	fast := open("afxdp", xdp, xdpErr)
	if len(backends) == 1 {
		backends[0] = alone(backends[0], c, log)
	}
	switch {
	case hooked && fast:
		return backends, "auto: both backends run on this kernel", nil
	case hooked:
		return backends, fmt.Sprintf("auto: nfqueue alone, because %v", xdpErr), nil
	case fast:
		return backends, fmt.Sprintf("auto: afxdp alone, because %v; what it cannot judge is dropped", nfErr), nil
	}
	return nil, "", fmt.Errorf("no backend runs on this kernel: %w", errors.Join(
		fmt.Errorf("nfqueue: %w", nfErr), fmt.Errorf("afxdp: %w", xdpErr)))
}

// fastMark is what nfqueue has to know of a fast path that may be in front.
func fastMark(c *Config) uint32 {
	if c.Dataplane == "nfqueue" {
		return 0
	}
	return afxdpMarks.Fast
}

func newNFQueue(c *Config, log *slog.Logger) (dataplane.Backend, error) {
	b, err := nfqueue.New(nfqueue.Config{
		QueueNum: c.NFQueue.FirstQueue, Queues: c.NFQueue.Queues, QueueLen: c.NFQueue.QueueLength,
		FailOpen: c.FailMode == "open", AllowSpoofing: !c.AFXDP.AntiSpoofing, Marks: nfqueueMarks, FastMark: fastMark(c), FormerMark: afxdpMarks.Fast,
		Logger: log.With("backend", "nfqueue"),
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func newAFXDP(c *Config, strict bool, log *slog.Logger) (dataplane.Backend, error) {
	// The guard alone needs none of what Probe looks for.
	if c.AFXDP.Attach != string(afxdp.AttachXDPGeneric) {
		if err := afxdp.Probe(); err != nil {
			return nil, err
		}
	}
	devices, attach, err := c.AFXDP.options(c.FailMode == "open")
	if err != nil {
		return nil, err
	}
	b, err := afxdp.New(afxdp.Config{
		Strict: strict, FailOpen: c.FailMode == "open", PinPath: c.AFXDP.PinPath, Queues: c.AFXDP.Queues,
		FlowEntries: int(c.AFXDP.FlowEntries), UpcallRate: c.AFXDP.UpcallRate, UpcallBurst: c.AFXDP.UpcallBurst,
		Accelerate: c.Accelerate, Devices: devices, AttachConfig: attach,
		Marks: afxdpMarks, Logger: log.With("backend", "afxdp"),
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// The accept bit and the fast bit both backends must agree on: what the fast path
// accepted, the forward hook does not queue.
var (
	nfqueueMarks = nfqueue.DefaultMarks
	afxdpMarks   = afxdp.DefaultMarks
)

// cleanup removes what runs that did not end orderly left in the current
// network namespace.
func cleanup(pinPath string) error {
	return errors.Join(afxdp.Cleanup(pinPath), nfqueue.CleanupTap(), nfqueue.Cleanup(nfqueueMarks))
}
