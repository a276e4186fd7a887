package xsk

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Desc is a packet in a buffer: where it begins and how long it is.
type Desc = unix.XDPDesc

// Config sizes a Socket.
type Config struct {
	Frames    int // buffers, and entries of each ring: a power of two
	FrameSize int // bytes of a buffer: a power of two from 2048 to the page size
}

// Socket is an AF_XDP socket. See the package comment.
type Socket struct {
	fd      int
	buffers []byte
	mapped  [][]byte

	fill, completion ring[uint64]
	receive          ring[Desc]
	transmit         ring[Desc]

	received []Desc // of the last Receive
	sending  int    // given to Transmit and not completed
}

// New binds a socket to a queue of a device in the calling thread's network namespace.
// EBUSY says that the queue has one, EAFNOSUPPORT that the kernel has no such sockets.
func New(ifindex, queue int, c Config) (*Socket, error) {
	if c.Frames <= 0 || c.Frames&(c.Frames-1) != 0 {
		return nil, fmt.Errorf("%d buffers: want a power of two", c.Frames)
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open an AF_XDP socket: %w", err)
	}
	s := &Socket{fd: fd, received: make([]Desc, 0, c.Frames)}
	if err := s.open(ifindex, queue, c); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

func (s *Socket) open(ifindex, queue int, c Config) (err error) {
	s.buffers, err = unix.Mmap(-1, 0, c.Frames*c.FrameSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err != nil {
		return fmt.Errorf("allocate %d buffers: %w", c.Frames, err)
	}
	if err := register(s.fd, s.buffers, c.FrameSize); err != nil {
		return err
	}
	for _, option := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING, unix.XDP_TX_RING} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_XDP, option, c.Frames); err != nil {
			return fmt.Errorf("make a ring of %d: %w", c.Frames, err)
		}
	}
	var o unix.XDPMmapOffsets
	if err := getsockopt(s.fd, unix.XDP_MMAP_OFFSETS, &o); err != nil {
		return fmt.Errorf("read the rings' layout: %w", err)
	}
	if s.fill, err = mapRing[uint64](s, unix.XDP_UMEM_PGOFF_FILL_RING, o.Fr, c.Frames, true); err != nil {
		return err
	}
	if s.completion, err = mapRing[uint64](s, unix.XDP_UMEM_PGOFF_COMPLETION_RING, o.Cr, c.Frames, false); err != nil {
		return err
	}
	if s.receive, err = mapRing[Desc](s, unix.XDP_PGOFF_RX_RING, o.Rx, c.Frames, false); err != nil {
		return err
	}
	if s.transmit, err = mapRing[Desc](s, unix.XDP_PGOFF_TX_RING, o.Tx, c.Frames, true); err != nil {
		return err
	}
	for i := range c.Frames {
		s.fill.put(uint64(i * c.FrameSize))
	}
	s.fill.publish()
	if err := unix.Bind(s.fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(ifindex), QueueID: uint32(queue)}); err != nil {
		return fmt.Errorf("bind an AF_XDP socket to queue %d: %w", queue, err)
	}
	return nil
}

// mapRing maps one ring of n entries, which the kernel has at a place of its own.
func mapRing[T any](s *Socket, at int64, o unix.XDPRingOffset, n int, produced bool) (ring[T], error) {
	memory, err := unix.Mmap(s.fd, at, int(o.Desc)+n*entrySize[T](), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return ring[T]{}, fmt.Errorf("map a ring: %w", err)
	}
	s.mapped = append(s.mapped, memory)
	return view[T](memory, o, n, produced), nil
}

// FD is the socket's descriptor, for poll. It is readable while Received is not 0.
func (s *Socket) FD() int { return s.fd }

// Received is how many packets wait.
func (s *Socket) Received() int { return s.receive.ready() }

// Receive takes n of them. Their buffers are the caller's until Fill; the slice is until
// the next Receive.
func (s *Socket) Receive(n int) []Desc {
	s.received = s.received[:0]
	for range min(n, s.receive.ready()) {
		s.received = append(s.received, s.receive.take())
	}
	s.receive.publish()
	return s.received
}

// Frame is the packet of a Desc.
func (s *Socket) Frame(d Desc) []byte {
	end := d.Addr + uint64(d.Len)
	return s.buffers[d.Addr:end:end]
}

// Fill gives buffers back to receive into. There is room for all there are.
func (s *Socket) Fill(descs []Desc) {
	for _, d := range descs {
		s.fill.put(d.Addr)
	}
	s.fill.publish()
}

// Transmit sends packets, as many as there is room for, and returns their number. Their
// buffers are the kernel's until Complete has counted them. What the kernel has no memory
// for waits for the next Transmit, of none if need be.
func (s *Socket) Transmit(descs []Desc) (n int, err error) {
	n = min(len(descs), s.transmit.room())
	for _, d := range descs[:n] {
		s.transmit.put(d)
	}
	s.transmit.publish()
	s.sending += n
	for {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, uintptr(s.fd), 0, 0, unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
			continue
		case 0, unix.EAGAIN, unix.EBUSY, unix.ENOBUFS:
			return n, nil
		}
		return n, errno
	}
}

// Complete takes note of what was sent, and returns how many packets are not yet.
func (s *Socket) Complete() (left int) {
	for range s.completion.ready() {
		s.completion.take()
		s.sending--
	}
	s.completion.publish()
	return s.sending
}

// Lost is how many packets found no buffer or no place in the ring.
func (s *Socket) Lost() (uint64, error) {
	var st unix.XDPStatistics
	if err := getsockopt(s.fd, unix.XDP_STATISTICS, &st); err != nil {
		return 0, fmt.Errorf("read a socket's statistics: %w", err)
	}
	return st.Rx_dropped + st.Rx_ring_full, nil
}

// Close ends the socket and frees everything: nobody may have a Frame any more. The rings
// keep a socket and its queue busy while they are mapped.
func (s *Socket) Close() error {
	errs := []error{unix.Close(s.fd)}
	for _, m := range append(s.mapped, s.buffers) {
		if m != nil {
			errs = append(errs, unix.Munmap(m))
		}
	}
	s.mapped, s.buffers = nil, nil
	return errors.Join(errs...)
}
