// Package nfqueue is the complete enforcement point: it makes the kernel hand the
// first packet of every connection of a policed pod to userspace, after DNAT and
// defragmentation, and keep the rest of the connection to itself.
//
//	                           table inet tierwall
//	forward ─► fast mark of a fast path in front? ─► accept
//	           ct mark has the accept bit? ─ yes ─► accept (counter "bypassed")
//	           packet mark has it? ───────── yes ─► passed: ct mark |= accept bit,
//	             │ no                        ▲              our packet mark bits cleared
//	             ▼                           │
//	           address in @selected, or in   │ verdict "repeat" with the accept bit:
//	           @local and not in @free? no ──┼─► accept      once more from the start
//	             │ yes                       │
//	             ▼                           │
//	           arrived: forged? ─ yes ──► drop (counter "forged")
//	             │ no                        │
//	             ▼                           │
//	           judge: reply bit if "ct direction reply" ─► NFQUEUE ─► Driver ─► Worker
//
// The input hook does the same for what pods send to the node itself. The output
// hook accepts the node's own traffic to its pods without asking and marks
// those connections, so that the replies are not judged either; what passes the
// output hook with an address that is not the node's own (IPVS) is judged.
//
// @selected holds the addresses of pods that some policy selects. @local holds the
// prefixes the pods of this node live in (rule.World.LocalPrefixes), @free the
// addresses in them of pods no policy selects. What has an address in @local and
// in neither of the others is a pod that runs and nobody has heard of yet, or one
// that is gone: userspace decides, and denies unless the fail mode is open. So a
// pod that starts before its policies are known leaks nothing; TCP tries again.
//
// Where the table has no such prefixes, Config.PodCIDRs names networks that the pods of all
// nodes share. An unknown address in them is dropped by the rules themselves, on devices
// that pods may be behind (unknown.go).
//
// # Why like this
//
// The verdict travels as a packet mark that a rule copies to the connection: a
// verdict can set the connection's mark directly only on kernels with
// CONFIG_NETFILTER_NETLINK_GLUE_CT. The packet meets that rule by taking the hook
// a second time (NF_REPEAT), which costs the first packet of a connection what a
// chain behind ours would cost every packet. Packets are received without
// allocation, a batch at a time, by this package's own decoder on go-nfqueue's
// socket (docs/adr/0003). Native nft "queue" expressions are used where the kernel
// has them (CONFIG_NFT_QUEUE), the xtables NFQUEUE target through nft_compat
// elsewhere; New finds out. Once installed, rules never change, only set elements
// do: removing a rule's hook drops every packet that waits in a queue.
//
// # Services
//
// A connection to a Service is judged with the backend as its destination, and rules
// to Services (rule.PeerService) by where it was opened to. The original destination
// comes with the packet as a tag in its priority, for the Services that rules name
// (services.go); that takes Linux 5.18. On older kernels rules to Services match
// nothing here, and the log says so.
//
// # Changes of policy
//
// Update takes the accept bit from the connections the new table denies. The kernel
// has no way to find these but to walk its whole table, which takes tens of
// milliseconds. So the Backend keeps a list of what it marked (ledger.go): from the
// packets workers judged, of which the engine tells it (dataplane.Backend.Learn), and from a
// walk where it does not know. An update asks the list, and the kernel for what is
// denied, by name:
//
//	destination not translated, zone 0     the ends the packet showed
//	translated, the one connection told    the ends an answer shows
//	source replaced, zones, doubts         a walk for one of its addresses
//
// The list is not complete in the first seconds, and after more was accepted in half a
// second than a worker's table holds: then an update walks as if there were none.
//
// # Refusals
//
// For Reject the verdict is "repeat" too, with both of our bits: the rules then
// refuse the packet in the kernel, by a TCP reset (S2-21) or ICMP administratively
// prohibited (S2-22). The answer belongs to the packet's connection, so a client
// of a Service hears it from the Service's address. What the output hook judges,
// and everything on a kernel without nft "reject", is dropped without a word.
//
// # Guarantees
//
//   - A packet of a selected or unknown pod passes only after a verdict, or as part
//     of a connection with the accept bit. Packets conntrack calls invalid or does
//     not track have no connection that could carry the bit, so each one is judged.
//   - New replaces the table of an earlier run in one transaction that carries
//     over the set elements: there is no moment without enforcement.
//   - With FailOpen unset nothing opens when the process stops, dies or is slow:
//     new connections of selected pods are dropped by the kernel, accepted ones
//     keep flowing.
//   - After Update returned, no connection in the kernel's table that the new table
//     denies carries the accept bit. One that gets there later, because its first
//     packet was held in somebody else's queue, loses it within a second.
//   - If other software changes or deletes the table, it is put back within
//     milliseconds, and counted (BackendStats.Restored). In between the node is
//     open, and packets that wait in a queue are lost; what passed is judged by
//     its next packet.
//   - Every packet put into a queue is counted as received, lost or unheard; see
//     Backend.Stats.
//
// # DNS
//
// A Tap is a table and a queue of its own, behind all that judges, for whoever
// learns from DNS answers (package dns). It fails open: what it looks at has been
// accepted.
//
// # What it leaves to you
//
//   - Neighbour discovery (RFC 4861: types 133 to 137 with hop limit 255) to the
//     node is accepted in the kernel. Everything else that cannot be parsed is
//     the Worker's to decide.
//   - Packets that this host sends on behalf of a pod to refuse a connection from
//     a socket of its own (another backend's answers) must carry Marks.Accept in
//     the packet mark (SO_MARK): the output hook lets them pass and does not mark
//     the connection.
//   - With the AF_XDP fast path in front, forget its flows before calling Update, and
//     set Config.FastMark: a packet that the fast path passes with the accept bit
//     marks the connection, with the fast mark alone it does not.
//   - A connection that a conntrack helper expects (the data connection of FTP)
//     inherits the mark of its parent and passes with it until policy changes. Helpers
//     act only where somebody assigns them.
//   - Traffic between two pods on one Linux bridge meets the forward hook only
//     with br_netfilter, which JudgeBridges switches on for the pods' bridges.
//   - IPVS moves packets between hooks before DNAT is visible; egress to a Service is
//     then judged by its virtual address, which suits rules to Services and no others.
//
// Not concurrent: Backend's methods belong to one goroutine, but Stats and Learn, a
// Driver's to its worker's, but Close. Everything happens in the network namespace of the
// thread that called New, whatever thread is used later.
package nfqueue
