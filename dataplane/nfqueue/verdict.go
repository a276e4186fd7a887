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
	nfRepeat = 4 // NF_REPEAT: run the hook again, from its first rule

	msgVerdict  = unix.NFNL_SUBSYS_QUEUE<<8 | 1 // NFQNL_MSG_VERDICT
	attrVerdict = 2                             // NFQA_VERDICT_HDR

	verdictLen     = 16 + 4 + 4 + 8 // nlmsghdr, nfgenmsg, attribute, verdict and id
	verdictMarkLen = verdictLen + 4 + 4
	verdictMaxLen  = verdictMarkLen + 4 + 4
)

// appendVerdict appends one verdict message; the packet mark becomes mark if
// setMark. Several messages may share a buffer and a system call: the kernel walks
// them one by one, so each packet has a verdict and a mark of its own. (The
// kernel's own batch verdict gives one verdict to every packet up to an id, also
// to one this process has not seen.)
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
		buf = binary.NativeEndian.AppendUint16(buf, nfqaMark)
		buf = binary.BigEndian.AppendUint32(buf, mark)
	}
	return buf
}

// appendBatch appends the verdicts of a batch. held has the packet marks the
// packets came with, without our bits: a verdict with a mark replaces the whole
// mark, and the bits of other software must survive.
//
// A packet whose connection the kernel is to remember takes the hook a second
// time, with the accept bit, and meets the rule that saves it. That spares every
// packet of every connection a chain of its own for it. The output hook has that
// chain: there the accept bit says something else (doc.go). A refused packet meets
// another rule in the same way.
func appendBatch(buf []byte, queue uint16, b *dataplane.Batch, held *[dataplane.BatchSize]origin, m Marks) []byte {
	for i := range b.Packets[:b.N] {
		p, o := &b.Packets[i], &held[i]
		begin := len(buf)
		switch {
		case o.refused:
			buf = appendVerdict(buf, queue, p.ID, nfRepeat, o.mark|m.Accept|m.Reply, true)
		case p.Disposition != dataplane.PassPacket:
			// DeferPacket too: behind this hook nobody judges the packet.
			buf = appendVerdict(buf, queue, p.ID, nfDrop, 0, false)
		case !p.Remember:
			buf = appendVerdict(buf, queue, p.ID, nfAccept, o.mark, true)
		case o.hook == unix.NF_INET_LOCAL_OUT:
			buf = appendVerdict(buf, queue, p.ID, nfAccept, o.mark|m.Accept, true)
		default:
			buf = appendVerdict(buf, queue, p.ID, nfRepeat, o.mark|m.Accept, true)
		}
		if o.tagged {
			buf = withoutPriority(buf, begin)
		}
	}
	return buf
}

// withoutPriority adds to the verdict message at begin, the last one in buf, that
// the packet's priority becomes 0: our tag ends here.
func withoutPriority(buf []byte, begin int) []byte {
	buf = binary.NativeEndian.AppendUint16(buf, 4+4)
	buf = binary.NativeEndian.AppendUint16(buf, nfqaPriority)
	buf = binary.BigEndian.AppendUint32(buf, 0)
	binary.NativeEndian.PutUint32(buf[begin:], uint32(len(buf)-begin))
	return buf
}
