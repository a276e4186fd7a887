// Package nfqueue is the complete enforcement point: it makes the kernel hand the
// first packet of every connection of a policed pod to userspace, after DNAT and
// defragmentation, and keep the rest of the connection to itself.
//
//	                           table inet tierwall
//	forward ─► ct mark has the accept bit? ─ yes ─► accept (counter "bypassed")
//	           packet mark has it? ───────── yes ─► accept, remember in save
//	           address in @selected4/6? ──── no ──► accept
//	             │ yes
//	             ▼
//	           judge: reply bit if "ct direction reply" ─► NFQUEUE ─► Driver ─► Worker
//	                                                          │
//	save    ◄── verdict accept, packet mark = accept bit ◄────┘
//	           ct mark |= accept bit; our packet mark bits cleared
//
// The input hook does the same for what pods send to the node itself. The output
// hook accepts the node's own traffic to its pods without asking and marks
// those connections, so that the replies are not judged either; what passes the
// output hook with an address that is not the node's own (IPVS) is judged.
//
// # Why like this
//
// The verdict travels as a packet mark that a later chain copies to the
// connection: a verdict can set the connection's mark directly only on kernels
// with CONFIG_NETFILTER_NETLINK_GLUE_CT. Native nft "queue" expressions are used
// where the kernel has them (CONFIG_NFT_QUEUE), the xtables NFQUEUE target through
// nft_compat elsewhere; New finds out. Once installed, rules never change, only
// set elements do: removing a rule's hook drops every packet that waits in a
// queue.
//
// # Guarantees
//
//   - A packet of a selected pod passes only after a verdict, or as part of a
//     connection with the accept bit. Packets conntrack calls invalid or does not
//     track have no connection that could carry the bit, so each one is judged.
//   - New replaces the table of an earlier run in one transaction that carries
//     over the set elements: there is no moment without enforcement.
//   - With FailOpen unset nothing opens when the process stops, dies or is slow:
//     new connections of selected pods are dropped by the kernel, accepted ones
//     keep flowing.
//   - After Update returned, no connection that the new table denies carries the
//     accept bit.
//
// # What it leaves to you
//
//   - Neighbour discovery (RFC 4861: types 133 to 137 with hop limit 255) to the
//     node is accepted in the kernel. Everything else that cannot be parsed is
//     the Worker's to decide.
//   - Packets that this host sends on behalf of a pod to refuse a connection (TCP
//     reset, ICMP unreachable) must carry Marks.Accept in the packet mark
//     (SO_MARK): the output hook lets them pass and does not mark the connection.
//   - With the AF_XDP fast path in front, forget its flows before calling Update:
//     a packet it passes with the accept bit marks the connection again.
//   - A connection that a conntrack helper expects (the data connection of FTP)
//     inherits the mark of its parent and passes with it. Helpers act only where
//     somebody assigns them.
//   - Traffic between two pods on one Linux bridge meets the forward hook only
//     with net.bridge.bridge-nf-call-iptables=1. IPVS moves packets between hooks
//     before DNAT is visible; egress to a Service is then judged by its virtual
//     address.
//
// Not concurrent: Backend's methods belong to one goroutine, a Driver's to its
// worker's, except Close. Everything happens in the network namespace of the
// thread that called New, whatever thread is used later.
package nfqueue
