// Package packet turns the bytes of one packet into a [flow.Key] and the few
// header fields the packet path needs, or into a named [Problem].
//
//	ParseEthernet                ParseIP
//	│                            │
//	▼                            ▼
//	┌──────────┬───────────┬─────────────────┬──────────────┬───────────┬─────────┐
//	│ Ethernet │ 0–2 VLAN  │ IPv4 + options  │ TCP UDP SCTP │  payload  │ padding │
//	│          │ tags      │ IPv6 + ext hdrs │ ICMP IGMP …  │           │         │
//	└──────────┴───────────┴─────────────────┴──────────────┴───────────┴─────────┘
//	                       ▲                 ▲              ▲           ▲
//	                       Headers.L3        .L4            .Payload    .L3 + .Length
//
//	ICMP error:  … │ ICMP 8 bytes │ quoted IP │ quoted ports │
//	                              ▲
//	                              └── Headers.Inner, one level deep
//
// # What a parse promises
//
//   - It never panics, whatever the bytes; it never allocates; it keeps no
//     reference to the slice. The bytes come from the pods being policed, so this
//     is the outermost line against hostile input.
//   - OK means that the key is the one a correct receiver would see. Where
//     receivers differ (overlapping or tiny fragments, jumbograms, a second
//     fragment header) the answer is a Problem, never a guess.
//   - What follows the length the IP header states is ignored: Ethernet pads
//     short frames to 60 bytes.
//   - Checksums are not verified. Offloads leave them unfinished on the virtual
//     devices we read from, and the receiver verifies them anyway.
//
// # Copies cut short
//
// A queue may hand over only the first bytes of a packet. [ParseIPSnap] and
// [ParseEthernetSnap] take the true length beside the copy: a payload that is
// not in the copy is no problem, a header that is not is [Truncated]. 128 bytes
// hold every header we read of ordinary TCP, UDP and SCTP packets of both
// families, and an ICMP error's quote in most cases.
//
// # IPv6 extension headers
//
// Hop-by-hop options, routing, destination options, fragment and AH are
// followed, up to [MaxExtHeaders]. Any other number ends the chain and is the
// protocol: ESP (its content is encrypted), "no next header", and everything
// unknown give a key without ports, which only rules for all protocols match.
// RFC 8200 §4.1 lets a chain be in any order but for hop-by-hop, which is first
// or nowhere. In IPv4, AH is a protocol like any other.
//
// A routing header, like an IPv4 source route, can make a packet visit other
// addresses than its destination field names. Nodes ignore both unless told
// otherwise; the key is the field. Type 0, which RFC 5095 abolished, is
// [Unparsable] while it has segments left.
//
// # Fragments
//
// A first fragment has ports and sets Fragment. A later one is [LaterFragment]
// with the addresses and the protocol in Key, no ports. IPv6 fragments with
// offset 0 and no successor ("atomic", RFC 6946) are whole packets.
//
// # Addresses
//
// Package flow stores IPv4 addresses IPv4-mapped, so an IPv6 packet that carries
// a mapped address could pass for an IPv4 flow. Such packets have no business on
// a wire (RFC 4942 §2.2) and are [BadAddress].
//
// # What it leaves to you
//
// Every policy: what happens to a Problem, to neighbour discovery, to ICMP
// errors. Frames that carry IP inside something else (MPLS, PPPoE, 802.3 LLC)
// are [NotIP]; tunnels over IP are packets of the tunnel's protocol.
package packet
