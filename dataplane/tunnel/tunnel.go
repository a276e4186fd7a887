// Package tunnel finds the ends of tunnels that a node has: the protocols and ports by
// which packets come in that the node unwraps and takes for another node's.
//
// Whoever can send to such an end speaks for every pod behind the tunnel, because none of
// these protocols authenticates its packets. WireGuard's does, and is left out.
package tunnel

import (
	"net"
	"slices"
	"sync/atomic"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
)

// End is what packets to a tunnel have in common: the protocol, and the destination port
// where the protocol has one.
type End struct {
	Proto flow.Proto
	Port  uint16
}

// Find returns the ends of the devices that are up, in order and each once. fous are the
// ports at which the kernel unwraps foo-over-UDP and GUE (see FOU).
func Find(links []netlink.Link, fous []End) []End {
	ends := slices.Clone(fous)
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp == 0 {
			continue // it takes nothing
		}
		switch d := l.(type) {
		case *netlink.Vxlan:
			ends = append(ends, End{flow.UDP, uint16(d.Port)})
		case *netlink.Geneve:
			ends = append(ends, End{flow.UDP, d.Dport})
		case *netlink.BareUDP:
			ends = append(ends, End{flow.UDP, d.Port})
		}
		switch l.Type() {
		case "gre", "gretap", "erspan", "ip6gre", "ip6gretap", "ip6erspan":
			ends = append(ends, End{Proto: unix.IPPROTO_GRE})
		case "ipip", "sit", "ip6tnl":
			ends = append(ends, End{Proto: unix.IPPROTO_IPIP}, End{Proto: unix.IPPROTO_IPV6})
		}
	}
	slices.SortFunc(ends, func(a, b End) int {
		return int(a.Proto)<<16 + int(a.Port) - int(b.Proto)<<16 - int(b.Port)
	})
	return slices.Compact(ends)
}

// FOU lists the ports at which the kernel unwraps foo-over-UDP and GUE: none on a kernel
// that does not.
func FOU(nl *netlink.Handle) (ends []End) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		fous, err := nl.FouList(family)
		if err != nil {
			continue
		}
		for _, f := range fous {
			ends = append(ends, End{flow.UDP, uint16(f.Port)})
		}
	}
	return ends
}

// Set is the ends a node has. One goroutine sets them, any may ask. The zero value is
// empty.
type Set struct {
	ends atomic.Pointer[map[End]struct{}]
}

// Store replaces the ends.
func (s *Set) Store(ends []End) {
	m := make(map[End]struct{}, len(ends))
	for _, e := range ends {
		m[e] = struct{}{}
	}
	s.ends.Store(&m)
}

// IsTunnel reports whether packets with a protocol and a destination port are a tunnel's.
func (s *Set) IsTunnel(proto flow.Proto, port uint16) bool {
	if s == nil {
		return false
	}
	m := s.ends.Load()
	if m == nil || len(*m) == 0 {
		return false
	}
	if !proto.HasPorts() {
		port = 0
	}
	_, ok := (*m)[End{proto, port}]
	return ok
}
