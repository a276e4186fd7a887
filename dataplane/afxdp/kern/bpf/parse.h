/* SPDX-License-Identifier: Apache-2.0 */
/* What a packet is: the flow it belongs to, or why that cannot be said. */
#ifndef TIERWALL_PARSE_H
#define TIERWALL_PARSE_H

#include "packet.h"
#include "tierwall.h"

// The node's own addresses.
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, __u8);
} node_addresses SEC(".maps");

enum parsed {
	KEY,	 // a flow key that the flow map may know
	ASK,	 // IP that only userspace can judge
	EXEMPT,	 // not subject to policy
	NEIGHBOUR, // neighbour discovery for a link; EXEMPT on a bridge, else ASK
	OPAQUE,	 // may be IP to the stack, but neither we nor userspace can tell
};

struct packet {
	struct flow_key key;
	struct address src, dst;
	__u16 sport, dport;
	__u32 headers; // bytes of all headers at most, for the size of a GSO segment
		       // (in practice, where the parser gave up)
	__u8 back;     // travels from end b of the key to end a
	__u8 syn;      // SYN without ACK: opens a connection
	__u8 closes;   // FIN or RST
	__u8 proto;
};

// Neighbour discovery (RFC 4861) keeps the link alive and is not subject to
// policy, but must not become a tunnel: it has hop limit 255, which no forwarded
// packet has (§7.1), and it is for this link: to a link-local or multicast
// address, between the pod and the node itself, or to another port of a bridge.
// Anything else is ASK.
static __always_inline enum parsed neighbour_discovery(const struct ipv6 *ip, __u8 type, __u8 code, int egress)
{
	if (type < 133 || type > 137 || code != 0 || ip->hops != 255)
		return ASK;
	if (egress) // hop limit 255 towards a pod: the node itself sent it, or a port of its bridge
		return EXEMPT;
	struct address dst = {{ip->dst[0], ip->dst[1], ip->dst[2], ip->dst[3]}};
	return (dst.words[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) || // fe80::/10
			       (dst.words[0] & bpf_htonl(0xffff0000)) == bpf_htonl(0xff020000) || // ff02::/16
			       bpf_map_lookup_elem(&node_addresses, &dst) != 0
		       ? EXEMPT
		       : NEIGHBOUR;
}

// Multicast listener reports (RFC 2710, RFC 3810) carry a hop-by-hop router
// alert; to a link-local group they never leave the link.
static __always_inline int multicast_listener(struct __sk_buff *skb, const struct ipv6 *ip)
{
	__u8 b[9]; // 8 bytes of hop-by-hop header, then the ICMPv6 type
	if ((ip->dst[0] & bpf_htonl(0xffff0000)) != bpf_htonl(0xff020000))
		return 0;
	if (bpf_skb_load_bytes(skb, ETHER + IPV6, b, sizeof(b)) < 0)
		return 0;
	return b[0] == ICMPV6 && b[1] == 0 && ((b[8] >= 130 && b[8] <= 132) || b[8] == 143);
}

static __always_inline int mapped(const __u32 *a)
{
	return a[0] == 0 && a[1] == 0 && a[2] == bpf_htonl(0xffff);
}

// name fills p->key from the rest of p: see struct flow_key.
static __always_inline enum parsed name(struct packet *p, int back)
{
	struct flow_key *k = &p->key;
#pragma unroll
	for (int i = 0; i < 4; i++) {
		k->a[i] = back ? p->dst.words[i] : p->src.words[i];
		k->b[i] = back ? p->src.words[i] : p->dst.words[i];
	}
	k->aport = back ? p->dport : p->sport;
	k->bport = back ? p->sport : p->dport;
	k->proto = p->proto;
	p->back = back;
	return KEY;
}

enum { HEADERS = ETHER + IPV6 + 20 }; // what parse looks at, at most

// parse fills p. Everything a verdict could depend on and this parser does not
// understand is ASK or OPAQUE, never KEY.
__noinline int parse(struct __sk_buff *skb, struct packet *p, int egress)
{
	if (!p)
		return OPAQUE;
	__u32 room; // bytes the packet says it has from the transport header on
	__u16 protocol = bpf_ntohs(skb->protocol);

	// A tag with VLAN 0 only carries a priority: the kernel has taken it off
	// and delivers the packet. Any other tag belongs to a VLAN device.
	if (skb->vlan_present && (skb->vlan_tci & 0xfff))
		return OPAQUE;

	// Headers are nearly always in one piece.
	__u32 want = skb->len < HEADERS ? skb->len : HEADERS;
	const __u8 *data = (const __u8 *)(unsigned long)skb->data;
	const __u8 *end = (const __u8 *)(unsigned long)skb->data_end;
	if (data + want > end) {
		bpf_skb_pull_data(skb, want);
		data = (const __u8 *)(unsigned long)skb->data;
		end = (const __u8 *)(unsigned long)skb->data_end;
	}
	const __u8 *l4;

	if (protocol == ETH_IPV4) {
		const struct ipv4 *ip = (const void *)(data + ETHER);
		if (data + ETHER + IPV4 > end)
			return ASK;
		if (ip->fragment & bpf_htons(0x3fff)) // more fragments, or an offset
			return OPAQUE;
		if (ip->version_ihl != 0x45 || ip->proto == 0 || ip->proto == ICMPV6)
			return ASK;
		p->src.words[2] = p->dst.words[2] = bpf_htonl(0xffff);
		p->src.words[3] = ip->src;
		p->dst.words[3] = ip->dst;
		p->proto = ip->proto;
		l4 = data + ETHER + IPV4;
		p->headers = ETHER + IPV4;
		// A GSO packet of more than 64 kB says 0.
		room = ip->length == 0 && skb->gso_size ? 0xffff : bpf_ntohs(ip->length);
		if (room < IPV4)
			return ASK;
		room -= IPV4;
	} else if (protocol == ETH_IPV6) {
		const struct ipv6 *ip = (const void *)(data + ETHER);
		if (data + ETHER + IPV6 > end)
			return ASK;
		if ((ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
			return ASK;
		// Mapped addresses never appear on a wire (RFC 4038 §4.2); here they
		// would be taken for the IPv4 flow of that name. Userspace drops them,
		// and says so in the audit log.
		if (mapped(ip->src) || mapped(ip->dst))
			return ASK;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			p->src.words[i] = ip->src[i];
			p->dst.words[i] = ip->dst[i];
		}
		p->proto = ip->next;
		l4 = data + ETHER + IPV6;
		p->headers = ETHER + IPV6;
		room = ip->payload == 0 && skb->gso_size ? 0xffff : bpf_ntohs(ip->payload);
		switch (ip->next) {
		case ICMP: case IGMP: // IPv4's own
			return ASK;
		case 44: // fragment
			return OPAQUE;
		case 0: // hop-by-hop options
			return multicast_listener(skb, ip) ? EXEMPT : ASK;
		case 43: case 51: case 60: case 135: case 139: case 140: // other extension headers
			return ASK;
		case ICMPV6:
			if (l4 + 2 > end)
				return ASK;
			if (l4[0] != 128 && l4[0] != 129) // echo
				return neighbour_discovery(ip, l4[0], l4[1], egress);
		}
	} else {
		switch (protocol) {
		case ETH_8021Q: case ETH_8021AD: // the kernel takes off nested priority tags later
		case ETH_MPLS: case ETH_MPLS_MC: case ETH_PPPOE:
			return OPAQUE;
		}
		return EXEMPT;
	}

	const struct { __u16 sport, dport; __u32 seq, ack; __u8 offset, flags; } *tcp = (const void *)l4;
	const struct { __u8 type, code; __u16 checksum, id; } *icmp = (const void *)l4;
	switch (p->proto) {
	case TCP:
		if (room < 20 || l4 + 14 > end)
			return ASK;
		p->sport = bpf_ntohs(tcp->sport);
		p->dport = bpf_ntohs(tcp->dport);
		p->syn = (tcp->flags & (SYN | ACK)) == SYN;
		p->closes = (tcp->flags & (FIN | RST)) != 0;
		p->headers += 60;
		break;
	case UDP: case SCTP:
		if (room < 8 || l4 + 4 > end)
			return ASK;
		p->sport = bpf_ntohs(tcp->sport);
		p->dport = bpf_ntohs(tcp->dport);
		p->headers += 12;
		break;
	case ICMP: case ICMPV6:
		if (room < 8 || l4 + 6 > end)
			return ASK;
		// Errors belong to the flow inside them; the rest has no identifier
		// that tells flows apart.
		int reply = icmp->type == (p->proto == ICMP ? 0 : 129);
		if (!reply && icmp->type != (p->proto == ICMP ? 8 : 128))
			return ASK;
		p->sport = p->dport = bpf_ntohs(icmp->id);
		*(reply ? &p->sport : &p->dport) = (p->proto == ICMP ? 8 : 128) << 8 | icmp->code;
		return name(p, reply);
	case IGMP:
		return ASK;
	} // others have no ports, as in package flow
	return name(p, above(p->src.words, p->dst.words, p->sport, p->dport));
}

#endif
