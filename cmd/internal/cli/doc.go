// Package cli holds what every Tierwall command shares, so that all of them
// behave alike: where output goes and in which form, when colour is used, what
// the exit code means, and how a directory of manifests becomes a decision
// table.
//
// # Exit codes
//
//	0  the question was answered (a verdict of Drop is an answer)
//	1  the answer is a finding: broken manifests, a mismatch on the wire
//	2  the question could not be asked or answered: wrong usage, no such pod,
//	   a missing privilege
//	3  a claim could not be decided within the bounds ("prove" alone)
//
// A command returns an ordinary error; [Code] maps it. Only [Finding] errors
// exit with 1, everything else is 2, so that a forgotten case never looks like
// a finding.
package cli
