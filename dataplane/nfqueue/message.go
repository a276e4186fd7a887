package nfqueue

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// Message layout of nfnetlink_queue towards userspace
// (linux/netfilter/nfnetlink_queue.h, Linux 3.10 and later). Headers are in host
// byte order, everything inside attributes in network byte order.
const (
	nlHeaderLen = 16 // struct nlmsghdr
	nfHeaderLen = 4  // struct nfgenmsg
	attrLen     = 4  // struct nlattr

	msgPacket = unix.NFNL_SUBSYS_QUEUE << 8 // NFQNL_MSG_PACKET, 0

	nfqaPacketHdr = 1  // struct nfqnl_msg_packet_hdr: id, protocol, hook
	nfqaMark      = 3  // u32
	nfqaInDev     = 5  // u32
	nfqaOutDev    = 6  // u32
	nfqaPayload   = 10 // the packet from its IP header on, cut short
	nfqaCapLen    = 13 // u32: its true length, if it was cut short
	nfqaPriority  = 21 // u32, Linux 5.18; not there if it is zero

	packetHdrLen = 7

	// messageSlack is more than all attributes but the payload take, the ones
	// that newer kernels may add included. A message that does not fit is cut by
	// the kernel at its end, and the payload comes last: its packet is judged as
	// truncated, never passed unseen.
	messageSlack = 512
)

// queued is a packet that waits for its verdict. payload points into the receive
// buffer.
type queued struct {
	payload []byte
	id      uint32
	mark    uint32
	prio    uint32 // see services.go
	length  uint32 // true length; 0 = len(payload)
	device  int32  // ifindex, the incoming one if there is one
	hook    uint8  // NF_INET_*
}

// nextMessage splits the first netlink message off b. A message that does not fit
// comes as far as it is there, as the last one; ok is false where no header is.
func nextMessage(b []byte) (typ uint16, body, rest []byte, ok bool) {
	if len(b) < nlHeaderLen {
		return 0, nil, nil, false
	}
	typ = binary.NativeEndian.Uint16(b[4:])
	l := uint64(binary.NativeEndian.Uint32(b))
	if l < nlHeaderLen {
		return 0, nil, nil, false // would not end
	}
	if l >= uint64(len(b)) {
		return typ, b[nlHeaderLen:], nil, true
	}
	body = b[nlHeaderLen:l]
	return typ, body, b[min((l+3)&^3, uint64(len(b))):], true
}

// decode reads the body of a packet message into q; false if it names no packet.
// It allocates nothing and keeps a reference to b in q.payload.
func (q *queued) decode(b []byte) bool {
	*q = queued{}
	found := false
	var in, out uint32
	if len(b) < nfHeaderLen {
		return false
	}
	for b = b[nfHeaderLen:]; len(b) >= attrLen; {
		l := int(binary.NativeEndian.Uint16(b))
		typ := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if l < attrLen {
			break
		}
		// An attribute cut off is there as far as it goes; only the payload makes
		// sense like that.
		v := b[attrLen:min(l, len(b))]
		whole := l <= len(b)
		switch {
		case typ == nfqaPayload:
			q.payload = v
			if !whole && q.length == 0 {
				q.length = uint32(l - attrLen)
			}
		case !whole:
		case typ == nfqaPacketHdr && len(v) >= packetHdrLen:
			q.id, q.hook, found = binary.BigEndian.Uint32(v), v[6], true
		case len(v) != 4:
		case typ == nfqaMark:
			q.mark = binary.BigEndian.Uint32(v)
		case typ == nfqaPriority:
			q.prio = binary.BigEndian.Uint32(v)
		case typ == nfqaInDev:
			in = binary.BigEndian.Uint32(v)
		case typ == nfqaOutDev:
			out = binary.BigEndian.Uint32(v)
		case typ == nfqaCapLen:
			q.length = binary.BigEndian.Uint32(v)
		}
		b = b[min((l+3)&^3, len(b)):]
	}
	if in == 0 {
		in = out
	}
	q.device = int32(in)
	return found
}

// errorCode reads the body of an error message; 0 is an acknowledgement, or no
// error message.
func errorCode(body []byte) unix.Errno {
	if len(body) < 4 {
		return 0
	}
	return unix.Errno(-int32(binary.NativeEndian.Uint32(body)))
}
