// Package lint finds policies that are valid and probably not what was meant. It
// looks at the objects' lowered rules and at the pods there are, so it knows
// nothing of dialects beyond where a finding points.
//
//	nobody      a policy selects no pod there is now
//	nothing     a rule can never match: no peer, a selector that contradicts itself,
//	            a named port no pod it could concern has; or matches nobody there
//	            is now: peers that select no pod, a node selector without nodes
//	shadowed    a rule that never decides, since a stronger one matches all it does
//	overridden  what a NetworkPolicy or one of Cilium's says about a connection is
//	            decided by a stronger policy: of each of its rules, what others deny
//	            of what it allows, and of each direction it isolates, what others
//	            allow (a note); with a connection for which it is so (S0-67, S0-69)
//	dns         a pod's egress is restricted so that DNS is left out, or
//	            so that the DNS cache of its node is
//	networks    a network of an upstream policy that covers pods, too
//	misplaced   a tierwall.io annotation on a namespace, where none is read
//
// Findings are warnings, or notes. A check that would have to guess stays silent: nothing is
// said about pods when the inventory has none, about DNS when all egress is cut
// (that is meant). Overrides are searched for exactly, among the pods there are and
// one address for each part of the outside that rules tell apart; connections to
// Services count by the backend they end at.
// A rule is shadowed when one other rule covers it by what is written; several
// rules that cover it together, or selectors that happen to select the same pods
// now, are not looked for.
//
// What one object or one dialect can tell by itself (rule names used twice, equal
// priorities, Pass at priority 0, wildcards without a dot, sets that only DNS could
// fill) comes from the dialect's Validate and Lower.
package lint
