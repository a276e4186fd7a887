// Package fake is a dataplane backend in memory: a test hands it packets and
// reads what became of them. It needs no privilege and no kernel, and nothing
// but the engine under test decides.
//
//	Send ──► queue ──► Recv ─► worker ─► Apply ──► Results, Passed, Deferred, Dropped
//
// It is test support and is never part of a running daemon. Unlike a real
// driver it allocates (a timer per Recv, results if kept); allocation tests
// that measure the packet path drive a worker's batches directly.
package fake
