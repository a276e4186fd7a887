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
// evaluation is written out as the documents tell it. Between the APIs the order
// is docs/architecture.md's; within each it is the API's own:
//
//  1. Antrea tiers with a number below 220: by tier, policy priority and rule
//     index; ties go to the strictest action, then kind, namespace and name
//     (S2-62, X-40). The first match decides; Pass leaves out 4 as well (S2-23).
//  2. The upstream admin policies: AdminNetworkPolicy of the KEP with a positive
//     priority p, which ranks as 1001-p, AdminNetworkPolicy of the releases, and
//     ClusterNetworkPolicy v1alpha2 in tier Admin: by rank, policy name and rule
//     index. The first match decides; Pass goes on with 3.
//  3. ClusterNetworkPolicy of the KEP of 2021: all Empower rules, unless one
//     matched all Deny rules, then all Allow rules (S1-05…S1-10).
//  4. The other Antrea tiers but the baseline.
//  5. NetworkPolicy and Cilium policies: rules by order, a NetworkPolicy's being
//     0, deny before allow (S3-10…S3-14). When none matches and a policy isolates
//     the subject in the direction, dropped, by all that do. Which of several
//     rules with one answer is named is a convention: the first by namespace and
//     name of the policy, then by rule index.
//  6. The Antrea tier baseline.
//  7. The upstream baseline, as 2: KEP priority 0, BaselineAdminNetworkPolicy,
//     ClusterNetworkPolicy v1alpha2 in tier Baseline. Pass goes on with 8.
//  8. ClusterDefaultNetworkPolicy: additive, then isolation (S1-13…S1-18).
//  9. Allow.
//
// Host-network pods are nobody's subject and no selector's peer. A pod reaches
// itself, and a node reaches the pods it runs, whatever policies say.
//
// What documents leave open, and what is assumed here:
//
//   - A rule of 3 or 8 without peers is about every pod and nothing else: such
//     policies never match traffic from or to the outside (S1-26, S1-36). An
//     isolation of 8 holds against everybody.
//   - Antrea's ports and protocols sections add up: the second is for what the
//     first cannot say.
//   - Cilium authentication knows no order: what 5 allows is dropped when any rule
//     that matches requires it, since nobody here can authenticate (S3-32…S3-34).
//   - BaselineAdminNetworkPolicy has no priority and ranks behind those that do.
//
// Names have addresses only after [Simulator.Resolve]. The documents know no
// address that belongs to a pod nobody has told us about yet; X-61 says what is in
// doubt about one, and a rule that is in doubt and matters drops.
//
// The package is test support and is never imported by product code.
package simulate
