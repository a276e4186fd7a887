// Package agent assembles the node daemon from its parts, so that tierwalld,
// the demo and tests start and stop the same thing.
//
//	manifests ─► controller ─► engine.SetTable ─► workers ◄─► backends ◄─► kernel
//	                              │
//	                              └─► event rings ─► audit writer ─► file
//
// [Run] is the daemon's whole life: read the configuration's world and
// policies, probe the kernel, attach, decide, and leave again as the fail mode
// says. It runs in the network namespace of the thread that calls it.
package agent
