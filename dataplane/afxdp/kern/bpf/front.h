// SPDX-License-Identifier: Apache-2.0
//
// The front cache: flows that this CPU found in "flows" a moment ago, under the
// very words of their packets. Most packets of accepted flows end here: no name
// to work out, no hash table, no clock to ask for, no guard.
//
// A slot says "this tuple belongs to an accepted flow, and the guard has nothing
// against its source on this device". That holds while the generation is the same
// (every change of policy and every change of what the guard knows begins another
// one) and for front_time, after which the flow is looked up again, so that it
// expires, and stays in its map, as if every packet had been looked up.
//
// Slots are a CPU's own: packets are handled one at a time per CPU. They are in an
// array, not in a per-CPU map, because it begins at a page and no slot lies in two
// cache lines. They end with the program, never pinned.
#ifndef TIERWALL_FRONT_H
#define TIERWALL_FRONT_H

#include "flows.h"

volatile const __u32 front_mask = 0;  // slots of one CPU minus 1; they are a power of 2
volatile const __u64 front_ticks = 0; // front_time in jiffies

// The words of a tuple: ports, protocol and family; then the addresses, those of
// IPv4 in the first word. A zeroed slot is no packet's.
enum { TUPLE = 5 };

enum { // slot.way, see across.h
	WAY_UNKNOWN,
	WAY_KNOWN,
	WAY_NONE, // the stack's business, as far as could be told when the slot was filled
};

struct slot {
	__u64 tuple[TUPLE];
	__u64 generation;
	__u64 born;    // jiffies
	__u32 ifindex; // that the guard let the source send from; 0: it was not asked
	__u32 way;
};
_Static_assert(sizeof(struct slot) == 64, "one cache line");

struct {
	__uint(type, MAP_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1); // of all CPUs; set before loading
	__type(key, __u32);
	__type(value, struct slot);
} front SEC(".maps");

// plain reads the tuple of a packet that parse would call a KEY without a second
// look, and that neither opens nor closes a connection.
static __always_inline int plain(struct __sk_buff *skb, __u64 *tuple)
{
	const __u8 *data = (const __u8 *)(unsigned long)skb->data;
	const __u8 *end = (const __u8 *)(unsigned long)skb->data_end;
	__u32 protocol = skb->protocol;
	const __u8 *l4;
	__u64 family;
	__u32 room;
	__u8 proto;

	if (skb->vlan_present)
		return 0;
	if (protocol == bpf_htons(ETH_IPV4)) {
		const struct ipv4 *ip = (const void *)(data + ETHER);
		l4 = data + ETHER + IPV4;
		if (l4 + 8 > end || ip->version_ihl != 0x45 || ip->fragment & bpf_htons(0x3fff))
			return 0;
		room = bpf_ntohs(ip->length);
		if (room < IPV4)
			return 0;
		room -= IPV4;
		proto = ip->proto;
		family = 4;
		tuple[1] = ip->src | (__u64)ip->dst << 32;
		tuple[2] = tuple[3] = tuple[4] = 0;
	} else if (protocol == bpf_htons(ETH_IPV6)) {
		const struct ipv6 *ip = (const void *)(data + ETHER);
		l4 = data + ETHER + IPV6;
		if (l4 + 8 > end || (ip->version_class_label & bpf_htonl(0xf0000000)) != bpf_htonl(0x60000000))
			return 0;
		room = bpf_ntohs(ip->payload);
		proto = ip->next;
		family = 6;
		tuple[1] = ip->src[0] | (__u64)ip->src[1] << 32;
		tuple[2] = ip->src[2] | (__u64)ip->src[3] << 32;
		tuple[3] = ip->dst[0] | (__u64)ip->dst[1] << 32;
		tuple[4] = ip->dst[2] | (__u64)ip->dst[3] << 32;
	} else {
		return 0;
	}
	if (proto == TCP) {
		if (room < 20 || l4 + 14 > end || l4[13] & (SYN | FIN | RST))
			return 0;
	} else if ((proto != UDP && proto != SCTP) || room < 8) {
		return 0;
	}
	tuple[0] = *(const __u32 *)l4 | (__u64)proto << 32 | family << 40;
	return 1;
}

// places names the two slots of this CPU that a tuple may be in, one in each half
// of the result. Two, so that flows that meet in one do not chase each other out.
static __always_inline __u64 places(const __u64 *tuple)
{
	__u64 h = (tuple[1] + tuple[2] * 3 + tuple[3] * 5 + tuple[4] * 7) ^ tuple[0] * 0x9e3779b97f4a7c15;
	h = (h ^ h >> 32) * 0xd6e8feb86659fd93;
	h ^= h >> 32;
	__u64 cpu = bpf_get_smp_processor_id() * (front_mask + 1);
	return (cpu << 32 | cpu) + (h & ((__u64)front_mask << 32 | front_mask));
}

static __always_inline struct slot *slot_at(__u32 place)
{
	return bpf_map_lookup_elem(&front, &place);
}

static __always_inline int same_tuple(const struct slot *s, const __u64 *tuple)
{
	return s->tuple[0] == tuple[0] && s->tuple[1] == tuple[1] && s->tuple[2] == tuple[2] &&
	       s->tuple[3] == tuple[3] && s->tuple[4] == tuple[4];
}

static __always_inline int fresh(const struct slot *s, __u64 policy)
{
	return s->generation == policy && bpf_jiffies64() - s->born < front_ticks;
}

// in_front returns the slot by which a packet passes, and its place, or 0. ifindex
// is the device it came from; towards a pod, 0: a flow needs no guard there.
static __always_inline struct slot *in_front(struct __sk_buff *skb, __u32 ifindex, __u64 policy, __u32 *place)
{
	__u64 tuple[TUPLE];
	if (!plain(skb, tuple))
		return 0;
	__u64 at = places(tuple);
	*place = at;
	struct slot *s = slot_at(*place);
	if (!s)
		return 0;
	if (!same_tuple(s, tuple)) {
		*place = at >> 32;
		s = slot_at(*place);
		if (!s || !same_tuple(s, tuple))
			return 0;
	}
	return fresh(s, policy) && (!ifindex || s->ifindex == ifindex) ? s : 0;
}

// to_front notes the flow of a packet that was found in flows, current under the
// given policy, and that the guard let in from ifindex. It returns the slot, whose
// way is still what it was before if it was the same flow's, under the same
// policy and from the same device, and 0 otherwise.
static __noinline struct slot *to_front(struct __sk_buff *skb, __u32 ifindex, __u64 policy, __u32 *place)
{
	__u64 tuple[TUPLE];
	if (!plain(skb, tuple))
		return 0;
	__u64 at = places(tuple);
	__u32 second = at >> 32;
	*place = at;
	struct slot *s = slot_at(*place), *other = slot_at(second);
	if (!s || !other)
		return 0;
	// Its own place, else one that is free, else the older one.
	if (!same_tuple(s, tuple) &&
	    (same_tuple(other, tuple) || (fresh(s, policy) && (!fresh(other, policy) || other->born < s->born)))) {
		s = other;
		*place = second;
	}
	if (s->way != WAY_KNOWN || s->generation != policy || s->ifindex != ifindex || !same_tuple(s, tuple))
		s->way = WAY_UNKNOWN;
	s->generation = 0; // not while it is written
	barrier();
	__builtin_memcpy(s->tuple, tuple, sizeof(tuple));
	s->ifindex = ifindex;
	s->born = bpf_jiffies64();
	barrier();
	s->generation = policy;
	return s;
}

#endif
