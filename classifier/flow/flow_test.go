package flow

import (
	"net/netip"
	"testing"
)

func TestProtoText(t *testing.T) {
	for _, p := range []Proto{ICMP, IGMP, TCP, UDP, ICMPv6, SCTP, 47, 255} {
		got, err := ParseProto(p.String())
		if err != nil || got != p {
			t.Errorf("ParseProto(%q) = %v, %v", p.String(), got, err)
		}
	}
	if p, err := ParseProto("tcp"); p != TCP || err != nil {
		t.Errorf("lower case: %v, %v", p, err)
	}
	for _, bad := range []string{"", "0", "256", "-1", "TPC", "ANY"} {
		if p, err := ParseProto(bad); err == nil {
			t.Errorf("ParseProto(%q) = %v, want an error", bad, p)
		}
	}
}

func TestAddr(t *testing.T) {
	for _, s := range []string{"10.0.0.1", "::1", "fd00::ffff:a00:1", "255.255.255.255"} {
		a := netip.MustParseAddr(s)
		f := AddrFrom(a)
		if f.Netip() != a || f.Is4() != a.Is4() || f.String() != s {
			t.Errorf("%s: Netip %s, Is4 %t", s, f.Netip(), f.Is4())
		}
	}
	if AddrFrom(netip.MustParseAddr("::ffff:10.0.0.1")) != AddrFrom(netip.MustParseAddr("10.0.0.1")) {
		t.Error("mapped and plain IPv4 differ")
	}
}

func key(proto Proto, src string, sport uint16, dst string, dport uint16) Key {
	return MakeKey(proto, netip.AddrPortFrom(netip.MustParseAddr(src), sport), netip.AddrPortFrom(netip.MustParseAddr(dst), dport))
}

func TestValid(t *testing.T) {
	for _, tc := range []struct {
		k    Key
		want bool
	}{
		{Key{}, false},
		{key(TCP, "10.0.0.1", 1, "10.0.0.2", 2), true},
		{key(TCP, "fd00::1", 1, "fd00::2", 2), true},
		{key(TCP, "10.0.0.1", 1, "fd00::2", 2), false}, // families mixed
		{key(AnyProto, "10.0.0.1", 1, "10.0.0.2", 2), false},
	} {
		if got := tc.k.Valid(); got != tc.want {
			t.Errorf("%s: Valid() = %t", tc.k, got)
		}
	}
}

func TestReverse(t *testing.T) {
	for _, tc := range []struct{ fwd, rev Key }{
		{key(TCP, "10.0.0.1", 4000, "10.0.0.2", 80), key(TCP, "10.0.0.2", 80, "10.0.0.1", 4000)},
		{key(SCTP, "fd00::1", 4000, "fd00::2", 80), key(SCTP, "fd00::2", 80, "fd00::1", 4000)},
		// The echo identifier stays where it is; request and reply swap.
		{key(ICMP, "10.0.0.1", 7, "10.0.0.2", 8<<8), key(ICMP, "10.0.0.2", 7, "10.0.0.1", 0)},
		{key(ICMPv6, "fd00::1", 7, "fd00::2", 128<<8), key(ICMPv6, "fd00::2", 7, "fd00::1", 129<<8)},
		{key(ICMP, "10.0.0.1", 0, "10.0.0.2", 13<<8), key(ICMP, "10.0.0.2", 0, "10.0.0.1", 13<<8)},
		{key(47, "10.0.0.1", 0, "10.0.0.2", 0), key(47, "10.0.0.2", 0, "10.0.0.1", 0)},
	} {
		if got := tc.fwd.Reverse(); got != tc.rev {
			t.Errorf("%s reversed: %s, want %s", tc.fwd, got, tc.rev)
		}
		if got := tc.rev.Reverse(); got != tc.fwd {
			t.Errorf("%s reversed: %s, want %s", tc.rev, got, tc.fwd)
		}
	}
}

func TestKeyText(t *testing.T) {
	for want, k := range map[string]Key{
		"TCP 10.0.0.1:4000 > 10.0.0.2:80":          key(TCP, "10.0.0.1", 4000, "10.0.0.2", 80),
		"UDP [fd00::1]:4000 > [fd00::2]:53":        key(UDP, "fd00::1", 4000, "fd00::2", 53),
		"ICMP 10.0.0.1 > 10.0.0.2 type 8 code 0":   key(ICMP, "10.0.0.1", 9, "10.0.0.2", ICMPPort(8, 0)),
		"ICMPv6 fd00::1 > fd00::2 type 1 code 4":   key(ICMPv6, "fd00::1", 0, "fd00::2", ICMPPort(1, 4)),
		"47 10.0.0.1 > 10.0.0.2":                   key(47, "10.0.0.1", 0, "10.0.0.2", 0),
		"IGMP 10.0.0.1 > 224.0.0.1 type 17 code 0": key(IGMP, "10.0.0.1", 0, "224.0.0.1", ICMPPort(17, 0)),
	} {
		if got := k.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
