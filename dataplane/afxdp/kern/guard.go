package kern

import (
	"net/netip"

	"github.com/tierwall/tierwall/classifier/flow"
)

// GuardState is struct guard of bpf/guard.h.
type GuardState struct {
	Flags     uint32
	Bridge    uint32
	BridgeMAC [6]byte
	Zero      [2]byte
	Addrs     [guardAddresses]flow.Addr
}

// Bits of guardState.Flags.
const (
	GuardPod   = 1 << iota // a pod's device for sure
	GuardBound             // all of the pod's addresses are known
)

const guardAddresses = 4

// PrefixKey is struct prefix.
type PrefixKey struct {
	Bits uint32 // of the mapped form
	Addr flow.Addr
}

func MakePrefixKey(p netip.Prefix) PrefixKey {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return PrefixKey{Bits: uint32(bits), Addr: flow.AddrFrom(p.Addr())}
}

// LocalPod is struct local_pod of bpf/guard.h.
type LocalPod struct{ Ifindex uint32 }
