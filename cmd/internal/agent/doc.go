// Package agent assembles the node daemon from its parts, so that tierwalld,
// the demo and tests start and stop the same thing.
//
//	manifests, or ──► controller ─► engine.SetTable ─► workers ◄─► backends ◄─► kernel
//	API server            ▲               │
//	                      │               └─► event rings ─► audit writer ─► file, …
//	        DNS tap ─► names learnt
//
// [Run] is the daemon's whole life: read the world and its policies, probe the
// kernel, attach, decide, and leave again as the fail mode says. It runs in the
// network namespace of the thread that calls it.
//
//	run.go                       start, serve, and stop in the order packets flow
//	config.go, load.go, afxdp.go the configuration; deploy/config.yaml is its manual
//	backends.go, successor.go    which backends run, and what they remove of others
//	kube.go, report.go           the API server: objects in, a Lease out
//	names.go                     addresses behind DNS names
//	api.go, metrics.go, stats.go what the daemon says of itself
package agent
