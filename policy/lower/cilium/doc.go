// Package cilium lowers cilium.io/v2 CiliumNetworkPolicy and
// CiliumClusterwideNetworkPolicy: their layers 3 and 4, with the explicit order of
// the proposal CFP-23380.
//
// A policy holds one or more specs. Each selects pods and has up to four lists:
//
//	ingress, egress           rule.Allow   in rule.BandNetworkPolicy
//	ingressDeny, egressDeny   rule.Deny    in the same band
//
// A direction with rules isolates the pods (one rule.Isolation), deny rules
// included, unless enableDefaultDeny says otherwise. The band is shared with
// NetworkPolicy: what either allows is allowed.
//
// # Order
//
//	spec.order    lower is stronger; 0 when absent (S3-01, S3-13)
//	same order    deny beats allow, of whatever policy and kind (S3-07, S3-14)
//
// NetworkPolicy rules count as allow rules of order 0. So without orders a Cilium
// deny beats everything, and a cluster without the field behaves as ever. Only a
// clusterwide policy may go below 0 (S3-15). In rule.Order: Priority is the order,
// Class is -1 for deny and 0 for allow. Among rules that decide alike, explain
// names the first by policy name and place.
//
// The proposal describes how to enter ordered rules in a longest-prefix map so
// that no weaker rule shines through a stronger one (S3-19…S3-31). That is how to
// reach first-match-by-order with that map; here first match is what the rules
// mean, and flattening is the classifier's (S3-03, S3-44).
//
// # Who is selected
//
//	fromEndpoints: absent     anybody, if the rule has toPorts or icmps
//	fromEndpoints: []         nobody; likewise the other peer lists
//	fromEndpoints: [{}]       every pod of the policy's namespace; of the cluster
//	                          if the policy is clusterwide
//	ingress: [{}]             a rule that says nothing matches nothing, so this
//	                          isolates: Cilium's customary default deny
//
// Label keys may have the source prefixes k8s: and any:. These keys are not pod
// labels; all other keys are, also those that Cilium's label filter hides from
// its identities by default:
//
//	io.kubernetes.pod.namespace               the namespace's name
//	io.cilium.k8s.namespace.labels.KEY        the namespace's label KEY
//	io.cilium.k8s.policy.serviceaccount       the pod's service account
//
// A peer selector with one of the first two chooses namespaces itself.
//
// # Peers that are not pods
//
// CIDR rules and the world entities match neither pods nor nodes, as in Cilium.
// Pods are left out by rule.IPBlock.NoPods; the addresses of the inventory's
// nodes are written out as holes of the block, so a new node changes the rules.
//
//	all, none                 anybody, nobody
//	world, world-ipv4/-ipv6   outside the cluster, by family
//	cluster                   all pods and all nodes
//	host, remote-node         the pod's own node, the others: see below
//	init, health              such endpoints do not exist here: nobody
//	ingress, unmanaged,       refused: who that is cannot be told
//	kube-apiserver
//
// On ingress the connections of a pod's own node are allowed before any rule is
// asked, so host adds nothing and remote-node is all nodes. On egress only
// both together can be expressed, as all nodes; one alone is refused.
//
// toServices becomes the pods the Service selects, on every port: packets are
// judged when the Service proxy has chosen a backend. A Service without a selector
// has backends no object here tells of; it matches nothing, with a warning.
// toNodes and fromNodes are sets of node addresses. toFQDNs are sets that only DNS
// answers can fill.
//
// # Ports
//
// port is a quoted number or a name; "0" is every port. Protocol ANY, the default,
// stands for TCP, UDP and SCTP. A rule without toPorts and icmps matches every
// protocol.
//
// # Authentication
//
// A rule with authentication.mode required allows only connections whose ends have
// authenticated each other. Nothing here can do that, so what such a rule matches
// is dropped. Authentication is not a verdict: it holds for all that the rule
// matches, whichever rule of whatever order and selector allows it (S3-32…S3-34).
// It is lowered to an Allow with rule.Rule.Auth, whose word is "Allow (auth
// required)"; a connection that is denied anyway is attributed to what denies it.
// Mode disabled asks for nothing and lifts nothing.
//
// # What is refused
//
// Layer 7 rules, TLS, listeners and server names; nodeSelector (policies of
// hosts); fromRequires, toRequires; CIDR groups and cloud groups. None of them is
// ever dropped in silence: an allow without its layer 7 part would be too wide.
//
// # Scope of one update
//
// Lowering sees the whole inventory at once, so a pod that comes or goes is in all
// rules or in none (S3-35…S3-38, S3-41).
package cilium
