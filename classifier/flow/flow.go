package flow

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Proto is an IP protocol number (IANA). Zero means "no protocol": it is
// invalid in a Key and "any protocol" in a match.
type Proto uint8

// Protocols that policies can name.
const (
	AnyProto Proto = 0
	ICMP     Proto = 1
	IGMP     Proto = 2
	TCP      Proto = 6
	UDP      Proto = 17
	ICMPv6   Proto = 58
	SCTP     Proto = 132
)

// HasPorts reports whether the protocol's header starts with two port numbers.
func (p Proto) HasPorts() bool { return p == TCP || p == UDP || p == SCTP }

// String returns the protocol's name as Kubernetes writes it, or its number.
func (p Proto) String() string {
	switch p {
	case AnyProto:
		return "ANY"
	case ICMP:
		return "ICMP"
	case IGMP:
		return "IGMP"
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case ICMPv6:
		return "ICMPv6"
	case SCTP:
		return "SCTP"
	}
	return strconv.Itoa(int(p))
}

// ParseProto is the inverse of [Proto.String]; case is ignored.
func ParseProto(s string) (Proto, error) {
	switch strings.ToUpper(s) {
	case "ICMP":
		return ICMP, nil
	case "IGMP":
		return IGMP, nil
	case "TCP":
		return TCP, nil
	case "UDP":
		return UDP, nil
	case "ICMPV6":
		return ICMPv6, nil
	case "SCTP":
		return SCTP, nil
	}
	if n, err := strconv.ParseUint(s, 10, 8); err == nil && n > 0 {
		return Proto(n), nil
	}
	return AnyProto, fmt.Errorf("unknown protocol %q: want TCP, UDP, SCTP, ICMP, ICMPv6, IGMP or a number from 1 to 255", s)
}

// Direction is the side of the policed pod a decision is made for.
type Direction uint8

// The two directions. A connection is decided as egress of its source and as
// ingress of its destination.
const (
	Ingress Direction = iota
	Egress
)

// Directions lists both, for loops and arrays indexed by direction.
var Directions = [2]Direction{Ingress, Egress}

// String returns "ingress" or "egress".
func (d Direction) String() string {
	if d == Ingress {
		return "ingress"
	}
	return "egress"
}

// Addr is an address in 16 bytes, network byte order, IPv4 in mapped form.
// The zero value is the IPv6 unspecified address and never a valid endpoint.
type Addr [16]byte

// AddrFrom converts a netip.Addr; a zone is dropped.
func AddrFrom(a netip.Addr) Addr { return Addr(a.As16()) }

// Is4 reports whether the address is an IPv4 one in mapped form.
func (a Addr) Is4() bool {
	return [12]byte(a[:12]) == [12]byte{10: 0xff, 11: 0xff}
}

// Netip returns the unmapped address.
func (a Addr) Netip() netip.Addr { return netip.AddrFrom16(a).Unmap() }

// String returns the unmapped text form.
func (a Addr) String() string { return a.Netip().String() }

// Key identifies one direction of a flow. See the package comment for units
// and byte order.
type Key struct {
	Src, Dst         Addr
	SrcPort, DstPort uint16
	Proto            Proto
}

// MakeKey builds a key from parsed values; mixing families is the caller's bug
// and yields an invalid key.
func MakeKey(proto Proto, src, dst netip.AddrPort) Key {
	return Key{
		Src: AddrFrom(src.Addr()), SrcPort: src.Port(),
		Dst: AddrFrom(dst.Addr()), DstPort: dst.Port(),
		Proto: proto,
	}
}

// Valid reports whether the key has a protocol and two addresses of one family.
func (k Key) Valid() bool {
	return k.Proto != AnyProto && k.Src != Addr{} && k.Dst != Addr{} && k.Src.Is4() == k.Dst.Is4()
}

// Reverse returns the key of the opposite direction. ICMP echo requests and
// replies are each other's reverse; other ICMP messages keep type and code.
func (k Key) Reverse() Key {
	r := Key{Src: k.Dst, Dst: k.Src, Proto: k.Proto}
	switch k.Proto {
	case ICMP, ICMPv6:
		r.SrcPort, r.DstPort = k.SrcPort, ReverseICMP(k.Proto, k.DstPort)
	case IGMP:
		r.SrcPort, r.DstPort = k.SrcPort, k.DstPort
	default:
		r.SrcPort, r.DstPort = k.DstPort, k.SrcPort
	}
	return r
}

// ICMP echo types (RFC 792, RFC 4443 §4).
const (
	ICMPEchoReply     = 0
	ICMPEchoRequest   = 8
	ICMPv6EchoRequest = 128
	ICMPv6EchoReply   = 129
)

// ICMPPort packs an ICMP type and code into the port form used by keys.
func ICMPPort(typ, code uint8) uint16 { return uint16(typ)<<8 | uint16(code) }

// ReverseICMP swaps echo request and echo reply in port form and returns every
// other message unchanged.
func ReverseICMP(p Proto, port uint16) uint16 {
	code := port & 0xff
	switch {
	case p == ICMP && port>>8 == ICMPEchoRequest:
		return ICMPEchoReply<<8 | code
	case p == ICMP && port>>8 == ICMPEchoReply:
		return ICMPEchoRequest<<8 | code
	case p == ICMPv6 && port>>8 == ICMPv6EchoRequest:
		return ICMPv6EchoReply<<8 | code
	case p == ICMPv6 && port>>8 == ICMPv6EchoReply:
		return ICMPv6EchoRequest<<8 | code
	}
	return port
}

// String returns "TCP 10.0.0.1:40000 > 10.0.0.2:80"; ICMP shows type and code,
// and protocols without ports show none.
func (k Key) String() string {
	src, dst := k.Src.Netip(), k.Dst.Netip()
	switch {
	case k.Proto.HasPorts():
		return fmt.Sprintf("%s %s > %s", k.Proto, netip.AddrPortFrom(src, k.SrcPort), netip.AddrPortFrom(dst, k.DstPort))
	case k.Proto == ICMP || k.Proto == ICMPv6 || k.Proto == IGMP:
		return fmt.Sprintf("%s %s > %s type %d code %d", k.Proto, src, dst, k.DstPort>>8, k.DstPort&0xff)
	}
	return fmt.Sprintf("%s %s > %s", k.Proto, src, dst)
}
