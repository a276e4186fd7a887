// Package oracle is the slow, obvious evaluator of a [rule.Set]: it walks every
// rule for every connection, exactly as the package comment of classifier/rule
// describes, and remembers nothing between two calls.
//
// It is the truth the compiled table is tested against. Where the two disagree,
// read this package first: it has no cache, no index and no cleverness, so a
// disagreement is nearly always the table's mistake. It is test support and is
// never imported by product code.
//
// # What it decides
//
// An address is resolved once:
//
//	a pod        a non-host-network endpoint has it (the first in World order)
//	a node       a Node lists it, or a host-network endpoint has it
//	unknown      inside some Node.PodCIDRs, and none of the above
//	external     everything else
//
// Then each direction is decided on its own, the first line that applies:
//
//	the subject is no pod, or not local     Allow, not-local
//	source and destination are equal        Allow, self
//	ingress from the subject's own node     Allow, node-local     
//	otherwise                               the walk over the bands
//
// A connection passes only if both directions allow it; egress is asked first
// and names the verdict when both refuse.
//
// # Unknown peers
//
// A peer that lives inside a pod CIDR but is no endpoint (yet) must neither slip
// through a deny nor be taken for an outside address. The walk goes on past
// rules that cannot concern it, obeys rules for any peer, and stops at the first
// rule whose peers it cannot judge: Drop, unknown-peer. Every kind of peer
// except [rule.PeerAny] is such a peer, blocks and sets included: an address
// whose owner is unknown has no known class, and guessing by prefix would open
// what the rule's author meant for known addresses. A selector marked None
// selects nobody whoever the peer turns out to be, so it is never in doubt. A
// named port of an unknown destination is in doubt too, whatever the peers say:
// nobody knows which number the name will have there.
package oracle
