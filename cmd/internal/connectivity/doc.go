// Package connectivity holds the suite that every backend must pass: it runs the
// daemon on a node made of network namespaces, puts every sample policy of this
// repository into force, one after the other, and opens connections.
//
//	sample policies ── as YAML ──► daemon ── nfqueue, afxdp, auto
//	      │                           │ enforces
//	      ▼                           ▼
//	policy/simulate             pods ── ptp or bridge ── node ── host outside
//	  the expected answer       TCP, UDP, SCTP, ICMP × IPv4, IPv6
//	      │                     direct, ClusterIP, node port, hairpin
//	      └────────► compared ◄───────┘
//
// What happened is taken from three places. The client says whether its exchange
// was complete. A tap on the destination's device says whether anything of it
// arrived: for a denied connection nothing may, not even a packet whose answer is
// lost. The audit log says which direction refused it.
//
// Services are translated by the rules kube-proxy makes, in its nftables or its
// iptables mode. The kernel may have no SCTP sockets: the suite speaks the
// four-way handshake (RFC 9260 §5.1) over raw ones.
//
// "go test ./cmd/internal/connectivity" takes a few samples and a part of their
// connections; with -full it takes everything (several minutes). It needs root.
// The package is tests only: what it proves involves both halves of the program,
// and neither may import the other.
package connectivity
