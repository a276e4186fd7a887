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

// Set by the Go side before loading; the verifier sees constants.
volatile const __u32 upcall_ifindex = 0; // uc0
volatile const __u32 max_frame = 0;	 // bytes that fit an upcall, Ethernet header included
volatile const __u32 mark_accept = 0;	 // packet mark: judged and accepted
volatile const __u32 mark_fast = 0;	 // packet mark: accepted by us, at the device it came from
volatile const __u32 mark_return = 0;	 // packet mark: came back from userspace, loop breaker
volatile const __u8 strict = 0;		 // no later hook judges what we leave alone
volatile const __u8 nonce = 0;
// Idle times in ns after which a flow is forgotten.
volatile const __u64 idle_tcp = 0, idle_closing = 0, idle_udp = 0, idle_sctp = 0, idle_icmp = 0, idle_other = 0;

// Generation of the policy in force. Flows of another one are judged again.
volatile __u32 generation = 1;

// Flows userspace accepted: the only map that lets packets through.
struct {
	UINT(type, MAP_LRU_HASH);
	UINT(max_entries, 262144);
	TYPE(key, struct flow_key);
	TYPE(value, struct flow);
} flows SEC(".maps");

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
enum { ETH_IPV4 = 0x0800, ETH_IPV6 = 0x86dd, ETH_8021Q = 0x8100, ETH_8021AD = 0x88a8, ETH_MPLS = 0x8847,
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
	OPAQUE,	 // may be IP to the stack, but neither we nor userspace can tell
};

struct packet {
	struct flow_key key;
	__u32 headers; // bytes of all headers at most, for the size of a GSO segment
		       // (in practice, where the parser gave up)
	__u8 syn;      // SYN without ACK: opens a connection
	__u8 closes;   // FIN or RST
};

// Neighbour discovery (RFC 4861) keeps the link alive and is not subject to
// policy, but must not become a tunnel: it has hop limit 255, which no forwarded
// packet has (§7.1), and it is for this link: to a link-local or multicast
// address, or between the pod and the node itself.
INLINE int neighbour_discovery(const struct ipv6 *ip, __u8 type, __u8 code, int egress)
{
	if (type < 133 || type > 137 || code != 0 || ip->hops != 255)
		return 0;
	if (egress) // hop limit 255 towards a pod: the node itself sent it
		return 1;
	struct address dst = {{ip->dst[0], ip->dst[1], ip->dst[2], ip->dst[3]}};
	return (dst.words[0] & htonl(0xffc00000)) == htonl(0xfe800000) || // fe80::/10
	       (dst.words[0] & htonl(0xffff0000)) == htonl(0xff020000) || // ff02::/16
	       map_lookup(&node_addresses, &dst) != 0;
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

// parse fills p->key. Everything a verdict could depend on and this parser does
// not understand is ASK or OPAQUE, never KEY.
INLINE enum parsed parse(struct skb *skb, struct packet *p, int egress)
{
	__u32 l4, room; // offset of the transport header, bytes the packet says it has from there
	__u16 protocol = ntohs(skb->protocol);

	// A tag with VLAN 0 only carries a priority: the kernel has taken it off
	// and delivers the packet. Any other tag belongs to a VLAN device.
	if (skb->vlan_present && (skb->vlan_tci & 0xfff))
		return OPAQUE;

	if (protocol == ETH_IPV4) {
		struct ipv4 ip;
		if (skb_load_bytes(skb, ETHER, &ip, sizeof(ip)) < 0)
			return ASK;
		if (ip.fragment & htons(0x3fff)) // more fragments, or an offset
			return OPAQUE;
		if (ip.version_ihl != 0x45 || ip.proto == 0 || ip.proto == ICMPV6)
			return ASK;
		p->key.src[2] = p->key.dst[2] = htonl(0xffff);
		p->key.src[3] = ip.src;
		p->key.dst[3] = ip.dst;
		p->key.proto = ip.proto;
		l4 = ETHER + IPV4;
		// A GSO packet of more than 64 kB says 0.
		room = ip.length == 0 && skb->gso_size ? 0xffff : ntohs(ip.length);
		if (room < IPV4)
			return ASK;
		room -= IPV4;
	} else if (protocol == ETH_IPV6) {
		struct ipv6 ip;
		if (skb_load_bytes(skb, ETHER, &ip, sizeof(ip)) < 0)
			return ASK;
		if ((ip.version_class_label & htonl(0xf0000000)) != htonl(0x60000000))
			return ASK;
		// Mapped addresses never appear on a wire (RFC 4038 §4.2); here they
		// would be taken for the IPv4 flow of that name.
		if (mapped(ip.src) || mapped(ip.dst))
			return OPAQUE;
		for (int i = 0; i < 4; i++) {
			p->key.src[i] = ip.src[i];
			p->key.dst[i] = ip.dst[i];
		}
		p->key.proto = ip.next;
		l4 = ETHER + IPV6;
		room = ip.payload == 0 && skb->gso_size ? 0xffff : ntohs(ip.payload);
		switch (ip.next) {
		case ICMP: case IGMP: // IPv4's own
			return ASK;
		case 44: // fragment
			return OPAQUE;
		case 0: // hop-by-hop options
			return multicast_listener(skb, &ip) ? EXEMPT : ASK;
		case 43: case 51: case 60: case 135: case 139: case 140: // other extension headers
			return ASK;
		case ICMPV6: {
			__u8 b[2];
			if (skb_load_bytes(skb, l4, b, sizeof(b)) < 0)
				return ASK;
			if (neighbour_discovery(&ip, b[0], b[1], egress))
				return EXEMPT;
		}
		}
	} else {
		switch (protocol) {
		case ETH_8021Q: case ETH_8021AD: // the kernel takes off nested priority tags later
		case ETH_MPLS: case ETH_MPLS_MC: case ETH_PPPOE:
			return OPAQUE;
		}
		return EXEMPT;
	}

	p->headers = l4;
	switch (p->key.proto) {
	case TCP: {
		struct { __u16 sport, dport; __u32 seq, ack; __u8 offset, flags; } tcp;
		if (room < 20 || skb_load_bytes(skb, l4, &tcp, 14) < 0)
			return ASK;
		p->key.sport = ntohs(tcp.sport);
		p->key.dport = ntohs(tcp.dport);
		p->syn = (tcp.flags & (SYN | ACK)) == SYN;
		p->closes = (tcp.flags & (FIN | RST)) != 0;
		p->headers += 60;
		return KEY;
	}
	case UDP: case SCTP: {
		__u16 ports[2];
		if (room < 8 || skb_load_bytes(skb, l4, ports, sizeof(ports)) < 0)
			return ASK;
		p->key.sport = ntohs(ports[0]);
		p->key.dport = ntohs(ports[1]);
		p->headers += 12;
		return KEY;
	}
	case ICMP: case ICMPV6: {
		struct { __u8 type, code; __u16 checksum, id; } icmp;
		if (room < 8 || skb_load_bytes(skb, l4, &icmp, sizeof(icmp)) < 0)
			return ASK;
		// Errors belong to the flow inside them; the rest has no identifier
		// that tells flows apart.
		if (p->key.proto == ICMP ? icmp.type != 0 && icmp.type != 8 : icmp.type != 128 && icmp.type != 129)
			return ASK;
		p->key.sport = ntohs(icmp.id);
		p->key.dport = icmp.type << 8 | icmp.code;
		return KEY;
	}
	case IGMP:
		return ASK;
	}
	return KEY; // no ports, as in package flow
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

// remember_later notes that the flow opposite to key is the later hook's.
INLINE void remember_later(const struct flow_key *key, __u64 now)
{
	struct flow_key r = {.proto = key->proto};
	for (int i = 0; i < 4; i++) {
		r.src[i] = key->dst[i];
		r.dst[i] = key->src[i];
	}
	r.sport = key->dport;
	r.dport = key->sport;
	if (key->proto == ICMP || key->proto == ICMPV6) {
		r.sport = key->sport;
		switch (key->dport >> 8) { // only echo messages have a key
		case 0: case 8:
			r.dport = key->dport ^ 0x800;
			break;
		default: // 128, 129
			r.dport = key->dport ^ 0x100;
		}
	}
	struct flow *f = map_lookup(&later, &r);
	if (f && f->generation == generation) {
		touch(f, now);
		return;
	}
	struct flow fresh = {.generation = generation, .last = now};
	map_update(&later, &r, &fresh, BPF_ANY);
}

// leave is for what we cannot judge: the later hook does, if there is one.
INLINE int leave(int final)
{
	add(final ? COUNT_DROP : COUNT_UNPARSED, 1);
	return final ? TCX_DROP : TCX_NEXT;
}

INLINE int upcall(struct skb *skb, const struct packet *p, int egress, __u8 reply, int final)
{
	__u32 size = skb->gso_size ? p->headers + skb->gso_size : skb->len;
	if (size > max_frame) // would be lost on the way
		return leave(final);

	__u32 ifindex = skb->ifindex;
	struct device *d = map_lookup(&devices, &ifindex);
	if (!d) // being attached or detached
		return leave(final);
	if (!egress) {
		__u8 mac[6];
		if (skb_load_bytes(skb, 6, mac, sizeof(mac)) < 0)
			return TCX_DROP;
		__builtin_memcpy(d->peer, mac, sizeof(mac));
	}
	__u8 meta[6] = {META_BASE, nonce, ifindex >> 24, ifindex >> 16, ifindex >> 8, ifindex};
	if (egress)
		meta[0] |= META_EGRESS;
	if (reply)
		meta[0] |= META_REPLY;
	if (skb_store_bytes(skb, 6, meta, sizeof(meta), 0) < 0)
		return TCX_DROP;
	add(COUNT_UPCALL, skb->gso_segs ? skb->gso_segs : 1);
	return redirect(upcall_ifindex, 0);
}

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
	int final = egress || strict;

	struct packet p = {.headers = 200};
	switch (parse(skb, &p, egress)) {
	case EXEMPT:
		add(COUNT_EXEMPT, 1);
		return TCX_NEXT;
	case OPAQUE:
		return leave(final && !judged);
	case ASK:
		if (judged || !final)
			return leave(0);
		return upcall(skb, &p, egress, 0, final);
	case KEY:
		break;
	}

	__u64 now = ktime_coarse();
	__u8 reply = 0;
	struct flow *f = map_lookup(&flows, &p.key);
	// A SYN opens a connection and is always judged. When it bears the mark it
	// has just been, and its entry was written before it was sent on.
	if (f && (!p.syn || mark & mark_fast) && !expired(f, p.key.proto, now)) {
		if (f->generation == generation) {
			touch(f, now);
			if (p.closes)
				f->flags |= FLOW_CLOSING;
			if (!egress)
				skb->mark = mark | mark_accept | mark_fast;
			add(COUNT_HIT, 1);
			return TCX_NEXT;
		}
		reply = f->flags & FLOW_REPLY;
	}
	if (judged) {
		if (!strict && (!f || expired(f, p.key.proto, now)))
			remember_later(&p.key, now);
		add(COUNT_LATER, 1);
		return TCX_NEXT;
	}
	if (!final) {
		struct flow *l = map_lookup(&later, &p.key);
		if (l && l->generation == generation && !expired(l, p.key.proto, now)) {
			touch(l, now);
			add(COUNT_LATER, 1);
			return TCX_NEXT;
		}
	}
	return upcall(skb, &p, egress, reply, final);
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
	return (mac[0] & META_FIXED) == META_BASE && mac[1] == nonce;
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
	return redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
}

char license_name[] SEC("license") = "Dual BSD/GPL";
