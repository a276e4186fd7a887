package dataplane

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// quietDriver applies nothing and keeps what it was told of the last batch.
type quietDriver struct {
	DriverDefaults
	last Batch
}

func (d *quietDriver) Recv(*Batch) error    { return ErrClosed }
func (d *quietDriver) Apply(b *Batch) error { d.last = *b; return nil }
func (d *quietDriver) Close() error         { return nil }

// quietBackend is the engine's view of one quietDriver.
type quietBackend struct {
	BackendDefaults
	d quietDriver
}

func (b *quietBackend) Name() string                                  { return "quiet" }
func (b *quietBackend) Drivers() []Driver                             { return []Driver{&b.d} }
func (b *quietBackend) Update(*classifier.Table, Change) (int, error) { return 0, nil }
func (b *quietBackend) Stats() BackendStats                           { return BackendStats{} }
func (b *quietBackend) Close() error                                  { return nil }

// bench is an engine with one worker that the test itself drives.
type bench struct {
	t   testing.TB
	e   *Engine
	w   *Worker
	b   *quietBackend
	now int64
}

func newBench(t testing.TB, cfg Config) *bench {
	x := &bench{t: t, b: &quietBackend{}, now: int64(1_700_000_000) * int64(time.Second)}
	cfg.Backends = []Backend{x.b}
	cfg.Clock = func() int64 { return x.now }
	x.e = New(cfg)
	x.w = x.e.workers[0]
	return x
}

// feed processes one packet and returns its path and what the driver was told.
func (x *bench) feed(p Packet) (Path, Packet) { return x.feedTo(&x.b.d, p) }

// feedTo is feed for a bench whose worker has a driver of its own.
func (x *bench) feedTo(d *quietDriver, p Packet) (Path, Packet) {
	x.t.Helper()
	before := x.w.count.paths
	var b Batch
	b.Packets[0], b.N = p, 1
	x.w.process(&b)
	var path Path
	n := 0
	for i := range before {
		if d := x.w.count.paths[i] - before[i]; d != 0 {
			path, n = Path(i), n+int(d)
		}
	}
	if n != 1 {
		x.t.Fatalf("one packet was counted on %d paths", n)
	}
	x.check()
	return path, d.last.Packets[0]
}

// check asserts the accounting invariant.
func (x *bench) check() {
	x.t.Helper()
	s := x.e.Stats()
	if sum := s.Passed() + s.Deferred() + s.Dropped(); sum != s.Received || s.Latency.Count() != s.Received {
		x.t.Fatalf("received %d, outcomes %d, latencies %d", s.Received, sum, s.Latency.Count())
	}
}

func (x *bench) events() []Event {
	var all []Event
	buf := make([]Event, 16)
	for n := x.w.ring.Drain(buf); n > 0; n = x.w.ring.Drain(buf) {
		all = append(all, buf[:n]...)
	}
	return all
}

const (
	a4, b4 = "10.0.0.1:40000", "10.0.0.2:80"
	a6, b6 = "[fd00::1]:40000", "[fd00::2]:80"
)

func quoteOf(t testing.TB, inner []byte) []byte {
	if len(inner) > 48 {
		inner = inner[:48]
	}
	return append([]byte{0, 0, 0, 0}, inner...)
}

// TestDecideFirst checks every way a packet without a known connection can go.
func TestDecideFirst(t *testing.T) {
	syn, ack := Flags{SYN: true}, Flags{ACK: true}
	vip := map[flow.Addr]bool{Key(flow.TCP, a4, b4).Dst: true, Key(flow.TCP, a6, b6).Dst: true}
	later := Raw(t, "10.0.0.1", "10.0.0.2", 17, []byte("fragmentfragment"))
	binary.BigEndian.PutUint16(later[6:], 10) // fragment offset 80 bytes
	short := Segment(t, a4, b4, syn, 1)[:30]
	arp := append(make([]byte, 12), 0x08, 0x06, 0, 1)
	ether := append(append(make([]byte, 12), 0x08, 0x00), Datagram(t, a4, b4)...)

	for _, c := range []struct {
		name    string
		p       Packet
		allowed func(flow.Key) bool
		want    Path
		verdict classifier.Verdict
		keep    bool // Remember
		asked   string
	}{
		{"arp", Packet{Frame: arp, L2: true}, Never, PassNotIP, classifier.Allow, false, ""},
		{"truncated", Packet{Frame: short, Length: 40}, Always, DropProblem, classifier.Drop, false, ""},
		{"truncated, final", Packet{Frame: short, Length: 40, Final: true}, Always, DropProblem, classifier.Drop, false, ""},
		{"later fragment", Packet{Frame: later}, Always, DeferFragment, classifier.Drop, false, ""},
		{"later fragment, final", Packet{Frame: later, Final: true}, Always, DropProblem, classifier.Drop, false, ""},

		{"neighbour solicitation", Packet{Frame: Message6(t, "fd00::1", "ff02::1:ff00:1", 135, 0, make([]byte, 20))}, Never, PassLinkLocal, classifier.Allow, false, ""},
		{"neighbour advertisement", Packet{Frame: Message6(t, "fe80::1", "fd00::1", 136, 0, make([]byte, 20))}, Never, PassLinkLocal, classifier.Allow, false, ""},
		{"MLDv2 report", Packet{Frame: Message6(t, "fe80::1", "ff02::16", 143, 0, make([]byte, 4))}, Never, PassLinkLocal, classifier.Allow, false, ""},
		{"router advertisement", Packet{Frame: Message6(t, "fe80::1", "ff02::1", 134, 0, make([]byte, 12))}, Always, DropRouterMessage, classifier.Drop, false, ""},
		{"redirect, v6", Packet{Frame: Message6(t, "fe80::1", "fd00::1", 137, 0, make([]byte, 36))}, Always, DropRouterMessage, classifier.Drop, false, ""},
		{"redirect, v6, of this host", Packet{FromHost: true, Frame: Message6(t, "fe80::1", "fd00::1", 137, 0, make([]byte, 36))}, Never, PassLinkLocal, classifier.Allow, false, ""},
		{"DHCP server, no pod", Packet{Frame: Datagram(t, "10.0.0.1:67", "10.0.0.2:68")}, Always, PassNew, classifier.Allow, true, "UDP 10.0.0.1:67 > 10.0.0.2:68"},
		{"redirect about a connection", Packet{Final: true, Related: true, Reply: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 5, 1, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, Always, DropRouterMessage, classifier.Drop, false, ""},
		{"neighbour type, global addresses", Packet{Final: true, Frame: Message6(t, "fd00::1", "fd00::2", 135, 0, make([]byte, 20))}, Never, DropPolicy, classifier.Reject, false, "ICMPv6 fd00::1 > fd00::2 type 135 code 0"},
		{"MLD type, site scope", Packet{Final: true, Frame: Message6(t, "fd00::1", "ff05::2", 143, 0, make([]byte, 4))}, Never, DropPolicy, classifier.Reject, false, "ICMPv6 fd00::1 > ff05::2 type 143 code 0"},
		{"echo to a link-local address", Packet{Final: true, Frame: Message6(t, "fd00::1", "fe80::1", 128, 0, make([]byte, 4))}, Never, DropPolicy, classifier.Reject, false, "ICMPv6 fd00::1 > fe80::1 type 128 code 0"},
		{"IGMP, link-local group", Packet{Frame: Raw(t, "10.0.0.1", "224.0.0.22", 2, []byte{0x22, 0, 0, 0, 0, 0, 0, 0})}, Never, PassLinkLocal, classifier.Allow, false, ""},
		{"IGMP, other group", Packet{Final: true, Frame: Raw(t, "10.0.0.1", "239.1.2.3", 2, []byte{0x16, 0, 0, 0, 239, 1, 2, 3})}, Never, DropPolicy, classifier.Reject, false, "IGMP 10.0.0.1 > 239.1.2.3 type 22 code 0"},

		{"allowed SYN", Packet{Frame: Segment(t, a4, b4, syn, 1)}, Always, PassNew, classifier.Allow, true, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"allowed SYN, v6", Packet{Frame: Segment(t, a6, b6, syn, 1)}, Always, PassNew, classifier.Allow, true, "TCP [fd00::1]:40000 > [fd00::2]:80"},
		{"allowed datagram in a frame", Packet{Frame: ether, L2: true}, Always, PassNew, classifier.Allow, true, "UDP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"allowed, copy cut short", Packet{Frame: Datagram(t, a4, b4)[:28], Length: 32}, Always, PassNew, classifier.Allow, true, "UDP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"allowed echo", Packet{Frame: Message4(t, "10.0.0.1", "10.0.0.2", 8, 0, 7, nil)}, Always, PassNew, classifier.Allow, true, "ICMP 10.0.0.1 > 10.0.0.2 type 8 code 0"},
		{"reply: judged in the opening direction", Packet{Final: true, Reply: true, Frame: Segment(t, b4, a4, ack, 1)}, Always, PassNew, classifier.Allow, true, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"echo reply: judged as request", Packet{Final: true, Reply: true, Frame: Message4(t, "10.0.0.2", "10.0.0.1", 0, 0, 7, nil)}, Always, PassNew, classifier.Allow, true, "ICMP 10.0.0.1 > 10.0.0.2 type 8 code 0"},

		{"denied SYN", Packet{Frame: Segment(t, a4, b4, syn, 1)}, Never, DropPolicy, classifier.Reject, false, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"denied SYN, final", Packet{Final: true, Frame: Segment(t, a6, b6, syn, 1)}, Never, DropPolicy, classifier.Reject, false, "TCP [fd00::1]:40000 > [fd00::2]:80"},
		{"denied segment of an unknown connection", Packet{Frame: Segment(t, a4, b4, ack, 1)}, Never, DeferDenied, classifier.Drop, false, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"denied SYN-ACK", Packet{Frame: Segment(t, b4, a4, Flags{SYN: true, ACK: true}, 1)}, Never, DeferDenied, classifier.Drop, false, "TCP 10.0.0.2:80 > 10.0.0.1:40000"},
		{"denied datagram", Packet{Frame: Datagram(t, a4, b4)}, Never, DeferDenied, classifier.Drop, false, "UDP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"denied datagram, final", Packet{Final: true, Frame: Datagram(t, a4, b4)}, Never, DropPolicy, classifier.Reject, false, "UDP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"denied reply", Packet{Reply: true, Frame: Segment(t, b4, a4, ack, 1)}, Never, DropPolicy, classifier.Reject, false, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},

		{"quoted flow allowed", Packet{Final: true, Related: true, Reply: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, Always, PassRelated, classifier.Allow, false, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"quoted reply allowed, v6", Packet{Final: true, Related: true, Frame: Message6(t, "fd00::9", "fd00::2", 2, 0, quoteOf(t, Datagram(t, b6, a6)))}, Always, PassRelated, classifier.Allow, false, "UDP [fd00::1]:40000 > [fd00::2]:80"},
		{"quoted flow unknown", Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, Always, PassRelated, classifier.Allow, false, "ICMP 10.0.0.9 > 10.0.0.1 type 3 code 4"},
		{"quoted flow unknown, v6", Packet{Final: true, Frame: Message6(t, "fd00::9", "fd00::1", 2, 0, quoteOf(t, Datagram(t, a6, b6)))}, Never, DropRelated, classifier.Reject, false, "ICMPv6 fd00::9 > fd00::1 type 2 code 0"},
		{"quoted flow unknown, a later hook exists", Packet{Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, Always, DeferRelated, classifier.Drop, false, ""},
		{"quoted flow denied, final", Packet{Final: true, Related: true, Reply: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, Never, DropRelated, classifier.Reject, false, "TCP 10.0.0.1:40000 > 10.0.0.2:80"},
		{"quote too short", Packet{Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, []byte{0x45, 0})}, Always, DropICMPInner, classifier.Drop, false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, Config{})
			stub := &Stub{Gen: 1, Allowed: c.allowed, Denial: classifier.Reject}
			if _, err := x.e.Publish(stub); err != nil {
				t.Fatal(err)
			}
			path, p := x.feed(c.p)
			asked := ""
			for _, k := range stub.Asked() {
				asked += k.String()
			}
			if path != c.want || p.Verdict != c.verdict || p.Remember != c.keep || asked != c.asked {
				t.Errorf("got %v, verdict %v, remember %v, asked %q (problem %v)\nwant %v, verdict %v, remember %v, asked %q",
					path, p.Verdict, p.Remember, asked, p.Problem, c.want, c.verdict, c.keep, c.asked)
			}
			if p.Disposition != c.want.Disposition() {
				t.Errorf("driver was told %v", p.Disposition)
			}
		})
	}

	// Service addresses are judged after DNAT, wherever there is a hook for it.
	for _, c := range []struct {
		name string
		p    Packet
		want Path
	}{
		{"to a VIP", Packet{Frame: Segment(t, a4, b4, syn, 1)}, DeferVIP},
		{"to a VIP, v6", Packet{Frame: Segment(t, a6, b6, syn, 1)}, DeferVIP},
		{"from a VIP", Packet{Frame: Segment(t, b4, a4, ack, 1)}, DeferVIP},
		{"to a VIP, final", Packet{Final: true, Frame: Segment(t, a4, b4, syn, 1)}, PassNew},
		{"error about a VIP", Packet{Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, DeferRelated},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, Config{})
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always, VIPs: vip}); err != nil {
				t.Fatal(err)
			}
			if path, _ := x.feed(c.p); path != c.want {
				t.Errorf("got %v, want %v", path, c.want)
			}
		})
	}
}

// TestDecideNotReady: before the first table nothing can be decided.
func TestDecideNotReady(t *testing.T) {
	syn := Segment(t, a4, b4, Flags{SYN: true}, 1)
	for _, c := range []struct {
		mode  FailMode
		final bool
		want  Path
	}{
		{FailClosed, false, DropNotReady},
		{FailClosed, true, DropNotReady},
		{FailOpen, false, DeferNotReady},
		{FailOpen, true, PassNotReady},
	} {
		x := newBench(t, Config{FailMode: c.mode})
		path, p := x.feed(Packet{Frame: syn, Final: c.final})
		if path != c.want || p.Remember {
			t.Errorf("%v, final %v: got %v, remember %v; want %v", c.mode, c.final, path, p.Remember, c.want)
		}
		if c.mode == FailClosed {
			ev := x.events()
			if len(ev) != 1 || ev[0].Cause != CauseNotReady || ev[0].Verdict != classifier.Drop || ev[0].Generation != 0 {
				t.Errorf("%v: events %+v", c.mode, ev)
			}
		}
		// Malformed packets are dropped and neighbour discovery passes in any mode.
		if path, _ := x.feed(Packet{Frame: syn[:10], Length: 10}); path != DropProblem {
			t.Errorf("%v: malformed packet: %v", c.mode, path)
		}
		if path, _ := x.feed(Packet{Frame: Message6(t, "fe80::1", "ff02::1", 135, 0, make([]byte, 20))}); path != PassLinkLocal {
			t.Errorf("%v: neighbour solicitation: %v", c.mode, path)
		}
		// The first table judges what passed before it.
		stub := &Stub{Gen: 1, Allowed: Never}
		if _, err := x.e.Publish(stub); err != nil {
			t.Fatal(err)
		}
		if path, _ := x.feed(Packet{Frame: syn, Final: c.final}); path != DropPolicy {
			t.Errorf("%v: after the first table: %v", c.mode, path)
		}
	}
}

// TestDecideKnown follows connections through replies, restarts of their tuple
// and policy changes.
func TestDecideKnown(t *testing.T) {
	x := newBench(t, Config{AuditAll: true})
	stub := &Stub{Gen: 1, Allowed: Always}
	if _, err := x.e.Publish(stub); err != nil {
		t.Fatal(err)
	}
	step := func(name string, p Packet, want Path, remember bool, asked, events int) {
		t.Helper()
		x.now += int64(time.Millisecond)
		path, got := x.feed(p)
		if n := len(stub.Asked()); path != want || got.Remember != remember || n != asked {
			t.Errorf("%s: %v, remember %v, %d lookups; want %v, %v, %d", name, path, got.Remember, n, want, remember, asked)
		}
		if ev := x.events(); len(ev) != events {
			t.Errorf("%s: %d events, want %d: %+v", name, len(ev), events, ev)
		}
	}
	fwd := func(f Flags, seq uint32) Packet { return Packet{Frame: Segment(t, a4, b4, f, seq)} }
	rev := func(f Flags, seq uint32) Packet { return Packet{Frame: Segment(t, b4, a4, f, seq)} }

	step("SYN", fwd(Flags{SYN: true}, 100), PassNew, true, 1, 1)
	step("same SYN again", fwd(Flags{SYN: true}, 100), PassHit, true, 0, 0) // S2-83: one record
	step("SYN-ACK", rev(Flags{SYN: true, ACK: true}, 900), PassHit, true, 0, 0)
	step("ACK", fwd(Flags{ACK: true}, 101), PassHit, true, 0, 0)
	step("ICMP error about it", Packet{Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, Flags{ACK: true}, 101))[4:])}, PassRelated, false, 0, 0)
	step("ICMP error about a reply", Packet{Frame: Message4(t, "10.0.0.9", "10.0.0.2", 11, 0, 0, quoteOf(t, Segment(t, b4, a4, Flags{ACK: true}, 901))[4:])}, PassRelated, false, 0, 0)

	// A new table that allows it: asked once, in the opening direction, no record.
	stub = &Stub{Gen: 2, Allowed: func(k flow.Key) bool { return k == Key(flow.TCP, a4, b4) }}
	if cut, err := x.e.Publish(stub); cut != 0 || err != nil {
		t.Fatal(cut, err)
	}
	if n := len(stub.Asked()); n != 1 {
		t.Errorf("publish asked %d times, want once per connection", n)
	}
	step("reply under the new table", rev(Flags{ACK: true}, 901), PassHit, true, 0, 0)

	// A record the control goroutine did not reach is re-judged by its packet.
	stub3 := &Stub{Gen: 3, Allowed: stub.Allowed}
	x.e.current.Store(&snapshot{classifier: stub3, generation: 3})
	if path, _ := x.feed(rev(Flags{ACK: true}, 902)); path != PassRejudged {
		t.Errorf("stale record: %v", path)
	}
	if asked := stub3.Asked(); len(asked) != 1 || asked[0] != Key(flow.TCP, a4, b4) {
		t.Errorf("stale record: asked %v, want the key it was opened with", asked)
	}
	if path, _ := x.feed(fwd(Flags{ACK: true}, 102)); path != PassHit {
		t.Errorf("re-judged record: %v", path)
	}
	x.events()

	// FIN and RST are passed but not worth remembering.
	stub = stub3
	step("FIN", fwd(Flags{FIN: true, ACK: true}, 102), PassHit, false, 0, 0)
	step("FIN back", rev(Flags{FIN: true, ACK: true}, 903), PassHit, false, 0, 0)
	step("last ACK", fwd(Flags{ACK: true}, 103), PassHit, true, 0, 0)
	step("new SYN on the old tuple", fwd(Flags{SYN: true}, 7_000_000), PassNew, true, 1, 1)
	step("RST", rev(Flags{RST: true, ACK: true}, 0), PassHit, false, 0, 0)

	// The tuple again, now denied: a denied SYN ends nothing but itself.
	deny := &Stub{Gen: 4, Allowed: Never, Denial: classifier.Reject}
	x.e.current.Store(&snapshot{classifier: deny, generation: 4})
	path, p := x.feed(fwd(Flags{SYN: true}, 9_000_000))
	if path != DropPolicy || p.Verdict != classifier.Reject || x.w.conns.Len() != 1 {
		t.Errorf("denied SYN on an old tuple: %v %v, %d connections", path, p.Verdict, x.w.conns.Len())
	}
}

// TestDecideCut: a policy change cuts what it denies, found by its next
// packet or by SetTable, and counts it once.
func TestDecideCut(t *testing.T) {
	for _, established := range []Established{Strict, Keep} {
		for _, viaPacket := range []bool{true, false} {
			t.Run(fmt.Sprint(established, " by packet ", viaPacket), func(t *testing.T) {
				x := newBench(t, Config{Established: established, AuditDenies: true})
				if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
					t.Fatal(err)
				}
				x.feed(Packet{Frame: Segment(t, a4, b4, Flags{SYN: true}, 1)})
				x.feed(Packet{Frame: Datagram(t, a6, b6)})
				deny := &Stub{Gen: 2, Allowed: func(k flow.Key) bool { return k.Proto == flow.UDP }}
				cut := 0
				if viaPacket {
					x.e.current.Store(&snapshot{classifier: deny, generation: 2})
				} else {
					var err error
					if cut, err = x.e.Publish(deny); err != nil {
						t.Fatal(err)
					}
				}
				x.events()
				path, _ := x.feed(Packet{Frame: Segment(t, b4, a4, Flags{ACK: true}, 1)})
				ev := x.events()
				switch {
				case established == Keep:
					// the option.
					if path != PassKept || cut != 0 || len(ev) != 0 {
						t.Errorf("kept connection: %v, cut %d, events %v", path, cut, ev)
					}
				case viaPacket:
					// the default.
					if path != DropCut || len(ev) != 1 || ev[0].Key != Key(flow.TCP, a4, b4) || ev[0].Verdict != classifier.Drop {
						t.Errorf("cut connection: %v, events %+v", path, ev)
					}
				default:
					// The record is gone: a segment out of the blue, for the later hook.
					if path != DeferDenied || cut != 1 || len(ev) != 0 {
						t.Errorf("cut connection: %v, cut %d, events %+v", path, cut, ev)
					}
				}
				want := uint64(1)
				if established == Keep {
					want = 0
				}
				if got := x.e.Stats().Cut; got != want {
					t.Errorf("cut counted %d, want %d", got, want)
				}
				if path, _ := x.feed(Packet{Frame: Datagram(t, b6, a6)}); path.Disposition() != PassPacket {
					t.Errorf("connection the new table allows: %v", path)
				}
			})
		}
	}
}

// TestDecideEvents: what is reported, and with which fields (S2-83, S2-88, X-53).
func TestDecideEvents(t *testing.T) {
	syn := Packet{Frame: Segment(t, a4, b4, Flags{SYN: true}, 1), Device: 9, Final: true}
	for _, c := range []struct {
		name     string
		cfg      Config
		audit    bool
		allowed  func(flow.Key) bool
		want     int // events of two equal packets
		isForced bool
	}{
		{"allowed, nobody asked", Config{}, false, Always, 0, false}, // S2-88
		{"allowed, rule asked", Config{}, true, Always, 1, false},    // S2-83
		{"allowed, AuditAll", Config{AuditAll: true}, false, Always, 1, true},
		{"allowed, AuditDenies", Config{AuditDenies: true}, false, Always, 0, false},
		{"denied, nobody asked", Config{}, false, Never, 0, false},
		{"denied, rule asked", Config{}, true, Never, 2, false}, // per packet
		{"denied, AuditDenies", Config{AuditDenies: true}, false, Never, 2, true},
		{"denied, AuditAll", Config{AuditAll: true}, false, Never, 2, true},
	} {
		x := newBench(t, c.cfg)
		if _, err := x.e.Publish(&Stub{Gen: 7, Allowed: c.allowed, Audit: c.audit}); err != nil {
			t.Fatal(err)
		}
		x.feed(syn)
		x.feed(syn)
		ev := x.events()
		if len(ev) != c.want {
			t.Errorf("%s: %d events, want %d", c.name, len(ev), c.want)
			continue
		}
		for _, e := range ev {
			want := Event{
				Time: x.now, Generation: 7, Count: 1, Egress: 71, Ingress: 72, Device: 9, Length: 40,
				Key: Key(flow.TCP, a4, b4), TCPFlags: packet.SYN, Forced: c.isForced, Conn: e.Conn,
			}
			if c.allowed(e.Key) {
				want.Verdict = classifier.Allow
			}
			if (e.Conn != 0) != (want.Verdict == classifier.Allow) || e != want {
				t.Errorf("%s: event\n%+v\nwant\n%+v", c.name, e, want)
			}
		}
	}
}

// TestSampling: packets that cannot be judged are reported once per second, kind and
// pod, and the reports of each pod add up to its packets: a flood of one pod is not
// counted as another's, and the last second of it is not forgotten.
func TestSampling(t *testing.T) {
	x := newBench(t, Config{})
	const quiet = "10.0.0.9"
	a, q := flow.AddrFrom(netip.MustParseAddr("10.0.0.1")), flow.AddrFrom(netip.MustParseAddr(quiet))
	x.e.Publish(&Stub{Gen: 1, Allowed: Never, Pods: map[flow.Addr]bool{a: true, q: true}})
	bad := func(src string) Packet {
		return Packet{Device: 3, Frame: Segment(t, src, b4, Flags{SYN: true, FIN: true}, 1)}
	}
	sent := map[string]uint64{}
	for i := range 1000 {
		x.feed(bad(a4))
		sent["10.0.0.1"]++
		if i%100 == 50 {
			x.feed(bad(quiet + ":1"))
			sent[quiet]++
		}
		if i%10 == 0 {
			x.feed(bad(fmt.Sprintf("192.0.2.%d:1", 1+i%200)))
			sent["nobody's"]++
		}
		x.now += int64(10 * time.Millisecond)
	}
	x.now += sampleEvery
	x.w.expire(x.now) // as when nothing comes any more
	got, events := map[string]uint64{}, 0
	for _, e := range x.events() {
		if e.Problem != packet.BadTCPFlags || e.Cause != CauseProblem {
			t.Fatalf("event %+v", e)
		}
		who := "nobody's"
		if e.Key.Src == a || e.Key.Src == q {
			who = e.Key.Src.Netip().String()
		}
		got[who] += e.Count
		events++
	}
	if !maps.Equal(got, sent) {
		t.Errorf("reported %v, sent %v", got, sent)
	}
	if events > 3*11 {
		t.Errorf("%d events for three samples in ten seconds", events)
	}
	if s := x.e.Stats(); s.Problems[packet.BadTCPFlags] != 1110 || s.Paths[DropProblem] != 1110 {
		t.Errorf("counted %d", s.Problems[packet.BadTCPFlags])
	}
}
