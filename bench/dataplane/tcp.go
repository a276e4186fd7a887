package dataplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Streams: bytes per system call, and the size of both ends' socket buffers (the
// kernel allows for twice that). A fixed size: autotuning takes another path every
// time and ends at sizes that live outside of the processor's caches.
const (
	streamPiece  = 256 << 10
	streamBuffer = 512 << 10
)

// stream is one TCP connection of the throughput measurement.
type stream struct {
	client, server int // sockets
	received       atomic.Uint64
}

func (l *lab) newStream(i, listener int) (s *stream, err error) {
	s = &stream{client: -1, server: -1}
	err = l.clients[i%clientCount].NS.Do(func() error {
		if s.client, err = tcpSocket(streamBuffer); err != nil {
			return err
		}
		return connect(s.client, &unix.SockaddrInet4{Port: portStream, Addr: l.server.Addr4.As4()})
	})
	if err == nil {
		s.server, err = accept1(listener)
	}
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// send writes until the connection is shut down.
func (s *stream) send() error {
	piece := make([]byte, streamPiece)
	for {
		switch _, err := unix.Write(s.client, piece); {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN): // EAGAIN: SO_SNDTIMEO
		case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
			return nil
		case err != nil:
			return os.NewSyscallError("write", err)
		}
	}
}

// receive reads and counts until the connection is shut down.
func (s *stream) receive() error {
	piece := make([]byte, streamPiece)
	for {
		n, err := unix.Read(s.server, piece)
		switch {
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN):
		case err != nil && !errors.Is(err, unix.ECONNRESET):
			return os.NewSyscallError("read", err)
		case n <= 0:
			return nil
		default:
			s.received.Add(uint64(n))
		}
	}
}

// shutdown ends send and receive, which block in system calls.
func (s *stream) shutdown() {
	_ = unix.Shutdown(s.client, unix.SHUT_RDWR)
	_ = unix.Shutdown(s.server, unix.SHUT_RDWR)
}

func (s *stream) close() (err error) {
	for _, fd := range []int{s.client, s.server} {
		if fd >= 0 {
			err = errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
		}
	}
	return err
}

// throughput opens connections from as many clients, writes as fast as it can
// and returns what arrived in bits per second, after a quarter of d for slow
// start.
//
// Senders, and the forwarding done in their name, have one half of the CPUs,
// receivers the other: left to the scheduler both ends of a connection meet on one
// CPU or do not, for a whole measurement.
func (l *lab) throughput(ctx context.Context, streams int, d time.Duration) (bits float64, err error) {
	all, err := cpus()
	if err != nil {
		return 0, err
	}
	listener := -1
	if err := l.server.NS.Do(func() (err error) {
		listener, err = listen(&unix.SockaddrInet4{Port: portStream, Addr: l.server.Addr4.As4()}, streamBuffer)
		return err
	}); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.NewSyscallError("close", unix.Close(listener))) }()

	var running sync.WaitGroup
	var open []*stream
	errs := make([]error, 2*streams)
	defer func() {
		for _, s := range open {
			s.shutdown()
		}
		running.Wait()
		for _, s := range open {
			err = errors.Join(err, s.close())
		}
		err = errors.Join(err, errors.Join(errs...))
	}()
	for i := range streams {
		s, err := l.newStream(i, listener)
		if err != nil {
			return 0, fmt.Errorf("stream %d: %w", i, err)
		}
		open = append(open, s)
	}
	from, to := all[:(len(all)+1)/2], all[len(all)/2:]
	for i, s := range open {
		running.Go(func() { errs[2*i] = pinnedTo(from[i%len(from)], s.send) })
		running.Go(func() { errs[2*i+1] = pinnedTo(to[i%len(to)], s.receive) })
	}
	received := func() (n uint64) {
		for _, s := range open {
			n += s.received.Load()
		}
		return n
	}
	if err := wait(ctx, d/4); err != nil {
		return 0, err
	}
	start, before := time.Now(), received()
	var n uint64
	for n == 0 { // a short window of a busy machine may be all somebody else's
		if time.Since(start) > streamPatience {
			return 0, errors.New("nothing arrived")
		}
		if err := wait(ctx, d); err != nil {
			return 0, err
		}
		n = received() - before
	}
	return float64(n) * 8 / time.Since(start).Seconds(), nil
}

// streamPatience bounds the wait for the first byte.
const streamPatience = 5 * time.Second

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
