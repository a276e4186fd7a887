package agent

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

// Stats is what the daemon writes to its stats file: totals since start. The
// JSON names are relied upon by the demo.
type Stats struct {
	Dataplane    string `json:"dataplane"` // backends, "afxdp+nfqueue"
	Why          string `json:"why"`       // why these
	Generation   uint64 `json:"generation"`
	Upcalls      uint64 `json:"upcalls"`      // packets seen in userspace
	Bypassed     uint64 `json:"bypassed"`     // packets the kernel passed without userspace
	Accelerated  uint64 `json:"accelerated"`  // of those: past the host's stack, too
	KernelDrops  uint64 `json:"kernelDrops"`  // packets the kernel dropped without userspace
	Overflow     uint64 `json:"overflow"`     // packets lost in full queues or rings
	Passed       uint64 `json:"passed"`       // of the upcalls
	Dropped      uint64 `json:"dropped"`      // of the upcalls
	Deferred     uint64 `json:"deferred"`     // of the upcalls: left to the next hook
	Cut          uint64 `json:"cut"`          // live connections ended by a policy change
	Connections  int    `json:"connections"`  // remembered now
	AuditRecords uint64 `json:"auditRecords"` // written
	AuditLost    uint64 `json:"auditLost"`    // missing from the log, all causes
	LatencyP50   int64  `json:"latencyP50Ns"` // from receiving a packet to its verdict
	LatencyP99   int64  `json:"latencyP99Ns"`

	// Paths counts upcalls by the branch of the packet path they took.
	Paths map[string]uint64 `json:"paths"`
	// Kernel counts the packets that backends saw in the kernel, by what they did
	// with them: "afxdp pass/accepted".
	Kernel map[string]uint64 `json:"kernel"`
}

func (d *daemon) stats() Stats {
	e := d.engine.Stats()
	s := Stats{
		Dataplane: d.names, Why: d.why, Generation: d.generation(),
		Upcalls: e.Received, Passed: e.Passed(), Dropped: e.Dropped(), Deferred: e.Deferred(),
		Cut: e.Cut, Connections: d.connections(),
		LatencyP50: e.Latency.Quantile(0.50).Nanoseconds(), LatencyP99: e.Latency.Quantile(0.99).Nanoseconds(),
		Paths: map[string]uint64{}, Kernel: map[string]uint64{},
	}
	for i, n := range e.Paths {
		if n > 0 {
			s.Paths[dataplane.Path(i).String()] = n
		}
	}
	for _, b := range d.backends {
		bs := b.Stats()
		s.Bypassed += bs.Bypassed
		s.Accelerated += bs.Accelerated
		s.KernelDrops += bs.Dropped
		s.Overflow += bs.Overflow
		for i, n := range bs.Fates {
			if n > 0 {
				s.Kernel[b.Name()+" "+dataplane.Fate(i).String()] = n
			}
		}
	}
	if d.audit != nil {
		a := d.audit.Stats()
		s.AuditRecords, s.AuditLost = a.Records, a.RingLost+a.WriteLost+a.Unresolved
	}
	return s
}

// connections counts the connections remembered now.
func (d *daemon) connections() (n int) {
	d.engine.Flows(func(string, conntrack.Record) bool {
		n++
		return true
	})
	return n
}

// writeFile replaces path with v as JSON, so that a reader never sees half.
func writeFile(path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	if err := os.WriteFile(tmp, append(b, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
