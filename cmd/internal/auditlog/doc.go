// Package auditlog reads Tierwall's audit log: it finds a log's files, filters
// records, counts them, and asks what another policy would have decided.
//
//	audit.log            ─┐                        ┌─► Printer     tail, query
//	audit.log.<stamp>    ─┼─► Read, Tail ─► Filter ┼─► Top         who, by which policy, how often
//	audit.log.<stamp>.gz ─┘                        ├─► Staged      what promoting staged policies would do
//	                                               └─► Simulation  what another policy set would do
//
// The log is what dataplane/audit writes: one JSON record per line, rotated and
// compressed beside the file being written. Everything here streams: memory
// depends on how many different answers there are, not on how long the log is,
// and is bounded.
//
// # What it guarantees
//
// Nothing is hidden that would make a log look complete. A line that is no
// record is shown as it is; a record of kind "lost" passes every filter but
// those on time and node; what a summary could not count or judge is a number in
// the summary.
//
// Every line is read once, also while the log is being rotated and compressed.
// [Tail] notices by the records' sequence numbers when the log was rotated more
// than once between two looks, and gets the lines in between from the rotated
// files.
package auditlog
