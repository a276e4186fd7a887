// SPDX-License-Identifier: Apache-2.0
//
// XDP programs. They can drop and pass, not judge.
//
// pod_xdp is for kernels that have no hook for pod.c: it keeps forged and unknown
// addresses out, on packets from a pod only. uplink_xdp is on a device towards
// other nodes: it drops early what the programs on the pods' devices would drop
// late, because userspace denied it a moment ago, and what claims to come from a
// pod of this node. Neither lets in anything that would not get in without it.

#include "guard.h"
#include "packet.h"
#include "state.h"

static __always_inline int drop(const struct xdp_md *ctx, __u32 which)
{
	if (which == COUNT_DENIED)
		add(which, 1);
	else
		dropped(which, ctx->ingress_ifindex, 1);
	return XDP_DROP;
}

struct frame {
	struct address src, dst;
	const __u8 *l4;	  // 0 if the packet has no ports where we look for them
	const __u8 *end;
	__u8 proto;
};

// read reports whether a frame is IP. It does not follow extension headers.
static __always_inline int read(struct xdp_md *ctx, struct frame *f)
{
	const __u8 *data = (const __u8 *)(unsigned long)ctx->data;
	f->end = (const __u8 *)(unsigned long)ctx->data_end;
	f->l4 = 0;
	if (data + ETHER > f->end)
		return 0;
	const __u8 *ip = data + ETHER;
	switch (data[12] << 8 | data[13]) {
	case ETH_IPV4:
		if (ip + IPV4 > f->end)
			return 0;
		f->src = (struct address){{0, 0, bpf_htonl(0xffff), *(const __u32 *)(ip + 12)}};
		f->dst = (struct address){{0, 0, bpf_htonl(0xffff), *(const __u32 *)(ip + 16)}};
		f->proto = ip[9];
		if (ip[0] == 0x45 && !(*(const __u16 *)(ip + 6) & bpf_htons(0x3fff))) // no options, no fragment
			f->l4 = ip + IPV4;
		return 1;
	case ETH_IPV6:
		if (ip + IPV6 > f->end)
			return 0;
		f->src = *(const struct address *)(ip + 8);
		f->dst = *(const struct address *)(ip + 24);
		f->proto = ip[6];
		f->l4 = ip + IPV6;
		return 1;
	}
	return 0;
}

// refused reports whether userspace denied the packet's flow, in its direction,
// a moment ago and under the policy in force.
static __always_inline int refused(const struct frame *f)
{
	if (!f->l4 || f->l4 + 4 > f->end || (f->proto != TCP && f->proto != UDP && f->proto != SCTP))
		return 0;
	__u16 sport = f->l4[0] << 8 | f->l4[1], dport = f->l4[2] << 8 | f->l4[3];
	int back = above(f->src.words, f->dst.words, sport, dport);
	struct flow_key k = {.proto = f->proto, .back = back};
#pragma unroll
	for (int i = 0; i < 4; i++) {
		k.a[i] = back ? f->dst.words[i] : f->src.words[i];
		k.b[i] = back ? f->src.words[i] : f->dst.words[i];
	}
	k.aport = back ? dport : sport;
	k.bport = back ? sport : dport;
	struct flow *d = bpf_map_lookup_elem(&denied, &k);
	return d && d->generation >= valid_from && d->generation >= changed(d->cell[0]) &&
	       d->generation >= changed(d->cell[1]) && bpf_ktime_get_coarse_ns() < d->last + deny_time;
}

SEC("xdp.frags") int uplink_xdp(struct xdp_md *ctx)
{
	struct frame f;
	if (!read(ctx, &f))
		return XDP_PASS;
	if (anti_spoofing && bpf_map_lookup_elem(&local_pods, &f.src))
		return drop(ctx, COUNT_FORGED);
	return refused(&f) ? drop(ctx, COUNT_DENIED) : XDP_PASS;
}

SEC("xdp") int pod_xdp(struct xdp_md *ctx)
{
	__u32 ifindex = ctx->ingress_ifindex;
	struct guard *g = bpf_map_lookup_elem(&guards, &ifindex);
	struct frame f;
	if (!g || !read(ctx, &f)) {
		add(COUNT_EXEMPT, 1);
		return XDP_PASS;
	}
	switch (guard_source(g, &f.src, ifindex)) {
	case GUARD_UNKNOWN:
		return drop(ctx, COUNT_UNKNOWN);
	case GUARD_FORGED:
		// Neighbour discovery starts before there is an address, and from
		// link-local ones; the kernel sends nothing of the kind on.
		if ((f.src.words[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000) ||
		    !(f.src.words[0] | f.src.words[1] | f.src.words[2] | f.src.words[3])) {
			add(COUNT_EXEMPT, 1);
			return XDP_PASS;
		}
		return drop(ctx, COUNT_FORGED);
	default:
		add(COUNT_UNPARSED, 1);
		return XDP_PASS;
	}
}

char license_name[] SEC("license") = "Dual BSD/GPL";
