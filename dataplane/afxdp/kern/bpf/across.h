// SPDX-License-Identifier: Apache-2.0
//
// The way across: packets of accepted flows between two pods of this node go from
// the source's device straight into the destination's pod, past the host's stack.
//
// A way is learnt by looking. A packet that came from one pod's device, was
// accepted there under a tuple, and leaves by another pod's device under the same
// tuple, was routed (or bridged) and not translated; what the stack did to it the
// next packet of the tuple can have done here: new MAC addresses, one hop less.
// After a while the stack sees a packet again, which notices changed routes, keeps
// connection tracking from forgetting the connection, and teaches the way anew.
//
// A way is a slot's (front.h) and ends with it, but for slots that are filled
// anew in place: with every generation. Whether a packet is accepted the slot
// says, here as elsewhere.
#ifndef TIERWALL_ACROSS_H
#define TIERWALL_ACROSS_H

#include "front.h"
#include "guard.h"
#include "upcall.h"

// Set by the Go side before loading; the verifier sees constants, and without
// accelerate none of this.
volatile const __u8 accelerate = 0;
volatile const __u8 tcp_liberal = 0; // connection tracking does not mind missing packets of a TCP connection
volatile const __u64 way_ticks = 0;  // jiffies after which a way is learnt anew

struct way {
	__u8 dst[6], src[6]; // MAC addresses on the destination's device; unused if flat
	__u32 ifindex;	     // the destination's device
	__u32 mtu;
	__u32 flat; // between ports of a bridge: nothing about the packet changes
	__u64 born; // jiffies
};

// By place, as front.
struct {
	__uint(type, MAP_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // set before loading
	__type(key, __u32);
	__type(value, struct way);
} ways SEC(".maps");

// One more than the place of the packet that this CPU has just let into the stack,
// 0 if it has none.
struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} entered SEC(".maps");

static __always_inline void enter(__u32 place_plus_1)
{
	__u32 zero = 0, *e;
	if (accelerate && (e = bpf_map_lookup_elem(&entered, &zero)))
		*e = place_plus_1;
}

// The kernel's own struct, as far as it is looked at: no stable interface, the
// loader puts in the offset in the running kernel.
struct sk_buff___way {
	unsigned long _nfct;
} __attribute__((preserve_access_index));

extern void *bpf_cast_to_kern_ctx(void *skb) SEC(".ksyms") __weak; // Linux 6.2

// tracked reports whether connection tracking knows the packet's connection, or
// may.
static __always_inline int tracked(struct __sk_buff *skb)
{
	enum { CT_INFO = 7, CT_UNTRACKED = 7 };
	if (!bpf_cast_to_kern_ctx)
		return 1;
	const struct sk_buff___way *k = bpf_cast_to_kern_ctx(skb);
	unsigned long ct = k->_nfct;
	return (ct & ~(unsigned long)CT_INFO) != 0 && (ct & CT_INFO) != CT_UNTRACKED;
}

enum { DNS = 53 };

// suits reports whether a flow may leave out the stack at all: the protocols whose
// packets, but for those that open and close a connection, tell connection
// tracking nothing it needs; and DNS never, which somebody may be listening to.
static __always_inline int suits(const struct slot *s)
{
	__u8 proto = s->tuple[0] >> 32;
	__u16 sport = bpf_ntohs((__u16)s->tuple[0]), dport = bpf_ntohs((__u16)(s->tuple[0] >> 16));
	return (proto == TCP || proto == UDP) && sport != DNS && dport != DNS;
}

// destination is where a slot's packets go.
static __always_inline struct address destination(const struct slot *s)
{
	if (s->tuple[0] >> 40 == 4)
		return (struct address){{0, 0, bpf_htonl(0xffff), s->tuple[1] >> 32}};
	return (struct address){{s->tuple[3], s->tuple[3] >> 32, s->tuple[4], s->tuple[4] >> 32}};
}

static __always_inline int same_mac(const __u8 *a, const __u8 *b)
{
	for (int i = 0; i < 6; i++)
		if (a[i] != b[i])
			return 0;
	return 1;
}

// learn notes the way of a packet that is about to leave to a pod.
static __noinline void learn(struct __sk_buff *skb, struct slot *s, __u32 place, __u32 marked)
{
	__u32 zero = 0, *e;
	// Was it the last one that came in, under this very tuple, from a pod?
	if (!marked || !s->ifindex || s->ifindex != skb->ingress_ifindex ||
	    !(e = bpf_map_lookup_elem(&entered, &zero)) || *e != place + 1)
		return;
	__u32 from = s->ifindex, to = skb->ifindex, mtu = 0;
	struct address dst = destination(s);
	s->way = WAY_NONE;
	struct device *came = bpf_map_lookup_elem(&devices, &from), *d = bpf_map_lookup_elem(&devices, &to);
	struct guard *source = bpf_map_lookup_elem(&guards, &from), *target = bpf_map_lookup_elem(&guards, &to);
	struct local_pod *pod = bpf_map_lookup_elem(&local_pods, &dst);
	struct way *w = bpf_map_lookup_elem(&ways, &place);
	if (!came || !(came->flags & DEVICE_OPEN) || !d || !(d->flags & DEVICE_OPEN) || !source ||
	    !target || !w || !suits(s))
		return;
	// A bridge floods what it does not know the port of: this may be a copy.
	if (!pod || pod->ifindex != to)
		return;
	// Bridged, or routed; not one and then the other.
	if (source->bridge != target->bridge)
		return;
	__u8 macs[12];
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) < 0 || macs[0] & 1)
		return;
	w->flat = source->bridge != 0;
	if (!w->flat && !same_mac(macs + 6, d->own))
		return;
	if (bpf_check_mtu(skb, 0, &mtu, 0, 0) < 0 || !mtu)
		return;
	if ((__u8)(s->tuple[0] >> 32) == TCP && !tcp_liberal && tracked(skb))
		return;
	__builtin_memcpy(w->dst, macs, 12);
	w->ifindex = to;
	w->mtu = mtu;
	w->born = bpf_jiffies64();
	barrier();
	s->way = WAY_KNOWN;
}

// across sends a packet of the slot's flow its way. 0: it must take the stack's.
static __always_inline int across(struct __sk_buff *skb, struct slot *s, __u32 place, __u32 mark)
{
	if (s->way != WAY_KNOWN)
		return 0;
	struct way *w = bpf_map_lookup_elem(&ways, &place);
	if (!w)
		return 0;
	if (bpf_jiffies64() - w->born >= way_ticks) {
		s->way = WAY_UNKNOWN;
		return 0;
	}
	const __u8 *data = (const __u8 *)(unsigned long)skb->data;
	const __u8 *end = (const __u8 *)(unsigned long)skb->data_end;
	__u8 head[ETHER + 12] __attribute__((aligned(8))); // what changes is in here
	__u32 v6 = s->tuple[0] >> 40 == 6, l3 = v6 ? IPV6 : IPV4, l4 = 8;
	if (data + sizeof(head) > end)
		return 0;
	if ((__u8)(s->tuple[0] >> 32) == TCP) {
		const __u8 *tcp = data + ETHER + l3;
		if (tcp + 14 > end)
			return 0;
		l4 = (tcp[12] >> 4) * 4;
	}
	// What does not fit the stack must answer, or take to pieces.
	if ((skb->gso_size ? l3 + l4 + skb->gso_size : skb->len - ETHER) > w->mtu)
		return 0;
	if (mark & (mark_accept | mark_fast))
		skb->mark = mark & ~(mark_accept | mark_fast);
	if (w->flat) {
		if (!same_mac(data, w->dst)) // the bridge itself, or nobody
			return 0;
		// It was for another address than the port's.
		if (bpf_skb_change_type(skb, PACKET_HOST) < 0)
			return 0;
		return bpf_redirect_peer(w->ifindex, 0);
	}
	__builtin_memcpy(head, w->dst, 12);
	__builtin_memcpy(head + 12, data + 12, sizeof(head) - 12);
	if (v6) {
		if (head[ETHER + 7] <= 1) // somebody must say so
			return 0;
		head[ETHER + 7]--;
		if (bpf_skb_store_bytes(skb, 0, head, ETHER + 8, 0) < 0)
			return 0;
	} else {
		if (head[ETHER + 8] <= 1)
			return 0;
		head[ETHER + 8]--;
		__u16 *sum = (void *)(head + ETHER + 10); // RFC 1624
		__u32 more = *sum + bpf_htons(0x0100);
		*sum = more + (more >= 0xffff);
		if (bpf_skb_store_bytes(skb, 0, head, ETHER + 12, 0) < 0)
			return 0;
	}
	return bpf_redirect_peer(w->ifindex, 0);
}

#endif
