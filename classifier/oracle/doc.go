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
// An address inside a pod CIDR that no endpoint has is a device's (a bridge has
// one, flannel has one) or that of a pod nobody has told us about yet. A rule
// that goes by addresses alone, blocks and sets, is asked as for any other address.
// Where it matters whether there is a pod, and which, the rule is in doubt: every
// selector, a block that leaves pods out if it contains the address, and a named
// port of the destination. A selector marked None selects nobody whatever the peer
// turns out to be, so it is never in doubt. The walk goes on past rules that do not
// match and stops at the first one in doubt: Drop, unknown-peer. One exception: an
// Allow in doubt is passed over if the rules of its band come to an Allow anyway.
package oracle
