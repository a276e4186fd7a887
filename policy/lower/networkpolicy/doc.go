// Package networkpolicy lowers networking.k8s.io/v1 NetworkPolicy.
//
// A policy selects pods of its own namespace and names the directions it speaks
// about (policyTypes). In those directions the pods are isolated: what no policy
// allows is dropped. Policies only ever add to what is allowed. So each policy
// becomes
//
//	one rule.Isolation per direction   what remains is dropped
//	one rule.Rule (Allow) per rule     in rule.BandNetworkPolicy
//
// for the directions in policyTypes. Rules of a direction that policyTypes leaves
// out have no effect, as in every implementation; they are warned about.
//
// # What is empty and what is missing
//
//	podSelector: {}            every pod of the namespace
//	policyTypes missing        Ingress; Egress too if there is an egress rule
//	ingress missing, [] ,null  no rule: nothing is allowed in
//	from missing or []         any peer, outside the cluster included
//	ports missing or []        any protocol and port
//	port missing in an item    every port of its protocol (TCP if not given)
//
// # Which rule decides
//
// Where several rules allow a connection the verdict is the same; explain and the
// audit log name the first by policy name and rule index.
//
// # Audit
//
// Rules and isolations are audited when the policy has the annotation
// tierwall.io/audit: "true", or its namespace the annotation
// networkpolicy.antrea.io/enable-logging: "true".
//
// # What admission we repeat
//
// Validate refuses what the API server's validation refuses. Two forms of
// ipBlock.cidr that only old API servers let in are treated by what can go wrong:
// leading zeros (octal or decimal?) and IPv4-mapped IPv6 are refused; bits set
// behind the prefix length are masked off with a warning, because objects stored
// before the API server refused them still exist and have one plain meaning.
package networkpolicy
