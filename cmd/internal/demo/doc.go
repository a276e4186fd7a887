// Package demo shows Tierwall at work on a machine that has nothing but root:
// it builds a small world of network namespaces, starts the real daemon in its
// node, makes every connection there is, and compares what came through with
// what the decision table says.
//
//	manifests (world + policies) ──┬──► daemon, a child process in the node's namespace
//	                               │        ▲ packets            │ audit log, statistics
//	                               │        │                    ▼
//	                               │     probes ──► observed ──► report
//	                               └──► table  ──► predicted ──────┘
//
// The two columns of the report come from different code as far as possible: the
// observed one from the kernel and the daemon's packet path, the predicted one
// from a table compiled in this process from the same files.
//
// # What is left behind
//
// Nothing. The daemon is told to end, and killed if it does not; the kernel
// kills it when this process dies first (PR_SET_PDEATHSIG). Namespaces exist
// only as file descriptors of this process, so devices, routes, firewall rules
// and BPF attachments vanish with them. A temporary directory holds the
// manifests and logs; only SIGKILL leaves it. The namespace the demo was
// started in is never written to.
package demo
