// SPDX-License-Identifier: Apache-2.0
//
// The flows that userspace has spoken about, and for how long that counts.
#ifndef TIERWALL_FLOWS_H
#define TIERWALL_FLOWS_H

#include "packet.h"
#include "state.h"

// Set by the Go side before loading; the verifier sees constants.
volatile const __u8 strict = 0;       // no later hook judges what the programs leave alone
volatile const __u32 mark_accept = 0; // packet mark: judged and accepted
volatile const __u32 mark_fast = 0;   // packet mark: accepted by us, at the device it came from
volatile const __u32 mark_return = 0; // packet mark: came back from userspace, loop breaker
// Idle times in ns after which a flow is forgotten.
volatile const __u64 idle_tcp = 0, idle_closing = 0, idle_udp = 0, idle_sctp = 0, idle_icmp = 0, idle_other = 0;
// ns after which a flow in use is looked up again (front.h), and its time noted:
// a quarter of the shortest idle time at most.
volatile const __u64 front_time = 0;

// Flows userspace accepted: the only map that lets packets through.
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 131072); // set before loading
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows SEC(".maps");

// Flows that the later hook judges: an entry saves an upcall and opens nothing.
// A map of its own, so that no flood of these evicts an accepted flow.
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} later SEC(".maps");

static __always_inline __u64 idle(const struct flow *f, __u8 proto)
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
static __always_inline int expired(const struct flow *f, __u8 proto, __u64 now)
{
	return now > f->last && now - f->last > idle(f, proto);
}

// Once in a while is enough, and keeps the cache line clean.
static __always_inline void touch(struct flow *f, __u64 now)
{
	if (now > f->last + front_time)
		f->last = now;
}

// close_flow notes that a FIN or RST was seen.
static __always_inline void close_flow(struct flow *f)
{
	if (!(f->flags & FLOW_CLOSING))
		f->flags |= FLOW_CLOSING;
}

// current reports whether no change of policy since f was judged was about it.
// Then it is as good as judged by the policy in force, now, which was read before
// the flow was looked up: a change that has begun meanwhile is a later one.
static __always_inline int current(struct flow *f, __u64 now)
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
static __always_inline void remember_later(const struct flow_key *key, __u64 now, __u64 policy)
{
	struct flow *f = bpf_map_lookup_elem(&later, key);
	if (f && current(f, policy)) {
		touch(f, now);
		return;
	}
	// Whose cells these are only userspace knows. An entry that outlives a
	// change leaves the flow to the hook that judged it all along.
	struct flow fresh = {.generation = policy, .last = now};
	bpf_map_update_elem(&later, key, &fresh, BPF_ANY);
}

#endif
