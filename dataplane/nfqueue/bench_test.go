package nfqueue

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// BenchmarkNewFlow measures first packets: a datagram of a new flow leaves pod a,
// is queued, judged, accepted with a mark, saved and delivered to pod b. With one
// in flight it is the latency of a new connection's first packet, with 32 the
// rate. The "bypass" case is the same path without an upcall: one flow, accepted
// before.
func BenchmarkNewFlow(b *testing.B) {
	for _, bc := range []struct {
		name   string
		window int
		bypass bool
	}{{"inflight-1", 1, false}, {"inflight-32", 32, false}, {"bypass-inflight-1", 1, true}, {"bypass-inflight-32", 32, true}} {
		b.Run(bc.name, func(b *testing.B) {
			w := newBenchWorld(b)
			sink := w.sink(b)
			send := w.sender(b, bc.bypass)
			buf := make([]byte, 64)
			receive := func() {
				sink.SetReadDeadline(time.Now().Add(nstest.Timeout))
				if _, err := sink.Read(buf); err != nil {
					b.Fatalf("datagram %d: %v", send.n, err)
				}
			}
			inFlight := 0
			if bc.bypass {
				send.next(b)
				receive()
			}
			start := w.backend.Stats()
			b.ResetTimer()
			for i := range b.N {
				if !bc.bypass && i%flowsPerTable == 0 && i > 0 {
					for ; inFlight > 0; inFlight-- {
						receive()
					}
					b.StopTimer()
					w.flushConntrack(b)
					b.StartTimer()
				}
				send.next(b)
				if inFlight++; inFlight == bc.window {
					receive()
					inFlight--
				}
			}
			for ; inFlight > 0; inFlight-- {
				receive()
			}
			b.StopTimer()
			upcalls := w.backend.Stats().Upcalls - start.Upcalls
			if !bc.bypass && upcalls != uint64(b.N) || bc.bypass && upcalls != 0 {
				b.Errorf("%d upcalls for %d datagrams", upcalls, b.N)
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "packets/s")
		})
	}
}

// flowsPerTable bounds the connections in the kernel; source ports do not repeat
// within.
const flowsPerTable = 30000

// newBenchWorld is a world whose worker parses and accepts, and remembers
// nothing.
func newBenchWorld(b *testing.B) *world {
	nstest.Need(b, queueing)
	w := &world{Node: nstest.NewNode(b)}
	w.a, w.b = w.AddPod(b, "a"), w.AddPod(b, "b")
	w.judge = newJudge(everything)
	w.judge.selected = []netip.Addr{w.a.Addr4, w.b.Addr4}
	if err := w.NS.Do(func() (err error) { w.backend, err = New(Config{}); return err }); err != nil {
		b.Fatal(err)
	}
	for _, d := range w.backend.Drivers() {
		w.judge.wg.Add(1)
		go func() {
			defer w.judge.wg.Done()
			var batch dataplane.Batch
			for d.Recv(&batch) == nil {
				for i := range batch.Packets[:batch.N] {
					p := &batch.Packets[i]
					if packet.ParseIP(p.Frame, &p.Headers) == packet.OK {
						p.Disposition, p.Remember = dataplane.PassPacket, true
					}
				}
				if d.Apply(&batch) != nil {
					return
				}
			}
		}()
	}
	w.update(b)
	b.Cleanup(func() { w.stop(b) })
	return w
}

func (w *world) sink(b *testing.B) *net.UDPConn {
	var c *net.UDPConn
	err := w.b.NS.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(at(w.b.Addr4, portGood)))
		return err
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	return c
}

// sender sends datagrams with a new source port each, through a raw socket.
type sender struct {
	fd   int
	dst  unix.SockaddrInet4
	pkt  []byte
	n    int
	same bool
}

func (w *world) sender(b *testing.B, same bool) *sender {
	s := &sender{same: same, dst: unix.SockaddrInet4{Addr: w.b.Addr4.As4()}}
	err := w.a.NS.Do(func() (err error) {
		s.fd, err = unix.Socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_UDP)
		return os.NewSyscallError("socket", err)
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { unix.Close(s.fd) })
	// UDP header without checksum (RFC 768), 18 bytes of payload.
	s.pkt = make([]byte, 8+18)
	binary.BigEndian.PutUint16(s.pkt[2:], portGood)
	binary.BigEndian.PutUint16(s.pkt[4:], uint16(len(s.pkt)))
	return s
}

func (s *sender) next(b *testing.B) {
	port := 10000
	if !s.same {
		port += s.n % flowsPerTable
	}
	s.n++
	binary.BigEndian.PutUint16(s.pkt, uint16(port))
	if err := unix.Sendto(s.fd, s.pkt, 0, &s.dst); err != nil {
		b.Fatal(err)
	}
}
