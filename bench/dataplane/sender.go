package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// burst is how many frames one system call sends, frameLen the size of a frame:
// Ethernet, IPv4 and UDP headers and 18 bytes of payload, the shortest frame
// there is on a wire (IEEE 802.3, without its checksum).
const (
	burst    = 32
	frameLen = 14 + 20 + 8 + 18
)

// sender sends small UDP datagrams from one pod to another through a packet
// socket: frames are built once and only ports change, so that the cost of
// sending hides as little as possible of the path behind it. It is used by one
// goroutine at a time.
type sender struct {
	fd     int
	sent   uint64 // frames the kernel took or dropped for lack of room
	used   int    // frames filled since the last flush
	frames [burst][frameLen]byte
	iov    [burst]unix.Iovec
	msgs   [burst]mmsghdr
}

const offsetPayload = 14 + 20 + 8

var gateway = netip.MustParseAddr("169.254.1.1")

func newSender(ns *netlab.NS, src, dst netip.Addr) (*sender, error) {
	own, next, err := macs(ns, gateway)
	if err != nil {
		return nil, err
	}
	dev, err := ns.Link(netlab.PodDevice)
	if err != nil {
		return nil, err
	}
	s := &sender{fd: -1}
	err = ns.Do(func() error {
		s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		// Protocol 0: this socket receives nothing.
		if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Ifindex: dev.Attrs().Index}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("setsockopt", unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1))
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("packet socket in %s: %w", ns.Name(), err), s.close())
	}
	f := frame(own, next, src, dst)
	for i := range s.frames {
		s.frames[i] = f
	}
	vector(&s.frames, &s.iov, &s.msgs)
	return s, nil
}

// frame builds a datagram with ports 0 and no UDP checksum (RFC 768 allows that
// over IPv4).
func frame(own, next net.HardwareAddr, src, dst netip.Addr) (f [frameLen]byte) {
	copy(f[0:], next)
	copy(f[6:], own)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	ip := f[14:34]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(ip[2:], frameLen-14)
	binary.BigEndian.PutUint16(ip[6:], 0x4000) // do not fragment
	copy(ip[12:16], src.AsSlice())
	copy(ip[16:20], dst.AsSlice())
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(f[38:], frameLen-34)
	return f
}

// add queues one datagram and sends the burst when it is full.
func (s *sender) add(sport, dport uint16) error {
	f := &s.frames[s.used]
	binary.BigEndian.PutUint16(f[offsetSourcePort:], sport)
	binary.BigEndian.PutUint16(f[offsetDestinationPort:], dport)
	if s.used++; s.used == burst {
		return s.flush()
	}
	return nil
}

// stamp writes a number into the payload of the next datagram.
func (s *sender) stamp(n uint64) {
	binary.BigEndian.PutUint64(s.frames[s.used][offsetPayload:], n)
}

// flush sends what is queued.
func (s *sender) flush() error {
	n := s.used
	s.used = 0
	for first := true; n > 0; first = false {
		// Frames are alike up to their ports, and the first ones go first; after
		// a partial send the rest is moved to the front.
		k, errno := sendmmsg(s.fd, &s.msgs, n)
		switch errno {
		case 0:
		case unix.ENOBUFS: // the device dropped it: that is loss, not failure
			k = 1
		case unix.EINTR, unix.EAGAIN:
			continue
		default:
			return os.NewSyscallError("sendmmsg", errno)
		}
		s.sent += uint64(k)
		if k < n || !first {
			copy(s.frames[:], s.frames[k:n])
		}
		n -= k
	}
	return nil
}

func (s *sender) close() error {
	if s.fd < 0 {
		return nil
	}
	fd := s.fd
	s.fd = -1
	return unix.Close(fd)
}

// pace calls step every interval until stop is closed; a late step is made up
// for. It is for load well below what the machine can carry.
func pace(stop <-chan struct{}, interval time.Duration, step func() error) error {
	next := time.Now()
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		if err := step(); err != nil {
			return err
		}
		next = next.Add(interval)
		if d := time.Until(next); d > 0 {
			time.Sleep(d)
		}
	}
}
