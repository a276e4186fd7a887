// Package dataplane decides packets: it takes them from the kernel through a
// [Driver], asks the connection table and then the classifier, gives the verdict
// back, and leaves events for the audit log.
//
//	kernel                     one Worker per queue                    shared
//	──────                     ────────────────────                    ──────
//	           Recv(batch)
//	queue ───────────────────► clock, table pointer  ◄──────────────── Engine.SetTable
//	                           for each packet:                        (atomic pointer)
//	                             parse ─ malformed ──────────► drop
//	                             link-local signalling ──────► pass
//	                             ICMP error ─ about whom? ───► pass, defer, drop
//	                             conntrack ─ known ──────────► pass      hit
//	                                 │       older table ────► ask again pass or cut
//	                                 ▼ new
//	                             Service address ────────────► defer     judged after DNAT
//	                             table.Lookup ─ allowed ─────► pass, remember, conntrack
//	                                          ─ denied ──────► drop, or defer where a later
//	           Apply(batch)                                    hook may know the connection
//	queue ◄─────────────────── dispositions
//	                           counters, latency ───seqlock──► Stats
//	                           events ──────────────ring─────► audit.Writer
//
// # Who owns what, when
//
//   - Packet.Frame is the driver's memory. A worker may read it from Recv's
//     return to Apply's return and keeps nothing of it: [packet.Headers] is a copy.
//   - The Batch is the worker's. Between Recv and Apply only the worker writes to
//     it, and only to the second group of Packet's fields.
//   - A worker's counters, scratch event and ring end are its goroutine's. The
//     connection table has a lock of its own that only its worker takes per
//     packet; listings and SetTable take it for short steps. Where a backend
//     scatters a connection's packets over its workers ([Driver].Scattered), these share
//     the connections out by name, and each takes the others' locks for moments.
//   - A table is immutable. Workers hold it for one batch; the engine keeps the
//     last few so that the audit writer can resolve ids of events in flight.
//
// # Guarantees
//
//   - Every packet received takes exactly one [Path]; the paths' counts add up to
//     the packets received in every snapshot of [Stats]. What a backend's kernel side
//     did with a packet before that is its [Fate], of which each has one, too.
//   - The path from Recv to Apply allocates nothing, takes no lock another worker
//     takes (but a scattered one's, see above), logs nothing, and reads the clock
//     twice per batch.
//   - Whatever workers the packets of a connection come up at, and be it in the same
//     moment: it is one connection, and an answer to what was accepted is an answer.
//   - When [Engine.SetTable] has returned, no packet is decided by an older table
//     and no connection the new one denies is alive ([Strict]). An update costs
//     what its [Change] affects: the other connections are not looked at, and
//     keep the generation that admitted them, which decided as the new one does.
//   - Before the first table nothing is decided: the fail mode applies. It also
//     does where one end must be a pod of this node, but none that is known.
//   - An allowed connection makes at most one event, a denied packet one each.
//     An event that finds its ring full is counted, and the log shows the gap.
//
// # What is deferred, and to whom
//
// A driver in front of DNAT and defragmentation leaves Packet.Final unset: behind
// it the forward hook of the nfqueue backend judges again. Fragments, Service
// addresses, and denied packets that may belong to a connection which only that
// hook knows are deferred to it, without an event: the hook that decides records.
// A TCP segment that opens a connection belongs to no older one and is dropped
// at once. Where no later hook exists nothing is deferred.
//
// # What it leaves to you
//
// Where the verdict is Reject the worker builds the answer and a driver that can
// ([Driver].Reject) sends it, at a bounded rate; other drivers drop. Backends, in their
// own packages, say how packets come up and how the kernel remembers. One that has to
// find connections again is told of them ([Backend].Learn), one that can stop without losing
// what waits does so before the drivers close ([Backend].Drain). Package fake is a backend for
// tests, package audit the consumer of the events.
package dataplane
