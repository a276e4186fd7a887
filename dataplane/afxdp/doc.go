// Package afxdp is the fast path: programs on the pods' devices pass what
// belongs to an accepted flow, and bring the first packet of every other flow to
// userspace and back in about ten microseconds.
//
//	   pod                      node                            userspace
//	┌───────┐   pod_ingress ┌─────────┐
//	│ eth0 ─┼──► veth ──────┤ flows?  ├─ hit ──► stack, with the fast mark
//	│       │               └────┬────┘
//	│       │               miss │ source MAC := device, side, reply
//	│       │                    ▼                upcall_xdp
//	│       │                 tw-uc0 ═══════════► tw-uc1 ──► AF_XDP ──► Driver.Recv
//	│       │                    ▲                              socket      │ Worker
//	│       │     upcall_ingress │ source MAC restored, marks set           ▼
//	│       │                    └══════ tw-uc1 ◄─────────── transmit ◄─ Driver.Apply
//	│       │                    │                              the connection into
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
// # Queues
//
// The pair has Config.Queues queues, each with a socket and a driver. A packet goes
// up on the queue of the CPU it is on: nothing it needs crosses to another one, and
// whoever sent it waits there. So the directions of a connection may meet different
// workers, which is why the drivers are scattered (dataplane.Driver). A worker with many
// packets runs on its own CPUs (affinity), with few where there is time.
//
// What there is one of per queue: a ring, the room in it that the kernel side knows
// (fail mode open), and a worker, of which one that hangs makes the process count
// as dead. The maps and the registry of addresses are all queues' together. The
// number of queues is the pair's for life: a process that wants another number makes
// a new pair, and until its programs are on the devices those of the process before
// find nobody to ask.
//
// # With and without a later hook
//
// In front of the nfqueue backend (Config.Strict unset), this package only ever
// saves work. It judges what comes from a pod; what it accepts carries the fast mark,
// which the forward hook trusts, and a packet that userspace has just judged the
// accept mark, which the hook saves to the connection. Everything else
// reaches the forward hook unmarked and is judged there: fragments, IP options,
// extension headers, Service addresses (a Worker defers those), traffic towards a
// pod. What the forward hook judges is remembered too, in a map ("later") whose
// entries save an upcall and can open nothing.
//
// Alone (Strict), both directions of every pod device are judged here. What the
// programs cannot parse is judged by userspace if it is one packet (options,
// extension headers) and dropped if it is a fragment or carries a VLAN tag. Of a
// packet larger than an upcall (jumbo MTUs) the beginning is judged, and the sender
// has to send it again: TCP does, and finds the flow accepted.
//
// # Services and masquerading
//
// Where addresses are translated a packet does not bear its real ends. On its way out
// its connection knows them, and there it is judged: on the pods' devices, and on the
// others by pod_exit. It comes up with a struct origin in front, which the driver
// turns into Packet.Real, Service, FromHost and Masked. bpf/nat.h has the picture;
// it applies to bridged packets with a later hook, too. Where the kernel cannot do
// it (loadNAT) masqueraded clients are masked, and Services are judged by their
// addresses.
//
// # Why a pod cannot let itself in
//
//   - Marks do not cross namespaces: the kernel clears the mark of a packet that
//     leaves the pod's (skb_scrub_packet), and pod_ingress clears our bits again.
//   - The mark that says "came back from userspace" is set by upcall_ingress
//     alone, excuses one packet at one device, and ends there.
//   - Nothing reaches the upcall pair but redirected packets: it has no address,
//     no neighbours, no IPv6, and pods have no route to it. Both of its programs
//     drop frames without our metadata; the nonce in it keeps out frames of a
//     pair that was there before. It is no secret and need not be one.
//   - An accepted flow is accepted for the pods that have its addresses: the guard
//     looks at the device its packets come from.
//   - An upcall rate limit is per device for packets from pods, so that made-up
//     source addresses neither evade it nor use up somebody else's.
//   - A packet accepted under one destination and led to another one by DNAT needs
//     an entry for where it leads at the device it leaves by: it bears the fast mark,
//     and an entry for a translated name passes only the connection it was made for.
//   - The fast mark without the accept mark, on what is not judged yet, is no way past
//     the programs: gate stops what would leave by a device that has none.
//   - What is recalled of a connection when an answer comes up is no proof that there
//     still is one: what passes by it bears no accept mark.
//   - An address of the node is the node's only on packets that came in by no device.
//   - Neighbour discovery passes unjudged only if no router can have sent it or
//     will forward it. IPv4-mapped addresses in IPv6 headers, nested priority
//     tags and other disguises count as unparsable.
//
// # Whose device it is
//
// Programs go onto a device when it appears, before anybody knows whose it is, and
// bpf/guard.h sorts by address: a known pod's is judged, and only on the device
// that is bound to it; one in the node's pod CIDRs that no known pod has is
// dropped; any other, on a device that is not a pod's, is left alone. package attach has
// the rules by which devices are chosen and bound.
//
// A port of a bridge is a pod's device like any other, except that frames from
// port to port meet no later hook: Packet.Final is set on them with and without
// Strict, and the frame's source address is put back as it was.
//
// Where there is no tcx the same programs are filters of a clsact qdisc; where
// there is neither, an XDP program (bpf/guard.c) sorts by address and leaves the
// judging to the later hook. Uplinks may have one that drops early what "denied"
// knows. Nobody else's program is ever replaced.
//
// # The front cache
//
// Most packets of accepted flows never get as far as the flow map: each CPU keeps
// the tuples it found there, as they are in the headers, in a table of 4096 slots
// (bpf/front.h). A slot is good for the device its packets came from and under
// the generation it was noted under; every change of policy, and every change of
// what the guard knows, starts another one. After half a second, or a quarter of
// the shortest idle time, the flow is looked up all the same: that keeps it in its
// map and its idle time true. Packets that open or close a connection, or have
// anything unusual about them, always take the long way.
//
// With Config.Accelerate a slot also knows the way that packets of its tuple leave
// the stack by, and the next ones go from device to device without it
// (bpf/across.h): between two pods, untranslated, as long as the slot is good.
//
// # Flows
//
// A connection has one entry, whichever way its packets go: its key has the two
// ends in a fixed order, and a bit of the entry says which of them opened it. The
// entry says "accepted, by this generation of the policy". Update starts a new
// generation and marks what the change is about: everything (the floor), or some
// addresses, by their cells, of which there are 16384 (flows.Epoch). A flow counts
// if none of the three is newer than itself. So a change costs nothing per flow,
// the flows it is not about never come up, and each of the others is judged again
// by its next packet, in the direction the entry says the connection was opened
// in (Packet.Reply); a denied live connection ends there.
//
// A TCP SYN is always judged. FIN and RST shorten an entry's life; idle ones
// expire. When the map is full the kernel evicts flows that were not used lately,
// whose next packet is judged again.
//
// Denials are remembered too, in a map apart, so that no flood of them evicts an
// accepted flow: by direction, for Config.DenyTime, and not beyond the next change
// of policy, whatever it is about. The engine asks for it where neither a record
// nor a rejection is due, because packets dropped in the kernel cause neither.
//
// Config.UpcallRate bounds how many first packets one source brings up, because a
// flood of distinct flows is all first packets: it keeps one flooder from filling
// the ring that all share.
//
// # When no daemon runs
//
// With Config.PinPath the programs, the maps and the upcall pair outlive the
// process, whatever ends it. Accepted flows go on. That nobody is there the
// programs see at once, because the kernel takes the socket of a dead process out
// of its map; a process that hangs they know by its signs of life, which are
// missing for Config.AliveTime. What would have been an upcall is then left to the
// later hook. Without one it is dropped or, with Config.FailOpen, passed; so is what
// would have been left to the program where it leaves, unless it was accepted.
//
// The next process takes over: it uses the pair and the maps (if their form is its
// own; otherwise it starts with empty ones), and gives its programs to the links
// that are there, so that there is no moment without a program on a device. Its
// first Update judges the flows by their entries and renews what it accepts (flows.Takeover);
// the others come up once.
//
// Without PinPath the kernel takes the programs off when the process ends, and
// everything passes.
//
// # Every packet counts once
//
// A packet at a pod's device takes exactly one of the counters before
// COUNT_RETURNED in bpf/tierwall.h. Packets sent up arrive as COUNT_RECEIVED, or
// were lost on the way (BackendStats.Overflow, COUNT_UNHEARD).
//
// # What it needs
//
// Linux 6.6 (tcx; older ones have clsact) with AF_XDP and native XDP on veth, on amd64
// or arm64, and the capabilities of docs/install.md. Probe finds out by doing. Pods must have a veth in
// the node's namespace, routed or on a bridge: those behind a macvlan or an SR-IOV
// function are the nfqueue backend's. docs/compatibility.md has the table.
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
