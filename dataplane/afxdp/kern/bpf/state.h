// SPDX-License-Identifier: Apache-2.0
//
// What pod.c and guard.c share while both are loaded: which policy is in force,
// what was denied, and the counters.
#ifndef TIERWALL_STATE_H
#define TIERWALL_STATE_H

#include "tierwall.h"

volatile const __u64 deny_time = 0; // ns a denial is remembered

// These live in a map of their own that outlives the daemon. All but translated are
// written by userspace alone.
#define SHARED SEC(".data.shared")
volatile __u64 generation SHARED = 1; // of the policy in force: grows with every change
volatile __u64 valid_from SHARED = 1; // flows of an older generation are judged again
volatile __u64 alive SHARED = 0;      // CLOCK_MONOTONIC_COARSE ns of the daemon's last sign of life
volatile __u32 nonce SHARED = 0;
// Set once something is known of a translated connection. Until then nobody looks.
volatile __u8 translated SHARED = 0;

// The generation of the last change that was about an address of the cell.
struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, CELLS);
	__type(key, __u32);
	__type(value, __u64);
} cells SEC(".maps");

// What userspace denied, by direction: drops a flood of one flow, for moments.
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct flow);
} denied SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, COUNTERS);
	__type(key, __u32);
	__type(value, __u64);
} counters SEC(".maps");

static __always_inline void add(__u32 which, __u64 n)
{
	__u64 *c = bpf_map_lookup_elem(&counters, &which);
	if (c)
		*c += n;
}

// Packets that were dropped for a reason that the audit log tells, by the device they
// came from (0: this host) and the reason, an index of counters.
struct drop {
	__u32 ifindex, which;
};

struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct drop);
	__type(value, __u64);
} drops SEC(".maps");

// dropped counts packets by reason and by sender.
__noinline int dropped(__u32 which, __u32 ifindex, __u64 n)
{
	add(which, n);
	struct drop k = {.ifindex = ifindex, .which = which};
	__u64 *c = bpf_map_lookup_elem(&drops, &k), first = 0;
	if (!c) {
		bpf_map_update_elem(&drops, &k, &first, BPF_NOEXIST); // or another CPU has just done so
		c = bpf_map_lookup_elem(&drops, &k);
	}
	if (c)
		__sync_fetch_and_add(c, n);
	return 0;
}

static __always_inline __u64 changed(__u16 cell)
{
	__u32 i = cell & (CELLS - 1);
	__u64 *g = bpf_map_lookup_elem(&cells, &i);
	return g ? *g : ~0ULL; // there is always one
}

#endif
