// Package controller keeps the dataplane's table up to date: it loads what a
// source has, lowers and compiles it, and publishes the result.
//
//	Source ── change ──► wait for MinInterval ──► Load ──► lower.Build ──► Compile ──► Publisher
//	                     (coalesces a storm)        │          │             │           │
//	                                                └──────────┴── error ────┴───────────┘
//	                                              the last good table stays in force
//
// # What it guarantees
//
// A table is published only if everything the source had was understood. After an
// error finding (an object refused, a node that is not in the inventory, a fault
// while compiling) the table in force is the one from before, and [Status] says
// so until an input without errors arrives. Nothing is enforced in parts.
//
// Objects and rules that come to the same as what is in force, whatever their
// order, publish nothing. Every table has a generation of its own; numbers rise
// and may leave gaps, but never name two tables.
//
// A change is taken up at once after a quiet time, and within MinInterval of the
// last start in a storm, however long it lasts. A change during a load causes
// another one.
//
// A [Learner] fills the sets that no object knows, from DNS answers. Its news are
// taken up at once: only the sets are compiled, the source is not looked at.
//
// # What a change costs
//
// A source that is a [Follower] tells what changed, and of two sorts of changes
// that is all that is looked at: pods, and objects whose meaning depends on no
// other object (NetworkPolicies, Cilium's policies). They are made a
// classifier.Delta, some 0.1 ms for a pod and 0.5 ms for a policy, whatever the
// size of the cluster. Everything else (another kind, a Namespace, Node or Service,
// an address set that comes into use, anything there is a finding about, whatever
// follows a failure) takes the whole path above, which also is what a step has to
// come to: TestStepsEqualLoads compares them.
//
// # What it leaves to others
//
// How a change is noticed (the source), and how a table comes into force and what
// happens to live connections (the publisher). Publish runs on the controller's
// goroutine; while it blocks, nothing is loaded.
package controller
