package upcall

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/xsk"
)

// Socket is an AF_XDP socket and what was sent by it. One buffer is always in exactly one
// place: the fill ring (the kernel may write it), the hands of the driver, or the transmit
// ring and what follows it.
type Socket struct {
	XSK *xsk.Socket
	// Buffers given to the transmit ring and not yet back in the fill ring.
	sent []xsk.Desc
}

// BindPatience bounds the wait for a queue whose last socket is being released:
// the kernel does that in the background (up to 14 ms measured on Linux 6.18).
const BindPatience = 2 * time.Second

// OpenSocket binds a queue of a device. It must run in the device's namespace.
func OpenSocket(ifindex, queue, frameSize, ring int) (*Socket, error) {
	deadline := time.Now().Add(BindPatience)
	for {
		x, err := xsk.New(ifindex, queue, xsk.Config{Frames: ring, FrameSize: frameSize})
		switch {
		case err == nil:
			return &Socket{XSK: x, sent: make([]xsk.Desc, 0, ring)}, nil
		case errors.Is(err, unix.EAFNOSUPPORT):
			return nil, kern.MissingSockets(err)
		case !errors.Is(err, unix.EBUSY) || time.Now().After(deadline):
			return nil, err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Transmit sends at most BatchSize buffers, which is what the kernel sends per
// call. It reports how many were queued; the others stay the caller's.
func (s *Socket) Transmit(descs []xsk.Desc) (n int, err error) {
	n, err = s.XSK.Transmit(descs)
	s.sent = append(s.sent, descs[:n]...)
	if err != nil {
		return n, fmt.Errorf("transmit on the upcall pair: %w", err)
	}
	return n, nil
}

// Reclaim returns sent buffers to the fill ring. A veth device is done with a
// buffer before transmit returns, so that normally all are back; a batch that is not
// is left until it is.
func (s *Socket) Reclaim() error {
	if len(s.sent) == 0 {
		return nil
	}
	if s.XSK.Complete() == 0 {
		s.XSK.Fill(s.sent)
		s.sent = s.sent[:0]
		return nil
	}
	_, err := s.Transmit(nil) // kick what the kernel had no memory for
	return err
}

// Lost returns the packets the kernel had no buffer or no ring slot for.
func (s *Socket) Lost() uint64 {
	n, err := s.XSK.Lost()
	if err != nil {
		return 0
	}
	return n
}

func (s *Socket) Close() error { return s.XSK.Close() }
