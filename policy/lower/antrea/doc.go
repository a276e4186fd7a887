// Package antrea lowers the policies of crd.antrea.io: ordered policy in tiers,
// for administrators (ClusterNetworkPolicy) and for namespaces (NetworkPolicy),
// with Tier, ClusterGroup and Group beside them.
//
// # Order
//
//	tier 0 … 219       rule.BandAntreaUpper     emergency 50, securityops 100,
//	                                            networkops 150, platform 200
//	       220         (upstream admin policies; no tier can have it)
//	     221 … 250     rule.BandAntreaLower     application 250: the default
//	                   rule.BandNetworkPolicy
//	       253         rule.BandAntreaBaseline  baseline
//
// Six tiers exist without anybody writing them (S2-09). Inside a tier the lower
// policy priority comes first, then the rule's place in its policy; the kind does
// not matter (S2-62). Rules equal in all three are ordered by strictness (Drop and
// Reject, Pass, Allow), then kind, namespace and name, alike on every node, and
// Lower warns where two of them disagree about a connection it can name.
//
// # Actions
//
//	Allow   final
//	Drop    final
//	Reject  final; the sender is told (S2-21, S2-22)
//	Pass    skips the Antrea tiers that are left; NetworkPolicy decides, then the
//	        baseline. Other APIs' rules are not skipped (S2-23)
//	Deny    Drop, with a warning: two samples of the documents use it
//
// A policy never isolates: what no rule matches keeps its fate (S2-18).
//
// # Readings where the documents leave a choice
//
//   - ports and protocols are one list: protocols adds what ports cannot name, so a
//     rule with both matches either.
//   - icmp means the messages of both families, its type and code literally: type 8
//     is the echo request of IPv4, 128 that of IPv6.
//   - An empty from or to is everybody; an entry without any field is refused, in
//     appliedTo, peers and groups.
//   - A group that turns out to have no pods (addresses only, a Service without a
//     selector or none at all) makes an appliedTo empty: the policy has no effect,
//     and Lower says so (S2-28, S2-74). A Service comes and goes on its own, so its
//     absence is a warning; a tier or group that is missing is an error.
//   - Groups and selectors in one policy: refused before v1beta1, as the documents
//     say (S2-32), accepted there, as Antrea does.
//   - A NetworkPolicy's appliedTo stays in its namespace by every way of writing
//     it: selector, service account or Group (S2-56).
//
// # What is refused, or accepted with a warning that it does nothing
//
//	appliedTo service, nodeSelector; external entities; ClusterSet scope;
//	l7Protocols                     refused
//	igmp in ingress                 queries are sent to a group, not to a pod
//	igmp version 3 with a group     the group is inside the message
//
// Node selectors mean the addresses in the Node objects; the addresses a network
// plugin gives a node for itself are in no object and not matched (S2-95).
package antrea
