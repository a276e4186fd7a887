// SPDX-License-Identifier: Apache-2.0
//
// The way to userspace.
#ifndef TIERWALL_UPCALL_H
#define TIERWALL_UPCALL_H

#include "parse.h"
#include "state.h"

volatile const __u32 upcall_ifindex = 0; // uc0
volatile const __u32 queues = 1;	 // of the upcall pair
volatile const __u32 max_frame = 0;	 // bytes that fit an upcall, Ethernet header included
volatile const __u8 open = 0;		 // fail mode open: without a daemon everything passes
volatile const __u64 alive_time = 0;	 // ns after the last sign of life the daemon counts as dead
// The rate limit of upcalls, per source: ns a packet costs, ns of credit.
volatile const __u64 upcall_cost = 0, upcall_credit = 0;

// When all upcalls of a source so far fit the rate limit, in ns of
// CLOCK_MONOTONIC_COARSE. Only for packets to a pod: those from one are limited
// by their device, whatever source address they claim.
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, __u64);
} sources SEC(".maps");

struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct device);
} devices SEC(".maps");

struct {
	__uint(type, MAP_XSKMAP);
	__uint(max_entries, MAX_QUEUES); // whatever the number of queues: the map outlives the daemon
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

// By queue. With fail mode open only, where a full ring lets pass: the kernel does
// not say that it is full.
struct {
	__uint(type, MAP_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_QUEUES);
	__type(key, __u32);
	__type(value, struct room);
} rooms SEC(".maps");

// sender is the device that a packet came from, 0 if this host sent it.
static __always_inline __u32 sender(const struct __sk_buff *skb, int egress)
{
	__u32 here = skb->ifindex, from = skb->ingress_ifindex;
	// Or clang chooses between two places in the context, which the verifier refuses.
	__asm__ volatile("" : "+r"(here), "+r"(from));
	return egress ? from : here;
}

// leave is for what we cannot judge: the later hook does, if there is one.
static __always_inline int leave(struct __sk_buff *skb, int egress, int final)
{
	if (!final) {
		add(COUNT_UNPARSED, 1);
		return TCX_NEXT;
	}
	dropped(COUNT_DROP, sender(skb, egress), 1);
	return TCX_DROP;
}

// within takes n packets from the credit of a source. Two CPUs that do so at once
// may give it a packet too many.
static __always_inline int within(__u64 *due, __u64 now, __u32 n)
{
	__u64 at = *due > now ? *due : now;
	if (at - now > upcall_credit)
		return 0;
	*due = at + n * upcall_cost;
	return 1;
}

static __always_inline int limited(struct device *d, const struct address *src, int egress, __u64 now, __u32 n)
{
	if (upcall_cost == 0)
		return 0;
	if (!egress)
		return !within(&d->due, now, n);
	struct address a = *src;
	if (a.words[2] != bpf_htonl(0xffff)) // a host has a /64 of IPv6 addresses at least
		a.words[2] = a.words[3] = 0;
	__u64 *due = bpf_map_lookup_elem(&sources, &a);
	if (due)
		return !within(due, now, n);
	__u64 first = now + n * upcall_cost;
	bpf_map_update_elem(&sources, &a, &first, BPF_ANY);
	return 0;
}

// prepend puts o between a frame's Ethernet and IP header.
static __always_inline int prepend(struct __sk_buff *skb, const struct origin *o)
{
	__u8 ether[ETHER];
	return bpf_skb_load_bytes(skb, 0, ether, sizeof(ether)) < 0 || bpf_skb_change_head(skb, sizeof(*o), 0) < 0 ||
	       bpf_skb_store_bytes(skb, 0, ether, sizeof(ether), 0) < 0 || bpf_skb_store_bytes(skb, ETHER, o, sizeof(*o), 0) < 0;
}

enum { // what an upcall is about
	UP_EGRESS = 1,
	UP_FINAL = 2,	// no later hook will see it
	UP_BRIDGED = 4,
	UP_REPLY = 8,	// its flow was accepted once, opened the other way
};

// deserted reports whether nobody is there to judge what comes up on a queue. The
// kernel takes the socket of a daemon that died out of the map; one that hangs gives
// no sign of life.
static __always_inline int deserted(__u32 queue, __u64 now)
{
	return !bpf_map_lookup_elem(&sockets, &queue) || now > alive + alive_time;
}

// here is the queue of this CPU. What is on a CPU stays there: whoever waits for the
// answer is there, too.
static __always_inline __u32 here(void)
{
	return bpf_get_smp_processor_id() % queues;
}

// Of what upcall returns: it drops the packet, for the reason in the low byte.
enum { UP_DROPPED = 0x100 };

// upcall sends a packet up, with o in front if that says anything. It leaves the counting
// of drops to finish: verifiers before Linux 6.2 allow its chain of calls no other frame.
__noinline int upcall(struct __sk_buff *skb, struct packet *p, struct origin *o, __u32 about, __u64 now)
{
	int egress = about & UP_EGRESS, final = about & UP_FINAL;
	if (!p || !o)
		return TCX_DROP;
	__u32 queue = here();
	if (deserted(queue, now)) {
		if (final && !open)
			return UP_DROPPED | COUNT_ALONE_DROP;
		add(COUNT_ALONE_PASS, 1);
		return TCX_NEXT;
	}
	__u32 most = max_frame - (o->flags ? sizeof(*o) : 0);
	__u32 size = skb->gso_size ? p->headers + skb->gso_size : skb->len;
	int cut = size > most; // would be lost on the way
	if (cut && !final) {
		add(COUNT_UNPARSED, 1);
		return TCX_NEXT;
	}

	__u32 ifindex = skb->ifindex;
	struct device *d = bpf_map_lookup_elem(&devices, &ifindex);
	if (!d) { // being attached or detached
		if (final)
			return UP_DROPPED | COUNT_DROP;
		add(COUNT_UNPARSED, 1);
		return TCX_NEXT;
	}
	__u32 n = skb->gso_segs && !cut ? skb->gso_segs : 1;
	struct room *room = open ? bpf_map_lookup_elem(&rooms, &queue) : 0;
	if (room && room->sent + n > *(volatile __u64 *)&room->most) {
		add(COUNT_ALONE_PASS, 1);
		return TCX_NEXT;
	}
	// Who is masqueraded shares an address with everybody else who is.
	if (limited(d, o->flags & ORIGIN_NAT ? (const void *)o->client : &p->src, egress, now, n))
		return UP_DROPPED | COUNT_LIMITED;
	// Nobody else can judge it: its first bytes do for that, and the sender has
	// to send it again.
	if (cut && bpf_skb_change_tail(skb, most, 0) < 0)
		return UP_DROPPED | COUNT_DROP;
	if (o->flags && prepend(skb, o))
		return UP_DROPPED | COUNT_DROP;
	__u8 macs[12]; // destination, source
	if (bpf_skb_load_bytes(skb, 0, macs, sizeof(macs)) < 0)
		return UP_DROPPED | COUNT_DROP;
	__builtin_memcpy(egress ? d->own : d->peer, macs + 6, 6);
	// A pod that is refused for before it has said anything answers, too, and a
	// bridge takes no frame from nobody.
	const __u8 *q = d->peer;
	if (egress && !(macs[0] & 1) && !(q[0] | q[1] | q[2] | q[3] | q[4] | q[5]))
		__builtin_memcpy(d->peer, macs, 6);
	__u32 word = ifindex | (o->flags ? META_ORIGIN : 0);
	__u8 meta[6] = {META_BASE, nonce, word >> 24, word >> 16, word >> 8, word};
	if (egress)
		meta[0] |= META_EGRESS;
	if (about & UP_REPLY)
		meta[0] |= META_REPLY;
	if (about & UP_BRIDGED)
		meta[0] |= META_FINAL;
	if (cut)
		meta[0] |= META_CUT;
	if (bpf_skb_store_bytes(skb, 6, meta, sizeof(meta), 0) < 0)
		return UP_DROPPED | COUNT_DROP;
	add(COUNT_UPCALL, n);
	if (room)
		__sync_fetch_and_add(&room->sent, n);
	skb->queue_mapping = queue + 1; // as if it had been received on that queue
	return bpf_redirect(upcall_ifindex, 0);
}

// finish counts what upcall dropped, by the packet's sender.
static __always_inline int finish(struct __sk_buff *skb, int egress, int result)
{
	if (result < UP_DROPPED)
		return result;
	dropped(result & 0xff, sender(skb, egress), 1);
	return TCX_DROP;
}

static __always_inline int ours(const __u8 *mac)
{
	return (mac[0] & META_FIXED) == META_BASE && mac[1] == (__u8)nonce;
}

#endif
