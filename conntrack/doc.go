// Package conntrack remembers the connections a worker has accepted: who opened
// them, which table generation admitted them and why, and how far they have got.
//
//	                  worker (one goroutine)             control goroutines
//	                  Seen · Insert · Expire             Each… · News · Restamp · Forget · Stats
//	                             │                               │
//	                             ▼            one mutex          ▼
//	┌────────────────── Table ──────────────────────────────────────────────┐
//	│  index: direction-free key ──► slot number, in order of use           │
//	│  slots:  [ Record ][ Record ][  free  ][ Record ] …   no pointers     │
//	└───────────────────────────────────────────────────────────────────────┘
//
// There is one [Table] per worker, so that its mutex is hardly contended: the worker
// takes it for the tens of nanoseconds of one operation (or workers do, where each
// may have a packet of any connection: Join and Again are for them), and the control
// side, which lists flows and judges them again after a policy change, never holds it
// for more than a few dozen records. Records go in and out by value. Nobody ever
// holds a pointer into the table, so nobody can see half an update.
//
// # One record, two directions
//
// A record belongs to a connection. Its Key is in the direction the connection
// was opened in, and a packet with the reverse key finds it too, reported as a
// reply. Messages that have no reverse are one-way: every ICMP message but echo,
// and IGMP. An echo request is never taken for the reply to an echo reply;
// otherwise permission to answer would become permission to ask.
//
// # States
//
//	TCP                 ┌──────────────── RST from either side ───────────────┐
//	                    │                                                     ▼
//	 SYN ─► syn-sent ─► syn-recv ─► established ─► fin-opener ─┐           closed
//	           │   SYN-ACK    ACK │     ▲    └───► fin-replier ─┴► closing ─► time-wait
//	           └── ACK (the kernel ─────┘         one FIN      both FINs   ACK
//	               kept the SYN-ACK to itself)
//
//	UDP, SCTP, ICMP echo, all others:   unreplied ──► replied
//
// A connection first seen in mid-stream starts as established. The machine does
// not check sequence windows: an RST or FIN that the receiver would ignore moves
// the record to a state with a shorter timeout, and the worst that follows is that
// the next packet is judged again. [IsNewConnection] says when a packet on a known
// tuple opens another connection.
//
// # Bypassed connections
//
// Once the kernel keeps a connection to itself, its SYN-ACK, data and FIN do not
// come by here. The record stays in the state of its last packet in userspace,
// and Bypassed is set. As long as it is, the timeout is that of an open connection
// (established, replied), because silence here means nothing; and a SYN that is
// not a retransmission of the first one is a new connection, because the old one
// may have closed unseen. What the kernel has kept to itself since before there was
// this table gets such a record by [Table.Restore]. Forgetting one costs nothing but
// its place in the flow listing: the kernel's own memory of it is judged again
// separately.
//
// # Timeouts
//
// Idle time from the last packet seen in userspace; see [Timeouts] for each value
// and where it comes from. A record past its timeout is not found any more; its
// memory is reclaimed by [Table.Expire], which examines a bounded number of slots
// per call.
//
// Who keeps a list of what the kernel remembers, beyond the life of the records
// here, learns of every record by [Table.News].
//
// # Bounds
//
// A table never has more than Limits.Records records. A new one then takes the
// place of the one idle for longest, whatever its state, and that is counted. A
// full table takes about 190 bytes per record, 12 MB at the default of 65,536: a
// slot of 164 bytes, allocated in blocks as the table grows and then reused for
// ever, and 16 to 32 bytes of index, at hand from the beginning. Up to some 90
// more go to an index by address once [Table.EachTouching] was used. A test keeps
// the bounds. Nothing on the packet path allocates, but the block that a growing
// table takes once in 64 records.
//
// # Time
//
// The package never reads a clock. Every now is nanoseconds since the Unix epoch
// as the caller measured them, normally once per batch. A clock that steps back
// makes records live longer, never shorter.
package conntrack
