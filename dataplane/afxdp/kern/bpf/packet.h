/* SPDX-License-Identifier: Apache-2.0 */
/* Headers, as they are on the wire: IEEE 802.3, RFC 791, RFC 8200. */
#ifndef TIERWALL_PACKET_H
#define TIERWALL_PACKET_H

#include "kernel.h"

enum { ETHER = 14, IPV4 = 20, IPV6 = 40 };
enum { ETH_IPV4 = 0x0800, ETH_ARP = 0x0806, ETH_IPV6 = 0x86dd, ETH_8021Q = 0x8100, ETH_8021AD = 0x88a8, ETH_MPLS = 0x8847,
       ETH_MPLS_MC = 0x8848, ETH_PPPOE = 0x8864 };
enum { ICMP = 1, IGMP = 2, TCP = 6, UDP = 17, ICMPV6 = 58, SCTP = 132 };
enum { FIN = 1, SYN = 2, RST = 4, ACK = 16 };

struct ipv4 {
	__u8 version_ihl, tos;
	__u16 length, id, fragment;
	__u8 ttl, proto;
	__u16 checksum;
	__u32 src, dst;
};

struct ipv6 {
	__u32 version_class_label;
	__u16 payload;
	__u8 next, hops;
	__u32 src[4], dst[4];
};

#endif
