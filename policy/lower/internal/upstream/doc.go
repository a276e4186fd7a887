// Package upstream has what the admin policy APIs of policy.networking.k8s.io
// share: the released AdminNetworkPolicy and BaselineAdminNetworkPolicy, and
// ClusterNetworkPolicy v1alpha2. Each dialect brings its objects into the one form
// here, [Policy], keeps its own checks for what differs, and has this package check
// and lower the rest.
//
// # One order for all of them
//
// All share two bands, and inside a band one scale of ranks, lower first:
//
//	rule.BandAdmin      ClusterNetworkPolicy tier Admin    priority 0 … 1000
//	                    AdminNetworkPolicy, released       priority 0 … 1000
//	                    AdminNetworkPolicy, KEP            1001 − priority, 1 … 1000
//	rule.BandBaseline   ClusterNetworkPolicy tier Baseline priority 0 … 1000
//	                    AdminNetworkPolicy, KEP priority 0 1001
//	                    BaselineAdminNetworkPolicy         1002
//
// The KEP's scale runs the other way, larger is stronger; mapped to 1001 − p it
// fills the same range. Equal ranks are ordered by policy name, then by the rule's
// place, and reported by [Conflicts].
//
// # Peers
//
//	namespaces, pods   pods of the cluster, never host-network ones
//	nodes              addresses of the selected nodes, an address set
//	networks           addresses in a prefix, those of pods included
//	domainNames        answers to DNS queries, an address set
//	                   "*." stands for one or more whole labels, the name behind it
//	                   is not included; filled from DNS answers
//
// # What this version does not know
//
// A peer without a field is one whose field this version does not know. Validation
// refuses it; an object that reaches lowering all the same came through an API
// server with a newer definition, and fails closed as the API asks: Allow
// matches nothing, Deny and Pass deny everything for their subject and direction.
// (The KEP's AdminNetworkPolicy is different: there such a peer selects nothing,
// whatever the action.)
package upstream
