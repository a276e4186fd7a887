// Package classifier is the compiled form of a policy and its lookup.
//
// [Compile] turns rules and the world they talk about into a [Table]; one
// [Table.Lookup] then answers which rule decides a connection, in time that
// does not depend on the number of policies. [Live] does the same and stays open
// for changes: a [Delta] becomes the next Table at the cost of what changed.
//
// # From addresses to outcomes
//
//	address ──► party ──► subject ────────┐
//	address ──► party ──► peer class ─────┴─► cell ──► program ──► outcome
//
// An address resolves to a party: pods and nodes by exact match, everything else
// by longest-prefix match over the prefixes that policies mention. An address
// inside a pod CIDR that no pod has is unknown: rules that go by addresses match as
// they do outside, those that ask for a pod are in doubt.
//
//   - A subject exists for the pods policed on this node. It is the ordered list
//     of rules and isolations that select them, by direction.
//   - A peer class is what any policy could see of the other side: a pod's
//     identity (namespace, labels, service account, named ports), the prefixes
//     around its address, whether it is this node. It does not depend on the
//     policies, so a change of policy touches no peer, however many there are.
//   - A cell remembers the program for a (subject, peer class). It is filled the
//     first time somebody asks: only then are the subject's rules matched with
//     that peer. Cells are a bounded cache; a missing one costs microseconds and
//     never a different answer.
//   - A program holds sorted, disjoint port intervals per protocol, each with its
//     [Outcome]. Bands, skips, isolation and order are gone by then: building the
//     program walked them once per interval. Programs and outcomes are
//     hash-consed. Where rules name very many ports a goroutine of its own builds
//     the program, and until then the rules are walked.
//
// # What changes cost
//
//	pod            its labels are hashed, its address's page is copied; a local
//	               pod asks the selector index which policies select it
//	policy         every local subject is asked whether it is selected; the
//	               cluster is never scanned
//	address set    one prefix each; known addresses inside move to its leaf
//	namespace      as many times a pod as it has pods
//
// A new prefix that covers known pods visits these: tens of milliseconds if it
// covers a hundred thousand, once per prefix. The private networks and the
// default route have their leaves from the start.
//
// # What a Table guarantees
//
// It is immutable as seen from outside: the same key always gives the same
// decision, and ids from a Decision resolve in the table they came from for as
// long as it is kept. Tables of one Live share pages, subjects and cells; a
// writer makes new ones and changes none that a reader can reach. Any number of
// goroutines may use any number of tables; Lookup takes no lock and allocates
// nothing once the cell is there. Filling takes a lock that only other first
// touches wait for.
//
// # What is left to the caller
//
// [Report.Affects] tells which connections a change may decide differently; to
// re-evaluate them is the dataplane's business. Source of the world is whoever
// calls: the package knows no Kubernetes.
package classifier
