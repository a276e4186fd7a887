package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// patience bounds what a connection may wait for: more than two lost SYNs take
// (one second, then two).
const patience = 4

// caller opens connections, one after the other, and is also the server: it
// accepts each before it opens the next, on a port of its own. So every connection
// that counts has been accepted, and no subject is so fast that an acceptor, who
// shares the CPUs with all callers, falls behind until the kernel drops SYNs.
type caller struct {
	ns       *netlab.NS // the client's
	to       unix.SockaddrInet4
	listener int
	server   int             // the server's end of the last connection, or -1
	took     []time.Duration // what the handshakes took, from SYN to SYN/ACK
	opened   int             // connections that were accepted in time
}

func (l *lab) newCaller(i int) (*caller, error) {
	c := &caller{
		ns: l.clients[i%clientCount].NS, to: unix.SockaddrInet4{Port: portConnect + i, Addr: l.server.Addr4.As4()},
		server: -1, took: make([]time.Duration, 0, 1<<16),
	}
	err := l.server.NS.Do(func() (err error) {
		c.listener, err = listen(&c.to, 0)
		return err
	})
	return c, err
}

// listen returns a listening socket, in the namespace of the thread. buffer, if not
// 0, is the size of the buffers its connections have, in bytes.
func listen(at *unix.SockaddrInet4, buffer int) (fd int, err error) {
	if fd, err = tcpSocket(buffer); err != nil {
		return -1, err
	}
	defer func() {
		if err != nil {
			unix.Close(fd)
			fd = -1
		}
	}()
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return fd, os.NewSyscallError("setsockopt", err)
	}
	// Accept gives up: nobody waits forever for a connection that got lost.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: patience}); err != nil {
		return fd, os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(fd, at); err != nil {
		return fd, os.NewSyscallError("bind", err)
	}
	return fd, os.NewSyscallError("listen", unix.Listen(fd, 16))
}

// tcpSocket returns a socket in the namespace of the thread. connect gives up
// after patience.
func tcpSocket(buffer int) (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: patience})
	if buffer != 0 {
		err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer),
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, buffer))
	}
	if err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("setsockopt", err)
	}
	return fd, nil
}

// connect returns when the handshake is over as the client sees it.
func connect(fd int, to *unix.SockaddrInet4) error {
	err := unix.Connect(fd, to)
	if errors.Is(err, unix.EINTR) { // by a signal of the Go scheduler; the handshake goes on
		err = connected(fd)
	}
	return os.NewSyscallError("connect", err)
}

// connected waits for the end of a handshake.
func connected(fd int) error {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, patience*1000)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return err
		case n == 0:
			return unix.ETIMEDOUT
		}
		code, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		return err
	}
}

func accept1(listener int) (fd int, err error) {
	for {
		fd, _, err = unix.Accept4(listener, unix.SOCK_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return fd, os.NewSyscallError("accept", err)
		}
	}
}

// call opens one connection, has it accepted and resets it from the client's end,
// so that no TIME_WAIT stays behind and ports do not run out. It must run on a
// thread inside the client's namespace.
func (c *caller) call() (took time.Duration, err error) {
	fd, err := tcpSocket(0)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd))) }()
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	start := time.Now()
	if err := connect(fd, &c.to); err != nil {
		return 0, err
	}
	took = time.Since(start)
	server, err := accept1(c.listener)
	if err != nil {
		return 0, fmt.Errorf("a connection the client has opened does not reach the server: %w", err)
	}
	return took, c.keep(server)
}

// keep closes the server's end of the connection before, which its client has
// reset long ago: no packet comes of it.
func (c *caller) keep(server int) (err error) {
	if c.server >= 0 {
		err = os.NewSyscallError("close", unix.Close(c.server))
	}
	c.server = server
	return err
}

// run calls until end.
func (c *caller) run(ctx context.Context, end time.Time) error {
	for time.Now().Before(end) && ctx.Err() == nil {
		took, err := c.call()
		if err != nil {
			return err
		}
		c.took = append(c.took, took)
		if time.Now().Before(end) {
			c.opened++
		}
	}
	return ctx.Err()
}

func (c *caller) close() error {
	return errors.Join(c.keep(-1), os.NewSyscallError("close", unix.Close(c.listener)))
}

// errNoConnection: no handshake came to an end in time.
var errNoConnection = errors.New("no connection was opened")

// connects runs callers for d. It returns connections per second, accepted ones,
// and what each handshake took, sorted.
func (l *lab) connects(ctx context.Context, callers int, d time.Duration) (rate float64, took []time.Duration, err error) {
	var all []*caller
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.close())
		}
	}()
	for i := range callers {
		c, err := l.newCaller(i)
		if err != nil {
			return 0, nil, err
		}
		all = append(all, c)
	}
	var ready, done sync.WaitGroup
	var end time.Time
	begin := make(chan struct{})
	errs := make([]error, callers)
	ready.Add(callers)
	for i, c := range all {
		done.Go(func() {
			once := sync.OnceFunc(ready.Done)
			defer once() // a thread that cannot enter the namespace
			errs[i] = c.ns.Do(func() error {
				once()
				<-begin
				return c.run(ctx, end)
			})
		})
	}
	ready.Wait()
	end = time.Now().Add(d)
	close(begin)
	done.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, nil, err
	}
	opened := 0
	for _, c := range all {
		took = append(took, c.took...)
		opened += c.opened
	}
	if len(took) == 0 {
		return 0, nil, errNoConnection
	}
	slices.Sort(took)
	return float64(opened) / d.Seconds(), took, nil
}

// quantile returns the q-quantile of sorted values by the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
