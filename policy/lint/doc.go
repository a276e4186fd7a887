// Package lint finds policies that are valid and probably not what was meant. It
// looks at the objects' lowered rules and at the pods there are, so it knows
// nothing of dialects beyond where a finding points.
//
//	nobody      a policy selects no pod there is now
//	nothing     a rule can never match: no peer, a selector that contradicts itself,
//	            a named port no pod it could concern has
//	overridden  a NetworkPolicy's say about pods is taken away for all its subjects
//	            by a stronger rule that covers every pod and port (S0-67, S0-69)
//	dns         a pod's egress is restricted to a list that leaves DNS out
//	misplaced   a tierwall.io annotation on a namespace, where none is read
//
// Findings are warnings. A check that would have to guess stays silent: nothing is
// said about pods when the inventory has none, about DNS when all egress is cut
// (that is meant), or about a rule that only some subjects are overridden by.
//
// What one object or one dialect can tell by itself (rule names used twice, equal
// priorities, Pass at priority 0) comes from the dialect's Validate and Lower.
package lint
