package kern

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
)

// The structs below are the kernel programs' own (bpf/tierwall.h), byte for
// byte: no field may be padded by the compiler, in either language.

// FlowKey is struct flow_key: the name of a connection, the same for both of its
// directions. Addresses are in network byte order, ports in the machine's, which
// is little-endian on everything we build for.
type FlowKey struct {
	A, B         flow.Addr
	APort, BPort uint16
	Proto        flow.Proto
	Back         uint8 // in map denied only
	Zero         [2]uint8
}

// MakeFlowKey names the connection of k. back says that k travels from the
// name's B to its A.
func MakeFlowKey(k *flow.Key) (f FlowKey, back bool) {
	if back = fromB(k); back {
		return FlowKey{A: k.Dst, B: k.Src, APort: reversePort(k), BPort: requestPort(k), Proto: k.Proto}, true
	}
	return FlowKey{A: k.Src, B: k.Dst, APort: k.SrcPort, BPort: k.DstPort, Proto: k.Proto}, false
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

// FlowState is struct flow.
type FlowState struct {
	Generation uint64
	Last       uint64 // ns of CLOCK_MONOTONIC_COARSE
	Cell       [2]uint16
	Flags      uint32
}

// Bits of flowState.Flags.
const (
	FlowBack       = 1 << iota // the connection was opened from B to A
	FlowClosing                // FIN or RST seen; set by the kernel side only
	FlowTranslated             // translation has made its name
	FlowHost                   // an end is this host
)

// EtherHeader is the length of an Ethernet header without tags.
const EtherHeader = 14

// MaxQueues is the most queues an upcall pair may have.
const MaxQueues = 256

// NumCells is CELLS.
const NumCells = 16384

// CellOf sorts addresses into cells. Any function would do; this is FNV-1a with
// its upper bits folded in.
func CellOf(a *flow.Addr) uint16 {
	h := uint64(14695981039346656037)
	h = (h ^ binary.LittleEndian.Uint64(a[:])) * 1099511628211
	h = (h ^ binary.LittleEndian.Uint64(a[8:])) * 1099511628211
	h ^= h >> 32
	return uint16((h ^ h>>14) % NumCells)
}

// DeviceState is struct device.
type DeviceState struct {
	Own   [6]byte // source MAC address of packets to the pod; kept up by the kernel side
	Peer  [6]byte // source MAC address the pod last used; written by the kernel side
	Flags uint32
	Due   uint64 // of the rate limit; written by the kernel side
}

// Bits of deviceState.Flags.
const DeviceOpen = 1 // packets to it may leave out the stack, and so may those from it

// Indexes of the counters map: enum counter.
const (
	CountHit = iota
	CountAcross
	CountUpcall
	CountLater
	CountUnparsed
	CountDrop
	CountExempt
	CountDenied
	CountLimited
	CountAloneDrop
	CountAlonePass
	CountUnknown
	CountForged
	CountForeign
	CountReturned
	CountStray
	CountReceived
	CountUnheard
	CountHeld
	NumCounters
)

// HasEntry reports whether the kernel side looks a key up: it knows flows by
// ports or echo identifier and leaves other ICMP and IGMP to userspace.
func HasEntry(k *flow.Key) bool {
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

// Opened is makeFlowKey's inverse: the key of the packet that opened a connection.
func (f *FlowKey) Opened(s *FlowState) flow.Key {
	k := flow.Key{Src: f.A, Dst: f.B, SrcPort: f.APort, DstPort: f.BPort, Proto: f.Proto}
	if s.Flags&FlowBack != 0 {
		return k.Reverse()
	}
	return k
}
