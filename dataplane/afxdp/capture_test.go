package afxdp

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// capture returns the frames a device receives from now on, one per call.
func capture(t testing.TB, ns *netlab.NS, dev string) func() []byte {
	t.Helper()
	l, err := ns.Link(dev)
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	all := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8) // network byte order
	if err := ns.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		tv := unix.NsecToTimeval(int64(nstest.Timeout / time.Nanosecond))
		if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: l.Attrs().Index})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	buf := make([]byte, 65536)
	return func() []byte {
		for {
			n, from, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				t.Fatalf("no frame: %v", err)
			}
			if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING {
				return buf[:n]
			}
		}
	}
}

// inject returns a function that sends frames from a device, as they are.
func inject(t testing.TB, ns *netlab.NS, dev string) func(frame []byte) {
	t.Helper()
	l, err := ns.Link(dev)
	if err != nil {
		t.Fatal(err)
	}
	fd := -1
	if err := ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0) // receives nothing
		return err
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return func(frame []byte) {
		t.Helper()
		if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.Attrs().Index}); err != nil {
			t.Fatal(err)
		}
	}
}
