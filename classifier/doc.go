// Package classifier is the compiled form of a policy and its lookup.
//
// [Compile] turns rules and the world they talk about into a [Table]; one
// [Table.Lookup] then answers which rule decides a connection, in time that
// does not depend on the number of policies.
//
// # From rules to cells
//
//	address ──► record ──► subject class ─┐
//	address ──► record ──► peer class ────┴─► cell ──► program ──► outcome
//
// A class is the set of everything policy can tell apart about an endpoint:
// which selectors choose it, which prefixes contain it, the label values that
// relative selectors compare, the named ports that rules use. Pods of one class
// are indistinguishable to policy, so a hundred thousand pods become a few
// hundred classes.
//
//   - A subject class exists per direction for pods policed on this node; it
//     fixes the ordered list of rules and isolations that can apply.
//   - A peer class exists per direction for every address, known or not: pods
//     and nodes by exact match, everything else by longest-prefix match over
//     the prefixes that policies mention. An address inside a pod CIDR that no
//     pod has is unknown, which is a class of its own and never "external".
//
// A cell holds the program for one (direction, subject class, peer class):
// sorted, disjoint port intervals per protocol, each with its [Outcome]. Bands,
// skips, isolation and order are gone by then: filling the cell walked them
// once per interval. Cells are filled on first use; programs and outcomes are
// hash-consed.
//
// # What a Table guarantees
//
// It is immutable as seen from outside: the same key always gives the same
// decision. Any number of goroutines may call its methods; Lookup takes no lock
// and allocates nothing once the cell is filled. Filling takes a lock that only
// other first touches wait for.
package classifier
