// SPDX-License-Identifier: Apache-2.0
//
// What userspace found accepted by a policy that is about to be in force, without
// having seen a packet: inherit.go. It is no hook's program. Userspace runs it
// (BPF_PROG_TEST_RUN) with a list in the place of a packet, because entries change
// under its hands: a system call could only put another entry in the place of one,
// here their generation alone is written, and only if they are what was judged.
#ifndef TIERWALL_RENEW_H
#define TIERWALL_RENEW_H

#include "flows.h"

struct renewals {
	__u64 generation; // that the entries are as good as judged by
	__u32 later;	  // they are in that map
	__u32 zero;
};

// struct renewal, any number of them up to RENEWALS, follow.
struct renewal {
	struct flow_key key;
	__u32 flags; // without FLOW_CLOSING
};

enum { RENEWALS = 64 };

// renew returns how many entries it renewed.
//
// An entry that userspace writes meanwhile is younger, or was judged by the same
// policy; so is one in whose place it is if the map had need of it.
SEC("xdp") int renew(struct xdp_md *ctx)
{
	const __u8 *end = (const __u8 *)(unsigned long)ctx->data_end;
	const struct renewals *list = (const void *)(unsigned long)ctx->data;
	if ((const __u8 *)(list + 1) > end)
		return 0;
	const struct renewal *r = (const void *)(list + 1);
	int n = 0;
	for (int i = 0; i < RENEWALS; i++, r++) {
		if ((const __u8 *)(r + 1) > end)
			break;
		struct flow *f = list->later ? bpf_map_lookup_elem(&later, &r->key) : bpf_map_lookup_elem(&flows, &r->key);
		if (!f || f->generation >= list->generation || (f->flags & ~FLOW_CLOSING) != r->flags)
			continue;
		f->generation = list->generation;
		n++;
	}
	return n;
}

#endif
