// Package scale measures one daemon in a cluster that is too large to have, and how
// long a change takes in one that is there. It is two subcommands of
// tierwall-bench; docs/scale.md says what follows from the figures.
//
// # Simulation
//
//	┌ a node's network namespace ─────────────────────────┐
//	│  simulated API server ══ TLS, HTTP/2 ══► tierwalld  │   client, stranger:
//	│   (this process)                          │         │   namespaces with pods
//	│                         tcx, nftables ◄───┘         │──► of the node
//	└─────────────────────────────────────────────────────┘   server: echoes
//
// [Run] starts a [Server] with the objects of a made-up cluster and the real daemon,
// as its own process. Objects are as large as API servers have them: most of a Pod
// is what controllers and the kubelet noted. The daemon sees no difference to a
// cluster, but for two: nothing is compressed, and the server answers at once.
//
// It measures the start, a cluster at rest (with and without the status that every
// kubelet writes each five minutes), a busy one, single changes, and reading
// everything anew after versions have expired.
//
// # Lag
//
// The lag of a change is from the moment before it is made, by packets: datagrams
// leave every 500 µs, which is the resolution. What a change allows is a flow that
// was denied, and counts from the first of its packets that gets through. What it
// denies is a flow that lives, and counts until the last one, so the cut of
// connections that the kernel has accepted is in it.
//
// [Lag] does the same in a real cluster; there the request to the API server is
// part of the time.
//
// Server and daemon share the machine: on one with few CPUs, or with other work,
// they wait for each other, and the figures are upper bounds. Reports have the
// load average.
package scale
