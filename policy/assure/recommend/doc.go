// Package recommend writes least-privilege policies for pods from connections that
// were seen.
//
//	audit log ─► Seen.Add ─► Seen ── Recommend ─► Recommendation
//	 manifests ─► assure.World ┘                   policies, notes, uncovered,
//	                                               never seen (tightness)
//
// A [Seen] counts connections of the chosen workloads by pods, protocol and port
// while the log is read; source ports and times are not kept, so its memory depends
// on how many different connections there are, and is bounded: see [maxConnections].
//
// [Seen.Recommend] groups pods by workload, finds for each the smallest label
// selector that matches just its pods ([group]), merges peers that are reached on
// the same ports into one rule, and writes the result in a policy language
// ([Dialects]). It decodes and lowers what it wrote as a daemon would, and asks the
// table of it, by package assure, what it allows beyond what was seen: exactly, over
// all pods, ports and outside addresses.
//
// Replaying the log is the caller's: [Recommendation].Table is what to replay it
// against.
package recommend
