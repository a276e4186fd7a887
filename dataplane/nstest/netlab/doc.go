// Package netlab builds small networks out of Linux network namespaces: a node,
// its pods, a host outside, echo servers and probes.
//
// It serves privileged tests (through package nstest, which adds *testing.T)
// and the demo. It needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and veth.
//
//	  pod "x/a"           pod "x/b"                            outside
//	┌───────────┐       ┌───────────┐                      ┌────────────┐
//	│eth0       │       │eth0       │                      │eth0        │
//	└─┬─────────┘       └─┬─────────┘                      └─┬──────────┘
//	  │ veth              │ veth                             │ veth
//	┌─┴───────────────────┴──────────────────────────────────┴──────────┐
//	│tw1                  tw2            node               uplink0     │
//	│routes pod/32, pod/128 per veth; forwarding on; rp_filter strict   │
//	└───────────────────────────────────────────────────────────────────┘
//
// Guarantees:
//
//   - A namespace has no name and no mount: it lives as long as its file
//     descriptor. A process that dies, however it dies, leaves nothing behind.
//     [NS.Pin] is the exception, for those who want to enter it later.
//   - The namespace the process started in is never written to: links,
//     addresses, routes and sysctls are set through sockets and threads that
//     are inside the namespaces made here.
//   - Addresses are usable at once: neighbours are permanent entries and IPv6
//     duplicate address detection is off.
//
// Everything but [NS.Do] may be called from any goroutine; changing one Node
// from several goroutines at once is the caller's to serialise.
package netlab
