/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose device is this, and may this address be on it? Included by pod.c and by
 * guard.c.
 *
 * Programs go onto a device as soon as it appears, before anybody has said whose
 * it is, so three kinds of devices carry them:
 *
 *	a pod's, whose addresses are known	everything is judged
 *	a pod's that we have not heard of yet,	whatever it sends is dropped; what goes to
 *	or that is not known any more		it, if its address is in the node's pod CIDRs
 *	not a pod's (other container engines)	addresses outside the pod CIDRs: left alone
 *
 * guard_source runs on every packet from a device, before the flow map: what is
 * accepted is accepted for the pod that has the address. guard_destination runs
 * on packets to a device that belong to no accepted flow.
 */
#ifndef TIERWALL_GUARD_H
#define TIERWALL_GUARD_H

#include "tierwall.h"

enum {
	GUARD_POD = 1,	 /* a pod's device for sure: foreign addresses are judged, not left alone */
	GUARD_BOUND = 2, /* the pod's addresses are all known: any other source is forged */
	GUARD_ADDRESSES = 4,
};

/* What is known about a device that carries our programs. */
struct guard {
	__u32 flags;
	__u32 bridge;	 /* ifindex of the bridge the device is a port of, or 0 */
	__u8 bridge_mac[6], zero[2];
	/* Some of the pod's addresses: a shortcut past local_pods. Unused ones repeat
	 * another; all are zero without GUARD_BOUND and never compared. */
	struct address addrs[GUARD_ADDRESSES];
};

/* An address of a local pod. */
struct local_pod {
	__u32 ifindex; /* the device it is behind, 0 if that is not known */
};

struct prefix {
	__u32 bits; /* of the mapped form: 96 more for IPv4 */
	struct address address;
};

/* Set before loading. */
volatile const __u8 pass_unknown = 0;  /* fail mode open: pods nobody knows are left alone */
volatile const __u8 anti_spoofing = 1; /* an address on another pod's device is dropped */

struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, struct guard);
} guards SEC(".maps");

struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 16384);
	__type(key, struct address);
	__type(value, struct local_pod);
} local_pods SEC(".maps");

/* The prefixes this node's pods get their addresses from. */
struct {
	__uint(type, MAP_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u8);
} pod_cidrs SEC(".maps");

/* Ports of bridges that have pods, whoever is behind them: ifindex -> bridge. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u32);
} bridge_ports SEC(".maps");

enum guarded {
	GUARD_JUDGE,  /* go on */
	GUARD_LEAVE,  /* not a pod's business */
	GUARD_UNKNOWN, /* a pod's address that no known pod has: drop */
	GUARD_FORGED, /* another pod's address: drop */
};

static __always_inline int same(const struct address *a, const struct address *b)
{
	return a->words[0] == b->words[0] && a->words[1] == b->words[1] && a->words[2] == b->words[2] &&
	       a->words[3] == b->words[3];
}

static __always_inline int guard_has(const struct guard *g, const struct address *a)
{
	if (!(g->flags & GUARD_BOUND))
		return 0;
	for (int i = 0; i < GUARD_ADDRESSES; i++)
		if (same(&g->addrs[i], a))
			return 1;
	return 0;
}

/*
 * find_local_pod looks up who has an address, with a key on the stack: before Linux
 * 6.2 the verifier takes no key from memory that an __noinline function is given.
 */
static __always_inline struct local_pod *find_local_pod(const struct address *a)
{
	struct address key = *a;
	return bpf_map_lookup_elem(&local_pods, &key);
}

/* guard_rest is for addresses that no known local pod has. */
static __always_inline enum guarded guard_rest(const struct guard *g, const struct address *a)
{
	struct prefix p = {.bits = 128, .address = *a};
	if (!pass_unknown && bpf_map_lookup_elem(&pod_cidrs, &p))
		return GUARD_UNKNOWN;
	return g->flags & GUARD_POD ? GUARD_JUDGE : GUARD_LEAVE;
}

/* guard_source judges a source address seen on a packet from the device. */
static __always_inline enum guarded guard_source(const struct guard *g, const struct address *src, __u32 ifindex)
{
	if (guard_has(g, src))
		return GUARD_JUDGE;
	struct local_pod *l = find_local_pod(src);
	if (l)
		return l->ifindex == 0 || l->ifindex == ifindex || !anti_spoofing ? GUARD_JUDGE : GUARD_FORGED;
	if (g->flags & GUARD_BOUND)
		return GUARD_FORGED;
	/* A pod that policy does not know, or does not any more, is one all the same: what
	 * it sends is nobody's, whatever the address. */
	if (g->flags & GUARD_POD && anti_spoofing && !pass_unknown)
		return GUARD_UNKNOWN;
	return guard_rest(g, src);
}

/* guard_sender judges the source address of a packet that arrived at device from and
 * is on its way to a pod: nobody but the pod itself can have sent one with its
 * address, by its device or the bridge that has it as a port. */
static __always_inline enum guarded guard_sender(const struct address *src, __u32 from)
{
	struct local_pod *l = anti_spoofing && from ? find_local_pod(src) : 0;
	if (!l || l->ifindex == 0 || l->ifindex == from)
		return GUARD_JUDGE;
	__u32 port = l->ifindex, *bridge = bpf_map_lookup_elem(&bridge_ports, &port);
	return bridge && *bridge == from ? GUARD_JUDGE : GUARD_FORGED;
}

/* guard_destination judges the destination of a packet to the device. */
static __always_inline enum guarded guard_destination(const struct guard *g, const struct address *dst)
{
	if (guard_has(g, dst) || find_local_pod(dst))
		return GUARD_JUDGE;
	return guard_rest(g, dst);
}

#endif
