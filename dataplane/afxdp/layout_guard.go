package afxdp

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
)

// guardState is struct guard of bpf/guard.h.
type guardState struct {
	Flags     uint32
	Bridge    uint32
	BridgeMAC [6]byte
	Zero      [2]byte
	Addrs     [guardAddresses]flow.Addr
}

// Bits of guardState.Flags.
const (
	guardPod   = 1 << iota // a pod's device for sure
	guardBound             // all of the pod's addresses are known
)

const guardAddresses = 4

// prefixKey is struct prefix.
type prefixKey struct {
	Bits uint32 // of the mapped form
	Addr flow.Addr
}

func makePrefixKey(p netip.Prefix) prefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return prefixKey{Bits: uint32(bits), Addr: flow.AddrFrom(p.Addr())}
}

// localPod is struct local_pod of bpf/guard.h.
type localPod struct{ Ifindex uint32 }
