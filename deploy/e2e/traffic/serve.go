package traffic

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Server answers UDP datagrams and TCP streams with what they say, and counts them.
type Server struct {
	tcp net.Listener
	udp *net.UDPConn

	mu    sync.Mutex
	heard map[string]Heard
	open  map[*net.TCPConn]string
}

// Serve listens on a port of all addresses, UDP and TCP. Port 0 is any port that is
// free for both.
func Serve(ctx context.Context, port int) (*Server, error) {
	tcp, err := net.ListenTCP("tcp", &net.TCPAddr{Port: port})
	if err != nil {
		return nil, err
	}
	udp, err := net.ListenUDP("udp", &net.UDPAddr{Port: tcp.Addr().(*net.TCPAddr).Port})
	if err != nil {
		_ = tcp.Close()
		return nil, err
	}
	s := &Server{tcp: tcp, udp: udp, heard: map[string]Heard{}, open: map[*net.TCPConn]string{}}
	context.AfterFunc(ctx, func() {
		_ = tcp.Close()
		_ = udp.Close()
	})
	go s.datagrams()
	go s.streams(ctx)
	return s, nil
}

// Port returns where it listens.
func (s *Server) Port() int { return s.tcp.Addr().(*net.TCPAddr).Port }

func (s *Server) count(from string, f func(*Heard)) {
	s.mu.Lock()
	h := s.heard[from]
	f(&h)
	s.heard[from] = h
	s.mu.Unlock()
}

func (s *Server) datagrams() {
	b := make([]byte, 2048)
	for {
		n, from, err := s.udp.ReadFromUDPAddrPort(b)
		if err != nil {
			return
		}
		s.count(from.Addr().Unmap().String(), func(h *Heard) { h.Datagrams++ })
		_, _ = s.udp.WriteToUDPAddrPort(b[:n], from)
	}
}

func (s *Server) streams(ctx context.Context) {
	for {
		accepted, err := s.tcp.Accept()
		if err != nil {
			return
		}
		c := accepted.(*net.TCPConn)
		at, _ := netip.ParseAddrPort(c.RemoteAddr().String())
		from := at.Addr().Unmap().String()
		s.count(from, func(h *Heard) { h.Connections++ })
		s.mu.Lock()
		s.open[c] = from
		s.mu.Unlock()
		stop := context.AfterFunc(ctx, func() { _ = c.Close() })
		go func() {
			_, _ = io.Copy(struct{ io.Writer }{c}, c)
			lost, _ := repeated(c)
			s.count(from, func(h *Heard) { h.Lost += lost })
			s.mu.Lock()
			delete(s.open, c)
			s.mu.Unlock()
			stop()
			_ = c.Close()
		}()
	}
}

// Heard returns the counts so far, by sender.
func (s *Server) Heard() map[string]Heard {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]Heard, len(s.heard))
	for from, h := range s.heard {
		out[from] = h
	}
	for c, from := range s.open {
		lost, _ := repeated(c)
		h := out[from]
		h.Lost += lost
		out[from] = h
	}
	return out
}

// reportAddress is where a process tells its report. Loopback is not policed.
const reportAddress = "127.0.0.1:9009"

// Answer serves the report until ctx ends. s may be nil.
func Answer(ctx context.Context, s *Server, senders []*Sender) error {
	srv := &http.Server{
		Addr: reportAddress, ReadHeaderTimeout: time.Second,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			r := Report{Heard: map[string]Heard{}}
			for _, f := range senders {
				r.Flows = append(r.Flows, f.Flow())
			}
			if s != nil {
				r.Heard = s.Heard()
			}
			_ = json.NewEncoder(w).Encode(r)
		}),
	}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	return srv.ListenAndServe()
}

// Ask writes the report of the process that answers here.
func Ask(ctx context.Context, w io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+reportAddress, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the report: %s", resp.Status)
	}
	_, err = io.Copy(w, resp.Body)
	return err
}
