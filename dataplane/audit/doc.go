// Package audit turns the dataplane's events into an audit log.
//
//	                                             ┌─► log: file (json, antrea-v1, antrea-v2), rotated, chained
//	worker ─► ring ─┐                            │
//	worker ─► ring ─┼─► Writer: resolve, collect ├─► standard output, syslog (RFC 5424)   each behind a bounded
//	worker ─► ring ─┘   denials, format          └─► stream: readers of a local socket    queue of its own
//
// The packet path writes value-only events and never waits. One [Writer] drains
// the rings, resolves rule ids against the table that decided (not the current
// one), and writes whole lines. Where nothing happens it sleeps, until a worker has
// handed its verdicts back and rings.
//
// # What is recorded
//
//   - An allowed connection: its first packet, once (S2-83, S2-87). One record
//     for each rule that asked for it: rules passed through ("Pass") come first,
//     then the deciding one; the source's egress side before the destination's
//     ingress side. Only the side enforced on this node produces records.
//   - A denied packet: every packet, but equal ones within one second become one
//     record with a count (S2-86, X-53). Records of rules that allowed or passed
//     such a packet on its way to the denial are not aggregated. Under a port
//     scan all ports between two addresses become one record, see Record.Ports.
//   - A default deny names every policy that isolates the pod.
//   - An audit-only policy: a record with stage "audit" and the verdict it would
//     have had, "would-drop" and so on.
//   - A gap: whatever could not be kept leaves a record of kind "lost" with the
//     exact number and the time range.
//
// # What it guarantees
//
// Complete or honest. Every event a ring was offered is accounted for: by its
// records, by the count of an aggregate, or by a lost record. Four things can
// go wrong, and each is told exactly:
//
//	ring-full     the writer was slower than the traffic          the ring counts
//	write-failed  the disk is full, an output does not answer     the output counts
//	crash         the daemon died with events in memory           the state file counts (Config.State)
//	torn-line     it died in a write, and there was no state      one line at least
//
// The count after a crash is exact for JSON. Antrea's lines cannot carry a
// number, so there it may include records of the last write that did get into
// the file; it is never too low. It is a lower bound after a power failure.
//
// Lines are never torn: they are written in buffers of whole lines, what a full
// disk cut off is taken back, and what a killed writer left is taken away by the
// next one. Rotation loses nothing: the new file exists before the old one is
// renamed, numbers and hashes go on across files.
//
// Memory is bounded: windows, plans, hosts and queues all are. A slow output or
// reader costs its own records, never the log's.
//
// # What it costs
//
// What a record says about the decision is worked out and formatted once per
// decision of a table; a line then is a few copies and numbers, and allocates
// nothing. See bench/audit for figures.
//
// # What it leaves to you
//
// The hash chain (Config.Chain, [Chain]) shows changes, but not a
// cut at the very end: keep Chain.Last, or a copy at a syslog receiver. Rotation
// may be left to other programs: a file that was moved away or truncated is
// noticed within a second, and [Writer.Reopen] does so at once. [Follow] reads a
// log as it grows, [Open] also a compressed file of it.
package audit
