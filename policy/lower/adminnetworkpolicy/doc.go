// Package adminnetworkpolicy lowers policy.networking.k8s.io/v1alpha1: policy of a
// cluster's administrators, above and below what namespaces say with NetworkPolicy.
// Three APIs share the name AdminNetworkPolicy:
//
//	kep      KEP-2091 of 2022      larger priority is stronger, 0 is the baseline
//	v0.1.1   the first release     smaller priority is stronger, 0 is the strongest;
//	v0.1.7   the last release      the baseline is a kind, BaselineAdminNetworkPolicy
//
// # Which of them
//
// A document is told by its fields, before it is decoded:
//
//	kep      subject.namespaceSelector, subject.namespaceAndPodSelector, l4Selector,
//	         namespacedPods, namespaces.self, namespaces.notSelf
//	release  subject.namespaces, subject.pods, ports, a peer's pods
//	v0.1.1   (no field of the KEP and) namespaceSelector, sameLabels or
//	         notSameLabels under a peer's namespaces; a peer's pods.namespaces
//	v0.1.7   label selectors as a peer's namespaces; pods.namespaceSelector, nodes,
//	         networks, domainNames; and what has no field that tells
//
// A document with fields of two of them is refused, naming one of each. The
// annotation tierwall.io/dialect says it instead: kep, v0.1.1 or v0.1.7. What was
// found is in every rule's origin, and explain prints it.
//
// Since for priority the KEP and the releases mean the opposite, objects of both
// are refused together unless lower.Options allows it; the order is then the
// one of package upstream.
//
// # Bands and order
//
//	rule.BandAdmin      KEP priority 1000 … 1, release priority 0 … 1000
//	                    rule.BandNetworkPolicy
//	rule.BandBaseline   KEP priority 0, then BaselineAdminNetworkPolicy
//
// Policies of equal priority are ordered by name, rules by their place; a
// common subject is reported (S0-21, S0-68).
//
// # The releases
//
// Shared with ClusterNetworkPolicy v1alpha2 and described in package upstream:
// Allow and Deny are final, Pass leaves the band; a peer is pods, and under `to`
// also nodes, networks (which include pods, X-24) and domainNames. notSameLabels of
// v0.1.1 wants every key on both sides and one value that differs. What an
// unknown peer means: X-23, closed. The rest of this text is about the KEP.
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
package adminnetworkpolicy
