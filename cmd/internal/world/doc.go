// Package world is the small cluster the demo runs in: one node, nine pods in
// three namespaces and a host outside, all of them network namespaces of this
// machine.
//
//	   namespace x            namespace y            namespace z
//	 x/a   x/b   x/c        y/a   y/b   y/c        z/a   z/b   z/c
//	  │     │     │          │     │     │          │     │     │
//	┌─┴─────┴─────┴──────────┴─────┴─────┴──────────┴─────┴─────┴─┐
//	│                     demo-node (routes)                      │
//	└──────────────────────────────┬──────────────────────────────┘
//	                               │ uplink
//	                            outside
//
// Everybody has an IPv4 and an IPv6 address and runs TCP and UDP echo servers on
// ports 80 (named "web", for UDP "web-udp") and 81 ("admin", "admin-udp"). Pods carry the labels pod=a|b|c
// and ns=x|y|z is on their namespaces.
//
// What the world guarantees is what [netlab] guarantees: it never writes to the
// namespace the process started in, and the end of the process, whatever its
// cause, is the end of the world. Only [World.Pin] leaves names behind until
// [World.Close] removes them.
//
// The package knows nothing about policy: it makes connections, says which ones
// came through, and describes itself as Kubernetes YAML.
package world
