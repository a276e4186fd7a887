// Package traffic makes and counts the packets of cluster tests: what a pod sends,
// what comes back, and what other pods hear of it. One process sends and listens at
// once, so that a pod can be subject and peer in the same test.
//
// The counts are exact where a test depends on it. Datagrams carry sequence numbers:
// one that is not answered in [Late] is lost. On a TCP stream a lost segment is
// repeated, so the kernel's own count tells (TCP_INFO): retransmissions, less those
// the other side reported as duplicates (RFC 2883), which were late and not lost.
//
// A process answers with its [Report] on the pod's loopback address, which no policy
// covers: run "traffic -ask" in the pod. Nothing but the standard library and the
// socket option is used; the program starts sending within a millisecond or so of
// its first instruction, before the kubelet or a policy engine has seen the pod run.
package traffic
