package dataplane

import (
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
)

// Addresses of a translated connection: client a4, backend b4, and what packets bear.
const vip4, masq4 = "10.96.0.10:80", "10.0.0.9:40000"

// TestRealEnds: what a packet bears does not matter where the driver knows who its
// ends are.
func TestRealEnds(t *testing.T) {
	real := Key(flow.TCP, a4, b4)
	service := flow.Service{Addr: Key(flow.TCP, a4, vip4).Dst, Port: 80}
	there := Packet{Final: true, Real: real, Service: service, Frame: Segment(t, masq4, b4, Flags{SYN: true}, 1)}
	back := Packet{Final: true, Real: real.Reverse(), Reply: true, Service: service, Frame: Segment(t, vip4, a4, Flags{SYN: true, ACK: true}, 1)}
	x := newBench(t, Config{AuditAll: true})
	stub := &Stub{Gen: 1, Allowed: func(k flow.Key) bool { return k == real }}
	if _, err := x.e.Publish(stub); err != nil {
		t.Fatal(err)
	}
	if path, p := x.feed(there); path != PassNew || !p.Remember || p.Reply || p.Headers.Key != real {
		t.Errorf("took %v, %+v", path, p)
	}
	if path, p := x.feed(back); path != PassHit || !p.Reply || p.Headers.Key != real.Reverse() {
		t.Errorf("the answer took %v, %+v", path, p)
	}
	events := x.events()
	if len(events) != 1 || events[0].Key != real || events[0].Service != service {
		t.Errorf("events %+v", events)
	}
	// An error about it, which quotes what the other side bears.
	ack := Flags{ACK: true}
	for _, c := range []struct {
		name     string
		real     flow.Key
		src, dst string
		quote    []byte
	}{
		{"to the backend", real, "10.0.0.7", "10.0.0.2", Segment(t, b4, masq4, ack, 1)},
		{"to the client", real.Reverse(), "10.0.0.7", "10.0.0.1", Segment(t, a4, vip4, ack, 1)},
	} {
		p := Packet{Final: true, Real: c.real, Frame: Message4(t, c.src, c.dst, 3, 4, 0, quoteOf(t, c.quote)[4:])}
		if path, _ := x.feed(p); path != PassRelated {
			t.Errorf("an error %s took %v", c.name, path)
		}
		stranger := p
		stranger.Real.DstPort++
		stranger.Real.SrcPort++
		if path, _ := x.feed(stranger); path == PassRelated {
			t.Errorf("an error about another connection %s took %v", c.name, path)
		}
	}
	// A message that the kernel takes for one about it, and we do not, is nobody's.
	p := Packet{Final: true, Real: real, Related: true, Service: service, Frame: Message4(t, "10.0.0.7", "10.0.0.2", 9, 0, 0, quoteOf(t, Segment(t, b4, masq4, ack, 1))[4:])}
	if path, _ := x.feed(p); path != DropICMPInner {
		t.Errorf("a message of another kind took %v", path)
	}
	// Denied by its real ends it is cut, whatever is known of the names.
	if _, err := x.e.Publish(&Stub{Gen: 2, Allowed: func(k flow.Key) bool { return k != real }}); err != nil {
		t.Fatal(err)
	}
	if path, _ := x.feed(back); path.Disposition() != DropPacket {
		t.Errorf("denied by its real ends: took %v", path)
	}
	// One whose real ends are malformed is no other connection.
	short := there
	short.Frame = short.Frame[:30]
	if path, _ := x.feed(short); path != DropProblem {
		t.Errorf("malformed: took %v", path)
	}
}

// TestPastTheService: what a rule allows by way of a Service is not allowed straight to
// its backend, whatever name the connection by the Service has.
func TestPastTheService(t *testing.T) {
	real := Key(flow.UDP, a4, b4)
	service := flow.Service{Addr: Key(flow.UDP, a4, vip4).Dst, Port: 80}
	x := newBench(t, Config{})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, Via: func(_ flow.Key, via flow.Service) bool { return via == service }}); err != nil {
		t.Fatal(err)
	}
	by := Packet{Final: true, Real: real, Service: service, Frame: Datagram(t, a4, b4)}
	if path, _ := x.feed(by); path != PassNew {
		t.Errorf("by the Service: took %v", path)
	}
	// Where the driver does not know, it is the connection's.
	if path, _ := x.feed(Packet{Final: true, Frame: Datagram(t, a4, b4)}); path != PassHit {
		t.Errorf("by its name: took %v", path)
	}
	if path, _ := x.feed(Packet{Final: true, Real: real, Frame: Datagram(t, masq4, b4)}); path.Disposition() != DropPacket {
		t.Errorf("straight to the backend: took %v", path)
	}
}

// TestOnward: a Service's packets are left to where their real ends show, and nothing
// else is.
func TestOnward(t *testing.T) {
	syn, ack := Flags{SYN: true}, Flags{ACK: true}
	vip, host := Key(flow.TCP, a4, vip4).Dst, Key(flow.TCP, masq4, b4).Src
	cache := Key(flow.TCP, a4, "10.96.0.53:53").Dst
	for _, c := range []struct {
		name string
		p    Packet
		want Path
		own  flow.Addr // the host's address, if it matters
	}{
		{"to a Service", Packet{Frame: Segment(t, a4, vip4, syn, 1)}, DeferVIP, flow.Addr{}},
		{"in mid-stream", Packet{Frame: Segment(t, a4, vip4, ack, 1)}, DeferVIP, flow.Addr{}},
		{"seen to go to a backend", Packet{Real: Key(flow.TCP, a4, b4), Frame: Segment(t, a4, vip4, syn, 1)}, DropPolicy, flow.Addr{}},
		{"seen to go nowhere else", Packet{Real: Key(flow.TCP, a4, vip4), Frame: Segment(t, a4, vip4, syn, 1)}, DropPolicy, flow.Addr{}},
		{"to a Service that the host itself serves", Packet{Frame: Segment(t, a4, "10.96.0.53:53", syn, 1)}, DropPolicy, cache},
		{"to a pod", Packet{Frame: Segment(t, a4, b4, syn, 1)}, DropPolicy, flow.Addr{}},
		{"to a pod in mid-stream", Packet{Frame: Segment(t, a4, b4, ack, 1)}, DropPolicy, flow.Addr{}},
		{"to the host", Packet{Frame: Segment(t, a4, masq4, syn, 1)}, DropPolicy, flow.Addr{}},
		{"to a node port", Packet{Frame: Segment(t, a4, "10.0.0.9:30080", syn, 1)}, DeferVIP, flow.Addr{}},
		{"to another host's", Packet{Frame: Segment(t, a4, "10.0.0.8:30080", syn, 1)}, DropPolicy, flow.Addr{}},
		{"seen to be the host's own", Packet{Real: Key(flow.TCP, a4, "10.0.0.9:30080"), Frame: Segment(t, a4, "10.0.0.9:30080", syn, 1)}, DropPolicy, flow.Addr{}},
		{"a fragment", Packet{Frame: Datagram(t, a4, vip4)[:30]}, DropProblem, flow.Addr{}},
		{"an error about a Service's", Packet{Frame: Message4(t, "10.0.0.1", "10.96.0.10", 3, 4, 0, quoteOf(t, Segment(t, vip4, a4, ack, 1))[4:])}, DeferRelated, flow.Addr{}},
		{"an error to the host", Packet{Frame: Message4(t, "10.0.0.2", "10.0.0.9", 3, 4, 0, quoteOf(t, Segment(t, masq4, b4, ack, 1))[4:])}, DeferRelated, flow.Addr{}},
		{"an error about a pod's", Packet{Frame: Message4(t, "10.0.0.2", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, DropRelated, flow.Addr{}},
	} {
		for _, onward := range []bool{true, false} {
			x := newBench(t, Config{})
			d := &hostDriver{own: host}
			if c.own != (flow.Addr{}) {
				d.own = c.own
			}
			x.w.driver = d
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, VIPs: map[flow.Addr]bool{vip: true, cache: true}}); err != nil {
				t.Fatal(err)
			}
			c.p.Final, c.p.Onward = true, onward
			path, _ := x.feedTo(&d.quietDriver, c.p)
			if onward && path != c.want {
				t.Errorf("%s: took %v, want %v", c.name, path, c.want)
			}
			if !onward && path.Disposition() == DeferPacket {
				t.Errorf("%s: deferred, and nobody sees it again", c.name)
			}
		}
	}
}

// TestMasked: a client that hides behind the host's address is not the host, and what
// the host opened is not a client's.
func TestMasked(t *testing.T) {
	x := newBench(t, Config{})
	nobody := flow.Addr{}
	for i, allowed := range []func(flow.Key) bool{
		func(k flow.Key) bool { return k.Src != nobody }, // the pod lets in some
		Always,
	} {
		gen := uint64(i + 1)
		if _, err := x.e.Publish(&Stub{Gen: gen, Allowed: allowed}); err != nil {
			t.Fatal(err)
		}
		mine := Packet{Final: true, FromHost: true, Frame: Datagram(t, masq4, b4)}
		theirs := Packet{Final: true, Masked: true, Frame: Datagram(t, masq4, b4)}
		if path, _ := x.feed(mine); path.Disposition() != PassPacket {
			t.Errorf("table %d: the host's own took %v", gen, path)
		}
		if path, _ := x.feed(theirs); (path.Disposition() == PassPacket) != (gen == 2) {
			t.Errorf("table %d: a masqueraded client's took %v", gen, path)
		}
	}
	// It stays masked when the policy changes.
	if _, err := x.e.Publish(&Stub{Gen: 3, Allowed: func(k flow.Key) bool { return k.Src != nobody }}); err != nil {
		t.Fatal(err)
	}
	if path, _ := x.feed(Packet{Final: true, Masked: true, Frame: Datagram(t, masq4, b4)}); path.Disposition() != DropPacket {
		t.Errorf("after a change of policy a masqueraded client's took %v", path)
	}
}

// TestFromHost: what the host itself opens needs no policy, under whatever
// address, and the decision says so.
func TestFromHost(t *testing.T) {
	x := newBench(t, Config{AuditAll: true})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never}); err != nil {
		t.Fatal(err)
	}
	x.feed(Packet{Final: true, FromHost: true, Frame: Datagram(t, masq4, b4)})
	if path, _ := x.feed(Packet{Final: true, Frame: Datagram(t, b4, masq4)}); path != PassHit {
		t.Errorf("the answer took %v", path)
	}
	if _, err := x.e.Publish(&Stub{Gen: 2, Allowed: Never}); err != nil {
		t.Fatal(err)
	}
	if path, _ := x.feed(Packet{Final: true, FromHost: true, Frame: Datagram(t, masq4, b4)}); path.Disposition() != PassPacket {
		t.Errorf("after a change of policy: took %v", path)
	}
	if e := x.events(); len(e) != 0 && (e[0].Verdict != classifier.Allow || e[0].Ingress != classifier.NodeLocal.Ingress) {
		t.Errorf("events %+v", e)
	}
	// An answer of the host's is the connection of who asked.
	if path, _ := x.feed(Packet{Final: true, FromHost: true, Reply: true, Frame: Datagram(t, "10.0.0.9:53", "10.0.0.5:1")}); path.Disposition() != DropPacket {
		t.Errorf("an answer to a pod that may not ask took %v", path)
	}
}
