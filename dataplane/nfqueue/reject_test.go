package nfqueue

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// rejecting skips where the kernel cannot refuse.
func rejecting(t *testing.T, w *world) {
	t.Helper()
	nstest.Need(t, func() error {
		if !w.backend.fw.features.reject {
			return errNoReject
		}
		return nil
	})
}

// refusal returns what a client at from learns about a refused connection, and
// how long that took.
func refusal(t *testing.T, from *netlab.NS, network string, to netip.AddrPort) (time.Duration, error) {
	t.Helper()
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Timeout)
	defer cancel()
	c, err := from.Dial(ctx, network, netip.AddrPort{}, to)
	if err == nil {
		defer c.Close()
		err = netlab.Exchange(c, []byte("hello?"), nstest.Timeout)
	}
	return time.Since(began), err
}

// refused fails the test unless a client at from learns that it is refused, and at
// once, and returns how often it tried. On a busy machine it may take a second now and
// then, but not every time.
func refused(t *testing.T, what string, from *netlab.NS, network string, to netip.AddrPort, want error) (tries int) {
	t.Helper()
	for {
		took, err := refusal(t, from, network, to)
		if tries++; errors.Is(err, want) && took <= time.Second {
			return tries
		}
		if !errors.Is(err, want) || tries == 10 {
			t.Errorf("%s, %s to %v: %v after %v in try %d, want %v at once", what, network, to, err, took, tries, want)
			return tries
		}
	}
}

// A refused TCP client is reset at once, a UDP client gets an ICMP
// error; on every path and in both families.
func TestReject(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, nothing)
	rejecting(t, w)
	w.judge.refuse.Store(true)
	outside, node := []netip.Addr{w.Outside4, w.Outside6}, []netip.Addr{w.Addr4, w.Addr6}
	a, b := []netip.Addr{w.a.Addr4, w.a.Addr6}, []netip.Addr{w.b.Addr4, w.b.Addr6}
	for _, path := range []struct {
		name     string
		from, at *netlab.NS
		to       []netip.Addr
	}{
		{"pod to pod", w.a.NS, w.b.NS, b},
		{"pod to outside", w.a.NS, w.Outside, outside},
		{"outside to pod", w.Outside, w.a.NS, a},
		{"pod to node", w.a.NS, w.NS, node},
	} {
		for i, udp := range []error{unix.EHOSTUNREACH, unix.EACCES} { // ICMP code 10, ICMPv6 code 1
			for network, want := range map[string]error{"tcp": unix.ECONNREFUSED, "udp": udp} {
				s := nstest.Echo(t, path.at, network, path.to[i], portGood)
				refused(t, path.name, path.from, network, s.Addr, want) // S2-21, S2-22
				if s.Seen() != 0 {
					t.Errorf("%s: the server saw a refused %s connection", path.name, network)
				}
			}
		}
	}
	// Nothing was accepted with a refusal.
	for _, c := range w.connections(t) {
		if c.Mark != 0 {
			t.Errorf("connection %s has mark %#x after a refusal", c, c.Mark)
		}
	}
	// Without a refusal there is silence.
	w.judge.refuse.Store(false)
	nstest.Unreachable(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
}

// Behind a Service the reset comes from the Service's address, or the client
// would not believe it.
func TestRejectBehindService(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	rejecting(t, w)
	w.judge.refuse.Store(true)
	vip := netip.MustParseAddr("10.96.0.10")
	w.nft(t, "services", nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest},
		dnat(vip, w.b.Addr4, portGood))
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	for network, want := range map[string]error{"tcp": unix.ECONNREFUSED, "udp": unix.EHOSTUNREACH} {
		w.judge.take()
		tries := refused(t, "to a Service", w.a.NS, network, at(vip, 80), want)
		w.want(t, "refused Service", slices.Repeat([]string{key(network, w.a.Addr4, w.b.Addr4, portGood)}, tries)...)
	}
}

// dnat is a rule that sends what goes to an address to a backend.
func dnat(vip, backend netip.Addr, port uint16) []expr.Any {
	return join(protocolIs(unix.NFPROTO_IPV4), ipv4.load(dst), []expr.Any{
		compare(expr.CmpOpEq, vip.AsSlice()),
		&expr.Immediate{Register: 1, Data: backend.AsSlice()},
		&expr.Immediate{Register: 2, Data: []byte{byte(port >> 8), byte(port)}},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
	})
}

// A live TCP connection that is cut can be reset: whoever sends on it learns, the
// end that was called as well as the one that called.
func TestRejectCutsLiveConnection(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	rejecting(t, w)
	var l net.Listener
	if err := w.b.NS.Do(func() (err error) { l, err = net.Listen("tcp", at(w.b.Addr4, portGood).String()); return err }); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	called, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer called.Close()
	if _, err := c.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if _, err := called.Read(make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	w.judge.policy(nothing)
	w.judge.refuse.Store(true)
	if cut := w.update(t); cut != 1 {
		t.Errorf("Update cut %d connections, want 1", cut)
	}
	for name, end := range map[string]net.Conn{"the end that called": c, "the end that was called": called} {
		if err := netlab.Exchange(end, []byte("still there?"), nstest.Timeout); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s sends on the cut connection: %v, want %v", name, err, unix.ECONNRESET)
		}
	}
}

// A packet that is refused although it is not of the batch in flight changes
// nothing; a driver whose kernel cannot refuse says so.
func TestRejectUnknown(t *testing.T) {
	c, _ := Config{}.complete()
	d := newDriver(c, 7300)
	if err := d.Reject(&dataplane.Packet{ID: 5}, nil); !errors.Is(err, errNoReject) {
		t.Errorf("Reject without the expression: %v, want %v", err, errNoReject)
	}
	d.rejects = true
	b := &dataplane.Batch{}
	d.fill(b, &queued{id: 4, mark: 0x4000, hook: unix.NF_INET_FORWARD})
	d.fill(b, &queued{id: 6, hook: unix.NF_INET_LOCAL_OUT})
	d.fill(b, &queued{id: 7, hook: unix.NF_INET_LOCAL_IN})
	for id, want := range map[uint32]error{5: errNoReject, 6: errNoReject, 7: nil} {
		if err := d.Reject(&dataplane.Packet{ID: id}, nil); !errors.Is(err, want) {
			t.Errorf("Reject packet %d: %v, want %v", id, err, want)
		}
	}
	want := appendVerdict(nil, 7300, 4, nfDrop, 0, false)
	want = appendVerdict(want, 7300, 6, nfDrop, 0, false)
	want = appendVerdict(want, 7300, 7, nfRepeat, 0x60, true)
	if got := appendBatch(nil, 7300, b, &d.held, d.marks); string(got) != string(want) {
		t.Errorf("verdicts\n got %x\nwant %x", got, want)
	}
}
