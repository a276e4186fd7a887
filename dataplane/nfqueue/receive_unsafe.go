package nfqueue

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// mmsghdr is the kernel's struct mmsghdr (recvmmsg(2)).
type mmsghdr struct {
	hdr unix.Msghdr
	len uint32
	_   [4]byte
}

// inbox is memory for one batch of netlink messages, one slot each. The kernel is
// told where the slots are once: nothing moves while the inbox lives.
type inbox struct {
	buf  []byte
	slot int // bytes
	iov  [dataplane.BatchSize]unix.Iovec
	msgs [dataplane.BatchSize]mmsghdr
}

// newInbox returns an inbox for messages of up to slot bytes.
func newInbox(slot int) *inbox {
	slot = (slot + 63) &^ 63
	in := &inbox{buf: make([]byte, slot*dataplane.BatchSize), slot: slot}
	for i := range in.msgs {
		in.iov[i].Base = &in.buf[i*slot]
		in.iov[i].SetLen(slot)
		in.msgs[i].hdr.Iov = &in.iov[i]
		in.msgs[i].hdr.SetIovlen(1)
	}
	return in
}

// receive fills the inbox with what waits at the socket and returns the number of
// messages. It does not wait; EAGAIN says that there are none.
func (in *inbox) receive(fd int) (int, unix.Errno) {
	n, _, errno := unix.Syscall6(unix.SYS_RECVMMSG, uintptr(fd), uintptr(unsafe.Pointer(&in.msgs[0])), uintptr(len(in.msgs)), unix.MSG_DONTWAIT, 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(n), 0
}

// message returns message i of the last receive, as much as fit its slot.
func (in *inbox) message(i int) []byte {
	start := i * in.slot
	return in.buf[start : start+min(int(in.msgs[i].len), in.slot)]
}
