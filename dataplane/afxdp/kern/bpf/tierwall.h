/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs and the Go side agree on. layout_test.go holds both to it. */
#ifndef TIERWALL_H
#define TIERWALL_H

#include "kernel.h"

/*
 * A flow, as package flow defines it, without its direction: both directions of a
 * connection have the same key, and so one entry. The ends are ordered: end "a"
 * has the smaller address, compared as four little-endian words from the last to
 * the first, or the smaller port if the addresses are equal. An ICMP echo is
 * ordered by what it is instead: "a" sent the request, its port is the echo
 * identifier and b's is the request's type<<8|code.
 *
 * IPv4 addresses are in mapped form. Addresses are in network, ports in host byte
 * order.
 */
struct flow_key {
	__u32 a[4], b[4];
	__u16 aport, bport;
	__u8 proto;
	__u8 back; /* in map denied: this direction is from b to a. 0 elsewhere. */
	__u8 zero[2];
};

enum {
	FLOW_BACK = 1,	  /* the connection was opened from b to a */
	FLOW_CLOSING = 2, /* FIN or RST seen */
	FLOW_VEILED = 4,  /* translation has made its name: see nat.h */
	FLOW_HOST = 8,	  /* an end is this host, which is others' address, too: see nat.h */
};

/* above orders the ends of a flow. */
static __always_inline int above(const __u32 *src, const __u32 *dst, __u16 sport, __u16 dport)
{
#pragma unroll
	for (int i = 3; i >= 0; i--)
		if (src[i] != dst[i])
			return src[i] > dst[i];
	return sport > dport;
}

/* How many cells addresses are sorted into: see struct flow. */
enum { CELLS = 16384 };

/*
 * What is remembered of a flow. It counts while no change of policy since it was
 * judged was about it: its generation must not be less than valid_from, nor than
 * what map cells has for the addresses of its ends.
 */
struct flow {
	__u64 generation;  /* the last policy it is known to be judged by */
	__u64 last;	   /* CLOCK_MONOTONIC_COARSE ns of the last packet; it may be younger by
			    * twice front_time, which is a second at most */
	__u16 cell[2];	   /* of the ends a and b */
	__u32 flags;
};

/* The most queues an upcall pair may have. */
enum { MAX_QUEUES = 256 };

/* Value of rooms: frames sent up to a queue (the kernel writes), and how many may
 * have been (userspace does). */
struct room {
	__u64 sent, most;
};

struct address {
	__u32 words[4];
};

enum {
	DEVICE_OPEN = 1, /* packets to it may leave out the stack (across.h), and so may those from it */
};

/*
 * The connection of a packet whose own addresses do not say whom it is about. It
 * precedes the IP header of such a packet on the upcall pair (META_ORIGIN). Of ICMP
 * the client's port is the echo identifier, the others the request's type<<8|code.
 */
struct origin {
	__u32 client[4];	/* who opened it */
	__u32 service[4];	/* where to */
	__u32 backend[4];	/* who answers */
	__u16 client_port, service_port, backend_port;
	__u8 proto;
	__u8 flags;
};

enum {
	ORIGIN_NAT = 1,	   /* the fields before are filled in; 0: only the flags count */
	ORIGIN_DNAT = 2,   /* service and backend differ */
	ORIGIN_REPLY = 4,  /* the packet is from the backend to the client */
	ORIGIN_HOST = 8,   /* this host sent the packet */
	ORIGIN_MASKED = 16, /* it did not, although the packet bears its address; who did is not known */
	ORIGIN_NEW = 32,   /* no answer has been seen */
	ORIGIN_RELATED = 64, /* the packet is an error about it */
};

/* A device whose packets we judge. */
struct device {
	__u8 own[6];  /* source MAC address of packets to the pod */
	__u8 peer[6]; /* source MAC address the pod last used */
	__u32 flags;
	__u64 due; /* when all upcalls so far fit the rate limit, CLOCK_MONOTONIC_COARSE ns */
};

/*
 * On the upcall pair a frame's source MAC address says where it came from and,
 * on the way back, what userspace decided:
 *
 *	byte 0	1 f c a r e 10	a accepted, r reply (on the way back: fast mark), e captured
 *				on egress, c cut short, f no later hook will see it; 10
 *				makes it a locally administered unicast address
 *	byte 1	nonce, drawn when the pair was made
 *	2..5	ifindex, big-endian, and META_ORIGIN
 */
enum {
	META_BASE = 0x82,
	META_FIXED = 0x83,
	META_EGRESS = 0x04,
	META_REPLY = 0x08,
	META_FAST = 0x08,
	META_ACCEPT = 0x10,
	META_CUT = 0x20,
	META_FINAL = 0x40,
};
#define META_ORIGIN 0x80000000u /* no ifindex has this bit */

/* Indexes of the counters map. Each packet a pod program sees counts under one of those up to COUNT_RETURNED. */
enum counter {
	COUNT_HIT,	  /* passed: the flow is accepted and remembered */
	COUNT_ACROSS,	  /* the same, and went straight to the destination's device */
	COUNT_UPCALL,	  /* packets sent up; a GSO packet counts as its segments */
	COUNT_LATER,	  /* left to the later hook: the flow is known to be its business */
	COUNT_UNPARSED,	  /* left to the later hook: cannot be parsed here, or too large */
	COUNT_DROP,	  /* dropped: as above, without a later hook */
	COUNT_EXEMPT,	  /* passed: not IP, neighbour discovery */
	COUNT_DENIED,	  /* dropped: userspace denied the flow a moment ago */
	COUNT_LIMITED,	  /* dropped: the source sends more first packets than it may */
	COUNT_ALONE_DROP, /* dropped: no daemon to judge it */
	COUNT_ALONE_PASS, /* no daemon to judge it, or no room in its ring: left to the later hook, or passed because the fail mode is open */
	COUNT_UNKNOWN,	  /* dropped: an address of the node's pods that no known pod has */
	COUNT_FORGED,	  /* dropped: another pod's address */
	COUNT_FOREIGN,	  /* not a pod's business, left alone */
	COUNT_RETURNED,	  /* came back from userspace and went on its way */
	COUNT_STRAY,	  /* frames on the upcall pair that are not ours, dropped */
	COUNT_RECEIVED,	  /* frames the socket side of the upcall pair received */
	COUNT_UNHEARD,	  /* of those, dropped because no socket was there */
	COUNT_HELD,	  /* dropped by gate: the next packet is judged by where this one went */
	COUNTERS
};

#endif
