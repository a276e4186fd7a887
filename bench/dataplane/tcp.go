package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// sink is a TCP server in the server pod that reads and counts.
type sink struct {
	listener net.Listener
	bytes    atomic.Uint64
}

func (l *lab) startSink() (*sink, error) {
	s := &sink{}
	err := l.server.NS.Do(func() (err error) {
		s.listener, err = net.Listen("tcp4", netip.AddrPortFrom(l.server.Addr4, portStream).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := s.listener.Accept()
			if err != nil {
				return
			}
			go s.read(c)
		}
	}()
	return s, nil
}

func (s *sink) read(c net.Conn) {
	defer c.Close()
	buf := make([]byte, 1<<20)
	for {
		n, err := c.Read(buf)
		s.bytes.Add(uint64(n))
		if err != nil {
			return
		}
	}
}

// throughput opens connections from as many clients, writes as fast as it can
// and returns what arrived in bits per second, after a quarter of d for slow
// start.
func (l *lab) throughput(ctx context.Context, streams int, d time.Duration) (bits float64, err error) {
	s, err := l.startSink()
	if err != nil {
		return 0, err
	}
	defer s.listener.Close()
	var writers sync.WaitGroup
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
		writers.Wait()
	}()
	dialCtx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for i := range streams {
		c, err := l.clients[i%clientCount].NS.Dial(dialCtx, "tcp", netip.AddrPort{}, netip.AddrPortFrom(l.server.Addr4, portStream))
		if err != nil {
			return 0, fmt.Errorf("stream %d: %w", i, err)
		}
		conns = append(conns, c)
	}
	for _, c := range conns {
		writers.Go(func() {
			buf := make([]byte, 256<<10)
			for {
				if _, err := c.Write(buf); err != nil {
					return
				}
			}
		})
	}
	if err := wait(ctx, d/4); err != nil {
		return 0, err
	}
	start, from := time.Now(), s.bytes.Load()
	if err := wait(ctx, d); err != nil {
		return 0, err
	}
	n := s.bytes.Load() - from
	if n == 0 {
		return 0, errors.New("nothing arrived")
	}
	return float64(n) * 8 / time.Since(start).Seconds(), nil
}

// wait sleeps for d or until ctx ends.
func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// acceptor accepts connections and closes each after many others, when its
// client has reset it long ago: no packet of the server's end comes into it.
func (l *lab) startAcceptor() (stop func(), err error) {
	fd := -1
	err = l.server.NS.Do(func() error {
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return os.NewSyscallError("socket", err)
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return os.NewSyscallError("setsockopt", err)
		}
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: portConnect, Addr: l.server.Addr4.As4()}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		return os.NewSyscallError("listen", unix.Listen(fd, 4096))
	})
	if err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		var open [1024]int
		for i := range open {
			open[i] = -1
		}
		for i := 0; ; i = (i + 1) % len(open) {
			c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC)
			if err != nil {
				if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNABORTED) {
					continue
				}
				break // shut down
			}
			if open[i] >= 0 {
				_ = unix.Close(open[i])
			}
			open[i] = c
		}
		for _, c := range open {
			if c >= 0 {
				_ = unix.Close(c)
			}
		}
	}()
	return func() {
		// Shutdown wakes the accept call; close alone would not.
		_ = unix.Shutdown(fd, unix.SHUT_RDWR)
		<-done
		_ = unix.Close(fd)
	}, nil
}

// connect opens one connection, resets it and returns how long the handshake
// took. It must run on a thread inside the client's namespace. The reset leaves
// no TIME_WAIT behind, so ports do not run out.
func connect(to *unix.SockaddrInet4) (time.Duration, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	// A bound on a lost SYN: the second one is sent after a second.
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 3}); err != nil {
		return 0, os.NewSyscallError("setsockopt", err)
	}
	start := time.Now()
	err = unix.Connect(fd, to)
	if errors.Is(err, unix.EINTR) { // by a signal of the Go scheduler; the handshake goes on
		err = connected(fd)
	}
	return time.Since(start), os.NewSyscallError("connect", err)
}

// connected waits for the end of a handshake.
func connected(fd int) error {
	for {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
		n, err := unix.Poll(p, 3000)
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

// connects runs workers that each open one connection after the other for d. It
// returns connections per second and every latency, sorted. The last connection
// of each worker may end later, much later if a SYN was lost: the rate is of all
// begun within d.
func (l *lab) connects(ctx context.Context, workers int, d time.Duration) (rate float64, latencies []time.Duration, err error) {
	stop, err := l.startAcceptor()
	if err != nil {
		return 0, nil, err
	}
	defer stop()
	to := &unix.SockaddrInet4{Port: portConnect, Addr: l.server.Addr4.As4()}
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	start := time.Now()
	for i := range workers {
		ns := l.clients[i%clientCount].NS
		wg.Go(func() {
			mine, err := connectLoop(ctx, ns, *to, start.Add(d))
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, mine...)
			if err != nil {
				errs = append(errs, err)
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return 0, nil, err
	}
	if len(latencies) == 0 {
		return 0, nil, errors.New("no connection was opened")
	}
	slices.Sort(latencies)
	return float64(len(latencies)) / d.Seconds(), latencies, nil
}

func connectLoop(ctx context.Context, ns *netlab.NS, to unix.SockaddrInet4, end time.Time) (took []time.Duration, err error) {
	took = make([]time.Duration, 0, 4096)
	err = ns.Do(func() error {
		for time.Now().Before(end) && ctx.Err() == nil {
			d, err := connect(&to)
			if err != nil {
				return err
			}
			took = append(took, d)
		}
		return ctx.Err()
	})
	return took, err
}

// quantile returns the q-quantile of sorted values by the nearest rank.
func quantile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}
