// Package flow names one direction of a connection: the tuple every other
// package talks about.
//
// A [Key] is what a packet header says and nothing more: two addresses, two
// ports, one protocol. It is comparable, has no pointers (so a map of a million
// keys is not scanned by the garbage collector), and its zero value is invalid.
//
// Conventions, used by every importer:
//
//   - Addresses are 16 bytes; an IPv4 address is stored IPv4-mapped
//     (::ffff:a.b.c.d, RFC 4291 §2.5.5.2), so one table serves both families.
//     Text form and netip form are always unmapped.
//   - Ports are in host byte order.
//   - For ICMP and ICMPv6 the destination port is type<<8|code and the source
//     port is the echo identifier (0 for other messages). A type is therefore
//     the port range [type<<8, type<<8|255], and one interval structure serves
//     ports and ICMP types alike. IGMP keeps its type in the same place.
package flow
