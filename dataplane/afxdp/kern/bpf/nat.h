/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What translation of addresses hides. Included by pod.c.
 *
 * The stack translates addresses between the device a packet comes from and the
 * one it leaves by, so a program sees one side of it only:
 *
 *	client pod                    node                     backend pod
 *	  10.1:5 > vip:80   DNAT, perhaps masquerade   node:5 > 10.2:80
 *	  ──────► pod_ingress ────────────────────► pod_egress ──────►
 *	  ◄────── pod_egress  ◄──────────────────── pod_ingress ◄──────
 *	  vip:80 > 10.1:5                              10.2:80 > node:5
 *
 * On the way out the packet brings its connection along (skb->_nfct), which knows
 * both sides. There, and only there, such a packet is judged: by its client and
 * its backend, whatever it bears itself. Where it comes from it has no connection
 * yet; what is known there is that the flow of that name was accepted.
 *
 * So the flow of a translated packet has two entries, by the name before
 * translation and by the one behind it, both marked FLOW_VEILED: the name does not
 * say whom the packet is about. At the device a packet comes from, such an entry
 * says "go on, the next program looks": the packet bears the fast mark without the
 * accept mark. On the way out the connection is looked up by the name it was
 * opened with, and "origins" must name the backend it has now.
 *
 * Who is next? Another pod's device, or a device out of which traffic leaves the
 * node (pod_exit), as map exits has them. Whatever goes elsewhere, to the node
 * itself or by a device without a program, passes gate, in the stack's own hooks,
 * which can drop but not ask: it notes whom the packet was for, and the sender's next
 * packet is judged with that at the pod's device.
 */
#ifndef TIERWALL_NAT_H
#define TIERWALL_NAT_H

#include "across.h"
#include "flows.h"
#include "parse.h"

/*
 * The kernel's own structs, as far as they are looked at. Their layout is no
 * interface: the loader replaces the offsets by those of the running kernel.
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)
union nf_inet_addr {
	__u32 all[4];
};
union nf_conntrack_man_proto {
	__u16 all;
};
struct nf_conntrack_man {
	union nf_inet_addr u3;
	union nf_conntrack_man_proto u;
	__u16 l3num;
};
struct nf_conntrack_tuple {
	struct nf_conntrack_man src;
	struct {
		union nf_inet_addr u3;
		union {
			__u16 all;
		} u;
		__u8 protonum;
	} dst;
};
struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
};
struct nf_conn {
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
};
struct sk_buff {
	unsigned long _nfct;
	int skb_iif;
	__u32 mark;
};
struct net_device {
	int ifindex;
};
struct nf_hook_state {
	__u8 hook;
	struct net_device *in, *out;
};
#pragma clang attribute pop

/* The context of a netfilter program. */
struct bpf_nf_ctx {
	const struct nf_hook_state *state;
	struct sk_buff *skb;
};

enum { NF_DROP = 0, NF_ACCEPT = 1 };
enum { NF_INET_LOCAL_IN = 1, NF_INET_POST_ROUTING = 4 }; /* enum nf_inet_hooks */
enum { AF_INET = 2 };

enum { /* enum ip_conntrack_info, the low bits of skb->_nfct */
	CT_RELATED = 1,
	CT_NEW = 2,
	CT_IS_REPLY = 3, /* from here on: against the direction it was opened in */
	CT_UNTRACKED = 7, /* and the mask of them all */
};
enum { CT_SRC_NAT = 1 << 4, CT_DST_NAT = 1 << 5 }; /* enum ip_conntrack_status */

/* Set before loading. */
/*
 * The connection of a packet can be read and, if there is no later hook, gate is in
 * force: what is left unjudged where it comes from is seen where it leaves.
 */
volatile const __u8 nat = 0;

/* Whom accepted flows marked FLOW_VEILED are about. */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct flow_key);
	__type(value, struct origin);
} origins SEC(".maps");

/*
 * Where gate saw connections go, by the name they were opened with. It opens nothing,
 * and is asked once: the next connection of that name may go elsewhere.
 */
struct {
	__uint(type, MAP_LRU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct flow_key);
	__type(value, struct origin);
} sights SEC(".maps");

/* Devices whose egress has a program of ours, and bridges all of whose ports have. */
struct {
	__uint(type, MAP_HASH);
	__uint(max_entries, 8192);
	__type(key, __u32);
	__type(value, __u8);
} exits SEC(".maps");

#define READ(to, from) (bpf_probe_read_kernel(&(to), sizeof(to), &(from)) == 0)

static __always_inline int read_end(const struct nf_conntrack_tuple *t, int dst, int v4, __u32 *addr, __u16 *port)
{
	__u32 raw[4];
	if (dst ? !READ(raw, t->dst.u3.all) || !READ(*port, t->dst.u.all) : !READ(raw, t->src.u3.all) || !READ(*port, t->src.u.all))
		return 0;
	*port = bpf_ntohs(*port);
	addr[0] = v4 ? 0 : raw[0];
	addr[1] = v4 ? 0 : raw[1];
	addr[2] = v4 ? bpf_htonl(0xffff) : raw[2];
	addr[3] = v4 ? raw[0] : raw[3];
	return 1;
}

/*
 * read_connection fills o from the connection of a packet. It reports whether
 * there is one; ORIGIN_NAT and ORIGIN_DNAT say whether it is translated. Without
 * "all" only a translated one is read, beyond its flags.
 */
static __always_inline int read_connection(const struct sk_buff *k, struct origin *o, int all)
{
	unsigned long nfct = k->_nfct, status, info = nfct & CT_UNTRACKED;
	const struct nf_conn *ct = (const void *)(nfct & ~(unsigned long)CT_UNTRACKED);
	if (!ct || info == CT_UNTRACKED || !READ(status, ct->status))
		return 0;
	__u8 flags = (status & CT_DST_NAT ? ORIGIN_NAT | ORIGIN_DNAT : status & CT_SRC_NAT ? ORIGIN_NAT : 0) |
		     (info >= CT_IS_REPLY ? ORIGIN_REPLY : 0) | (info == CT_NEW ? ORIGIN_NEW : 0) |
		     (info == CT_RELATED || info == CT_RELATED + CT_IS_REPLY ? ORIGIN_RELATED : 0);
	if (!flags || (!all && !(flags & ORIGIN_NAT)))
		return 1;
	__u16 family;
	const struct nf_conntrack_tuple *there = &ct->tuplehash[0].tuple, *back = &ct->tuplehash[1].tuple;
	if (!READ(family, there->src.l3num) || !READ(o->proto, there->dst.protonum))
		return 0;
	int v4 = family == AF_INET;
	if (!read_end(there, 0, v4, o->client, &o->client_port) || !read_end(there, 1, v4, o->service, &o->service_port) ||
	    !read_end(back, 0, v4, o->backend, &o->backend_port))
		return 0;
	switch (o->proto) {
	case TCP: case UDP: case SCTP:
		break;
	case ICMP: case ICMPV6: /* the identifier, and type and code */
		o->backend_port = o->service_port;
		break;
	default: /* as in package flow */
		o->client_port = o->service_port = o->backend_port = 0;
	}
	o->flags |= flags;
	return 1;
}

/* connection is read_connection for the programs on devices. */
__noinline int connection(struct __sk_buff *skb, struct origin *o, int all)
{
	return o ? read_connection(bpf_cast_to_kern_ctx(skb), o, all) : 0;
}

/* opened is the name of the connection as it was opened. */
static __always_inline void opened(const struct origin *o, struct flow_key *k)
{
	int back = o->proto != ICMP && o->proto != ICMPV6 && above(o->client, o->service, o->client_port, o->service_port);
#pragma unroll
	for (int i = 0; i < 4; i++) {
		k->a[i] = back ? o->service[i] : o->client[i];
		k->b[i] = back ? o->client[i] : o->service[i];
	}
	k->aport = back ? o->service_port : o->client_port;
	k->bport = back ? o->client_port : o->service_port;
	k->proto = o->proto;
}

static __always_inline int same_backend(const struct origin *a, const struct origin *b)
{
	return same((const void *)a->backend, (const void *)b->backend) && a->backend_port == b->backend_port;
}

/*
 * accepted_as returns the entry that lets a packet with connection o pass on its
 * way out, or 0. An entry by the name a connection was opened with says nothing
 * about where its destination leads now: the same five numbers, opened again, may
 * be led elsewhere, or nowhere else.
 */
static __always_inline struct flow *accepted_as(struct origin *o, __u64 policy, __u64 now)
{
	struct flow_key key = {};
	opened(o, &key);
	struct flow *f = bpf_map_lookup_elem(&flows, &key);
	if (!f || expired(f, o->proto, now) || !current(f, policy))
		return 0;
	if (!(f->flags & FLOW_VEILED) != !(o->flags & ORIGIN_DNAT))
		return 0;
	if (!(o->flags & ORIGIN_DNAT))
		return f;
	struct origin *to = bpf_map_lookup_elem(&origins, &key);
	return to && same_backend(to, o) ? f : 0;
}

/*
 * open_faced says that an accepted flow's name says it all, for a packet on its way
 * out. It does not if the packet was translated, or if nobody has judged it yet by where
 * it goes, or if the name has an address of the node and somebody else's packet
 * bears it.
 */
static __always_inline int open_faced(struct __sk_buff *skb, const struct flow *f, int unjudged)
{
	return !(f->flags & FLOW_VEILED) && !unjudged && (!(f->flags & FLOW_HOST) || skb->ingress_ifindex == 0);
}

/*
 * behind looks behind the addresses of a packet on its way out: it reports whether the
 * packet passes, as one of an accepted connection, and fills o for userspace. opens
 * says that it is to be judged whatever is known.
 */
__noinline int behind(struct __sk_buff *skb, struct packet *p, struct origin *o, int opens, __u64 now)
{
	if (!p || !o)
		return 0;
	if (nat)
		read_connection(bpf_cast_to_kern_ctx(skb), o, 0);
	/* An address of the node is the node itself's, or masquerading's. */
	struct address src = p->src; /* a key on the stack: see find_local_pod */
	if (bpf_map_lookup_elem(&node_addresses, &src))
		o->flags |= skb->ingress_ifindex == 0 ? ORIGIN_HOST : o->flags & ORIGIN_NAT ? 0 : ORIGIN_MASKED;
	if (opens || !(o->flags & ORIGIN_NAT))
		return 0;
	struct flow *f = accepted_as(o, generation, now);
	if (!f)
		return 0;
	touch(f, now);
	if (p->closes)
		close_flow(f);
	return 1;
}

/*
 * recall tells userspace about a packet that comes from a pod, without a
 * connection yet, what was known of its flow: whose answer it is, or where gate
 * saw it go. Where a new packet to a Service will go it does not say.
 */
static __always_inline void recall(const struct packet *p, struct origin *o)
{
	const struct origin *known = bpf_map_lookup_elem(&origins, &p->key);
	int there = known && same(&p->dst, (const void *)known->service) && p->dport == known->service_port;
	__u8 reply = ORIGIN_REPLY;
	if (!known || there || p->syn) {
		known = bpf_map_lookup_elem(&sights, &p->key);
		reply = 0;
	}
	if (!known)
		return;
	*o = *known;
	o->flags = (known->flags & ORIGIN_DNAT) | ORIGIN_NAT | reply;
	if (!reply)
		bpf_map_delete_elem(&sights, &p->key);
}

/*
 * said_all says that a packet has its real ends where it comes from: nobody has
 * changed whom it goes to on the way. o knows of translated connections only.
 */
static __always_inline int said_all(const struct origin *o)
{
	return !(o->flags & (ORIGIN_DNAT | ORIGIN_REPLY));
}

/*
 * gate is in the last hooks of the stack, of what leaves by a device and of what is
 * for the node, behind all others. What a pod sent and nobody has judged by where it
 * goes must not go where no program of ours looks.
 */
SEC("netfilter") int gate(struct bpf_nf_ctx *ctx)
{
	struct sk_buff *k = ctx->skb;
	__u32 mark = k->mark;
	/* Packets of the node's own have no pod's marks, and some have none at all: to
	 * group membership reports the kernel gives the field another meaning. */
	if (!(mark & mark_fast) || !k->skb_iif)
		return NF_ACCEPT;
	if (ctx->state->hook == NF_INET_POST_ROUTING) {
		__u32 out = ctx->state->out->ifindex;
		if (bpf_map_lookup_elem(&exits, &out))
			return NF_ACCEPT;
	}
	struct origin o = {};
	int tracked = read_connection(k, &o, !(mark & mark_accept));
	if (mark & mark_accept && said_all(&o))
		return NF_ACCEPT; /* judged as what it is */
	if (tracked) {
		__u64 now = bpf_ktime_get_ns(); /* these programs have no other clock */
		struct flow *f = accepted_as(&o, generation, now);
		if (f) {
			touch(f, now);
			return NF_ACCEPT;
		}
		if (!(o.flags & ORIGIN_REPLY)) {
			struct flow_key key = {};
			opened(&o, &key);
			translated = 1;
			bpf_map_update_elem(&sights, &key, &o, BPF_ANY);
			/* Or the next packet would come here like this one. */
			bpf_map_delete_elem(&later, &key);
			bpf_map_delete_elem(&flows, &key);
		}
	}
	add(COUNT_HELD, 1);
	return NF_DROP;
}

#endif
