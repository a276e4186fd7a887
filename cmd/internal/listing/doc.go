// Package listing puts the policies of every API into the one order they are
// evaluated in, for "tierwall get policies".
//
// The place of a policy is that of its strongest rule: band, tier, normalised
// priority, name (rule.Order). A policy that only isolates has its band and
// nothing else; one that lowered to nothing has no place and comes last.
package listing
