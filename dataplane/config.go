package dataplane

import (
	"log/slog"
	"time"

	"github.com/tierwall/tierwall/conntrack"
)

// FailMode says what happens to packets that cannot be decided: because no table
// was published yet, or because one end is a pod of this node that the table does
// not know.
type FailMode uint8

// Fail modes. The zero value is the safe one.
const (
	// FailClosed drops, cause table-not-ready or unknown-local.
	FailClosed FailMode = iota
	// FailOpen passes before the first table, and does not let the kernel
	// remember. A pod that is not known has no policy; the other end's decides.
	FailOpen
)

// String returns "closed" or "open".
func (m FailMode) String() string {
	if m == FailOpen {
		return "open"
	}
	return "closed"
}

// Established says what a new table means for connections an older one allowed.
type Established uint8

// Established modes.
const (
	// Strict re-evaluates them; what the new table denies is cut.
	Strict Established = iota
	// Keep lets them run until they end. Best effort: a connection that its
	// table forgot (evicted, expired, restart) is new when it is seen again.
	Keep
)

// Config configures an Engine. Only Backends is required.
type Config struct {
	Backends    []Backend
	FailMode    FailMode
	Established Established
	// Conntrack bounds each worker's connection table, not the sum. Worker is
	// filled in. Limits that do not validate make New panic.
	Conntrack conntrack.Limits
	// RingSize is the event ring's size per worker; 0 means DefaultRingSize.
	RingSize int
	// AuditAll reports the first packet of every connection and every denied
	// packet, AuditDenies only the latter, whatever the rules ask for.
	AuditAll, AuditDenies bool
	// CutReset answers TCP segments of connections that exist, but are denied, with
	// a reset, whatever the verdict: each end of a connection that a new table
	// cuts learns it when it next sends. Without it they time out.
	CutReset bool
	// RejectRate bounds, per worker and second, how many packets are answered; 0
	// means DefaultRejectRate, less than 0 that none is. A burst of a tenth of it
	// is answered at once. What exceeds it is dropped without an answer.
	RejectRate int
	// Hits is told which rules decide; see Engine.CollectHits. nil: nothing is counted.
	Hits HitSink
	// Clock returns nanoseconds that never step back; nil means MonotonicClock.
	// It is read twice per batch and must be cheap and concurrency-safe.
	Clock func() int64
	// Logger gets state changes; nil discards. Nothing is logged per packet.
	Logger *slog.Logger
	// StallTimeout bounds how long SetTable waits for a worker to finish its
	// batch; 0 means DefaultStallTimeout.
	StallTimeout time.Duration
}

// Defaults of Config.
const (
	DefaultRingSize     = 8192
	DefaultStallTimeout = 2 * time.Second
	// DefaultRejectRate is what Linux bounds its own ICMP errors to
	// (net.ipv4.icmp_msgs_per_sec).
	DefaultRejectRate = 1000
)
