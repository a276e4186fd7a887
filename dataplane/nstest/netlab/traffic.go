package netlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Server is a running echo server. It returns what it gets.
type Server struct {
	Addr netip.AddrPort

	seen   atomic.Int64
	closer io.Closer
	mu     sync.Mutex
	conns  map[net.Conn]struct{} // nil after Close
	wg     sync.WaitGroup
}

// Seen returns how many connections (TCP) or datagrams (UDP) have arrived.
func (s *Server) Seen() int64 { return s.seen.Load() }

// Close stops the server, cuts its connections and waits for its goroutines.
func (s *Server) Close() error {
	err := s.closer.Close()
	s.mu.Lock()
	for c := range s.conns {
		c.Close()
	}
	s.conns = nil
	s.mu.Unlock()
	s.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Echo starts an echo server inside the namespace; network is "tcp" or "udp".
// Port 0 picks a free one; Server.Addr has it. Listen on a specific address:
// a UDP server on the wildcard address may answer from another one.
func (n *NS) Echo(network string, at netip.AddrPort) (*Server, error) {
	s := &Server{conns: map[net.Conn]struct{}{}}
	err := n.Do(func() error {
		switch network {
		case "tcp":
			l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			s.Addr, s.closer = unmap(l.Addr().(*net.TCPAddr).AddrPort()), l
			s.wg.Add(1)
			go s.serveTCP(l)
		case "udp":
			c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			if err != nil {
				return err
			}
			s.Addr, s.closer = unmap(c.LocalAddr().(*net.UDPAddr).AddrPort()), c
			s.wg.Add(1)
			go s.serveUDP(c)
		default:
			return fmt.Errorf("unknown network %q: want tcp or udp", network)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("echo server in %s: %w", n.name, err)
	}
	return s, nil
}

func (s *Server) serveTCP(l *net.TCPListener) {
	defer s.wg.Done()
	for {
		c, err := l.AcceptTCP()
		if err != nil {
			return
		}
		s.seen.Add(1)
		s.mu.Lock()
		if s.conns == nil {
			s.mu.Unlock()
			c.Close()
			return
		}
		s.conns[c] = struct{}{}
		s.wg.Add(1)
		s.mu.Unlock()
		go func() {
			defer s.wg.Done()
			_, _ = io.Copy(c, c) // until either side ends it
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		}()
	}
}

func (s *Server) serveUDP(c *net.UDPConn) {
	defer s.wg.Done()
	buf := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFromUDPAddrPort(buf)
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue // an ICMP error about an earlier answer
		}
		s.seen.Add(1)
		_, _ = c.WriteToUDPAddrPort(buf[:n], from) // a lost echo is what the client looks for
	}
}

// Dial opens a connection from inside the namespace; network is "tcp" or "udp".
// src may be the zero AddrPort.
func (n *NS) Dial(ctx context.Context, network string, src, dst netip.AddrPort) (net.Conn, error) {
	return n.dial(func() (context.Context, context.CancelFunc) { return ctx, func() {} }, network, src, dst)
}

// dial is Dial with a context that begins inside the namespace: to get there takes
// a thread, and on a busy machine a while.
func (n *NS) dial(begin func() (context.Context, context.CancelFunc), network string, src, dst netip.AddrPort) (net.Conn, error) {
	d := net.Dialer{FallbackDelay: -1} // one address, one attempt, on this thread
	if src.IsValid() {
		if network == "udp" {
			d.LocalAddr = net.UDPAddrFromAddrPort(src)
		} else {
			d.LocalAddr = net.TCPAddrFromAddrPort(src)
		}
	}
	var c net.Conn
	err := n.Do(func() (err error) {
		ctx, cancel := begin()
		defer cancel()
		c, err = d.DialContext(ctx, network, dst.String())
		return err
	})
	return c, err
}

// Probe opens a connection from inside the namespace to an echo server, sends
// one message (one datagram for UDP, never repeated) and waits for its echo. It
// returns nil when the echo came back unchanged. The time to connect and the time
// for the echo are bounded by timeout each.
func (n *NS) Probe(network string, dst netip.AddrPort, timeout time.Duration) error {
	return n.ProbeFrom(network, netip.AddrPort{}, dst, timeout)
}

// ProbeFrom is Probe with a given source.
func (n *NS) ProbeFrom(network string, src, dst netip.AddrPort, timeout time.Duration) error {
	c, err := n.dial(func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), timeout)
	}, network, src, dst)
	if err != nil {
		return err
	}
	defer c.Close()
	return Exchange(c, []byte("tierwall probe"), timeout)
}

// writePatience is how much longer than for the echo Exchange waits for room to
// write in: whoever waits for nothing to come back must have said something.
const writePatience = 10 * time.Second

// Exchange writes msg on a connection to an echo server and waits for it to
// come back. The time counts from when it is written.
func Exchange(c net.Conn, msg []byte, timeout time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(timeout + writePatience)); err != nil {
		return err
	}
	if _, err := c.Write(msg); err != nil {
		return err
	}
	if err := c.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	got := make([]byte, len(msg))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if !bytes.Equal(got, msg) {
		return fmt.Errorf("echo is %q, want %q", got, msg)
	}
	return nil
}

func unmap(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
}
