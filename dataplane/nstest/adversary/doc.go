// Package adversary is a pod that an attacker owns: it builds frames, sends them
// raw from inside a pod's network namespace, and listens at every victim.
//
//	Attack   a row: a name, published relatives, what is sent, what must not arrive
//	Field    the hosts a row may use: the attacker, both ends of a connection of
//	         others, a host outside the cluster
//	Corpus   some thousand malformed and odd frames to one port
//
// The rows say nothing about a dataplane. Who runs them (cmd/internal/agent does,
// with the whole daemon, on every dataplane and both topologies) captures at the
// victims and looks for the row's mark.
package adversary
