// Package afxdp is the fast path: programs on the pods' devices pass what
// belongs to an accepted flow, and bring the first packet of every other flow to
// userspace and back in about ten microseconds.
//
//	   pod                      node                            userspace
//	┌───────┐   pod_ingress ┌─────────┐
//	│ eth0 ─┼──► veth ──────┤ flows?  ├─ hit ──► stack, with the accept mark
//	│       │               └────┬────┘
//	│       │               miss │ source MAC := device, side, reply
//	│       │                    ▼                upcall_xdp
//	│       │                 tw-uc0 ═══════════► tw-uc1 ──► AF_XDP ──► Driver.Recv
//	│       │                    ▲                              socket      │ Worker
//	│       │     upcall_ingress │ source MAC restored, marks set           ▼
//	│       │                    └══════ tw-uc1 ◄─────────── transmit ◄─ Driver.Apply
//	│       │                    │                              both directions into
//	│       │   back to the same │ device, same side            "flows" before that
//	│       │   pod_egress  ┌────▼────┐
//	│      ◄┼─── veth ◄─────┤ flows?  │◄── stack
//	└───────┘               └─────────┘
//
// The device carries tcx programs in both directions (native XDP would see one
// direction only and switch the pod's TSO off). Misses of all devices meet on one
// veth pair that the daemon owns, so that pods come and go without a socket being
// opened. On the way there the kernel cuts GSO packets up and completes checksums;
// a packet that was let through re-enters the stack on the device it came from,
// so that strict reverse path filtering, connection tracking and DNAT notice
// nothing.
//
// # With and without a later hook
//
// In front of the nfqueue backend (Config.Strict unset), this package only ever
// saves work. It judges what comes from a pod; what it accepts carries the accept
// mark, which the forward hook trusts and saves to the connection. Everything else
// reaches the forward hook unmarked and is judged there: fragments, IP options,
// extension headers, Service addresses (a Worker defers those), traffic towards a
// pod. What the forward hook judges is remembered too, in a map ("later") whose
// entries save an upcall and can open nothing.
//
// Alone (Strict), both directions of every pod device are judged here. What the
// programs cannot parse is judged by userspace if it is one packet (options,
// extension headers) and dropped if it is a fragment, carries a VLAN tag, or is
// larger than an upcall. A strict backend that dies leaves the pods unfiltered,
// because the kernel takes its programs off; a later hook does not.
//
// # Why a pod cannot let itself in
//
//   - Marks do not cross namespaces: the kernel clears the mark of a packet that
//     leaves the pod's (skb_scrub_packet), and pod_ingress clears our bits again.
//   - The mark that says "came back from userspace" is set by upcall_ingress
//     alone, excuses one packet at one device, and ends there.
//   - Nothing reaches the upcall pair but redirected packets: it has no address,
//     no neighbours, no IPv6, and pods have no route to it. Both of its programs
//     drop frames without our metadata; the nonce in it keeps frames of an
//     earlier process out. It is no secret and need not be one.
//   - A packet accepted under one destination and led to another one by DNAT needs
//     a flow entry under its new name at the new destination's device: it bears
//     the fast mark, which no entry of the other name can satisfy.
//   - Neighbour discovery passes unjudged only if no router can have sent it or
//     will forward it. IPv4-mapped addresses in IPv6 headers, nested priority
//     tags and other disguises count as unparsable.
//
// # Flows
//
// An entry says "accepted, under this generation of the policy". Update starts a
// new generation, which costs the same for one flow and for a million: every
// flow's next packet is judged again, and a denied live connection ends there. The
// stale entry still tells which direction opened the connection (Packet.Reply).
// A TCP SYN is always judged. FIN and RST shorten an entry's life; idle ones
// expire. When the map is full the kernel evicts flows that were not used lately,
// whose next packet is judged again.
//
// # What it needs
//
// Linux 6.6 (tcx) or newer with AF_XDP and native XDP on veth, on amd64 (the socket
// library's rings have no memory barriers for others), and CAP_BPF, CAP_NET_ADMIN,
// CAP_NET_RAW and CAP_SYS_ADMIN. Probe finds out by doing. Pods must be routed: a
// device is a pod's if a /32 or /128 route to one of Table.Locals leads to it. Pods
// behind a bridge, a macvlan or an SR-IOV function have no such device and are the
// nfqueue backend's.
//
// The programs are in bpf/; "go generate" rebuilds them with clang 14 or newer and
// llvm-strip, and reads no header from outside this folder.
//
// # Concurrency
//
// Backend's methods belong to one goroutine, the Driver's to its worker's, except
// Close. Everything happens in the network namespace of the thread that called New,
// whatever thread is used later.
package afxdp
