package afxdp

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

func dial(t testing.TB, from *netlab.NS, network string, to netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Timeout)
	defer cancel()
	c, err := from.Dial(ctx, network, netip.AddrPort{}, to)
	if err != nil {
		t.Fatalf("%s to %s: %v", network, to, err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func exchange(t testing.TB, c net.Conn) {
	t.Helper()
	if err := echoes(c, nstest.Timeout); err != nil {
		t.Fatalf("%s to %s: %v", c.LocalAddr().Network(), c.RemoteAddr(), err)
	}
}

func echoes(c net.Conn, wait time.Duration) error {
	return netlab.Exchange(c, []byte("ping"), wait)
}

// Only the first packet of a connection comes up; the rest, replies included,
// stays in the kernel.
func TestEstablishedBypassesUserspace(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			s := nstest.Echo(t, b.NS, network, addr, openPort)
			r.upcalls()
			before := r.backend.Stats()
			c := dial(t, a.NS, network, s.Addr)
			const rounds = 50
			for range rounds {
				exchange(t, c)
			}
			if up := r.upcalls(); len(up) != 1 {
				t.Errorf("%s to %s: %d packets came up, want 1: %v", network, s.Addr, len(up), up)
			}
			after := r.backend.Stats()
			// Each packet is looked up at both ends.
			if got := after.Bypassed - before.Bypassed; got < 4*rounds-2 {
				t.Errorf("%s to %s: %d packets bypassed userspace, want at least %d", network, s.Addr, got, 4*rounds-2)
			}
			if got := after.Upcalls - before.Upcalls; got != 1 {
				t.Errorf("%s to %s: %d upcalls counted, want 1", network, s.Addr, got)
			}
		}
	}
}

// A policy change cuts the live connection it denies and no other; what survives
// is judged once more, in the direction it was opened in.
func TestUpdateCutsDeniedConnection(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	const otherPort = openPort + 1
	r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		if k.DstPort == openPort || k.DstPort == otherPort {
			return dataplane.PassPacket
		}
		return dataplane.DropPacket
	})
	cut := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
	kept := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr6, otherPort).Addr)
	exchange(t, cut)
	exchange(t, kept)
	r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		if k.DstPort == otherPort {
			return dataplane.PassPacket
		}
		return dataplane.DropPacket
	})
	exchange(t, cut) // not in force before Update
	r.upcalls()
	r.update(t, a, b)
	if err := echoes(cut, nstest.Blocked); err == nil {
		t.Error("the denied connection still works")
	}
	exchange(t, kept)
	for _, s := range r.upcalls() {
		if s.reply != (s.key.SrcPort == openPort || s.key.SrcPort == otherPort) {
			t.Errorf("%v came up with reply %v", s.key, s.reply)
		}
	}
	exchange(t, kept)
	for _, s := range r.upcalls() {
		if s.key.SrcPort == otherPort || s.key.DstPort == otherPort {
			t.Errorf("%v came up again", s.key)
		}
	}
}

// A forgotten flow whose next packet is a reply comes up as one.
func TestStaleReply(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	var server net.PacketConn
	if err := b.NS.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(b.Addr4, openPort).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	client := dial(t, a.NS, "udp", netip.AddrPortFrom(b.Addr4, openPort))
	client.Write([]byte("question"))
	buf := make([]byte, 64)
	server.SetDeadline(time.Now().Add(nstest.Timeout))
	_, from, err := server.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	r.update(t, a, b)
	r.upcalls()
	server.WriteTo([]byte("answer"), from)
	client.SetDeadline(time.Now().Add(nstest.Timeout))
	if _, err := client.Read(buf); err != nil {
		t.Fatalf("the answer did not arrive: %v", err)
	}
	up := r.upcalls()
	if len(up) != 1 || !up[0].reply || up[0].key.SrcPort != openPort {
		t.Errorf("came up: %v, want the answer, as a reply", up)
	}
}

// A reused 5-tuple is a new connection: its SYN comes up although the kernel
// still knows the flow.
func TestSYNAlwaysComesUp(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort)
	from := netip.AddrPortFrom(a.Addr4, 40001)
	for i := range 3 {
		r.upcalls()
		ctx, cancel := context.WithTimeout(context.Background(), nstest.Timeout)
		c, err := a.NS.Dial(ctx, "tcp", from, s.Addr)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		exchange(t, c)
		c.(*net.TCPConn).SetLinger(0) // reset: no TIME_WAIT keeps the port
		c.Close()
		if up := r.upcalls(); len(up) != 1 {
			t.Errorf("connection %d: %d packets came up, want its SYN: %v", i, len(up), up)
		}
	}
}

// Idle flows are judged again, closing ones sooner.
func TestIdleFlowsExpire(t *testing.T) {
	const idle = 50 * time.Millisecond
	r := newRig(t, Config{Strict: true, Timeouts: Timeouts{UDP: idle}})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	c := dial(t, a.NS, "udp", s.Addr)
	for range 2 { // the first time it is new
		if up := r.afterPause(t, c, idle); len(up) != 1 || up[0].reply {
			t.Errorf("after %v: came up %v, want the first packet of a new flow", 3*idle, up)
		}
	}
}

// The kernel measures real time, and has no other clock. On a busy machine a test that
// is in time and one that is not differ by luck: inUse and afterPause try again.
const timeTries = 20

// inUse exchanges packets on a flow for three times its idle time, without a pause that
// comes near to that, and returns what came up.
func (r *rig) inUse(t testing.TB, c net.Conn, idle time.Duration) (up []seen) {
	t.Helper()
	for range timeTries {
		exchange(t, c) // or what has expired since the last try comes up
		r.upcalls()
		last, longest := time.Now(), time.Duration(0)
		for start := last; time.Since(start) < 3*idle; time.Sleep(time.Millisecond) {
			exchange(t, c)
			longest, last = max(longest, time.Since(last)), time.Now()
		}
		if up = r.upcalls(); longest < idle/2 || len(up) == 0 {
			return up
		}
	}
	return up
}

// afterPause leaves a flow alone for three times its idle time and returns what comes up
// of the next packet and its answer, which takes less than that.
func (r *rig) afterPause(t testing.TB, c net.Conn, idle time.Duration) (up []seen) {
	t.Helper()
	for range timeTries {
		time.Sleep(3 * idle)
		r.upcalls()
		start := time.Now()
		exchange(t, c)
		if up = r.upcalls(); time.Since(start) < idle/2 {
			break
		}
	}
	return up
}

// transfer sends data to an echo server and reads it back, both at once.
func transfer(c net.Conn, data []byte) error {
	c.SetDeadline(time.Now().Add(4 * nstest.Timeout))
	errs := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		errs <- err
	}()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil {
		return errors.Join(err, c.Close())
	}
	if !bytes.Equal(got, data) {
		return errors.New("data changed on the way")
	}
	return <-errs
}

func randomBytes(n int) []byte {
	var seed [32]byte
	seed[0] = byte(n)
	data := make([]byte, n)
	rand.NewChaCha8(seed).Read(data)
	return data
}

// A megabyte each way arrives intact, whether the kernel remembers the flow or
// every segment goes through userspace (GSO packets are cut up on the way), and
// no checksum is wrong.
func TestLargeTransfer(t *testing.T) {
	for _, forget := range []bool{false, true} {
		r := newRig(t, Config{Strict: true})
		r.forget = forget
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		// Without memory in userspace either, replies are known by their port.
		r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
			if k.DstPort == openPort || k.SrcPort == openPort {
				return dataplane.PassPacket
			}
			return dataplane.DropPacket
		})
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			s := nstest.Echo(t, b.NS, "tcp", addr, openPort)
			r.upcalls()
			if err := transfer(dial(t, a.NS, "tcp", s.Addr), randomBytes(1<<20)); err != nil {
				t.Errorf("transfer to %s, forgetting %v: %v", s.Addr, forget, err)
			}
			up := len(r.upcalls())
			if forget && up < 1000 || !forget && up != 1 {
				t.Errorf("transfer to %s, forgetting %v: %d packets came up", s.Addr, forget, up)
			}
		}
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		c := dial(t, a.NS, "udp", s.Addr)
		for range 20 {
			exchange(t, c)
		}
		for _, ns := range []*netlab.NS{a.NS, b.NS} {
			for _, protocol := range []string{"Tcp", "Udp"} {
				if n := snmp(t, ns, protocol, "InCsumErrors"); n != "0" {
					t.Errorf("forgetting %v: %s %s packets with a bad checksum in %s", forget, n, protocol, ns.Name())
				}
			}
		}
		if n := r.counter(t, kern.CountDrop); n != 0 {
			t.Errorf("forgetting %v: %d packets dropped in the kernel", forget, n)
		}
	}
}

func TestConcurrentConnections(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort)
	data := randomBytes(64 << 10)
	const connections = 20
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), nstest.Timeout)
			defer cancel()
			c, err := a.NS.Dial(ctx, "tcp", netip.AddrPort{}, s.Addr)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if err := transfer(c, data); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := s.Seen(); n != connections {
		t.Errorf("%d connections arrived, want %d", n, connections)
	}
}
