/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs and the Go side agree on. layout_test.go holds both to it. */
#ifndef TIERWALL_H
#define TIERWALL_H

#include "kernel.h"

/*
 * One direction of a flow, as package flow defines it: IPv4 addresses in mapped
 * form, ports in host byte order, ICMP type<<8|code as destination port and echo
 * identifier as source port. Addresses are in network byte order.
 */
struct flow_key {
	__u32 src[4], dst[4];
	__u16 sport, dport;
	__u8 proto, zero[3];
};

enum {
	FLOW_REPLY = 1,	  /* this direction is opposite to the one that opened the connection */
	FLOW_CLOSING = 2, /* FIN or RST seen */
};

/* What is remembered of a flow. It counts while its generation is the current one. */
struct flow {
	__u32 generation;
	__u32 flags;
	__u64 last; /* CLOCK_MONOTONIC_COARSE ns of the last packet, at most a second old */
};

struct address {
	__u32 words[4];
};

/* A device whose packets we judge. */
struct device {
	__u8 own[6];  /* MAC address of the device */
	__u8 peer[6]; /* source MAC address the pod last used */
};

/*
 * On the upcall pair a frame's source MAC address says where it came from and,
 * on the way back, what userspace decided:
 *
 *	byte 0	101 a r e 10	a accepted, r reply, e captured on egress;
 *				10 makes it a locally administered unicast address
 *	byte 1	nonce, drawn when the programs were loaded
 *	2..5	ifindex, big-endian
 */
enum {
	META_BASE = 0xa2,
	META_FIXED = 0xe3,
	META_EGRESS = 0x04,
	META_REPLY = 0x08,
	META_ACCEPT = 0x10,
};

/* Indexes of the counters map. */
enum counter {
	COUNT_HIT,	   /* passed: the flow is accepted and remembered */
	COUNT_UPCALL,	   /* frames sent up, after segmentation */
	COUNT_LATER,	   /* left to the later hook: the flow is known to be its business */
	COUNT_UNPARSED,	   /* left to the later hook: cannot be parsed here, or too large */
	COUNT_DROP,	   /* dropped: as above, without a later hook */
	COUNT_EXEMPT,	   /* passed: not IP, neighbour discovery */
	COUNT_RETURNED,	   /* came back from userspace and went on its way */
	COUNT_STRAY,	   /* frames on the upcall pair that are not ours, dropped */
	COUNT_RECEIVED,	   /* frames the socket side of the upcall pair received */
	COUNTERS
};

#endif
