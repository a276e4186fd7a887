// Package status tells the people who wrote policies what became of them: as
// conditions in the objects' status, and as events on NetworkPolicies, which have
// no status.
//
//	stored objects ─┐
//	the world ──────┼─ Judge ──► Verdict: what each object is worth by itself ─┐
//	                                                                           ├─ Status ──► patch, if anything changed
//	reports of nodes ── NewNodes ──► Count: how many nodes enforce it ─────────┘
//
// [Reporter] runs this and writes. Everything else here is a function of its
// arguments.
//
// # Conditions
//
//	Accepted             the object is understood and goes with the others; else the
//	                     errors, each with field path and hint
//	PriorityConflict     there while another policy of the same priority says something
//	                     else; the message names a connection both are about
//	Degraded             there with reason UnknownSelector while a selector has no field
//	                     this version knows
//	Dialect              which meaning an AdminNetworkPolicy has; False while
//	                     both are in the cluster and may not be
//	GroupMembersComputed of groups (S2-82)
//	Enforced             True when every node has this version of the object in the
//	                     table in force. The message begins "N of M nodes"
//
// Each carries the generation it is about. The policies of crd.antrea.io have
// phase, currentNodesRealized and desiredNodesRealized beside them: M is every
// Linux node, since every node takes in every policy, whether or not it has a pod
// concerned. Conditions others have put into the list stay.
//
// # How much is written
//
// A status is written when it says something new. What changes a status or a
// reason goes first, Limits.Writes a second; a message in which only numbers
// changed waits, and goes at Limits.Refreshes a second. Every write is an event
// for every node's watch: ten thousand policies times five thousand nodes is what
// these limits are about. A write names the version it is about, so it never
// overwrites what it has not seen.
//
// # Which version a node must have
//
// A status update raises the object's resourceVersion, and nodes tell the one they
// have seen only now and then. So a node counts as enforcing an object when it has
// reached the version with which the present content was first seen here, not the
// last one. A new leader starts from what the status says.
package status
