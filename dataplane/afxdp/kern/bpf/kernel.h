/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The little of the kernel's interface that our programs use, declared here so
 * that generating them needs clang and nothing else. Layouts, numbers and names
 * are the kernel's stable user API (include/uapi/linux/bpf.h, Linux 6.6).
 */
#ifndef TIERWALL_KERNEL_H
#define TIERWALL_KERNEL_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef int __s32;
typedef unsigned long long __u64;
_Static_assert(sizeof(__u64) == 8 && sizeof(void *) == 8, "BPF is a 64-bit machine");

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
/*
 * A function that is __noinline and not static is verified once, by itself, and not again
 * at every call with all that is known there. Its arguments may be anything: pointers may
 * be null.
 */
#define __noinline __attribute__((noinline))
#define __weak __attribute__((weak))
#define barrier() __asm__ volatile("" ::: "memory")

/* What a BTF map definition is made of: the numbers are array lengths. */
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name

enum { /* enum bpf_map_type */
	MAP_HASH = 1,
	MAP_ARRAY = 2,
	MAP_PERCPU_ARRAY = 6,
	MAP_LRU_HASH = 9,
	MAP_LPM_TRIE = 11,
	MAP_XSKMAP = 17,
};

enum { /* enum tcx_action_base */
	TCX_NEXT = -1,
	TCX_DROP = 2,
};

enum { PACKET_HOST = 0 }; /* skb.pkt_type: for this device */

enum { /* enum xdp_action */
	XDP_DROP = 1,
	XDP_PASS = 2,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_INGRESS = 1,    /* flag of bpf_redirect() */
	BPF_F_NO_PREALLOC = 1, /* flags of a map */
	BPF_F_MMAPABLE = 1 << 10,
};

/* struct __sk_buff */
struct __sk_buff {
	__u32 len, pkt_type, mark, queue_mapping, protocol;
	__u32 vlan_present, vlan_tci, vlan_proto, priority;
	__u32 ingress_ifindex, ifindex, tc_index, cb[5], hash, tc_classid;
	__u32 data, data_end, napi_id;
	__u32 family, remote_ip4, local_ip4, remote_ip6[4], local_ip6[4], remote_port, local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len, gso_segs;
	__u64 sk;
	__u32 gso_size;
};
_Static_assert(__builtin_offsetof(struct __sk_buff, mark) == 8, "mark");
_Static_assert(__builtin_offsetof(struct __sk_buff, ifindex) == 40, "ifindex");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_segs) == 164, "gso_segs");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_size) == 176, "gso_size");

struct xdp_md {
	__u32 data, data_end, data_meta, ingress_ifindex, rx_queue_index, egress_ifindex;
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5; /* CLOCK_MONOTONIC */
static __u32 (*const bpf_get_smp_processor_id)(void) = (void *)8;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 off, const void *from, __u32 len, __u64 flags) = (void *)9;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 off, void *to, __u32 len) = (void *)26;
static long (*const bpf_skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)32;
static long (*const bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)38;
static long (*const bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static long (*const bpf_skb_change_head)(struct __sk_buff *skb, __u32 len, __u64 flags) = (void *)43;
static long (*const bpf_redirect_map)(void *map, __u64 key, __u64 flags) = (void *)51;
static long (*const bpf_probe_read_kernel)(void *to, __u32 size, const void *from) = (void *)113; /* Linux 5.5 */
static __u64 (*const bpf_jiffies64)(void) = (void *)118; /* Linux 5.6 */
static long (*const bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155; /* Linux 5.10 */
static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160; /* CLOCK_MONOTONIC_COARSE, Linux 5.11 */
static long (*const bpf_check_mtu)(struct __sk_buff *skb, __u32 ifindex, __u32 *mtu, __s32 diff, __u64 flags) = (void *)163; /* Linux 5.12 */

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "only little-endian machines are supported"
#endif
#define bpf_ntohs(x) __builtin_bswap16(x)
#define bpf_htons(x) __builtin_bswap16(x)
#define bpf_htonl(x) __builtin_bswap32(x)
#define bpf_ntohl(x) __builtin_bswap32(x)

#endif
