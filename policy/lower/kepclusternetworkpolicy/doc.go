// Package kepclusternetworkpolicy lowers ClusterNetworkPolicy and
// ClusterDefaultNetworkPolicy of KEP-2091 as it stood in 2021,
// netpol.networking.k8s.io/v1alpha1 (S1-01…S1-49). Two more groups have a kind
// called ClusterNetworkPolicy.
//
//	ClusterNetworkPolicy          rule.BandClusterEmpower   skips the next band only
//	                              rule.BandClusterDeny      final
//	                              rule.BandClusterAllow     final
//	                              rule.BandNetworkPolicy
//	ClusterDefaultNetworkPolicy   rule.BandClusterDefault   allows, then isolation
//
// There is no priority and no order among rules: the action alone says which comes
// first, over all policies of the cluster (S1-05, S1-06). The order the IR needs,
// by name and place, decides only which of several equal rules is named as the
// deciding one.
//
// # Empower
//
// An Empower rule takes Deny rules out of the way, nothing more. Allow rules are
// asked next, then NetworkPolicy and the default policies, any of which may still
// say no (S1-07, S1-08).
//
// # Isolation
//
// ClusterNetworkPolicy never isolates (S1-02). ClusterDefaultNetworkPolicy does,
// direction by direction: what reaches its band in a direction and is not allowed
// there is dropped, whoever the other side is, as with NetworkPolicy (S1-14). A pod
// that a NetworkPolicy isolates in a direction never gets that far (S1-12, S1-18,
//
//
// A direction is isolated when its field is written, even as null or []:
//
//	spec: {ingress: [{from: …}]}      ingress
//	spec: {ingress: , egress: }       both, nothing allowed
//	spec: {}                          none, with a warning
//
// # Peers
//
// Peers are pods, never addresses outside the cluster, and no `from` or `to` is
// every pod (S1-26, S1-36; the KEP's AdminNetworkPolicy reads the same as nothing,
// To open a pod that a default policy isolates to the outside takes a
// NetworkPolicy with ipBlock. Scopes Self and SameLabels are resolved per subject
// pod (S1-34, S1-35); a namespace without one of the labels is the same as none.
// Scopes written in another case are read with a warning, as the KEP's own examples
// do.
package kepclusternetworkpolicy
