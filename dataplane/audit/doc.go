// Package audit turns the dataplane's events into an audit log.
//
//	worker ─► ring ─┐                       ┌─ json       one object per line, schema version 1
//	worker ─► ring ─┼─► Writer: resolve ids,├─ antrea-v1  12 fields
//	worker ─► ring ─┘   aggregate, format   └─ antrea-v2  16 words
//
// The packet path writes value-only events and never waits. One [Writer] drains
// the rings, resolves rule ids against the table that decided (not the current
// one), and writes whole lines.
//
// # What is recorded
//
//   - An allowed connection: its first packet, once (S2-83, S2-87). One record
//     for each rule that asked for it: rules passed through ("Pass") come first,
//     then the deciding one; the source's egress side before the destination's
//     ingress side. Only the side enforced on this node produces records.
//   - A denied packet: every packet, but equal ones within one second become one
//     record with a count (S2-86, X-53). Records of rules that allowed or passed
//     such a packet on its way to the denial are not aggregated.
//   - A default deny names every policy that isolates the pod.
//   - An audit-only policy: a record with stage "audit" and the verdict it would
//     have had.
//   - A gap: whatever could not be kept (a full ring, a full disk) leaves a
//     record of kind "lost" with the exact number and the time range.
//
// # What it guarantees
//
// Lines are never torn: the file is opened for appending and written in buffers
// of whole lines. If a write stops in the middle of one (disk full) the next
// write starts on a new line, and what was cut off is counted as lost. Memory is
// bounded: the aggregation holds at most Config.MaxAggregates packets' worth of
// state and closes the oldest early when it is full, which loses no counts.
//
// # What it leaves to you
//
// Rotation: move the file away and call [Writer.Reopen] (the daemon does so on
// SIGHUP). [Follow] reads a log as it grows and across such rotations.
package audit
