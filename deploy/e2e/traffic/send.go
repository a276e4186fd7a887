package traffic

import (
	"context"
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Sender sends one kind of traffic to one address. Make it with Send.
type Sender struct {
	to    string
	every time.Duration
	began time.Time

	mu      sync.Mutex
	flow    Flow
	waiting map[uint64]time.Time // requests of Datagrams without an answer
	conn    *net.TCPConn         // of Stream
}

// Send starts sending a request every so often, until ctx ends. A Sweep sends to all
// addresses of the prefix in "prefix:port" each time. Connections are given patience
// to be made; a denied one is silent, so that this is also how long it is counted as
// being tried (less than a second is one SYN, RFC 6298 section 2).
func Send(ctx context.Context, kind Kind, to string, every, patience time.Duration) *Sender {
	s := &Sender{to: to, every: every, began: time.Now(), flow: Flow{Kind: kind, To: to}, waiting: map[uint64]time.Time{}}
	run := map[Kind]func(context.Context, time.Duration){
		Datagrams: s.datagrams, NewDatagrams: s.newDatagrams, Stream: s.stream, Connects: s.connects, Sweep: s.sweep,
	}[kind]
	go run(ctx, patience)
	return s
}

// Flow returns the counts so far, and the slowest answer since the last call.
func (s *Sender) Flow() Flow {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.flow
	s.flow.Slowest = 0
	for _, at := range s.waiting {
		if time.Since(at) > Late {
			out.Lost++
		}
	}
	if s.conn != nil {
		out.Lost, out.Spurious = repeated(s.conn)
	}
	return out
}

// repeated returns how many segments of a connection were sent again because they
// were lost, and how many although they had arrived.
func repeated(c *net.TCPConn) (lost, spurious int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, 0
	}
	_ = raw.Control(func(fd uintptr) {
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			spurious = min(int(info.Dsack_dups), int(info.Total_retrans))
			lost = int(info.Total_retrans) - spurious
		}
	})
	return lost, spurious
}

func (s *Sender) count(f func(*Flow)) {
	s.mu.Lock()
	f(&s.flow)
	s.mu.Unlock()
}

func (s *Sender) answered(after time.Duration) {
	s.mu.Lock()
	s.note(after)
	s.mu.Unlock()
}

// note counts an answer. The caller holds the lock.
func (s *Sender) note(after time.Duration) {
	if s.flow.Answered++; s.flow.Answered == 1 {
		s.flow.First = time.Since(s.began)
	}
	s.flow.Slowest = max(s.flow.Slowest, after)
}

func (s *Sender) broken(err error) { s.count(func(f *Flow) { f.Broken = err.Error() }) }

// ticks calls f at once and then at the interval.
func (s *Sender) ticks(ctx context.Context, f func(n uint64) bool) {
	t := time.NewTicker(s.every)
	defer t.Stop()
	for n := uint64(0); f(n); n++ {
		select {
		case <-t.C:
		case <-ctx.Done():
			return
		}
	}
}

func (s *Sender) datagrams(ctx context.Context, _ time.Duration) {
	c, err := net.Dial("udp", s.to)
	if err != nil {
		s.broken(err)
		return
	}
	defer c.Close()
	go func() {
		b := make([]byte, 64)
		for {
			n, err := c.Read(b)
			if ctx.Err() != nil {
				return
			}
			if err != nil || n != 8 { // an ICMP error is of one datagram
				continue
			}
			seq := binary.BigEndian.Uint64(b)
			s.mu.Lock()
			if at, ok := s.waiting[seq]; ok {
				delete(s.waiting, seq)
				s.note(time.Since(at))
			}
			s.mu.Unlock()
		}
	}()
	s.ticks(ctx, func(n uint64) bool {
		s.mu.Lock()
		s.flow.Sent++
		s.waiting[n] = time.Now()
		s.mu.Unlock()
		if _, err := c.Write(binary.BigEndian.AppendUint64(nil, n)); err != nil {
			s.broken(err)
		}
		return true
	})
}

func (s *Sender) newDatagrams(ctx context.Context, _ time.Duration) {
	s.ticks(ctx, func(n uint64) bool {
		c, err := net.Dial("udp", s.to)
		if err != nil {
			s.broken(err)
			return true
		}
		s.count(func(f *Flow) { f.Sent++ })
		at := time.Now()
		_, _ = c.Write(binary.BigEndian.AppendUint64(nil, n))
		go func() {
			defer c.Close()
			_ = c.SetReadDeadline(at.Add(Late))
			if _, err := c.Read(make([]byte, 64)); err != nil {
				s.count(func(f *Flow) { f.Lost++ })
				return
			}
			s.answered(time.Since(at))
		}()
		return true
	})
}

func (s *Sender) connects(ctx context.Context, patience time.Duration) {
	s.ticks(ctx, func(uint64) bool {
		s.count(func(f *Flow) { f.Sent++ })
		go func() {
			at := time.Now()
			c, err := net.DialTimeout("tcp", s.to, patience)
			if err != nil {
				s.count(func(f *Flow) { f.Lost++ })
				return
			}
			s.answered(time.Since(at))
			_ = c.Close()
		}()
		return true
	})
}

// stream is one connection: tried until it is there, never made again.
func (s *Sender) stream(ctx context.Context, patience time.Duration) {
	var c net.Conn
	for c == nil {
		var err error
		if c, err = net.DialTimeout("tcp", s.to, patience); err != nil {
			s.broken(err)
			select {
			case <-time.After(s.every):
			case <-ctx.Done():
				return
			}
		}
	}
	defer c.Close()
	s.mu.Lock()
	s.conn, s.flow.Broken = c.(*net.TCPConn), ""
	s.mu.Unlock()
	go func() {
		b := make([]byte, 16)
		for got := 0; ; {
			n, err := c.Read(b[got:])
			if err != nil {
				if ctx.Err() == nil {
					s.broken(err)
				}
				return
			}
			if got += n; got == len(b) {
				got = 0
				s.answered(time.Duration(time.Now().UnixNano() - int64(binary.BigEndian.Uint64(b[8:]))))
			}
		}
	}()
	s.ticks(ctx, func(n uint64) bool {
		b := binary.BigEndian.AppendUint64(nil, n)
		b = binary.BigEndian.AppendUint64(b, uint64(time.Now().UnixNano()))
		s.count(func(f *Flow) { f.Sent++ })
		if _, err := c.Write(b); err != nil {
			s.broken(err)
			return false
		}
		return true
	})
}

func (s *Sender) sweep(ctx context.Context, _ time.Duration) {
	host, port, err := net.SplitHostPort(s.to)
	if err != nil {
		s.broken(err)
		return
	}
	prefix, err := netip.ParsePrefix(host)
	if err != nil {
		s.broken(err)
		return
	}
	to, err := netip.ParseAddrPort(net.JoinHostPort(prefix.Masked().Addr().String(), port))
	if err != nil {
		s.broken(err)
		return
	}
	c, err := net.ListenUDP("udp", nil)
	if err != nil {
		s.broken(err)
		return
	}
	defer c.Close()
	s.ticks(ctx, func(n uint64) bool {
		b := binary.BigEndian.AppendUint64(nil, n)
		for a := to.Addr().Next(); prefix.Contains(a); a = a.Next() {
			s.count(func(f *Flow) { f.Sent++ })
			_, _ = c.WriteToUDPAddrPort(b, netip.AddrPortFrom(a, to.Port()))
		}
		return ctx.Err() == nil
	})
}
