package nfqueue

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Message layout of the kernel's connection table
// (linux/netfilter/nfnetlink_conntrack.h). All numbers inside attributes are in
// network byte order.
const (
	msgCtNew = unix.NFNL_SUBSYS_CTNETLINK << 8   // IPCTNL_MSG_CT_NEW, 0
	msgCtGet = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET

	msgExpStats    = unix.NFNL_SUBSYS_CTNETLINK_EXP<<8 | 3 // IPCTNL_MSG_EXP_GET_STATS_CPU, Linux 3.5
	ctaStatsExpNew = 1

	ctaTupleOrig  = 1
	ctaTupleReply = 2
	ctaMark       = 8
	ctaZone       = 18
	ctaMarkMask   = 21
	ctaFilter     = 25 // Linux 5.8; older kernels ignore it and list everything

	ctaFilterOrig  = 1 // flags: what of CTA_TUPLE_ORIG must match
	ctaFilterReply = 2
	filterSrc      = 1 // CTA_FILTER_FLAG(CTA_IP_SRC)

	ctaTupleIP    = 1
	ctaTupleProto = 2
	ctaTupleZone  = 3

	ctaIPv4Src = 1
	ctaIPv4Dst = 2
	ctaIPv6Src = 3
	ctaIPv6Dst = 4

	ctaProtoNum     = 1
	ctaProtoSrcPort = 2
	ctaProtoDstPort = 3
	ctaICMPID       = 4
	ctaICMPType     = 5
	ctaICMPCode     = 6
	ctaICMPv6ID     = 7
	ctaICMPv6Type   = 8
	ctaICMPv6Code   = 9
)

// connection is what names an entry to the kernel.
type connection struct {
	family byte
	orig   []byte // payload of CTA_TUPLE_ORIG
	zone   []byte // payload of CTA_ZONE, empty in the default zone
}

// appendName appends the beginning of a message about the connection.
func (c *connection) appendName(b []byte) []byte {
	b = append(b, c.family, unix.NFNETLINK_V0, 0, 0)
	b = appendAttr(b, ctaTupleOrig|unix.NLA_F_NESTED, c.orig)
	if len(c.zone) != 0 {
		b = appendAttr(b, ctaZone, c.zone)
	}
	return b
}

// named returns the two names the kernel's table may have for the connection of a
// nameable key.
func named(k flow.Key) [2]connection {
	family := byte(unix.AF_INET)
	if !k.Src.Is4() {
		family = unix.AF_INET6
	}
	return [2]connection{{family: family, orig: appendTuple(nil, k)}, {family: family, orig: appendTuple(nil, k.Reverse())}}
}

// nameable reports whether the kernel's table has a connection under what its key
// says.
func nameable(k *flow.Key) bool {
	return k.Proto.HasPorts() || (k.Proto == flow.ICMP || k.Proto == flow.ICMPv6) && isEcho(k.Proto, uint8(k.DstPort>>8))
}

// appendTuple appends the payload of CTA_TUPLE_ORIG for a nameable key.
func appendTuple(b []byte, k flow.Key) []byte {
	src, dst := uint16(ctaIPv6Src), uint16(ctaIPv6Dst)
	id, typ, code := uint16(ctaICMPv6ID), uint16(ctaICMPv6Type), uint16(ctaICMPv6Code)
	from, to := k.Src[:], k.Dst[:]
	if k.Src.Is4() {
		src, dst, id, typ, code, from, to = ctaIPv4Src, ctaIPv4Dst, ctaICMPID, ctaICMPType, ctaICMPCode, from[12:], to[12:]
	}
	var nested [40]byte
	b = appendAttr(b, ctaTupleIP|unix.NLA_F_NESTED, appendAttr(appendAttr(nested[:0], src, from), dst, to))
	proto := appendAttr(nested[:0], ctaProtoNum, []byte{byte(k.Proto)})
	if k.Proto.HasPorts() {
		proto = appendAttr16(appendAttr16(proto, ctaProtoSrcPort, k.SrcPort), ctaProtoDstPort, k.DstPort)
	} else {
		proto = appendAttr16(proto, id, k.SrcPort)
		proto = appendAttr(appendAttr(proto, typ, []byte{byte(k.DstPort >> 8)}), code, []byte{byte(k.DstPort)})
	}
	return appendAttr(b, ctaTupleProto|unix.NLA_F_NESTED, proto)
}

// tuple is one direction of a connection as the kernel sees it.
type tuple struct {
	src, dst         netip.Addr
	srcPort, dstPort uint16
	id               uint16 // ICMP
	typ, code        uint8  // ICMP
	proto            flow.Proto
	zoned            bool // the direction has a zone of its own
}

// entry is the part of a connection table entry we look at. The raw parts point
// into the message.
type entry struct {
	family      byte
	orig, reply tuple
	mark        uint32
	zoned       bool // in another zone than the default one, in one direction at least
	rawOrig     []byte
	rawZone     []byte
}

// clone returns a copy that does not point into the message.
func (e *entry) clone() entry {
	c := *e
	c.rawOrig, c.rawZone = bytes.Clone(e.rawOrig), bytes.Clone(e.rawZone)
	return c
}

// key returns the flow of the entry, see clear; false if it cannot be read.
func (e *entry) key() (flow.Key, bool) {
	if !e.orig.src.IsValid() || !e.reply.src.IsValid() || e.orig.src.Is4() != e.reply.src.Is4() {
		return flow.Key{}, false
	}
	k := flow.Key{Src: flow.AddrFrom(e.orig.src), Dst: flow.AddrFrom(e.reply.src), Proto: e.orig.proto}
	switch {
	case k.Proto.HasPorts():
		k.SrcPort, k.DstPort = e.orig.srcPort, e.reply.srcPort
	case k.Proto == flow.ICMP || k.Proto == flow.ICMPv6:
		k.DstPort = flow.ICMPPort(e.orig.typ, e.orig.code)
		if isEcho(k.Proto, e.orig.typ) {
			k.SrcPort = e.orig.id
		}
	}
	return k, k.Valid()
}

// via returns where the connection was opened to if its destination was translated.
func (e *entry) via() flow.Service {
	if !e.orig.proto.HasPorts() || !e.orig.dst.IsValid() || e.orig.dst == e.reply.src && e.orig.dstPort == e.reply.srcPort {
		return flow.Service{}
	}
	return flow.Service{Addr: flow.AddrFrom(e.orig.dst), Port: e.orig.dstPort}
}

// shows reports whether the original tuple has the same ends as the key of the entry.
func (e *entry) shows(k *flow.Key) bool {
	return e.orig.dst == e.reply.src && (!k.Proto.HasPorts() || e.orig.dstPort == e.reply.srcPort)
}

// isEcho reports whether a type's identifier is part of a flow key.
func isEcho(p flow.Proto, typ uint8) bool {
	if p == flow.ICMP {
		return typ == flow.ICMPEchoRequest || typ == flow.ICMPEchoReply
	}
	return typ == flow.ICMPv6EchoRequest || typ == flow.ICMPv6EchoReply
}

// parseConnection reads a message of a dump; false if it has no original tuple.
func parseConnection(data []byte) (e entry, ok bool) {
	if len(data) < 4 {
		return e, false
	}
	e.family = data[0]
	for typ, val := range attrs(data[4:]) {
		switch typ {
		case ctaTupleOrig:
			e.rawOrig, e.orig = val, parseTuple(val)
		case ctaTupleReply:
			e.reply = parseTuple(val)
		case ctaMark:
			if len(val) == 4 {
				e.mark = binary.BigEndian.Uint32(val)
			}
		case ctaZone:
			e.rawZone, e.zoned = val, true
		}
	}
	e.zoned = e.zoned || e.orig.zoned || e.reply.zoned
	return e, e.rawOrig != nil
}

func parseTuple(data []byte) (t tuple) {
	for typ, val := range attrs(data) {
		switch typ {
		case ctaTupleIP:
			for typ, val := range attrs(val) {
				a, _ := netip.AddrFromSlice(val)
				switch typ {
				case ctaIPv4Src, ctaIPv6Src:
					t.src = a
				case ctaIPv4Dst, ctaIPv6Dst:
					t.dst = a
				}
			}
		case ctaTupleProto:
			for typ, val := range attrs(val) {
				switch typ {
				case ctaProtoNum:
					t.proto = flow.Proto(num(val))
				case ctaProtoSrcPort:
					t.srcPort = num(val)
				case ctaProtoDstPort:
					t.dstPort = num(val)
				case ctaICMPID, ctaICMPv6ID:
					t.id = num(val)
				case ctaICMPType, ctaICMPv6Type:
					t.typ = uint8(num(val))
				case ctaICMPCode, ctaICMPv6Code:
					t.code = uint8(num(val))
				}
			}
		case ctaTupleZone:
			t.zoned = true
		}
	}
	return t
}

// num reads a number of one or two bytes.
func num(b []byte) uint16 {
	switch len(b) {
	case 1:
		return uint16(b[0])
	case 2:
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

// attrs walks netlink attributes. It stops at the first that does not fit.
func attrs(b []byte) func(yield func(typ uint16, val []byte) bool) {
	return func(yield func(uint16, []byte) bool) {
		for len(b) >= 4 {
			l := int(binary.NativeEndian.Uint16(b))
			if l < 4 || l > len(b) {
				return
			}
			typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if !yield(typ, b[4:l]) {
				return
			}
			b = b[min((l+3)&^3, len(b)):]
		}
	}
}

func appendAttr(b []byte, typ uint16, val []byte) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(4+len(val)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = append(b, val...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

func appendAttr16(b []byte, typ, v uint16) []byte {
	return appendAttr(b, typ, []byte{byte(v >> 8), byte(v)})
}

func appendAttr32(b []byte, typ uint16, v uint32) []byte {
	return appendAttr(b, typ, binary.BigEndian.AppendUint32(nil, v))
}
