package afxdp

import (
	"fmt"
	"strings"
	"time"

	"github.com/asavie/xdp"
	"golang.org/x/sys/unix"
)

// socket is an AF_XDP socket in copy mode with the library's sharp edges filed
// off. One buffer is always in exactly one place: the fill ring (the kernel may
// write it), the hands of the driver, or the transmit ring and what follows it.
//
// The library's ring indices are plain loads and stores. That is right on amd64,
// where neither loads nor stores are reordered among themselves, and a race on
// arm64; Probe and New refuse other machines.
type socket struct {
	xsk *xdp.Socket
	// Buffers given to the transmit ring and not yet back in the fill ring.
	sent []xdp.Desc
}

// bindPatience bounds the wait for a queue whose last socket is being released:
// the kernel does that in the background (up to 14 ms measured on Linux 6.18).
const bindPatience = 2 * time.Second

// openSocket binds a queue of a device. It must run in the device's namespace.
func openSocket(ifindex, queue, frameSize, ring int) (*socket, error) {
	options := &xdp.SocketOptions{
		NumFrames: ring, FrameSize: frameSize,
		FillRingNumDescs: ring, CompletionRingNumDescs: ring,
		RxRingNumDescs: ring, TxRingNumDescs: ring,
	}
	deadline := time.Now().Add(bindPatience)
	for {
		xsk, err := xdp.NewSocket(ifindex, queue, options)
		if err == nil {
			s := &socket{xsk: xsk, sent: make([]xdp.Desc, 0, ring)}
			s.xsk.Fill(s.xsk.GetDescs(ring))
			return s, nil
		}
		// The library formats the error away.
		if !strings.Contains(err.Error(), unix.EBUSY.Error()) || time.Now().After(deadline) {
			if strings.Contains(err.Error(), unix.EAFNOSUPPORT.Error()) {
				return nil, missingSockets(err)
			}
			return nil, fmt.Errorf("bind an AF_XDP socket: %w", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// transmit sends at most BatchSize buffers, which is what the kernel sends per
// call. It reports how many were queued; the others stay the caller's. The
// library panics when the device is gone.
func (s *socket) transmit(descs []xdp.Desc) (n int, err error) {
	defer func() {
		if r := recover(); r != nil {
			n, err = len(descs), fmt.Errorf("transmit on the upcall pair: %v", r)
		}
	}()
	n = s.xsk.Transmit(descs)
	s.sent = append(s.sent, descs[:n]...)
	return n, nil
}

// reclaim returns sent buffers to the fill ring. A veth device is done with a
// buffer before transmit returns, so that normally all are back; the kernel does
// not say which, so a batch that is not is left until it is.
func (s *socket) reclaim() error {
	if len(s.sent) == 0 {
		return nil
	}
	if n := s.xsk.NumCompleted(); n > 0 {
		s.xsk.Complete(n)
	}
	if s.xsk.NumTransmitted() == 0 {
		s.xsk.Fill(s.sent)
		s.sent = s.sent[:0]
		return nil
	}
	_, err := s.transmit(nil) // kick what the kernel had no memory for
	return err
}

// lost returns the packets the kernel had no buffer or no ring slot for.
func (s *socket) lost() uint64 {
	st, err := s.xsk.Stats()
	if err != nil {
		return 0
	}
	return st.KernelStats.Rx_dropped + st.KernelStats.Rx_ring_full
}

// close frees everything. The library's Close leaves the rings mapped, and they
// keep the socket, its queue and its buffers alive until the process ends.
func (s *socket) close() error {
	var st unix.Stat_t
	statErr := unix.Fstat(s.xsk.FD(), &st)
	err := s.xsk.Close()
	if statErr != nil {
		return statErr
	}
	if uerr := unmapSocket(st.Ino); err == nil {
		err = uerr
	}
	return err
}
