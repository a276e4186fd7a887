// Package clusternetworkpolicy lowers policy.networking.k8s.io/v1alpha2
// ClusterNetworkPolicy, the current admin policy of Kubernetes. Two more groups
// have a kind of this name: crd.antrea.io, and netpol.networking.k8s.io,
// the KEP of 2021.
//
//	tier Admin      rule.BandAdmin      before every NetworkPolicy
//	                rule.BandNetworkPolicy
//	tier Baseline   rule.BandBaseline   where no NetworkPolicy isolates
//
// Inside a tier the smaller priority is the stronger one, 0 to 1000; policies of
// equal priority are ordered by name, rules by their place. Both tiers are
// shared with the older APIs of the group; package upstream has the order.
//
// # Actions
//
//	Accept   final, NetworkPolicy isolation or not. For an egress rule it is the
//	         sender's side only: the receiver's rules are asked as well.
//	Deny     final
//	Pass     leaves the tier: Admin goes on to NetworkPolicy, Baseline to the
//	         default, which allows
//
// A policy never isolates. A pod's connections to itself are not judged.
//
// # Peers and protocols
//
// Peers are those of package upstream. pods may leave out its namespaceSelector,
// for all namespaces; podSelector must be there. A rule without protocols matches
// every protocol, ICMP included; networks matches ICMP of its family.
// destinationNamedPort is a container port's name, whatever its protocol, looked
// up on each destination pod.
package clusternetworkpolicy
