package afxdp

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
)

// The structs below are the kernel programs' own (bpf/tierwall.h), byte for
// byte: no field may be padded by the compiler, in either language.

// flowKey is struct flow_key: addresses in network byte order, ports in the
// machine's, which is little-endian on everything we build for.
type flowKey struct {
	Src, Dst     flow.Addr
	Sport, Dport uint16
	Proto        flow.Proto
	Zero         [3]uint8
}

func makeFlowKey(k *flow.Key) flowKey {
	return flowKey{Src: k.Src, Dst: k.Dst, Sport: k.SrcPort, Dport: k.DstPort, Proto: k.Proto}
}

// flowState is struct flow.
type flowState struct {
	Generation uint32
	Flags      uint32
	Last       uint64 // ns of CLOCK_MONOTONIC_COARSE
}

// Bits of flowState.Flags.
const (
	flowReply   = 1 << iota // opposite to the direction the connection was opened in
	flowClosing             // FIN or RST seen; set by the kernel side only
)

// deviceState is struct device.
type deviceState struct {
	Own  [6]byte // MAC address of the device
	Peer [6]byte // source MAC address the pod last used; written by the kernel side
}

// Indexes of the counters map: enum counter.
const (
	countHit = iota
	countUpcall
	countLater
	countUnparsed
	countDrop
	countExempt
	countReturned
	countStray
	countReceived
	numCounters
)

// Bits of the first byte of a frame's source MAC address on the upcall pair.
// Byte 1 is the nonce, bytes 2 to 5 are the ifindex in network byte order.
const (
	metaBase   = 0xa2
	metaFixed  = 0xe3
	metaEgress = 0x04
	metaReply  = 0x08
	metaAccept = 0x10
)

// Where the metadata is in a frame: its source MAC address.
const metaOffset, metaEnd = 6, 12

// meta is what a captured frame says about itself.
type meta struct {
	Ifindex int32
	Egress  bool // captured on its way to the pod, not from it
	Reply   bool
}

// readMeta decodes the metadata of a frame of the upcall pair. ok is false for a
// frame our programs did not send.
func readMeta(frame []byte, nonce uint8) (m meta, ok bool) {
	if len(frame) < metaEnd || frame[metaOffset]&metaFixed != metaBase || frame[metaOffset+1] != nonce {
		return meta{}, false
	}
	m.Ifindex = int32(binary.BigEndian.Uint32(frame[metaOffset+2 : metaEnd]))
	m.Egress = frame[metaOffset]&metaEgress != 0
	m.Reply = frame[metaOffset]&metaReply != 0
	return m, m.Ifindex > 0
}

// setAccept writes the verdict into a frame that goes back. A deferred frame
// goes back without the bit whatever it arrived with.
func setAccept(frame []byte, accept bool) {
	frame[metaOffset] &^= metaAccept
	if accept {
		frame[metaOffset] |= metaAccept
	}
}

// hasEntry reports whether the kernel side looks a key up: it knows flows by
// ports or echo identifier and leaves other ICMP and IGMP to userspace.
func hasEntry(k *flow.Key) bool {
	switch t := k.DstPort >> 8; k.Proto {
	case flow.ICMP:
		return t == flow.ICMPEchoRequest || t == flow.ICMPEchoReply
	case flow.ICMPv6:
		return t == flow.ICMPv6EchoRequest || t == flow.ICMPv6EchoReply
	case flow.IGMP:
		return false
	}
	return k.Valid()
}
