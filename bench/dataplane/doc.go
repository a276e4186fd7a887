// Package dataplane measures the ways a packet can take from pod to pod: through
// plain kernel forwarding, through the packet filters people use, and through
// each of Tierwall's backends.
//
//	  c0 … c7   bad   odd                     server
//	 ┌───────┐ ┌───┐ ┌───┐                  ┌────────┐
//	 │ eth0  │ │   │ │   │                  │ eth0   │ tcx: counts UDP, drops it
//	 └──┬────┘ └─┬─┘ └─┬─┘                  └───┬────┘
//	    │ veth   │     │                        │ veth
//	┌───┴────────┴─────┴────────────────────────┴────┐
//	│ node: forwarding, strict rp_filter, and one of │
//	│ kernel · conntrack · nft1000 · nfqueue_stock · │
//	│ nfqueue · afxdp · auto                         │
//	└────────────────────────────────────────────────┘
//
// A lab is such a node in network namespaces of its own, a subject is what stands
// between its pods. Four commands use them:
//
//   - dataplane: six measurements of every subject. All labs stand side by side
//     and a round takes each measurement of all of them in turn, so that a ratio
//     compares numbers taken within seconds; a busy machine moves both.
//   - flood: one pod sends denied flows as fast as a CPU can.
//   - churn: policies and pod labels change under traffic.
//   - restart: the daemon is killed, stopped and started under traffic.
//
// What is measured is cmd/tierwalld itself, started inside the node's namespace;
// "nfqueue_stock" is a child process too, so that no subject shares a scheduler
// or a garbage collector with the load.
//
// # What a number includes
//
// Sender, path and receiver share the machine. The cost of sending a packet and
// of counting it is part of every packet rate, the same for all subjects: ratios
// understate differences between paths. Rates are open loop ("what arrives while
// one CPU sends as fast as it can"), connects are closed loop.
//
// # What it leaves behind
//
// Nothing. Namespaces have no names and end with the process, however it ends;
// children die with it (PR_SET_PDEATHSIG); the namespace it was started in is
// never written to. Counts and times are bounded.
package dataplane
