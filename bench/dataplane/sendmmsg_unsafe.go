package dataplane

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// mmsghdr is the kernel's struct mmsghdr (sendmmsg(2)).
type mmsghdr struct {
	hdr unix.Msghdr
	_   uint32 // msg_len, set by the kernel
	_   [4]byte
}

// vector points the kernel at a sender's frames, once. The frames must not move
// afterwards: they belong to a heap object that outlives the vector.
func vector(frames *[burst][frameLen]byte, iov *[burst]unix.Iovec, msgs *[burst]mmsghdr) {
	for i := range frames {
		iov[i].Base = &frames[i][0]
		iov[i].SetLen(frameLen)
		msgs[i].hdr.Iov = &iov[i]
		msgs[i].hdr.SetIovlen(1)
	}
}

// sendmmsg sends the first n messages and returns how many the kernel took.
func sendmmsg(fd int, msgs *[burst]mmsghdr, n int) (int, unix.Errno) {
	r, _, errno := unix.Syscall6(unix.SYS_SENDMMSG, uintptr(fd), uintptr(unsafe.Pointer(msgs)), uintptr(n), 0, 0, 0)
	return int(r), errno
}
