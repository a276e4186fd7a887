// SPDX-License-Identifier: Apache-2.0
//
// The kernel half of the AF_XDP backend; the package's doc.go has the picture.
//
// pod_ingress and pod_egress sit on the node's end of every pod's veth pair:
// "ingress" is from the pod, "egress" is to the pod. They pass packets of
// remembered flows, send the rest to userspace through the upcall pair, and know
// a packet that userspace has sent back. upcall_ingress and upcall_xdp are the
// two ends of that pair.

#include "across.h"
#include "flows.h"
#include "front.h"
#include "guard.h"
#include "nat.h"
#include "parse.h"
#include "renew.h"
#include "upcall.h"

// addresses fills in both addresses of a packet that parse did not get through.
// It reports whether the packet is IP at all.
static __always_inline int addresses(struct __sk_buff *skb, struct packet *p)
{
	__u16 protocol = bpf_ntohs(skb->protocol);
	if (protocol == ETH_IPV4) {
		struct address none = {};
		p->src = p->dst = none;
		p->src.words[2] = p->dst.words[2] = bpf_htonl(0xffff);
		return bpf_skb_load_bytes(skb, ETHER + 12, &p->src.words[3], 4) == 0 &&
		       bpf_skb_load_bytes(skb, ETHER + 16, &p->dst.words[3], 4) == 0;
	}
	return protocol == ETH_IPV6 && bpf_skb_load_bytes(skb, ETHER + 8, &p->src, 16) == 0 &&
	       bpf_skb_load_bytes(skb, ETHER + 24, &p->dst, 16) == 0;
}

// guarded is what the guard (guard.h) says about a packet, and counts it if that
// settles the matter: TCX_NEXT and TCX_DROP do, 0 means go on.
__noinline int guarded(struct __sk_buff *skb, struct guard *g, struct packet *p, int parsed, int egress)
{
	if (!g || !p)
		return 0;
	if (parsed != KEY && !addresses(skb, p)) {
		if (g->flags & GUARD_POD)
			return 0;
		add(COUNT_FOREIGN, 1);
		return TCX_NEXT;
	}
	if (egress && guard_sender(&p->src, skb->ingress_ifindex) == GUARD_FORGED) {
		dropped(COUNT_FORGED, sender(skb, egress), 1);
		return TCX_DROP;
	}
	// No pod is a DHCP server (RFC 2131, RFC 8415): clients believe what one says.
	if (!egress && parsed == KEY && p->proto == UDP && g->flags & GUARD_POD &&
	    ((p->sport == 67 && p->dport == 68) || (p->sport == 547 && p->dport == 546))) {
		dropped(COUNT_FORGED, sender(skb, egress), 1);
		return TCX_DROP;
	}
	switch (egress ? guard_destination(g, &p->dst) : guard_source(g, &p->src, skb->ifindex)) {
	case GUARD_LEAVE:
		add(COUNT_FOREIGN, 1);
		return TCX_NEXT;
	case GUARD_UNKNOWN:
		dropped(COUNT_UNKNOWN, sender(skb, egress), 1);
		return TCX_DROP;
	case GUARD_FORGED:
		dropped(COUNT_FORGED, sender(skb, egress), 1);
		return TCX_DROP;
	case GUARD_JUDGE:
		break;
	}
	return 0;
}

// bridged reports whether a packet stays on the bridge of its port, where the
// forward hook never sees it: from a pod when it is not for the bridge itself, to
// a pod when it came in by another port.
static __always_inline int bridged(struct __sk_buff *skb, const struct guard *g, int egress)
{
	if (!g || !g->bridge)
		return 0;
	if (egress) {
		__u32 from = skb->ingress_ifindex;
		return from && bpf_map_lookup_elem(&bridge_ports, &from);
	}
	__u8 to[6];
	if (bpf_skb_load_bytes(skb, 0, to, sizeof(to)) < 0)
		return 1;
	for (int i = 0; i < 6; i++)
		if (to[i] != g->bridge_mac[i])
			return 1;
	return 0;
}

// forged_neighbour reports whether a pod speaks as a router, which no pod is, or one on
// a bridge for somebody else in ARP or neighbour discovery, which would lead the other's
// packets to it.
static __always_inline int forged_neighbour(struct __sk_buff *skb, const struct guard *g)
{
	if (!(g->flags & GUARD_POD))
		return 0;
	int knows = g->bridge && g->flags & GUARD_BOUND;
	struct address a = {{0, 0, bpf_htonl(0xffff), 0}};
	switch (bpf_ntohs(skb->protocol)) {
	case ETH_ARP: // RFC 826: the sender's protocol address; none in a probe (RFC 5227)
		if (bpf_skb_load_bytes(skb, ETHER + 14, &a.words[3], 4) < 0)
			return 1;
		return knows && a.words[3] && !guard_has(g, &a);
	case ETH_IPV6: {
		__u8 type;
		if (bpf_skb_load_bytes(skb, ETHER + IPV6, &type, 1) < 0)
			return 1;
		if (type == 134 || type == 137) // router advertisement, redirect
			return 1;
		if (!knows || type != 136) // neighbour advertisement: the target (RFC 4861 §4.4)
			return 0;
		if (bpf_skb_load_bytes(skb, ETHER + IPV6 + 8, &a, sizeof(a)) < 0)
			return 1;
		return (a.words[0] & bpf_htonl(0xffc00000)) != bpf_htonl(0xfe800000) && !guard_has(g, &a);
	}
	}
	return 0;
}

// accepted is the mark of what was accepted at its source's device. Without a later
// hook a packet with one of the two bits only has been judged by nobody yet by where
// it goes (nat.h): it is unjudged.
static __always_inline __u32 accepted(void)
{
	return strict ? mark_accept | mark_fast : mark_fast;
}

static __always_inline int unjudged(__u32 mark, int egress)
{
	return egress && strict && (mark & accepted()) == mark_fast;
}

// pass lets a packet go that belongs to an accepted flow, with its slot or 0.
static __always_inline int pass(struct __sk_buff *skb, struct slot *s, __u32 place, int egress, __u32 mark)
{
	if (!egress) {
		int action = accelerate && s ? across(skb, s, place, mark) : 0;
		if (action) {
			add(COUNT_ACROSS, 1);
			return action;
		}
		enter(s ? place + 1 : 0);
		// To a later hook mark_accept would say: and the rest of the connection
		// with it. What only passes accepts none once more.
		skb->mark = strict ? mark | mark_accept | mark_fast : (mark & ~mark_accept) | mark_fast;
	} else if (accelerate && s && s->way == WAY_UNKNOWN) {
		learn(skb, s, place, mark & mark_fast);
	}
	add(COUNT_HIT, 1);
	return TCX_NEXT;
}

// judge has time: what is usual has passed already (usual).
static __always_inline int judge(struct __sk_buff *skb, int egress)
{
	__u32 mark = skb->mark, ifindex = skb->ifindex;

	// Userspace sent this packet back and upcall_ingress set the bit an
	// instant ago. The bit ends here, so that it excuses one packet at one
	// device once. A pod cannot set it: the kernel clears the mark of a packet
	// that changes its namespace (skb_scrub_packet).
	if (mark & mark_return) {
		skb->mark = mark & ~mark_return;
		if (!egress)
			enter(0);
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

	struct origin o = {};
	struct packet p = {.headers = 200};
	int parsed = parse(skb, &p, egress);
	__u64 policy = generation; // read before any flow: see current
	__u64 now = bpf_ktime_get_coarse_ns();
	struct flow *f = 0;
	int known = 0; // f is an accepted flow
	__u8 reply = 0;
	// A SYN opens a connection and is always judged. When it bears the mark it has
	// just been, and its entry was written before it was sent on.
	if (parsed == KEY && (egress || !p.syn) && (f = bpf_map_lookup_elem(&flows, &p.key)) && !expired(f, p.proto, now)) {
		if (!current(f, policy))
			reply = p.back != (f->flags & FLOW_BACK);
		else if (!p.syn || (mark & accepted()) == accepted())
			known = 1;
	}
	// To a pod a flow needs no guard. What was accepted was accepted for the pods
	// that have the addresses, so on the way from a pod the guard looks at the
	// device.
	if (known && egress && open_faced(skb, f, unjudged(mark, egress)))
		goto accept;

	struct guard *g = bpf_map_lookup_elem(&guards, &ifindex);
	int inside = (egress || !known || f->flags & FLOW_VEILED) && bridged(skb, g, egress);
	// What is left to the device it leaves by is not left to one that nobody watches.
	int watched = inside && !egress && bpf_map_lookup_elem(&exits, &g->bridge);
	if (inside && !egress && !watched)
		known = 0;
	if (inside) { // nobody has judged it and nobody will
		judged = egress && (mark & (mark_accept | mark_fast)) == mark_accept; // our own answer
		final = 1;
	}
	if (parsed == NEIGHBOUR)
		parsed = inside ? EXEMPT : ASK;
	if (parsed == EXEMPT) {
		if (!egress && g && forged_neighbour(skb, g)) {
			dropped(COUNT_FORGED, sender(skb, egress), 1);
			return TCX_DROP;
		}
		// Between pods there is ARP and IP: whatever else a frame may carry, IP
		// in another wrapping among it, would go past any policy.
		if (inside && skb->protocol != bpf_htons(ETH_ARP) && skb->protocol != bpf_htons(ETH_IPV6))
			return leave(skb, egress, 1);
		add(COUNT_EXEMPT, 1);
		return TCX_NEXT;
	}
	if (g && (settled = guarded(skb, g, &p, parsed, egress)) != 0)
		return settled;
	if (known && !egress)
		goto accept;
	if (egress && !judged) {
		if (behind(skb, &p, &o, parsed != KEY || p.syn, now)) {
			add(COUNT_HIT, 1);
			return TCX_NEXT;
		}
		// Something without a connection bears the node's address on its way
		// out of the node: one of a pod's packets is in it, or was.
		if (!g && o.flags & ORIGIN_MASKED)
			return leave(skb, egress, 1);
	}
	if (parsed == OPAQUE)
		return leave(skb, egress, final && !judged);
	__u32 about = (egress ? UP_EGRESS : 0) | (final ? UP_FINAL : 0) | (inside ? UP_BRIDGED : 0);
	if (parsed == ASK) {
		if (judged || !final)
			return leave(skb, egress, 0);
		return finish(skb, egress, upcall(skb, &p, &o, about, now));
	}
	if (judged) {
		if (!strict && (!f || expired(f, p.proto, now)))
			remember_later(&p.key, now, policy);
		add(COUNT_LATER, 1);
		return TCX_NEXT;
	}
	// Between ports of a bridge, too: what answers by way of a Service goes there
	// straight, and its connection the later hook has judged.
	// Alone, a Service's packets are left to the program where they leave (nat.h). Without
	// a daemon that could not accept them either, and a device that has appeared since
	// has none.
	int onward = nat && strict && translated && !egress && !inside && !deserted(here(), now);
	if (!final || onward || (watched && !strict && !p.syn)) {
		f = bpf_map_lookup_elem(&later, &p.key);
		if (f && current(f, policy) && !expired(f, p.proto, now)) {
			touch(f, now);
			add(COUNT_LATER, 1);
			if (onward)
				skb->mark = mark | mark_fast;
			return TCX_NEXT;
		}
	}
	if (translated && !egress && final)
		recall(&p, &o);
	p.key.back = p.back;
	f = bpf_map_lookup_elem(&denied, &p.key);
	if (f && f->generation == policy && now < f->last + deny_time) {
		add(COUNT_DENIED, 1);
		return TCX_DROP;
	}
	return finish(skb, egress, upcall(skb, &p, &o, about | (reply ? UP_REPLY : 0), now));

accept:
	touch(f, now);
	if (p.closes)
		close_flow(f);
	// Translated packets are looked at one by one: the front knows no more than
	// what they bear.
	if (f->flags & (egress ? FLOW_VEILED | FLOW_HOST : FLOW_VEILED)) {
		if (!egress) { // whom it is about shows where it leaves
			enter(0);
			skb->mark = strict ? mark | mark_fast : mark;
		}
		add(COUNT_HIT, 1);
		return TCX_NEXT;
	}
	__u32 place = 0;
	struct slot *s = to_front(skb, egress ? 0 : ifindex, policy, &place);
	if (s && f->flags & FLOW_CLOSING)
		s->way = WAY_NONE;
	return pass(skb, s, place, egress, mark);
}

// Functions of their own, so that the code of the usual case is in few cache lines.
static __noinline int judge_from(struct __sk_buff *skb)
{
	return judge(skb, 0);
}

static __noinline int judge_to(struct __sk_buff *skb)
{
	return judge(skb, 1);
}

// usual is what most packets meet: their flow is known, and they pass.
static __always_inline int usual(struct __sk_buff *skb, int egress)
{
	__u32 mark = skb->mark, place;
	if (!(mark & mark_return) && !unjudged(mark, egress)) {
		struct slot *s = in_front(skb, egress ? 0 : skb->ifindex, generation, &place);
		if (s)
			return pass(skb, s, place, egress, mark);
	}
	return egress ? judge_to(skb) : judge_from(skb);
}

SEC("tcx/ingress") int pod_ingress(struct __sk_buff *skb)
{
	return usual(skb, 0);
}

SEC("tcx/egress") int pod_egress(struct __sk_buff *skb)
{
	return usual(skb, 1);
}

// pod_exit is on devices that are no pod's, where it looks at what pods sent and
// nobody has judged by where it goes: see nat.h.
SEC("tcx/egress") int pod_exit(struct __sk_buff *skb)
{
	__u32 mark = skb->mark;
	if (!(mark & mark_return)) {
		if (!(mark & mark_fast))
			return TCX_NEXT;
		struct origin o = {};
		int tracked = connection(skb, &o, !(mark & mark_accept));
		if (mark & mark_accept && said_all(&o)) {
			skb->mark = mark & ~(mark_accept | mark_fast);
			return TCX_NEXT; // judged as what it is
		}
		// Most packets need no parsing. The first ones of a connection are not
		// let through for an older one.
		struct flow *f = tracked && !(o.flags & ORIGIN_NEW) ? accepted_as(&o, generation, bpf_ktime_get_coarse_ns()) : 0;
		if (f) {
			touch(f, bpf_ktime_get_coarse_ns());
			add(COUNT_HIT, 1);
			skb->mark = mark & ~(mark_accept | mark_fast);
			return TCX_NEXT;
		}
	}
	int action = judge(skb, 1);
	if (action == TCX_NEXT) // no other device below this one needs to look again
		skb->mark &= ~(mark_accept | mark_fast);
	return action;
}

// upcall_ingress is on uc0: what the socket transmits on uc1 arrives here and
// goes back to the device it was captured on.
SEC("tcx/ingress") int upcall_ingress(struct __sk_buff *skb)
{
	__u8 meta[6];
	if (bpf_skb_load_bytes(skb, 6, meta, sizeof(meta)) < 0 || !ours(meta)) {
		add(COUNT_STRAY, 1);
		return TCX_DROP;
	}
	__u32 ifindex = (__u32)meta[2] << 24 | (__u32)meta[3] << 16 | (__u32)meta[4] << 8 | meta[5];
	struct device *d = bpf_map_lookup_elem(&devices, &ifindex);
	if (!d) { // the pod has gone meanwhile
		add(COUNT_STRAY, 1);
		return TCX_DROP;
	}
	__u8 mac[6];
	if (meta[0] & META_EGRESS)
		__builtin_memcpy(mac, d->own, sizeof(mac));
	else
		__builtin_memcpy(mac, d->peer, sizeof(mac));
	if (bpf_skb_store_bytes(skb, 6, mac, sizeof(mac), 0) < 0)
		return TCX_DROP;
	skb->mark = mark_return | (meta[0] & META_ACCEPT ? mark_accept : 0) | (meta[0] & META_FAST ? mark_fast : 0);
	return bpf_redirect(ifindex, meta[0] & META_EGRESS ? 0 : BPF_F_INGRESS);
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
	int action = bpf_redirect_map(&sockets, ctx->rx_queue_index, XDP_DROP);
	if (action == XDP_DROP)
		add(COUNT_UNHEARD, 1);
	return action;
}

char license_name[] SEC("license") = "Dual BSD/GPL";
