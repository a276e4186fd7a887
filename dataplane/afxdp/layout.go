package afxdp

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
)

// The structs below are the kernel programs' own (bpf/tierwall.h), byte for
// byte: no field may be padded by the compiler, in either language.

// flowKey is struct flow_key: the name of a connection, the same for both of its
// directions. Addresses are in network byte order, ports in the machine's, which
// is little-endian on everything we build for.
type flowKey struct {
	A, B         flow.Addr
	APort, BPort uint16
	Proto        flow.Proto
	Back         uint8 // in map denied only
	Zero         [2]uint8
}

// makeFlowKey names the connection of k. back says that k travels from the
// name's B to its A.
func makeFlowKey(k *flow.Key) (f flowKey, back bool) {
	if back = fromB(k); back {
		return flowKey{A: k.Dst, B: k.Src, APort: reversePort(k), BPort: requestPort(k), Proto: k.Proto}, true
	}
	return flowKey{A: k.Src, B: k.Dst, APort: k.SrcPort, BPort: k.DstPort, Proto: k.Proto}, false
}

// fromB orders the ends as the kernel side does: above in bpf/parse.h.
func fromB(k *flow.Key) bool {
	switch t := k.DstPort >> 8; k.Proto {
	case flow.ICMP:
		return t == flow.ICMPEchoReply
	case flow.ICMPv6:
		return t == flow.ICMPv6EchoReply
	}
	for i := 12; i >= 0; i -= 4 {
		s, d := binary.LittleEndian.Uint32(k.Src[i:]), binary.LittleEndian.Uint32(k.Dst[i:])
		if s != d {
			return s > d
		}
	}
	return k.SrcPort > k.DstPort
}

// reversePort and requestPort are the ports of the ends A and B of a key that
// travels from B to A.
func reversePort(k *flow.Key) uint16 {
	if k.Proto == flow.ICMP || k.Proto == flow.ICMPv6 {
		return k.SrcPort // the echo identifier
	}
	return k.DstPort
}

func requestPort(k *flow.Key) uint16 {
	switch k.Proto {
	case flow.ICMP:
		return flow.ICMPEchoRequest<<8 | k.DstPort&0xff
	case flow.ICMPv6:
		return flow.ICMPv6EchoRequest<<8 | k.DstPort&0xff
	}
	return k.SrcPort
}

// flowState is struct flow.
type flowState struct {
	Generation uint64
	Last       uint64 // ns of CLOCK_MONOTONIC_COARSE
	Cell       [2]uint16
	Flags      uint32
}

// Bits of flowState.Flags.
const (
	flowBack    = 1 << iota // the connection was opened from B to A
	flowClosing             // FIN or RST seen; set by the kernel side only
	flowVeiled              // translation has made its name
	flowHost                // an end is this host
)

// numCells is CELLS.
const numCells = 16384

// cellOf sorts addresses into cells. Any function would do; this is FNV-1a with
// its upper bits folded in.
func cellOf(a *flow.Addr) uint16 {
	h := uint64(14695981039346656037)
	h = (h ^ binary.LittleEndian.Uint64(a[:])) * 1099511628211
	h = (h ^ binary.LittleEndian.Uint64(a[8:])) * 1099511628211
	h ^= h >> 32
	return uint16((h ^ h>>14) % numCells)
}

// deviceState is struct device.
type deviceState struct {
	Own   [6]byte // source MAC address of packets to the pod; kept up by the kernel side
	Peer  [6]byte // source MAC address the pod last used; written by the kernel side
	Flags uint32
	Due   uint64 // of the rate limit; written by the kernel side
}

// Bits of deviceState.Flags.
const deviceOpen = 1 // packets to it may leave out the stack, and so may those from it

// Indexes of the counters map: enum counter.
const (
	countHit = iota
	countAcross
	countUpcall
	countLater
	countUnparsed
	countDrop
	countExempt
	countDenied
	countLimited
	countAloneDrop
	countAlonePass
	countUnknown
	countForged
	countForeign
	countReturned
	countStray
	countReceived
	countUnheard
	countHeld
	numCounters
)

// Bits of the first byte of a frame's source MAC address on the upcall pair.
// Byte 1 is the nonce, bytes 2 to 5 are the ifindex in network byte order, with
// metaOrigin.
const (
	metaBase   = 0x82
	metaFixed  = 0x83
	metaEgress = 0x04
	metaReply  = 0x08
	metaFast   = 0x08 // on the way back
	metaAccept = 0x10
	metaCut    = 0x20
	metaFinal  = 0x40

	metaOrigin = 1 << 31
)

// Where the metadata is in a frame: its source MAC address.
const metaOffset, metaEnd = 6, 12

// meta is what a captured frame says about itself.
type meta struct {
	Ifindex int32
	Egress  bool // captured on its way to the pod, not from it
	Reply   bool
	Final   bool // no later hook will see it
	Cut     bool // only the first bytes: for judging, not for sending on
	Origin  bool // a struct origin precedes the IP header
}

// readMeta decodes the metadata of a frame of the upcall pair. ok is false for a
// frame our programs did not send.
func readMeta(frame []byte, nonce uint8) (m meta, ok bool) {
	if len(frame) < metaEnd || frame[metaOffset]&metaFixed != metaBase || frame[metaOffset+1] != nonce {
		return meta{}, false
	}
	word := binary.BigEndian.Uint32(frame[metaOffset+2 : metaEnd])
	m.Ifindex, m.Origin = int32(word&^metaOrigin), word&metaOrigin != 0
	m.Egress = frame[metaOffset]&metaEgress != 0
	m.Reply = frame[metaOffset]&metaReply != 0
	m.Cut = frame[metaOffset]&metaCut != 0
	m.Final = m.Egress || frame[metaOffset]&metaFinal != 0
	return m, m.Ifindex > 0
}

// trueLength is the length of the packet a cut frame begins with, by its IP
// header, with the Ethernet header; 0 if it does not say.
func trueLength(frame []byte) uint32 {
	const ipv4Length, ipv6Length, ipv6Header = 16, 18, 40
	if len(frame) < etherHeader+ipv6Header {
		return 0
	}
	switch binary.BigEndian.Uint16(frame[12:]) {
	case 0x0800:
		return etherHeader + uint32(binary.BigEndian.Uint16(frame[ipv4Length:]))
	case 0x86dd:
		return etherHeader + ipv6Header + uint32(binary.BigEndian.Uint16(frame[ipv6Length:]))
	}
	return 0
}

// setMarks writes the marks that a frame gets into it before it goes back, whatever
// it arrived with: both on what is accepted, the fast one alone on what the program
// where it leaves is to judge.
func setMarks(frame []byte, accept, fast bool) {
	frame[metaOffset] &^= metaAccept | metaFast
	if accept {
		frame[metaOffset] |= metaAccept
	}
	if fast {
		frame[metaOffset] |= metaFast
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
