package dataplane

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier/flow"
)

// scatteredDriver and scatteredBackend have several queues, any of which may get
// a packet.
type scatteredDriver struct{ quietDriver }

func (*scatteredDriver) Scattered() bool { return true }

type scatteredBackend struct {
	quietBackend
	ds [3]scatteredDriver
}

func (b *scatteredBackend) Drivers() (all []Driver) {
	for i := range b.ds {
		all = append(all, &b.ds[i])
	}
	return all
}

// newScattered is newBench for three workers. The bench's worker is the first.
func newScattered(t testing.TB, cfg Config) *bench {
	x := newBench(t, cfg)
	cfg = x.e.cfg
	cfg.Backends = []Backend{&scatteredBackend{}}
	x.e = New(cfg)
	x.w = x.e.workers[0]
	return x
}

// feedAt is feed at one of the workers.
func (x *bench) feedAt(worker int, p Packet) (Path, Packet) {
	x.w = x.e.workers[worker]
	return x.feedTo(&x.w.driver.(*scatteredDriver).quietDriver, p)
}

// TestScatteredConnection: whatever worker gets a connection's packets, it is one
// connection, and a change of policy cuts it once.
func TestScatteredConnection(t *testing.T) {
	opens := func(k flow.Key) bool { return k.DstPort == 80 }
	for i := range 24 { // connections of every worker
		x := newScattered(t, Config{})
		if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: opens}); err != nil {
			t.Fatal(err)
		}
		a, b := fmt.Sprintf("10.0.0.1:%d", 1000+i), "10.0.0.2:80"
		for _, step := range []struct {
			worker int
			want   Path
			p      Packet
		}{
			{i % 3, PassNew, Packet{Final: true, Frame: Segment(t, a, b, Flags{SYN: true}, 1)}},
			{(i + 1) % 3, PassHit, Packet{Final: true, Frame: Segment(t, b, a, Flags{SYN: true, ACK: true}, 9)}},
			{(i + 2) % 3, PassHit, Packet{Final: true, Frame: Segment(t, a, b, Flags{ACK: true}, 2)}},
			{(i + 1) % 3, PassRelated, Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.2", 3, 4, 0, quoteOf(t, Segment(t, b, a, Flags{ACK: true}, 10))[4:])}},
		} {
			if path, p := x.feedAt(step.worker, step.p); path != step.want || p.Remember != (path != PassRelated) {
				t.Fatalf("connection %d at worker %d took %v (remember %t), want %v", i, step.worker, path, p.Remember, step.want)
			}
		}
		n := 0
		for _, w := range x.e.workers {
			n += w.conns.Len()
		}
		if s := x.e.Stats(); n != 1 || s.Conntrack.Inserted != 1 {
			t.Fatalf("connection %d: %d records, %d inserted", i, n, s.Conntrack.Inserted)
		}
		if cut, err := x.e.Publish(&Stub{Gen: 2, Allowed: Never}); err != nil || cut != 1 {
			t.Fatalf("connection %d: %d cut (%v), want 1", i, cut, err)
		}
		if path, _ := x.feedAt((i+2)%3, Packet{Final: true, Frame: Segment(t, a, b, Flags{ACK: true}, 2)}); path != DropPolicy {
			t.Fatalf("connection %d took %v after it was cut", i, path)
		}
	}
}

// TestScatteredRejudge: a worker that is not a connection's own judges it again,
// and cuts it, before the control side does.
func TestScatteredRejudge(t *testing.T) {
	for _, allowed := range []bool{true, false} {
		x := newScattered(t, Config{})
		if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
			t.Fatal(err)
		}
		ack := Packet{Final: true, Frame: Segment(t, a4, b4, Flags{ACK: true}, 1)}
		x.feedAt(0, ack)
		x.e.current.Store(&snapshot{classifier: &Stub{Gen: 2, Allowed: func(flow.Key) bool { return allowed }}, generation: 2})
		want, cut, first := PassRejudged, uint64(0), PassHit
		if !allowed {
			want, cut, first = DropCut, 1, DropPolicy
		}
		for i, want := range []Path{want, first, first} {
			if path, _ := x.feedAt(i, ack); path != want {
				t.Errorf("allowed %t, worker %d: %v, want %v", allowed, i, path, want)
			}
		}
		if s := x.e.Stats(); s.Cut != cut || s.Conntrack.Removed != cut {
			t.Errorf("allowed %t: %d cut, %d removed, want %d", allowed, s.Cut, s.Conntrack.Removed, cut)
		}
	}
}

// TestNotScattered: one driver of a backend, or any that does not say so, has a
// table to itself.
func TestNotScattered(t *testing.T) {
	x := newBench(t, Config{})
	if x.w.peers != nil {
		t.Error("a worker alone has peers")
	}
	e := New(Config{Backends: []Backend{x.b, x.b}})
	for _, w := range e.workers {
		if w.peers != nil {
			t.Error("workers of two backends are peers")
		}
	}
}

// TestShare: both directions of a connection have one place, and connections
// that differ in one end's address or port only spread evenly.
func TestShare(t *testing.T) {
	addr := netip.MustParseAddr
	for _, k := range []flow.Key{
		Key(flow.TCP, a4, b4), Key(flow.UDP, a6, b6), Key(flow.SCTP, "10.0.0.1:5", "10.0.0.1:5"),
		flow.MakeKey(flow.ICMP, netip.AddrPortFrom(addr("10.0.0.1"), 7), netip.AddrPortFrom(addr("10.0.0.2"), 8<<8)),
		flow.MakeKey(flow.ICMPv6, netip.AddrPortFrom(addr("fd00::1"), 7), netip.AddrPortFrom(addr("fd00::2"), 129<<8)),
		flow.MakeKey(flow.IGMP, netip.AddrPortFrom(addr("10.0.0.1"), 0), netip.AddrPortFrom(addr("224.0.1.1"), 0x1600)),
		flow.MakeKey(50, netip.AddrPortFrom(addr("10.0.0.1"), 0), netip.AddrPortFrom(addr("10.0.0.2"), 0)),
	} {
		r := k.Reverse()
		for n := 1; n < 100; n++ {
			if a, b := share(&k, n), share(&r, n); a != b || a < 0 || a >= n {
				t.Fatalf("%v has place %d of %d, its reverse %d", k, a, n, b)
			}
		}
	}
	const n, each = 7, 2000
	for what, key := range map[string]func(i int) flow.Key{
		"source ports":      func(i int) flow.Key { return Key(flow.TCP, fmt.Sprintf("10.0.0.1:%d", 1024+i), b4) },
		"destination ports": func(i int) flow.Key { return Key(flow.TCP, a4, fmt.Sprintf("10.0.0.2:%d", 1+i)) },
		"IPv4 sources":      func(i int) flow.Key { return Key(flow.UDP, fmt.Sprintf("10.1.%d.%d:53", i>>8, i&255), b4) },
		"IPv6 sources":      func(i int) flow.Key { return Key(flow.UDP, fmt.Sprintf("[fd00::%x]:53", i+1), b6) },
		"pings": func(i int) flow.Key {
			return flow.MakeKey(flow.ICMP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 2, byte(i >> 8), byte(i)}), 7), netip.AddrPortFrom(addr("10.0.0.2"), 8<<8))
		},
	} {
		var count [n]int
		for i := range n * each {
			k := key(i)
			count[share(&k, n)]++
		}
		for place, c := range count {
			if c < each*9/10 || c > each*11/10 {
				t.Errorf("%s: place %d of %d has %d, want about %d", what, place, n, c, each)
			}
		}
	}
}
