package kube

import (
	"fmt"
	"net/netip"
)

// CheckPrefix reads an address range and reports one that cannot be read. Bits
// behind the prefix length are a warning and masked away, as everywhere in
// Kubernetes. ok is false when it was refused.
func CheckPrefix(f *Findings, path, s string) (p netip.Prefix, ok bool) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		hint := `write an address range such as "10.0.0.0/8" or "2001:db8::/32"`
		if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" && !a.Is4In6() {
			hint = fmt.Sprintf("for this one address write %q", netip.PrefixFrom(a, a.BitLen()))
		}
		f.Error(path, fmt.Sprintf("%q is not a CIDR", s), hint)
		return netip.Prefix{}, false
	case p.Addr().Is4In6():
		f.Error(path, fmt.Sprintf("%q is IPv4 written as IPv6", s), "write it as an IPv4 range")
		return netip.Prefix{}, false
	case p != p.Masked():
		f.Warn(path, fmt.Sprintf("%q has bits set behind its prefix length; it means %s", s, p.Masked()),
			fmt.Sprintf("write %q", p.Masked()))
	}
	return p.Masked(), true
}
