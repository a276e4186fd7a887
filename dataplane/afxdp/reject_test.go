package afxdp

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// S2-21, S2-22: a refused TCP client is reset at once, a UDP client gets an ICMP
// error, in both families, whether its packets were captured on their way from the
// pod or to it.
func TestReject(t *testing.T) {
	r := newRig(t, Config{Strict: true, Queues: 1}) // whose packet it is the rig does not say
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	d := r.backend.Drivers()[0]
	var buf [packet.MaxAnswer]byte
	r.policy(func(k flow.Key, p *dataplane.Packet) dataplane.Disposition {
		if k.DstPort != closedPort {
			return dataplane.PassPacket
		}
		if n := packet.Answer(buf[:], p.Frame, &p.Headers); n > 0 {
			if err := d.Reject(p, buf[:n]); err != nil {
				t.Error(err)
			}
		}
		return dataplane.DropPacket
	})
	servers := map[string]*netlab.Server{}
	for _, path := range []struct {
		name     string
		from, at *netlab.NS
		to       []netip.Addr
	}{
		{"pod to pod", a.NS, b.NS, []netip.Addr{b.Addr4, b.Addr6}},
		{"node to pod", r.NS, b.NS, []netip.Addr{b.Addr4, b.Addr6}},
		{"outside to pod", r.Outside, b.NS, []netip.Addr{b.Addr4, b.Addr6}},
		{"pod to outside", a.NS, r.Outside, []netip.Addr{r.Outside4, r.Outside6}},
	} {
		for i, udp := range []error{unix.EHOSTUNREACH, unix.EACCES} { // ICMP code 10, ICMPv6 code 1
			for network, want := range map[string]error{"tcp": unix.ECONNREFUSED, "udp": udp} {
				at := network + " " + path.to[i].String()
				if servers[at] == nil {
					servers[at] = nstest.Echo(t, path.at, network, path.to[i], closedPort)
				}
				s := servers[at]
				// An answer that is lost is made up for by the next SYN, a second later,
				// and for a datagram by nothing: that it always takes that long a busy
				// machine does not explain.
				var err error
				took := nstest.Timeout
				for try := 0; try < 10 && took > time.Second && (try == 0 || errors.Is(err, want) || try < 3 && isTimeout(err)); try++ {
					began := time.Now()
					err = attempt(path.from, network, s.Addr)
					took = time.Since(began)
				}
				if !errors.Is(err, want) || took > time.Second {
					t.Errorf("%s, %s to %v: %v after %v, want %v at once", path.name, network, s.Addr, err, took, want)
				}
				if s.Seen() != 0 {
					t.Errorf("%s: the server saw a refused %s connection", path.name, network)
				}
			}
		}
	}
	// Buffers come back: many more than there are.
	for range 200 {
		if err := attempt(a.NS, "tcp", netip.AddrPortFrom(b.Addr4, closedPort)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatal(err)
		}
	}
	c := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
	exchange(t, c)
}

// attempt returns what a client at from learns when it says something.
func attempt(from *netlab.NS, network string, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Timeout)
	defer cancel()
	c, err := from.Dial(ctx, network, netip.AddrPort{}, to)
	if err == nil {
		defer c.Close()
		err = netlab.Exchange(c, []byte("hello?"), nstest.Timeout)
	}
	return err
}
