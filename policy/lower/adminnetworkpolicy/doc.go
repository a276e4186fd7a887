// Package adminnetworkpolicy lowers the AdminNetworkPolicy of KEP-2091 (2022),
// policy.networking.k8s.io/v1alpha1: policy of a cluster's administrators, above
// and below what namespaces say with NetworkPolicy.
//
//	priority 1000 … 1     rule.BandAdmin      before every NetworkPolicy
//	                      rule.BandNetworkPolicy
//	priority 0            rule.BandBaseline   where no NetworkPolicy isolates
//
// A larger number is stronger (S0-14); the IR wants lower first, so a rule's rank
// is −priority. Policies of equal priority are ordered by name, rules by
// their place, and Lower warns where they share a subject (S0-21, S0-68).
//
// # Actions
//
//	Allow   final, NetworkPolicy isolation or not (S0-05)
//	Deny    final (S0-04)
//	Pass    skips the rest of the admin band; the connection goes on to
//	        NetworkPolicy and then to priority 0 (S0-06, S0-07, X-16, X-20).
//	        At priority 0 it skips the rest of the baseline: the default, allow,
//	        decides; accepted with a warning.
//
// A policy never isolates: what no rule matches keeps its fate (S0-02, X-17).
//
// # Peers
//
// A peer is always pods, never an address outside the cluster, in either
// direction (S0-50). Nothing is implied: an empty from or to matches nothing
// (S0-31), and so does a peer or a set that uses an option this version does not
// know (S0-33, S0-35). Validate refuses such peers; Lower, which may meet
// one that an API server with other rules let in, makes them match nothing.
//
//	self, notSelf              namespace relative to the subject pod's
//	sameLabels [k…]            both sides have every key, with equal values
//	notSameLabels [k…]         the subject's side has every key, and for at least
//	                           one the peer's value differs or is absent
//	sameLabels [], the other   nothing (S0-42, S0-44)
//
// For namespaces the labels compared are the namespaces', for pods the pods'.
//
// # Which AdminNetworkPolicy
//
// The released API of the same group, version and kind has another shape and the
// opposite reading of priority. A document is told apart by its fields;
// this package refuses the released shape by naming the field that shows it.
package adminnetworkpolicy
