package agent

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/nfqueue"
)

// choice is the backends that run and why these.
type choice struct {
	backends []dataplane.Backend // fast path first
	why      string              // in one sentence
	// missing has the backends that "auto" would run and the kernel cannot, by name,
	// with the reason. Not empty only with "auto".
	missing map[string]error
	// facts says how each one that runs works on this kernel, by name.
	facts map[string]string
	// lacks has what was configured and a backend that runs cannot do on this kernel.
	lacks []error
	// unjudgers are those that can tell which devices they do not judge.
	unjudgers []unjudger
}

// worker is what a backend says of itself (nfqueue.Backend, afxdp.Backend).
type worker interface{ Facts() string }

// add notes what a backend says of itself.
func (c *choice) add(b dataplane.Backend) {
	if w, ok := b.(worker); ok {
		c.facts[b.Name()] = w.Facts()
	}
	if l, ok := b.(interface{ Lacks() error }); ok {
		if err := l.Lacks(); err != nil {
			c.lacks = append(c.lacks, fmt.Errorf("%s does not find forged sources: %w. If that is what you want, write \"afxdp: {antiSpoofing: false}\"", b.Name(), err))
		}
	}
	if u, ok := b.(unjudger); ok {
		c.unjudgers = append(c.unjudgers, u)
	}
}

// lacking returns which backend is missed, and what those that run cannot do, or nil. Without
// nfqueue what afxdp cannot judge is dropped, and pods without a veth device of their
// own are not judged at all: to accept that somebody has to write it. Without afxdp
// nfqueue judges the same, only slower.
func (c *choice) lacking() error {
	if err := c.missing["nfqueue"]; err != nil {
		return fmt.Errorf("dataplane auto: nfqueue cannot run: %w. Until it can, afxdp alone drops what it cannot judge (fragments, …) and DNS names are not learnt. "+
			"If that is what you want, write \"dataplane: afxdp\"", err)
	}
	return errors.Join(c.lacks...)
}

// openBackends starts the backends that c.Dataplane asks for, in the current
// network namespace.
//
// The fast path comes first in the result: it must hear of a new table before
// nfqueue does (what the fast path still accepts by the old one, the forward
// hook would mark again), and it is closed first. It is opened last: while it
// runs, the forward hook behind it is in force.
func openBackends(c *Config, log *slog.Logger) (*choice, error) {
	chosen := &choice{missing: map[string]error{}, facts: map[string]string{}}
	open := func(name string, b dataplane.Backend, err error) bool {
		if err == nil {
			chosen.backends = append([]dataplane.Backend{b}, chosen.backends...)
			chosen.add(b)
			return true
		}
		log.Error("backend not available", "backend", name, "error", err)
		chosen.missing[name] = err
		return false
	}
	switch c.Dataplane {
	case "nfqueue":
		if c.Accelerate {
			log.Warn("accelerate is ignored: the nfqueue backend has no way past the stack")
		}
		b, err := newNFQueue(c, log)
		if err != nil {
			return nil, fmt.Errorf("nfqueue backend: %w", err)
		}
		chosen.add(b)
		judgeBridges(b)
		chosen.backends, chosen.why = []dataplane.Backend{alone(b, c, log)}, "nfqueue alone, as configured"
		return chosen, nil
	case "afxdp":
		b, err := newAFXDP(c, true, log)
		if err != nil {
			return nil, fmt.Errorf("afxdp backend: %w", err)
		}
		chosen.add(b)
		chosen.backends, chosen.why = []dataplane.Backend{alone(b, c, log)}, "afxdp alone, as configured: what it cannot judge is dropped"
		return chosen, nil
	}
	nf, nfErr := newNFQueue(c, log)
	hooked := open("nfqueue", nf, nfErr)
	xdp, xdpErr := newAFXDP(c, !hooked, log)
	fast := open("afxdp", xdp, xdpErr)
	if hooked && (!fast || c.AFXDP.Attach == string(attach.XDPGeneric)) {
		judgeBridges(nf)
	}
	if len(chosen.backends) == 1 {
		chosen.backends[0] = alone(chosen.backends[0], c, log)
	}
	switch {
	case hooked && fast:
		chosen.why = "auto: both backends run on this kernel"
		return chosen, nil
	case hooked:
		chosen.why = fmt.Sprintf("auto: nfqueue alone, because %v", xdpErr)
		return chosen, nil
	case fast:
		chosen.why = fmt.Sprintf("auto: afxdp alone, because %v; what it cannot judge is dropped", nfErr)
		return chosen, nil
	}
	return nil, fmt.Errorf("no backend runs on this kernel: %w", errors.Join(
		fmt.Errorf("nfqueue: %w", nfErr), fmt.Errorf("afxdp: %w", xdpErr)))
}

// judgeBridges makes a backend responsible for packets between pods of one bridge:
// nobody in front of it judges them.
func judgeBridges(b dataplane.Backend) {
	if n, ok := b.(*nfqueue.Backend); ok {
		n.JudgeBridges()
	}
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
		FailOpen: c.FailMode == "open", AllowSpoofing: !c.AFXDP.AntiSpoofing, AllowTunnels: c.AllowPodTunnels, PodCIDRs: c.podNetworks(), Marks: nfqueueMarks, FastMark: fastMark(c), FormerMark: afxdpMarks.Fast,
		Logger: log.With("backend", "nfqueue"),
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

func newAFXDP(c *Config, strict bool, log *slog.Logger) (dataplane.Backend, error) {
	// The guard alone needs none of what Probe looks for.
	if c.AFXDP.Attach != string(attach.XDPGeneric) {
		if _, _, err := afxdp.Probe(); err != nil {
			return nil, err
		}
	}
	devices, attach, err := c.AFXDP.options(c.FailMode == "open")
	if err != nil {
		return nil, err
	}
	attach.AllowTunnels, attach.PodCIDRs = c.AllowPodTunnels, c.podNetworks()
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
