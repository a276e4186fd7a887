// Package rule is the one intermediate representation (IR) between what people
// write and what packets meet. Every policy language is lowered into it, and
// nothing downstream knows dialects.
//
// # The model
//
// A [Set] holds rules and isolations, a [World] holds the endpoints they talk
// about. For one connection and one [flow.Direction] there is a subject (the
// endpoint whose policy is asked) and a peer (the other side):
//
//	egress decision   subject = source,       peer = destination
//	ingress decision  subject = destination,  peer = source
//
// A decision walks the rules of its direction in [Order]:
//
//	skipped := no band
//	for each band, strongest first, that is not in skipped:
//	    for each rule of the band in Order whose Subject, Peers and L4 match:
//	        Allow                 → final; if a rule of the band that matches, too,
//	                                needs authentication: Deny, by that rule
//	        Deny, Reject          → final
//	        Skip                  → skipped |= rule.Skip, go on with the next
//	                                rule whose band is not skipped
//	    if an Isolation of the band selects the subject → Deny, final
//	Allow (the default)
//
// Skip is how Pass and Empower are expressed: a KEP AdminNetworkPolicy Pass
// skips the rest of [BandAdmin]; an Antrea Pass skips both Antrea bands before
// NetworkPolicy; Empower skips [BandClusterDeny]. No language's Skip can switch
// off another language's rules, because a band belongs to one language family.
//
// # What is left out on purpose
//
// Values here are parsed: selectors are requirement lists, addresses are
// prefixes, "any" is written out. Nothing is nil-means-all. Kubernetes types
// never appear.
package rule
