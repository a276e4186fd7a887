// Package api is the daemon's local interface: what it enforces, which
// connections it knows, what it records. It can be read and not written.
//
//	kubectl tierwall flows ── port-forward ─► kubelet ─► 127.0.0.1:7380
//	tierwall flows --local ─────────────────────────────►  /api/v1/status
//	                                                       /api/v1/flows
//	                                                       /api/v1/audit
//
// [Handler] is the daemon's half, [Client] the commands' half; the Go types are
// the contract of the JSON.
//
// # Who can reach it
//
// It shares the listener of /metrics. That one may be opened to the network by
// configuration; this interface never is: a request is answered only if both ends
// of its connection are loopback addresses and its Host header names one (a web
// page that made a browser resolve its own name to 127.0.0.1 sends another). So
// it is read by processes on the node, host-network pods included, and by whoever
// the API server lets port-forward to the daemon's pod. It tells who talks to
// whom; it takes no orders.
//
// # Streams
//
// Connections and records come as JSON lines. The last line of a complete answer
// is {"end":{…}}, with what was left out: an answer without it was cut off, and
// the client says so. Answers are bounded, in lines and in how many are given at
// a time (status 429), so that reading costs the node little. No lock of the
// packet path is held while a reader is slow.
//
// # Parameters
//
// Those of the commands' flags, under the same names (auditlog.WordNames). One
// that is not known is an error and never ignored: an answer to another question
// would look like an answer to this one.
package api
