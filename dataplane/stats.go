package dataplane

import (
	"math/bits"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Path is the branch of the packet path a packet took. Every received packet
// takes exactly one, so the counts of all paths add up to the packets received.
type Path uint8

// Paths. Pass, Defer and Drop say what the driver was told.
const (
	PassNotIP         Path = iota // not IP: none of our business
	PassLinkLocal                 // neighbour discovery, MLD, IGMP: never forwarded
	PassHit                       // known connection, decided by the current table
	PassRejudged                  // known connection, allowed again by a newer table
	PassKept                      // known connection of an older table, and Established is keep
	PassNew                       // a new connection, allowed
	PassRelated                   // ICMP error about an allowed connection, or allowed by itself
	PassNotReady                  // no table yet, fail mode open
	DeferFragment                 // piece of a datagram: the hook behind defragmentation decides
	DeferVIP                      // Service address: decided after DNAT
	DeferDenied                   // denied here, but a later hook may know the connection
	DeferRelated                  // ICMP error about a flow not known here
	DeferNotReady                 // no table yet, fail mode open, and a later hook exists
	DropProblem                   // malformed or undecidable, see Stats.Problems
	DropNotReady                  // no table yet, fail mode closed
	DropPolicy                    // a new connection, denied
	DropCut                       // a known connection, denied by a newer table
	DropRelated                   // ICMP error about a denied connection, or denied by itself
	DropICMPInner                 // ICMP error that quotes too little, or a packet its receiver did not send
	DropUnknownLocal              // one end is in this node's pod prefix, but no pod is known to have it
	DropUnsolicited               // ICMP echo reply that nobody asked for
	DropRouterMessage             // redirect, router advertisement, DHCP server's answer: a pod is none of these
	DropTunnel                    // from a pod to a node's end of a tunnel
	NumPaths          = int(DropTunnel) + 1
)

var pathNames = [NumPaths]string{
	"not-ip", "link-local", "hit", "rejudged", "kept", "new", "related", "not-ready",
	"fragment", "vip", "denied", "related", "not-ready",
	"problem", "not-ready", "policy", "cut", "related", "icmp-inner", "unknown-local", "unsolicited", "router-message", "tunnel",
}

// dispositions is what each path tells the driver.
var dispositions = [NumPaths]Disposition{
	PassNotIP: PassPacket, PassLinkLocal: PassPacket, PassHit: PassPacket, PassRejudged: PassPacket,
	PassKept: PassPacket, PassNew: PassPacket, PassRelated: PassPacket, PassNotReady: PassPacket,
	DeferFragment: DeferPacket, DeferVIP: DeferPacket, DeferDenied: DeferPacket,
	DeferRelated: DeferPacket, DeferNotReady: DeferPacket,
	// Drop* are the zero value, DropPacket.
}

// Disposition returns what the path tells the driver to do.
func (p Path) Disposition() Disposition { return dispositions[p] }

// Name returns the path's name inside its disposition, a bounded metric label.
func (p Path) Name() string {
	if int(p) < len(pathNames) {
		return pathNames[p]
	}
	return "invalid"
}

// String returns "pass/hit", "drop/policy" and so on.
func (p Path) String() string {
	if int(p) >= NumPaths {
		return "invalid"
	}
	return dispositions[p].String() + "/" + pathNames[p]
}

// String returns "drop", "pass" or "defer".
func (d Disposition) String() string {
	switch d {
	case PassPacket:
		return "pass"
	case DeferPacket:
		return "defer"
	}
	return "drop"
}

// Histogram counts durations in buckets of a quarter power of two. The zero
// value is empty. It is a plain value: copy and add freely.
type Histogram struct {
	Buckets [NumBuckets]uint64
}

// NumBuckets is the number of histogram buckets. Buckets 0 to 3 hold 0 to 3 ns;
// after that every power of two has four. The last one is open upwards.
const NumBuckets = 4 * 36

// bucketOf returns the bucket of a duration; negative durations count as zero.
func bucketOf(ns int64) int {
	if ns < 4 {
		return int(max(ns, 0))
	}
	top := bits.Len64(uint64(ns)) - 1 // ≥ 2
	b := (top-1)*4 + int(uint64(ns)>>(top-2)&3)
	return min(b, NumBuckets-1)
}

// BucketLimit returns the exclusive upper bound of bucket i. The last bucket's
// bound is nominal: it also holds everything longer.
func BucketLimit(i int) time.Duration {
	if i < 4 {
		return time.Duration(i + 1)
	}
	top, sub := i/4+1, i%4
	return time.Duration(uint64(5+sub) << (top - 2))
}

// Count returns the number of observations.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Buckets {
		n += c
	}
	return n
}

// Add adds another histogram's observations.
func (h *Histogram) Add(o *Histogram) {
	for i, c := range o.Buckets {
		h.Buckets[i] += c
	}
}

// Quantile returns an upper bound of the q-quantile (0 < q ≤ 1), at most a
// quarter above the true value, or 0 without observations.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.Count()
	if n == 0 {
		return 0
	}
	rank := uint64(q * float64(n))
	if float64(rank) < q*float64(n) || rank == 0 {
		rank++
	}
	var seen uint64
	for i, c := range h.Buckets {
		if seen += c; seen >= rank {
			return BucketLimit(i)
		}
	}
	return BucketLimit(NumBuckets - 1)
}

// Stats are totals since start, of one worker or (Engine.Stats) of all.
type Stats struct {
	Received  uint64                     // packets received from the driver; equals the sum of Paths
	Batches   uint64                     // Recv calls that delivered packets
	Paths     [NumPaths]uint64           // by branch
	Problems  [packet.NumProblems]uint64 // DropProblem and DeferFragment by problem; first fragments count as later ones
	Answers   [NumAnswers]uint64         // refused packets whose sender was to be told, by what became of that
	Remember  uint64                     // packets whose connection the kernel was asked to keep to itself
	Events    uint64                     // events offered to the ring
	Lost      uint64                     // of those, not kept because the ring was full
	Cut       uint64                     // live connections removed because a newer table denies them
	RecvFails uint64                     // Recv errors other than ErrClosed
	ApplyFail uint64                     // Apply errors; the batch's packets are counted by Paths all the same
	Latency   Histogram                  // from Recv's return to Apply's return, one observation per packet
	Conntrack conntrack.Stats            // the workers' connection tables
}

// Passed, Deferred and Dropped sum the paths by disposition.
func (s *Stats) Passed() uint64 { return s.sum(PassPacket) }

// Deferred returns the packets left to a later hook.
func (s *Stats) Deferred() uint64 { return s.sum(DeferPacket) }

// Dropped returns the packets dropped.
func (s *Stats) Dropped() uint64 { return s.sum(DropPacket) }

func (s *Stats) sum(d Disposition) uint64 {
	var n uint64
	for p, c := range s.Paths {
		if dispositions[p] == d {
			n += c
		}
	}
	return n
}

// counters is the part of Stats that changes with packets: a worker counts in a
// private copy and publishes it once per batch, so counting costs plain adds.
type counters struct {
	received, batches, remember  uint64
	events, recvFails, applyFail uint64
	paths                        [NumPaths]uint64
	problems                     [packet.NumProblems]uint64
	answers                      [NumAnswers]uint64
	latency                      Histogram
}

// seqCounters publishes counters from one writer to any reader. A sequence lock:
// odd while the writer is at work, and a reader retries if it saw that or a
// change. Readers therefore never see half a batch: the invariant "received =
// sum of paths" holds in every snapshot. All words are atomics, so the race
// detector and weakly ordered CPUs agree that this is sound.
type seqCounters struct {
	seq   atomic.Uint64
	words [numWords]atomic.Uint64
}

const (
	wReceived = iota
	wBatches
	wRemember
	wEvents
	wRecvFails
	wApplyFail
	wPaths
	wProblems = wPaths + NumPaths
	wAnswers  = wProblems + packet.NumProblems
	wLatency  = wAnswers + NumAnswers
	numWords  = wLatency + NumBuckets
)

func (s *seqCounters) set(i int, v uint64) {
	// Most words do not change from batch to batch, and a load is far cheaper
	// than a store other CPUs must order.
	if s.words[i].Load() != v {
		s.words[i].Store(v)
	}
}

// publish copies c; bucket is the only latency bucket that changed, -1 for none.
func (s *seqCounters) publish(c *counters, bucket int) {
	s.seq.Store(s.seq.Load() + 1)
	s.set(wReceived, c.received)
	s.set(wBatches, c.batches)
	s.set(wRemember, c.remember)
	s.set(wEvents, c.events)
	s.set(wRecvFails, c.recvFails)
	s.set(wApplyFail, c.applyFail)
	for i, v := range c.paths {
		s.set(wPaths+i, v)
	}
	for i, v := range c.problems {
		s.set(wProblems+i, v)
	}
	for i, v := range c.answers {
		s.set(wAnswers+i, v)
	}
	if bucket >= 0 {
		s.set(wLatency+bucket, c.latency.Buckets[bucket])
	}
	s.seq.Store(s.seq.Load() + 1)
}

// read returns a consistent snapshot.
func (s *seqCounters) read() (c counters) {
	for {
		before := s.seq.Load()
		if before&1 == 0 {
			c.received = s.words[wReceived].Load()
			c.batches = s.words[wBatches].Load()
			c.remember = s.words[wRemember].Load()
			c.events = s.words[wEvents].Load()
			c.recvFails = s.words[wRecvFails].Load()
			c.applyFail = s.words[wApplyFail].Load()
			for i := range c.paths {
				c.paths[i] = s.words[wPaths+i].Load()
			}
			for i := range c.problems {
				c.problems[i] = s.words[wProblems+i].Load()
			}
			for i := range c.answers {
				c.answers[i] = s.words[wAnswers+i].Load()
			}
			for i := range c.latency.Buckets {
				c.latency.Buckets[i] = s.words[wLatency+i].Load()
			}
			if s.seq.Load() == before {
				return c
			}
		}
		runtime.Gosched()
	}
}

// add adds c to the totals.
func (s *Stats) add(c *counters) {
	s.Received += c.received
	s.Batches += c.batches
	s.Remember += c.remember
	s.Events += c.events
	s.RecvFails += c.recvFails
	s.ApplyFail += c.applyFail
	for i, v := range c.paths {
		s.Paths[i] += v
	}
	for i, v := range c.problems {
		s.Problems[i] += v
	}
	for i, v := range c.answers {
		s.Answers[i] += v
	}
	s.Latency.Add(&c.latency)
}

// Add adds another snapshot, as for totals over workers.
func (s *Stats) Add(o *Stats) {
	s.Received += o.Received
	s.Batches += o.Batches
	s.Remember += o.Remember
	s.Events += o.Events
	s.Lost += o.Lost
	s.RecvFails += o.RecvFails
	s.ApplyFail += o.ApplyFail
	s.Cut += o.Cut
	for i, v := range o.Paths {
		s.Paths[i] += v
	}
	for i, v := range o.Problems {
		s.Problems[i] += v
	}
	for i, v := range o.Answers {
		s.Answers[i] += v
	}
	s.Latency.Add(&o.Latency)
	c, o2 := &s.Conntrack, &o.Conntrack
	c.Records += o2.Records
	c.Inserted += o2.Inserted
	c.Replaced += o2.Replaced
	c.Evicted += o2.Evicted
	c.Expired += o2.Expired
	c.Removed += o2.Removed
	c.Hits += o2.Hits
	c.Misses += o2.Misses
}
