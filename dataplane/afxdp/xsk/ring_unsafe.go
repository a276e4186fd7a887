package xsk

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// view is the ring of n entries in memory that the kernel has laid out. produced says
// that we put entries in and it takes them out.
func view[T any](memory []byte, o unix.XDPRingOffset, n int, produced bool) ring[T] {
	producer := (*uint32)(unsafe.Pointer(&memory[o.Producer]))
	consumer := (*uint32)(unsafe.Pointer(&memory[o.Consumer]))
	r := ring[T]{own: consumer, other: producer, entries: unsafe.Slice((*T)(unsafe.Pointer(&memory[o.Desc])), n)}
	if produced {
		r.own, r.other = producer, consumer
	}
	r.next = *r.own
	return r
}

// entrySize is how much memory an entry takes.
func entrySize[T any]() int { var e T; return int(unsafe.Sizeof(e)) }

// setsockopt sets an option of level SOL_XDP that is a struct.
func setsockopt[T any](fd, option int, v *T) error {
	_, _, errno := unix.Syscall6(unix.SYS_SETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(unsafe.Pointer(v)), unsafe.Sizeof(*v), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// getsockopt reads one. A kernel that knows less of the struct leaves the rest zero.
func getsockopt[T any](fd, option int, v *T) error {
	size := uint32(unsafe.Sizeof(*v))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option), uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// register makes the buffers the socket's. The kernel pins them; they are not Go's.
func register(fd int, buffers []byte, frameSize int) error {
	reg := unix.XDPUmemReg{Addr: uint64(uintptr(unsafe.Pointer(&buffers[0]))), Len: uint64(len(buffers)), Size: uint32(frameSize)}
	if err := setsockopt(fd, unix.XDP_UMEM_REG, &reg); err != nil {
		return fmt.Errorf("register %d bytes of buffers: %w", len(buffers), err)
	}
	return nil
}
