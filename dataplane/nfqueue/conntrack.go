package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
)

// Message layout of the kernel's connection table
// (linux/netfilter/nfnetlink_conntrack.h). All numbers inside attributes are in
// network byte order.
const (
	msgCtNew = unix.NFNL_SUBSYS_CTNETLINK << 8   // IPCTNL_MSG_CT_NEW, 0
	msgCtGet = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1 // IPCTNL_MSG_CT_GET

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

// clearBatch is how many connections one message to the kernel changes. The
// answers must fit the receive buffer.
const clearBatch = 128

// kernelTable is the kernel's connection table of one namespace.
type kernelTable struct {
	conn *netlink.Conn
	bit  uint32 // the accept bit
}

func openKernelTable(nsFD int, accept uint32) (*kernelTable, error) {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: nsFD})
	if err != nil {
		return nil, fmt.Errorf("open conntrack netlink: %w", err)
	}
	// A dump waits for its reader, so the size is about speed only.
	_ = conn.SetReadBuffer(1 << 20)
	return &kernelTable{conn: conn, bit: accept}, nil
}

func (k *kernelTable) close() error { return k.conn.Close() }

// connection is what names an entry to the kernel.
type connection struct {
	family byte
	orig   []byte // payload of CTA_TUPLE_ORIG
	zone   []byte // payload of CTA_ZONE, empty in the default zone
}

// clear takes the accept bit from every connection for which denied returns
// true, and returns how many those were. The key is in the direction the
// connection was opened, the destination as it is after DNAT and the source as
// it was before SNAT: what the forward hook saw. The Service is where it was opened
// to, if that was translated.
//
// Only connections with one of the addresses at either end are looked at; nil
// means all. An address costs two walks of the kernel's table: some 10 ms each
// where it has 262,144 buckets, however few connections are in them. Listing costs
// one walk and 4 µs per accepted connection.
//
// The walk holds no lock. An entry that is added while it runs was judged by
// whoever judges now.
func (k *kernelTable) clear(addrs []flow.Addr, denied func(flow.Key, flow.Service) bool) (int, error) {
	if addrs == nil {
		return k.clearFound(dumpFilter{}, denied)
	}
	var n int
	for _, a := range addrs {
		// The two ends of a key: see entry.key. What the first walk finds and
		// clears the second does not find again.
		for _, end := range []uint16{ctaTupleOrig, ctaTupleReply} {
			cleared, err := k.clearFound(sourceIs(end, a.Netip()), denied)
			n += cleared
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (k *kernelTable) clearFound(filter dumpFilter, denied func(flow.Key, flow.Service) bool) (int, error) {
	victims, err := k.find(filter, denied)
	if err != nil {
		return 0, err
	}
	var n int
	for part := range slices.Chunk(victims, clearBatch) {
		cleared, err := k.clearMarks(part)
		n += cleared
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// dumpFilter limits a dump; the zero value does not.
type dumpFilter struct {
	family byte
	attrs  []byte
}

// sourceIs limits a dump to connections of which the tuple, CTA_TUPLE_ORIG or
// CTA_TUPLE_REPLY, has the source address.
func sourceIs(tuple uint16, addr netip.Addr) dumpFilter {
	family, typ, flags := byte(unix.AF_INET), uint16(ctaIPv4Src), uint16(ctaFilterOrig)
	if addr.Is6() {
		family, typ = unix.AF_INET6, ctaIPv6Src
	}
	if tuple == ctaTupleReply {
		flags = ctaFilterReply
	}
	ip := appendAttr(nil, typ, addr.AsSlice())
	b := appendAttr(nil, tuple|unix.NLA_F_NESTED, appendAttr(nil, ctaTupleIP|unix.NLA_F_NESTED, ip))
	// The flags are the one number in host byte order.
	return dumpFilter{family, appendAttr(b, ctaFilter|unix.NLA_F_NESTED, appendAttr(nil, flags, host32(filterSrc)))}
}

// find dumps the connections with the accept bit; the kernel does the filtering,
// by mark and by the filter.
func (k *kernelTable) find(filter dumpFilter, denied func(flow.Key, flow.Service) bool) ([]connection, error) {
	data := append([]byte{filter.family, unix.NFNETLINK_V0, 0, 0}, filter.attrs...)
	data = appendAttr32(data, ctaMark, k.bit)
	data = appendAttr32(data, ctaMarkMask, k.bit)
	_, err := k.conn.Send(netlink.Message{
		Header: netlink.Header{Type: msgCtGet, Flags: netlink.Request | netlink.Dump},
		Data:   data,
	})
	if err != nil {
		return nil, fmt.Errorf("list the kernel's connections: %w", err)
	}
	var victims []connection
	for m, err := range k.conn.ReceiveIter() {
		if err != nil {
			return nil, fmt.Errorf("list the kernel's connections: %w", err)
		}
		e, ok := parseConnection(m.Data)
		if !ok || e.mark&k.bit == 0 {
			continue
		}
		key, ok := e.key()
		if ok && !denied(key, e.via()) {
			continue
		}
		// A connection we cannot read is a connection we cannot allow.
		victims = append(victims, connection{m.Data[0], slices.Clone(e.rawOrig), slices.Clone(e.rawZone)})
	}
	return victims, nil
}

// clearMarks takes the accept bit from the given connections, all others bits of
// the mark stay. Connections that are gone by now are not counted.
func (k *kernelTable) clearMarks(conns []connection) (int, error) {
	msgs := make([]netlink.Message, 0, len(conns))
	for _, c := range conns {
		data := []byte{c.family, unix.NFNETLINK_V0, 0, 0}
		data = appendAttr(data, ctaTupleOrig|unix.NLA_F_NESTED, c.orig)
		if len(c.zone) != 0 {
			data = appendAttr(data, ctaZone, c.zone)
		}
		// mark = (mark & ^mask) ^ value
		data = appendAttr32(data, ctaMark, 0)
		data = appendAttr32(data, ctaMarkMask, k.bit)
		msgs = append(msgs, netlink.Message{
			// Without the create flag this changes an entry or fails.
			Header: netlink.Header{Type: msgCtNew, Flags: netlink.Request | netlink.Acknowledge},
			Data:   data,
		})
	}
	if _, err := k.conn.SendMessages(msgs); err != nil {
		return 0, fmt.Errorf("cut connections: %w", err)
	}
	var n int
	var errs []error
	for range msgs {
		switch _, err := k.conn.Receive(); {
		case err == nil:
			n++
		case errors.Is(err, unix.ENOENT):
		default:
			errs = append(errs, err)
		}
	}
	if len(errs) != 0 {
		return n, fmt.Errorf("cut connections: %d of %d failed: %w", len(errs), len(msgs), errs[0])
	}
	return n, nil
}

// tuple is one direction of a connection as the kernel sees it.
type tuple struct {
	src, dst         netip.Addr
	srcPort, dstPort uint16
	id               uint16 // ICMP
	typ, code        uint8  // ICMP
	proto            flow.Proto
}

// entry is the part of a connection table entry we look at. The raw parts point
// into the message.
type entry struct {
	orig, reply tuple
	mark        uint32
	rawOrig     []byte
	rawZone     []byte
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
			e.rawZone = val
		}
	}
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

func appendAttr32(b []byte, typ uint16, v uint32) []byte {
	return appendAttr(b, typ, binary.BigEndian.AppendUint32(nil, v))
}
