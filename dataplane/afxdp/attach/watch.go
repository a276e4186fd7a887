package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// SettleTime bounds how often a stream of changes makes us look at everything.
// A device that appears does not wait for it.
const SettleTime = 20 * time.Millisecond

// sizeofTcmsg is the length of struct tcmsg; its second word is the ifindex.
const sizeofTcmsg = 20

// watch hears of changes of links, routes, addresses and traffic control of a
// namespace. News are hints: whoever gets them looks at the state, so a lost one (a
// full socket buffer) costs nothing but is news itself. The kernel queues them before
// the system call that made the change returns.
type watch struct {
	fd   int
	wake int // eventfd: readable once closed
	buf  []byte
	// shaping makes queueing disciplines and filters news.
	shaping bool
}

// newWatch must run in the namespace.
func newWatch(shaping bool) (*watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	group := func(g uint) uint32 { return 1 << (g - 1) }
	groups := group(unix.RTNLGRP_LINK) | group(unix.RTNLGRP_IPV4_ROUTE) | group(unix.RTNLGRP_IPV6_ROUTE) |
		group(unix.RTNLGRP_IPV4_IFADDR) | group(unix.RTNLGRP_IPV6_IFADDR) | group(unix.RTNLGRP_TC)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to link and route changes: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("create an eventfd: %w", err)
	}
	return &watch{fd: fd, wake: wake, buf: make([]byte, 64<<10), shaping: shaping}, nil
}

// wait returns when there is news, at the latest after the given time (negative:
// never). open is false once the watch is closed.
func (w *watch) wait(d time.Duration) (open bool) {
	ms := -1
	if d >= 0 {
		ms = int((d + time.Millisecond - 1) / time.Millisecond)
	}
	fds := []unix.PollFd{{Fd: int32(w.fd), Events: unix.POLLIN}, {Fd: int32(w.wake), Events: unix.POLLIN}}
	if _, err := unix.Poll(fds, ms); err != nil && !errors.Is(err, unix.EINTR) {
		return false
	}
	return fds[1].Revents == 0
}

// drain takes in what the kernel has queued. It calls appeared and vanished for
// devices, and stripped for those that lost a filter or a qdisc, in the order of
// events; anything is whether there was any news at all. Namespace thread only.
func (w *watch) drain(appeared func(netlink.Link), vanished, stripped func(index int)) (anything bool) {
	for {
		n, _, err := unix.Recvfrom(w.fd, w.buf, 0)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.ENOBUFS): // some were lost
			anything = true
			continue
		case err != nil: // EAGAIN: that is all
			return anything
		}
		messages, err := syscall.ParseNetlinkMessage(w.buf[:n])
		if err != nil {
			anything = true
			continue
		}
		for _, m := range messages {
			switch m.Header.Type {
			case unix.RTM_DELTFILTER, unix.RTM_DELQDISC:
				if len(m.Data) >= sizeofTcmsg {
					stripped(int(binary.NativeEndian.Uint32(m.Data[4:])))
				}
				anything = anything || w.shaping
				continue
			case unix.RTM_NEWTFILTER, unix.RTM_NEWQDISC: // every device that appears brings some
				anything = anything || w.shaping
				continue
			}
			anything = true
			// Bridges report their ports in a family of their own.
			if len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
				continue
			}
			switch m.Header.Type {
			case unix.RTM_NEWLINK:
				h := unix.NlMsghdr(m.Header)
				if l, err := netlink.LinkDeserialize(&h, m.Data); err == nil {
					appeared(l)
				}
			case unix.RTM_DELLINK:
				vanished(int(binary.NativeEndian.Uint32(m.Data[4:])))
			}
		}
	}
}

// stop ends wait; close needs that nobody waits any more.
func (w *watch) stop() error {
	one := [8]byte{1}
	_, err := unix.Write(w.wake, one[:])
	return err
}

func (w *watch) close() error {
	return errors.Join(unix.Close(w.fd), unix.Close(w.wake))
}
