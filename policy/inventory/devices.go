package inventory

import (
	"net/netip"
	"slices"
	"strings"
)

// Annotations in which network plugins tell addresses of a node besides those of
// its status: lists of addresses, some with a prefix length.
var deviceAnnotations = []string{
	"node.antrea.io/transport-addresses",
	"flannel.alpha.coreos.com/public-ip", "flannel.alpha.coreos.com/public-ipv6",
	"projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address",
	"projectcalico.org/IPv4IPIPTunnelAddr", "projectcalico.org/IPv4VXLANTunnelAddr", "projectcalico.org/IPv6VXLANTunnelAddr",
	"projectcalico.org/IPv4WireguardInterfaceAddr", "projectcalico.org/IPv6WireguardInterfaceAddr",
	"network.cilium.io/ipv4-cilium-host", "network.cilium.io/ipv6-cilium-host",
	"io.cilium.network.ipv4-cilium-host", "io.cilium.network.ipv6-cilium-host",
}

const (
	antreaTransport = "node.antrea.io/transport-addresses"
	flannelBackend  = "flannel.alpha.coreos.com/backend-type"
)

// deviceAddrs returns what a Node's annotations tell of its addresses, without those
// in known. Where they say that flannel or Antrea gives pods their addresses, the
// first address of each pod CIDR is the node's gateway, and with flannel's tunnels the
// CIDR's own address is the tunnel's; no pod gets either. Other plugins give pods any
// address of the CIDR, so nothing is concluded there. Values are other people's: what
// is no address is passed over.
func deviceAddrs(annotations map[string]string, podCIDRs []netip.Prefix, known []netip.Addr) (out []netip.Addr) {
	add := func(a netip.Addr) {
		if usable(a) && !slices.Contains(out, a) && !slices.Contains(known, a) {
			out = append(out, a)
		}
	}
	for _, key := range deviceAnnotations {
		for _, text := range strings.Split(annotations[key], ",") {
			text, _, _ = strings.Cut(strings.TrimSpace(text), "/")
			if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" {
				add(a.Unmap())
			}
		}
	}
	backend := annotations[flannelBackend]
	for _, c := range podCIDRs {
		if c.IsSingleIP() || backend == "" && annotations[antreaTransport] == "" {
			continue
		}
		if backend != "" && backend != "host-gw" && backend != "alloc" {
			add(c.Addr())
		}
		add(c.Addr().Next())
	}
	return out
}

// usable reports whether an address can be that of a host.
func usable(a netip.Addr) bool {
	return !a.IsUnspecified() && !a.IsLoopback() && !a.IsMulticast() && a != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
