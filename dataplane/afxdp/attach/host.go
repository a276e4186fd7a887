package attach

import (
	"net/netip"
	"sync/atomic"

	"github.com/tierwall/tierwall/classifier/flow"
)

// HostSet is the addresses of this host. One goroutine sets them, any may ask.
// The zero value is empty.
type HostSet struct {
	addrs atomic.Pointer[map[flow.Addr]struct{}]
}

func (h *HostSet) set(own []netip.Addr) {
	m := make(map[flow.Addr]struct{}, len(own))
	for _, a := range own {
		m[flow.AddrFrom(a)] = struct{}{}
	}
	h.addrs.Store(&m)
}

// IsHost implements dataplane.Driver for a driver.
func (h *HostSet) IsHost(a flow.Addr) bool {
	if h == nil {
		return false
	}
	m := h.addrs.Load()
	if m == nil {
		return false
	}
	_, ok := (*m)[a]
	return ok
}
