// Package proposal turns an audit log into recommended policies and prints them.
//
//	Reader.Add ─► recommend.Seen ─► Recommendation ── Replay.Add ─► Proposal ─► YAML, JSON
//
// The log is read twice: first to see what connections there are, then to judge
// every decision again by the recommended policies, with the engine of "tierwall
// audit simulate".
package proposal
