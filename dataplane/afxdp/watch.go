package afxdp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// watch signals changes of links, routes and addresses of a namespace. Events
// are hints only: whoever is signalled looks at the state, so a lost one (a full
// socket buffer) costs nothing but is a signal itself.
type watch struct {
	file    *os.File
	changed chan struct{} // closed by the end of the watch
}

// newWatch must run in the namespace.
func newWatch() (*watch, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	group := func(g uint) uint32 { return 1 << (g - 1) }
	groups := group(unix.RTNLGRP_LINK) | group(unix.RTNLGRP_IPV4_ROUTE) | group(unix.RTNLGRP_IPV6_ROUTE) |
		group(unix.RTNLGRP_IPV4_IFADDR) | group(unix.RTNLGRP_IPV6_IFADDR)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("subscribe to link and route changes: %w", err)
	}
	w := &watch{file: os.NewFile(uintptr(fd), "netlink"), changed: make(chan struct{}, 1)}
	go w.run()
	return w, nil
}

func (w *watch) run() {
	defer close(w.changed)
	buf := make([]byte, 64<<10)
	for {
		_, err := w.file.Read(buf)
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return // closed
		}
		select {
		case w.changed <- struct{}{}:
		default:
		}
	}
}

func (w *watch) close() error { return w.file.Close() }
