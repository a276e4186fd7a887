// SPDX-License-Identifier: Apache-2.0
//
// The kernel half of the AF_XDP backend; the package's doc.go has the picture.
//
// pod_ingress and pod_egress sit on the node's end of every pod's veth pair:
// "ingress" is from the pod, "egress" is to the pod. They pass packets of
// remembered flows, send the rest to userspace through the upcall pair, and know
// a packet that userspace has sent back. upcall_ingress and upcall_xdp are the
// two ends of that pair.

#include "tierwall.h"
#include "guard.h"

// Set by the Go side before loading; the verifier sees constants.
volatile const __u32 upcall_ifindex = 0; // uc0
volatile const __u32 max_frame = 0;	 // bytes that fit an upcall, Ethernet header included
volatile const __u32 mark_accept = 0;	 // packet mark: judged and accepted
volatile const __u32 mark_fast = 0;	 // packet mark: accepted by us, at the device it came from
volatile const __u32 mark_return = 0;	 // packet mark: came back from userspace, loop breaker
volatile const __u8 strict = 0;		 // no later hook judges what we leave alone
volatile const __u8 open = 0;		 // fail mode open: without a daemon everything passes
// Idle times in ns after which a flow is forgotten.
volatile const __u64 idle_tcp = 0, idle_closing = 0, idle_udp = 0, idle_sctp = 0, idle_icmp = 0, idle_other = 0;
volatile const __u64 deny_time = 0;  // ns a denial is remembered
volatile const __u64 alive_time = 0; // ns after the last sign of life the daemon counts as dead
// The rate limit of upcalls, per source: ns a packet costs, ns of credit.
volatile const __u64 upcall_cost = 0, upcall_credit = 0;

// These live in a map of their own that outlives the daemon. All are written by
// userspace alone.
#define SHARED SEC(".data.shared")
volatile __u64 generation SHARED = 1; // of the policy in force: grows with every change
volatile __u64 valid_from SHARED = 1; // flows of an older generation are judged again
volatile __u64 alive SHARED = 0;      // CLOCK_MONOTONIC_COARSE ns of the daemon's last sign of life
volatile __u32 nonce SHARED = 0;

// The generation of the last change that was about an address of the cell.
struct {
	UINT(type, MAP_ARRAY);
	UINT(max_entries, CELLS);
	TYPE(key, __u32);
	TYPE(value, __u64);
} cells SEC(".maps");

// Flows userspace accepted: the only map that lets packets through.
struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 131072);
	TYPE(key, struct flow_key);
	TYPE(value, struct flow);
} flows SEC(".maps");

// The last packet from a pod that this CPU found in flows. Packets are handled
// one at a time per CPU, and a forwarded one normally reaches its destination's
// device at once: the same key under the same generation is the same statement,
// so the second look into flows is spared.
struct accepted {
	struct flow_key key;
	__u64 generation;
};

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, struct accepted);
} last SEC(".maps");

// What userspace denied, by direction: drops a flood of one flow, for moments.
struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 65536);
	TYPE(key, struct flow_key);
	TYPE(value, struct flow);
} denied SEC(".maps");

// When all upcalls of a source so far fit the rate limit, in ns of
// CLOCK_MONOTONIC_COARSE. Only for packets to a pod: those from one are limited
// by their device, whatever source address they claim.
struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 16384);
	TYPE(key, struct address);
	TYPE(value, __u64);
} sources SEC(".maps");

// Flows that the later hook judges: an entry saves an upcall and opens nothing.
// A map of its own, so that no flood of these evicts an accepted flow.
struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 65536);
	TYPE(key, struct flow_key);
	TYPE(value, struct flow);
} later SEC(".maps");

struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 4096);
	TYPE(key, __u32);
	TYPE(value, struct device);
} devices SEC(".maps");

// The node's own addresses, for neighbour discovery only.
struct {
	UINT(type, MAP_HASH);
	UINT(max_entries, 16384);
	TYPE(key, struct address);
	TYPE(value, __u8);
} node_addresses SEC(".maps");

struct {
	UINT(type, MAP_PERCPU_ARRAY);
	UINT(max_entries, COUNTERS);
	TYPE(key, __u32);
	TYPE(value, __u64);
} counters SEC(".maps");

struct {
	UINT(type, MAP_XSKMAP);
	UINT(max_entries, 1);
	TYPE(key, __u32);
	TYPE(value, __u32);
} sockets SEC(".maps");

INLINE void add(__u32 which, __u64 n)
{
	__u64 *c = map_lookup(&counters, &which);
	if (c)
		*c += n;
}

enum { ETHER = 14, IPV4 = 20, IPV6 = 40 };
enum { ETH_IPV4 = 0x0800, ETH_ARP = 0x0806, ETH_IPV6 = 0x86dd, ETH_8021Q = 0x8100, ETH_8021AD = 0x88a8, ETH_MPLS = 0x8847,
       ETH_MPLS_MC = 0x8848, ETH_PPPOE = 0x8864 };
enum { ICMP = 1, IGMP = 2, TCP = 6, UDP = 17, ICMPV6 = 58, SCTP = 132 };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

struct ipv4 {
	__u8 version_ihl, tos;
	__u16 length, id, fragment;
	__u8 ttl, proto;
	__u16 checksum;
	__u32 src, dst;
};

struct ipv6 {
	__u32 version_class_label;
	__u16 payload;
	__u8 next, hops;
	__u32 src[4], dst[4];
};

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
INLINE enum parsed neighbour_discovery(const struct ipv6 *ip, __u8 type, __u8 code, int egress)
{
	if (type < 133 || type > 137 || code != 0 || ip->hops != 255)
		return ASK;
	if (egress) // hop limit 255 towards a pod: the node itself sent it, or a port of its bridge
		return EXEMPT;
	struct address dst = {{ip->dst[0], ip->dst[1], ip->dst[2], ip->dst[3]}};
	return (dst.words[0] & htonl(0xffc00000)) == htonl(0xfe800000) || // fe80::/10
			       (dst.words[0] & htonl(0xffff0000)) == htonl(0xff020000) || // ff02::/16
			       map_lookup(&node_addresses, &dst) != 0
		       ? EXEMPT
		       : NEIGHBOUR;
}

// Multicast listener reports (RFC 2710, RFC 3810) carry a hop-by-hop router
// alert; to a link-local group they never leave the link.
INLINE int multicast_listener(struct skb *skb, const struct ipv6 *ip)
{
	__u8 b[9]; // 8 bytes of hop-by-hop header, then the ICMPv6 type
	if ((ip->dst[0] & htonl(0xffff0000)) != htonl(0xff020000))
		return 0;
	if (skb_load_bytes(skb, ETHER + IPV6, b, sizeof(b)) < 0)
		return 0;
	return b[0] == ICMPV6 && b[1] == 0 && ((b[8] >= 130 && b[8] <= 132) || b[8] == 143);
}

INLINE int mapped(const __u32 *a)
{
	return a[0] == 0 && a[1] == 0 && a[2] == htonl(0xffff);
}

INLINE int above(const struct packet *p)
{
#pragma unroll
	for (int i = 3; i >= 0; i--)
		if (p->src.words[i] != p->dst.words[i])
			return p->src.words[i] > p->dst.words[i];
	return p->sport > p->dport;
}

// name fills p->key from the rest of p: see struct flow_key.
INLINE enum parsed name(struct packet *p, int back)
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
INLINE enum parsed parse(struct skb *skb, struct packet *p, int egress)
{
	__u32 room; // bytes the packet says it has from the transport header on
	__u16 protocol = ntohs(skb->protocol);

	// A tag with VLAN 0 only carries a priority: the kernel has taken it off
	// and delivers the packet. Any other tag belongs to a VLAN device.
	if (skb->vlan_present && (skb->vlan_tci & 0xfff))
		return OPAQUE;

	// Headers are nearly always in one piece.
	__u32 want = skb->len < HEADERS ? skb->len : HEADERS;
	const __u8 *data = (const __u8 *)(unsigned long)skb->data;
	const __u8 *end = (const __u8 *)(unsigned long)skb->data_end;
	if (data + want > end) {
		skb_pull_data(skb, want);
		data = (const __u8 *)(unsigned long)skb->data;
		end = (const __u8 *)(unsigned long)skb->data_end;
	}
	const __u8 *l4;

	if (protocol == ETH_IPV4) {
		const struct ipv4 *ip = (const void *)(data + ETHER);
		if (data + ETHER + IPV4 > end)
			return ASK;
		if (ip->fragment & htons(0x3fff)) // more fragments, or an offset
			return OPAQUE;
		if (ip->version_ihl != 0x45 || ip->proto == 0 || ip->proto == ICMPV6)
			return ASK;
		p->src.words[2] = p->dst.words[2] = htonl(0xffff);
		p->src.words[3] = ip->src;
		p->dst.words[3] = ip->dst;
		p->proto = ip->proto;
		l4 = data + ETHER + IPV4;
		p->headers = ETHER + IPV4;
		// A GSO packet of more than 64 kB says 0.
		room = ip->length == 0 && skb->gso_size ? 0xffff : ntohs(ip->length);
		if (room < IPV4)
			return ASK;
		room -= IPV4;
	} else if (protocol == ETH_IPV6) {
		const struct ipv6 *ip = (const void *)(data + ETHER);
		if (data + ETHER + IPV6 > end)
			return ASK;
		if ((ip->version_class_label & htonl(0xf0000000)) != htonl(0x60000000))
			return ASK;
		// Mapped addresses never appear on a wire (RFC 4038 §4.2); here they
		// would be taken for the IPv4 flow of that name.
		if (mapped(ip->src) || mapped(ip->dst))
			return OPAQUE;
#pragma unroll
		for (int i = 0; i < 4; i++) {
			p->src.words[i] = ip->src[i];
			p->dst.words[i] = ip->dst[i];
		}
		p->proto = ip->next;
		l4 = data + ETHER + IPV6;
		p->headers = ETHER + IPV6;
		room = ip->payload == 0 && skb->gso_size ? 0xffff : ntohs(ip->payload);
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
		p->sport = ntohs(tcp->sport);
		p->dport = ntohs(tcp->dport);
		p->syn = (tcp->flags & (SYN | ACK)) == SYN;
		p->closes = (tcp->flags & (FIN | RST)) != 0;
		p->headers += 60;
		break;
	case UDP: case SCTP:
		if (room < 8 || l4 + 4 > end)
			return ASK;
		p->sport = ntohs(tcp->sport);
		p->dport = ntohs(tcp->dport);
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
		p->sport = p->dport = ntohs(icmp->id);
		*(reply ? &p->sport : &p->dport) = (p->proto == ICMP ? 8 : 128) << 8 | icmp->code;
		return name(p, reply);
	case IGMP:
		return ASK;
	} // others have no ports, as in package flow
	return name(p, above(p));
}

INLINE __u64 idle(const struct flow *f, __u8 proto)
{
	switch (proto) {
	case TCP:
		return f->flags & FLOW_CLOSING ? idle_closing : idle_tcp;
	case UDP:
		return idle_udp;
	case SCTP:
		return idle_sctp;
	case ICMP: case ICMPV6:
		return idle_icmp;
	}
	return idle_other;
}

// The clock is coarse and another CPU may have stored a later time.
INLINE int expired(const struct flow *f, __u8 proto, __u64 now)
{
	return now > f->last && now - f->last > idle(f, proto);
}

// Once a second is enough, and keeps the cache line clean.
INLINE void touch(struct flow *f, __u64 now)
{
	if (now > f->last + 1000000000)
		f->last = now;
}

INLINE __u64 changed(__u16 cell)
{
	__u32 i = cell & (CELLS - 1);
	__u64 *g = map_lookup(&cells, &i);
	return g ? *g : ~0ULL; // there is always one
}

// current reports whether no change of policy since f was judged was about it.
// Then it is as good as judged by the policy in force, now, which was read before
// the flow was looked up: a change that has begun meanwhile is a later one.
INLINE int current(struct flow *f, __u64 now)
{
	if (f->generation == now)
		return 1;
	if (f->generation < valid_from || f->generation < changed(f->cell[0]) || f->generation < changed(f->cell[1]))
		return 0;
	if (f->generation < now) // userspace may be ahead
		f->generation = now;
	return 1;
}

// remember_later notes that the flow is the later hook's.
INLINE void remember_later(const struct flow_key *key, __u64 now, __u64 policy)
{
	struct flow *f = map_lookup(&later, key);
	if (f && current(f, policy)) {
		touch(f, now);
		return;
	}
	// Whose cells these are only userspace knows. An entry that outlives a
	// change leaves the flow to the hook that judged it all along.
	struct flow fresh = {.generation = policy, .last = now};
	map_update(&later, key, &fresh, BPF_ANY);
}

// leave is for what we cannot judge: the later hook does, if there is one.
INLINE int leave(int final)
{
	add(final ? COUNT_DROP : COUNT_UNPARSED, 1);
	return final ? TCX_DROP : TCX_NEXT;
}

// within takes n packets from the credit of a source. Two CPUs that do so at once
// may give it a packet too many.
INLINE int within(__u64 *due, __u64 now, __u32 n)
{
	__u64 at = *due > now ? *due : now;
	if (at - now > upcall_credit)
		return 0;
	*due = at + n * upcall_cost;
	return 1;
}

INLINE int limited(struct device *d, const struct packet *p, int egress, __u64 now, __u32 n)
{
	if (upcall_cost == 0)
		return 0;
	if (!egress)
		return !within(&d->due, now, n);
	struct address a = p->src;
	if (a.words[2] != htonl(0xffff)) // a host has a /64 of IPv6 addresses at least
		a.words[2] = a.words[3] = 0;
	__u64 *due = map_lookup(&sources, &a);
	if (due)
		return !within(due, now, n);
	__u64 first = now + n * upcall_cost;
	map_update(&sources, &a, &first, BPF_ANY);
	return 0;
}

INLINE int upcall(struct skb *skb, const struct packet *p, int egress, __u8 reply, int final, int bridged, __u64 now)
{
	// The kernel takes the socket of a daemon that died out of the map; one that
	// hangs gives no sign of life.
	__u32 queue = 0;
	if (!map_lookup(&sockets, &queue) || now > alive + alive_time) {
		if (final && !open) {
			add(COUNT_ALONE_DROP, 1);
			return TCX_DROP;
		}
		add(COUNT_ALONE_PASS, 1);
		return TCX_NEXT;
	}
	__u32 size = skb->gso_size ? p->headers + skb->gso_size : skb->len;
	int cut = size > max_frame; // would be lost on the way
	if (cut && !final)
		return leave(0);

	__u32 ifindex = skb->ifindex;
	struct device *d = map_lookup(&devices, &ifindex);
	if (!d) // being attached or detached
		return leave(final);
	__u32 n = skb->gso_segs && !cut ? skb->gso_segs : 1;
	if (limited(d, p, egress, now, n)) {
		add(COUNT_LIMITED, 1);
		return TCX_DROP;
	}
	// Nobody else can judge it: its first bytes do for that, and the sender has
	// to send it again.
	if (cut && skb_change_tail(skb, max_frame, 0) < 0)
		return leave(1);
	__u8 mac[6];
	if (skb_load_bytes(skb, 6, mac, sizeof(mac)) < 0)
		return leave(1);
	__builtin_memcpy(egress ? d->own : d->peer, mac, sizeof(mac));
	__u8 meta[6] = {META_BASE, nonce, ifindex >> 24, ifindex >> 16, ifindex >> 8, ifindex};
	if (egress)
		meta[0] |= META_EGRESS;
	if (reply)
		meta[0] |= META_REPLY;
	if (bridged)
		meta[0] |= META_FINAL;
	if (cut)
		meta[0] |= META_CUT;
	if (skb_store_bytes(skb, 6, meta, sizeof(meta), 0) < 0)
		return leave(1);
	add(COUNT_UPCALL, n);
	return redirect(upcall_ifindex, 0);
}

// addresses fills in both addresses of a packet that parse did not get through.
// It reports whether the packet is IP at all.
INLINE int addresses(struct skb *skb, struct packet *p)
{
	__u16 protocol = ntohs(skb->protocol);
	if (protocol == ETH_IPV4) {
		struct address none = {};
		p->src = p->dst = none;
		p->src.words[2] = p->dst.words[2] = htonl(0xffff);
		return skb_load_bytes(skb, ETHER + 12, &p->src.words[3], 4) == 0 &&
		       skb_load_bytes(skb, ETHER + 16, &p->dst.words[3], 4) == 0;
	}
	return protocol == ETH_IPV6 && skb_load_bytes(skb, ETHER + 8, &p->src, 16) == 0 &&
	       skb_load_bytes(skb, ETHER + 24, &p->dst, 16) == 0;
}

// guarded is what the guard (guard.h) says about a packet, and counts it if that
// settles the matter: TCX_NEXT and TCX_DROP do, 0 means go on.
INLINE int guarded(struct skb *skb, struct guard *g, struct packet *p, enum parsed parsed, int egress)
{
	if (parsed != KEY && !addresses(skb, p)) {
		if (g->flags & GUARD_POD)
			return 0;
		add(COUNT_FOREIGN, 1);
		return TCX_NEXT;
	}
	switch (egress ? guard_destination(g, &p->dst) : guard_source(g, &p->src, skb->ifindex)) {
	case GUARD_LEAVE:
		add(COUNT_FOREIGN, 1);
		return TCX_NEXT;
	case GUARD_UNKNOWN:
		add(COUNT_UNKNOWN, 1);
		return TCX_DROP;
	case GUARD_FORGED:
		add(COUNT_FORGED, 1);
		return TCX_DROP;
	case GUARD_JUDGE:
		break;
	}
	return 0;
}

// bridged reports whether a packet stays on the bridge of its port, where the
// forward hook never sees it: from a pod when it is not for the bridge itself, to
// a pod when it came in by another port.
INLINE int bridged(struct skb *skb, const struct guard *g, int egress)
{
	if (!g || !g->bridge)
		return 0;
	if (egress) {
		__u32 from = skb->ingress_ifindex;
		return from && map_lookup(&bridge_ports, &from);
	}
	__u8 to[6];
	if (skb_load_bytes(skb, 0, to, sizeof(to)) < 0)
		return 1;
	for (int i = 0; i < 6; i++)
		if (to[i] != g->bridge_mac[i])
			return 1;
	return 0;
}

// forged_neighbour reports whether a pod on a bridge speaks for somebody else in
// ARP or neighbour discovery, which would lead the other's packets to it, or as a
// router, which no pod is.
INLINE int forged_neighbour(struct skb *skb, const struct guard *g)
{
	if (!g->bridge || !(g->flags & GUARD_BOUND))
		return 0;
	struct address a = {{0, 0, htonl(0xffff), 0}};
	switch (ntohs(skb->protocol)) {
	case ETH_ARP: // RFC 826: the sender's protocol address; none in a probe (RFC 5227)
		if (skb_load_bytes(skb, ETHER + 14, &a.words[3], 4) < 0)
			return 1;
		return a.words[3] && !guard_has(g, &a);
	case ETH_IPV6: {
		__u8 type;
		if (skb_load_bytes(skb, ETHER + IPV6, &type, 1) < 0)
			return 1;
		if (type == 134 || type == 137) // router advertisement, redirect
			return 1;
		if (type != 136) // neighbour advertisement: the target (RFC 4861 §4.4)
			return 0;
		if (skb_load_bytes(skb, ETHER + IPV6 + 8, &a, sizeof(a)) < 0)
			return 1;
		return (a.words[0] & htonl(0xffc00000)) != htonl(0xfe800000) && !guard_has(g, &a);
	}
	}
	return 0;
}

INLINE int equal(const struct flow_key *x, const struct flow_key *y)
{
	const __u64 *a = (const void *)x, *b = (const void *)y;
	return a[0] == b[0] && a[1] == b[1] && a[2] == b[2] && a[3] == b[3] && a[4] == b[4];
}
_Static_assert(sizeof(struct flow_key) == 5 * sizeof(__u64), "equal compares all of it");

INLINE int judge(struct skb *skb, int egress)
{
	__u32 mark = skb->mark;

	// Userspace sent this packet back and upcall_ingress set the bit an
	// instant ago. The bit ends here, so that it excuses one packet at one
	// device once. A pod cannot set it: the kernel clears the mark of a packet
	// that changes its namespace (skb_scrub_packet).
	if (mark & mark_return) {
		skb->mark = mark & ~mark_return;
		add(COUNT_RETURNED, 1);
		return TCX_NEXT;
	}
	// Nor may anything but us say that a pod's packet is accepted.
	if (!egress && mark & (mark_accept | mark_fast)) {
		mark &= ~(mark_accept | mark_fast);
		skb->mark = mark;
	}
	// Towards a pod, the forward hook has judged what it was not told to trust;
	// without that hook, only the node itself sets the accept mark. What we told
	// it to trust was judged under the name it had at its source's device. The
	// stack may have given it another one since (DNAT), so it needs an entry
	// under that name too.
	int judged = egress && !(mark & mark_fast) && (!strict || mark & mark_accept);
	int final = egress || strict, settled;

	struct packet p = {.headers = 200};
	enum parsed parsed = parse(skb, &p, egress);
	// Read before any flow: see current.
	__u64 policy = generation;
	__u32 zero = 0;
	struct accepted *l = map_lookup(&last, &zero);
	if (!l) // there is always one
		return TCX_DROP;
	if (egress && mark & mark_fast && parsed == KEY && l->generation == policy && equal(&l->key, &p.key)) {
		add(COUNT_HIT, 1);
		return TCX_NEXT;
	}

	__u64 now = ktime_coarse();
	__u32 ifindex = skb->ifindex;
	struct flow *f = 0;
	int known = 0; // f is an accepted flow
	__u8 reply = 0;
	if (parsed == KEY && (f = map_lookup(&flows, &p.key)) && !expired(f, p.proto, now)) {
		// A SYN opens a connection and is always judged. When it bears the
		// mark it has just been, and its entry was written before it was sent
		// on.
		if (!current(f, policy))
			reply = p.back != (f->flags & FLOW_BACK);
		else if (!p.syn || mark & mark_fast)
			known = 1;
	}
	// What was accepted was accepted for the pods that have the addresses: on the
	// way from a pod the guard looks at the device, once. To a pod a flow needs
	// no guard.
	__u32 *from = f ? &f->ifindex[p.back & 1] : 0;
	if (known && (egress || *from == ifindex))
		goto accept;

	struct guard *g = map_lookup(&guards, &ifindex);
	int inside = bridged(skb, g, egress);
	if (inside) { // nobody has judged it and nobody will
		judged = 0;
		final = 1;
	}
	if (parsed == NEIGHBOUR)
		parsed = inside ? EXEMPT : ASK;
	if (parsed == EXEMPT) {
		if (!egress && g && forged_neighbour(skb, g)) {
			add(COUNT_FORGED, 1);
			return TCX_DROP;
		}
		add(COUNT_EXEMPT, 1);
		return TCX_NEXT;
	}
	if (g && (settled = guarded(skb, g, &p, parsed, egress)))
		return settled;
	if (known) { // the guard has nothing against the device
		*from = ifindex;
		goto accept;
	}
	if (parsed == OPAQUE)
		return leave(final && !judged);
	if (parsed == ASK) {
		if (judged || !final)
			return leave(0);
		return upcall(skb, &p, egress, 0, final, inside, now);
	}
	if (judged) {
		if (!strict && (!f || expired(f, p.proto, now)))
			remember_later(&p.key, now, policy);
		add(COUNT_LATER, 1);
		return TCX_NEXT;
	}
	// Between ports of a bridge, too: what answers by way of a Service goes there
	// straight, and its connection the later hook has judged.
	if (!final || (inside && !strict && !p.syn)) {
		f = map_lookup(&later, &p.key);
		if (f && current(f, policy) && !expired(f, p.proto, now)) {
			touch(f, now);
			add(COUNT_LATER, 1);
			return TCX_NEXT;
		}
	}
	p.key.back = p.back;
	f = map_lookup(&denied, &p.key);
	if (f && f->generation == policy && now < f->last + deny_time) {
		add(COUNT_DENIED, 1);
		return TCX_DROP;
	}
	return upcall(skb, &p, egress, reply, final, inside, now);

accept:
	touch(f, now);
	if (p.closes && !(f->flags & FLOW_CLOSING))
		f->flags |= FLOW_CLOSING;
	if (!egress) {
		// Not mark_accept: what only passes accepts no connection once more.
		skb->mark = mark | mark_fast;
		l->key = p.key;
		l->generation = policy;
	}
	add(COUNT_HIT, 1);
	return TCX_NEXT;
}

SEC("tcx/ingress") int pod_ingress(struct skb *skb)
{
	return judge(skb, 0);
}

SEC("tcx/egress") int pod_egress(struct skb *skb)
{
	return judge(skb, 1);
}

INLINE int ours(const __u8 *mac)
{
	return (mac[0] & META_FIXED) == META_BASE && mac[1] == (__u8)nonce;
}

// upcall_ingress is on uc0: what the socket transmits on uc1 arrives here and
// goes back to the device it was captured on.
SEC("tcx/ingress") int upcall_ingress(struct skb *skb)
{
	__u8 meta[6];
	if (skb_load_bytes(skb, 6, meta, sizeof(meta)) < 0 || !ours(meta)) {
		add(COUNT_STRAY, 1);
		return TCX_DROP;
	}
	__u32 ifindex = (__u32)meta[2] << 24 | (__u32)meta[3] << 16 | (__u32)meta[4] << 8 | meta[5];
	struct device *d = map_lookup(&devices, &ifindex);
	if (!d) { // the pod has gone meanwhile
		add(COUNT_STRAY, 1);
		return TCX_DROP;
	}
	__u8 mac[6];
	if (meta[0] & META_EGRESS)
		__builtin_memcpy(mac, d->own, sizeof(mac));
	else
		__builtin_memcpy(mac, d->peer, sizeof(mac));
	if (skb_store_bytes(skb, 6, mac, sizeof(mac), 0) < 0)
		return TCX_DROP;
	skb->mark = mark_return | (meta[0] & META_ACCEPT ? mark_accept | mark_fast : 0);
	return redirect(ifindex, meta[0] & META_EGRESS ? 0 : BPF_F_INGRESS);
}

// upcall_xdp is on uc1 and hands frames to the socket of their queue.
SEC("xdp") int upcall_xdp(struct xdp_md *ctx)
{
	const __u8 *data = (const __u8 *)(unsigned long)ctx->data;
	const __u8 *end = (const __u8 *)(unsigned long)ctx->data_end;
	if (data + ETHER > end || !ours(data + 6)) {
		add(COUNT_STRAY, 1);
		return XDP_DROP;
	}
	add(COUNT_RECEIVED, 1);
	int action = redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
	if (action == XDP_DROP)
		add(COUNT_UNHEARD, 1);
	return action;
}

char license_name[] SEC("license") = "Dual BSD/GPL";
