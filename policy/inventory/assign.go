package inventory

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"

	"github.com/tierwall/tierwall/policy/diag"
)

// Where made-up pod addresses come from: shared address space (RFC 6598) and a
// unique local prefix (RFC 4193).
var (
	SyntheticIPv4 = netip.MustParsePrefix("100.64.0.0/10")
	SyntheticIPv6 = netip.MustParsePrefix("fd00:7469:6572::/48")
)

// assign gives addresses to the pods written without any; see [Options]. A pod's
// address follows from a hash of its name, so that adding a pod does not move
// the others.
func (b *builder) assign() {
	used := map[netip.Addr]bool{}
	nodes := map[string]*Node{}
	for i := range b.snap.Nodes {
		n := &b.snap.Nodes[i]
		nodes[n.Name] = n
		for _, a := range n.Addrs {
			used[a] = true
		}
	}
	for i := range b.snap.Pods {
		for _, a := range b.snap.Pods[i].IPs {
			used[a] = true
		}
	}
	for i := range b.snap.Services {
		for _, a := range b.snap.Services[i].ClusterIPs {
			used[a] = true
		}
	}
	count, first := 0, ""
	for i := range b.snap.Pods {
		p := &b.snap.Pods[i]
		if !b.bare[podName{p.Namespace, p.Name}] && !p.MadeUp {
			continue
		}
		if p.HostNetwork {
			if n := nodes[p.Node]; n != nil {
				p.IPs = onePerFamily(n.Addrs)
			}
			continue
		}
		p.MadeUpIPs = true
		h := fnv.New64a()
		_, _ = h.Write([]byte(p.Namespace + "/" + p.Name)) // never fails
		p.IPs = []netip.Addr{
			synthetic(SyntheticIPv4, 22, h.Sum64(), used),
			synthetic(SyntheticIPv6, 64, h.Sum64(), used),
		}
		if p.MadeUp {
			continue // said in makePods
		}
		if count++; count == 1 {
			first = p.Namespace + "/" + p.Name
		}
	}
	if count > 0 {
		b.found.Warnings = append(b.found.Warnings, diag.Diagnostic{
			Message: fmt.Sprintf("%d pods without an address were given made-up ones, %s first", count, first),
			Hint:    "set status.podIPs to choose them",
		})
	}
}

// synthetic returns the first free address of the prefix at or after the one the
// hash points at. bits is how much of the hash the host part takes.
func synthetic(p netip.Prefix, bits int, hash uint64, used map[netip.Addr]bool) netip.Addr {
	mask := uint64(1)<<bits - 1
	if bits == 64 {
		mask = ^uint64(0)
	}
	for n := (hash ^ hash>>32) & mask; ; n = (n + 1) & mask {
		var a netip.Addr
		if p.Addr().Is4() {
			b := p.Addr().As4()
			binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])|uint32(n))
			if b[3] == 0 || b[3] == 255 { // looks like a network or broadcast address
				continue
			}
			a = netip.AddrFrom4(b)
		} else {
			b := p.Addr().As16()
			binary.BigEndian.PutUint64(b[8:], n)
			a = netip.AddrFrom16(b)
		}
		if !used[a] && n != 0 {
			used[a] = true
			return a
		}
	}
}

func onePerFamily(addrs []netip.Addr) []netip.Addr {
	var out []netip.Addr
	for _, a := range addrs {
		if len(out) == 0 || len(out) == 1 && out[0].Is4() != a.Is4() {
			out = append(out, a)
		}
	}
	return out
}
