package nfqueue

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// Netfilter verdicts and the message layout of nfnetlink_queue
// (linux/netfilter/nfnetlink_queue.h).
const (
	nfDrop   = 0
	nfAccept = 1

	msgVerdict  = unix.NFNL_SUBSYS_QUEUE<<8 | 1 // NFQNL_MSG_VERDICT
	attrVerdict = 2                             // NFQA_VERDICT_HDR
	attrMark    = 3                             // NFQA_MARK

	verdictLen     = 16 + 4 + 4 + 8 // nlmsghdr, nfgenmsg, attribute, verdict and id
	verdictMarkLen = verdictLen + 4 + 4
)

// appendVerdict appends one verdict message. Several may share a buffer and a
// system call: the kernel walks them one by one, so each packet has a verdict and
// a mark of its own. (The kernel's own batch verdict gives one verdict to every
// packet up to an id, also to one this process has not seen.)
//
// Netlink headers are in host byte order, everything netfilter puts inside in
// network byte order. No acknowledgement is asked for.
func appendVerdict(buf []byte, queue uint16, id, verdict, mark uint32, setMark bool) []byte {
	length := uint32(verdictLen)
	if setMark {
		length = verdictMarkLen
	}
	buf = binary.NativeEndian.AppendUint32(buf, length)
	buf = binary.NativeEndian.AppendUint16(buf, msgVerdict)
	buf = binary.NativeEndian.AppendUint16(buf, unix.NLM_F_REQUEST)
	buf = binary.NativeEndian.AppendUint32(buf, 0) // sequence: answers are not matched
	buf = binary.NativeEndian.AppendUint32(buf, 0) // port: the kernel knows the socket
	buf = append(buf, unix.AF_UNSPEC, unix.NFNETLINK_V0)
	buf = binary.BigEndian.AppendUint16(buf, queue)
	buf = binary.NativeEndian.AppendUint16(buf, 4+8)
	buf = binary.NativeEndian.AppendUint16(buf, attrVerdict)
	buf = binary.BigEndian.AppendUint32(buf, verdict)
	buf = binary.BigEndian.AppendUint32(buf, id)
	if setMark {
		buf = binary.NativeEndian.AppendUint16(buf, 4+4)
		buf = binary.NativeEndian.AppendUint16(buf, attrMark)
		buf = binary.BigEndian.AppendUint32(buf, mark)
	}
	return buf
}

// appendBatch appends the verdicts of a batch. marks are the packet marks the
// packets came with: a verdict with a mark replaces the whole mark, and the bits
// of other software must survive.
func appendBatch(buf []byte, queue uint16, b *dataplane.Batch, marks *[dataplane.BatchSize]uint32, m Marks) []byte {
	for i := range b.Packets[:b.N] {
		p := &b.Packets[i]
		switch {
		case p.Disposition != dataplane.PassPacket:
			// DeferPacket too: behind this hook nobody judges the packet.
			buf = appendVerdict(buf, queue, p.ID, nfDrop, 0, false)
		case p.Remember:
			buf = appendVerdict(buf, queue, p.ID, nfAccept, marks[i]|m.Accept, true)
		default:
			buf = appendVerdict(buf, queue, p.ID, nfAccept, 0, false)
		}
	}
	return buf
}
