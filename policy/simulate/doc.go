// Package simulate answers for the API objects themselves: no rule IR, no
// table, only what the APIs' own documents say, applied to pods and labels one
// policy at a time. It is the outer truth: where lowering and this package
// disagree, one of them has misread a document.
//
//	objects ── lower ──► rule.Set ── Compile ──► Table  ─┐
//	   │                     └────── oracle ─────────────┤ must agree on verdict,
//	   └──────────────── simulate ───────────────────────┘ policy and rule
//
// It shares nothing with policy/lower on purpose: labels are compared by
// Kubernetes' own selector library, prefixes by net/netip, and the order of
// evaluation is written out as the documents tell it:
//
//  1. AdminNetworkPolicies (KEP-2091 of 2022) with a positive priority, larger
//     number first, then by name; inside one policy the rules of the direction
//     from top to bottom (S0-14, S0-17, S0-19, X-40). The first match decides;
//     Pass goes straight to 2 (S0-06).
//  2. NetworkPolicies of the subject's namespace that select it and have the
//     direction among their policy types. If there is one, they make the final
//     decision: allowed when any rule of any of them matches, else dropped by
//     all of them together. Rules are additive, so which one is named is a
//     convention: the first by policy name, then by rule index.
//  3. AdminNetworkPolicies of priority 0, by name; Pass ends the search.
//  4. Allow.
//
// Host-network pods are nobody's subject and no selector's peer. A pod reaches
// itself, and a node reaches the pods it runs, whatever policies say.
//
// The documents know no address that belongs to a pod nobody has told us about
// yet. [Simulator.Evaluate] refuses those with [ErrUnknownAddress]; what Tierwall
// does with them is specified and tested in classifier/oracle.
//
// The package is test support and is never imported by product code.
package simulate
