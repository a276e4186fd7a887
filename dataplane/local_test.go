package dataplane

import (
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
)

// unknownEnd is the stub's unknown local address, of a4 or a6.
func unknownEnd(k flow.Key) map[flow.Addr]bool { return map[flow.Addr]bool{k.Src: true} }

// TestUnknownLocal: an address of this node's pods that no pod is known to have.
func TestUnknownLocal(t *testing.T) {
	syn, ack := Flags{SYN: true}, Flags{ACK: true}
	closed, open := Config{}, Config{FailMode: FailOpen}
	v4, v6 := unknownEnd(Key(flow.TCP, a4, b4)), unknownEnd(Key(flow.TCP, a6, b6))
	for _, c := range []struct {
		name    string
		cfg     Config
		unknown map[flow.Addr]bool
		p       Packet
		want    Path
	}{
		{"from it", closed, v4, Packet{Final: true, Frame: Segment(t, a4, b4, syn, 1)}, DropUnknownLocal},
		{"to it", closed, v4, Packet{Final: true, Frame: Segment(t, b4, a4, syn, 1)}, DropUnknownLocal},
		{"from it, v6", closed, v6, Packet{Final: true, Frame: Datagram(t, a6, b6)}, DropUnknownLocal},
		{"to it, v6", closed, v6, Packet{Final: true, Frame: Datagram(t, b6, a6)}, DropUnknownLocal},
		{"others", closed, v4, Packet{Final: true, Frame: Segment(t, "10.0.0.3:1", b4, syn, 1)}, PassNew},
		{"SYN, a later hook exists", closed, v4, Packet{Frame: Segment(t, a4, b4, syn, 1)}, DropUnknownLocal},
		{"maybe a reply, a later hook exists", closed, v4, Packet{Frame: Segment(t, a4, b4, ack, 1)}, DeferDenied},
		{"reply to a connection it opened", closed, v4, Packet{Final: true, Reply: true, Frame: Segment(t, b4, a4, ack, 1)}, DropUnknownLocal},
		{"from it, open", open, v4, Packet{Final: true, Frame: Segment(t, a4, b4, syn, 1)}, PassNew},
		{"to it, open", open, v4, Packet{Final: true, Frame: Segment(t, b4, a4, syn, 1)}, PassNew},
		{"from the host's own foot", closed, v4, Packet{Final: true, FromHost: true, Frame: Segment(t, a4, b4, syn, 1)}, PassNew},
		{"to the host's own foot", closed, v4, Packet{Final: true, ToHost: true, Frame: Segment(t, b4, a4, syn, 1)}, PassNew},
		{"X-58: from the host to it", closed, v4, Packet{Final: true, FromHost: true, Frame: Segment(t, b4, a4, syn, 1)}, PassNew},
		{"answer to the host from it", closed, v4, Packet{Final: true, Reply: true, ToHost: true, Frame: Segment(t, a4, b4, ack, 1)}, PassNew},
		{"from it to the host", closed, v4, Packet{Final: true, ToHost: true, Frame: Segment(t, a4, b4, syn, 1)}, DropUnknownLocal},
		{"error about its flow", closed, v4, Packet{Final: true, Related: true, Reply: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, Segment(t, a4, b4, ack, 1))[4:])}, DropUnknownLocal},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, c.cfg)
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always, Unknown: c.unknown}); err != nil {
				t.Fatal(err)
			}
			path, p := x.feed(c.p)
			if path != c.want || p.Disposition != c.want.Disposition() || p.Remember != (path == PassNew) {
				t.Errorf("took %v (remember %t), want %v", path, p.Remember, c.want)
			}
			events := x.events()
			if c.want != DropUnknownLocal {
				if len(events) > 0 {
					t.Errorf("events %+v", events)
				}
				return
			}
			if len(events) != 1 || events[0].Cause != CauseUnknownLocal || events[0].Verdict != classifier.Drop || events[0].Generation != 1 {
				t.Errorf("events %+v", events)
			}
			if x.e.Stats().Conntrack.Records != 0 {
				t.Error("the connection is known")
			}
		})
	}
}

// knowingDriver remembers one connection, by the key it was opened with.
type knowingDriver struct {
	quietDriver
	opened flow.Key
}

func (d *knowingDriver) Remembers(k flow.Key) (reply, ok bool) {
	return k == d.opened.Reverse(), k == d.opened || k == d.opened.Reverse()
}

// TestErrorsOfUnknownFlows: the quote in an ICMP error is no more than a claim of
// its sender. It counts for a connection that somebody knows, in the direction
// that was opened in; else the error is judged by itself.
func TestErrorsOfUnknownFlows(t *testing.T) {
	opens := Key(flow.UDP, a4, b4) // the one thing policy allows
	about := func(to string, quoted []byte) []byte {
		return Message4(t, "10.0.0.9", to, 3, 4, 0, quoteOf(t, quoted)[4:])
	}
	request, reply := about("10.0.0.1", Datagram(t, a4, b4)), about("10.0.0.2", Datagram(t, b4, a4))
	for _, c := range []struct {
		name    string
		allowed func(flow.Key) bool
		kernel  flow.Key // remembers
		p       Packet
		want    Path
	}{
		{"nobody knows it", func(k flow.Key) bool { return k == opens }, flow.Key{}, Packet{Frame: request}, DropRelated},
		{"nobody knows it, errors are allowed", func(k flow.Key) bool { return k.Proto == flow.ICMP }, flow.Key{}, Packet{Frame: request}, PassRelated},
		{"the driver knows it", func(k flow.Key) bool { return k == opens }, opens, Packet{Frame: request}, PassRelated},
		{"the driver knows it, about a reply", func(k flow.Key) bool { return k == opens }, opens, Packet{Frame: reply}, PassRelated},
		{"the driver knows it, policy denies it", func(k flow.Key) bool { return k == opens.Reverse() }, opens, Packet{Frame: reply}, DropRelated},
		{"the kernel knows it", func(k flow.Key) bool { return k == opens }, flow.Key{}, Packet{Related: true, Reply: true, Frame: request}, PassRelated},
		{"the kernel knows it, about a reply", func(k flow.Key) bool { return k == opens }, flow.Key{}, Packet{Related: true, Frame: reply}, PassRelated},
		{"the kernel knows it, policy denies it", func(k flow.Key) bool { return k == opens.Reverse() }, flow.Key{}, Packet{Related: true, Frame: reply}, DropRelated},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, Config{})
			d := &knowingDriver{opened: c.kernel}
			x.w.driver = d
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: c.allowed}); err != nil {
				t.Fatal(err)
			}
			c.p.Final = true
			if path, _ := x.feedTo(&d.quietDriver, c.p); path != c.want {
				t.Errorf("took %v, want %v", path, c.want)
			}
		})
	}
}

// hostDriver knows one address of the host.
type hostDriver struct {
	quietDriver
	own flow.Addr
}

func (d *hostDriver) IsHost(a flow.Addr) bool { return a == d.own }

// TestHostKnower: a driver knows the host's foot in the pod prefix by its address.
func TestHostKnower(t *testing.T) {
	foot, other := Key(flow.TCP, a4, b4).Src, Key(flow.TCP, "10.0.0.5:1", b4).Src
	for _, c := range []struct {
		name     string
		src, dst string
		want     Path
	}{
		{"from the host", a4, b4, PassNew},
		{"to the host", b4, a4, PassNew},
		{"X-58: from the host to a pod that starts", a4, "10.0.0.5:1", PassNew},
		{"from a pod that starts to the host", "10.0.0.5:1", a4, DropUnknownLocal},
		{"from a pod that starts", "10.0.0.5:1", b4, DropUnknownLocal},
		{"to a pod that starts", b4, "10.0.0.5:1", DropUnknownLocal},
	} {
		x := newBench(t, Config{})
		d := &hostDriver{own: foot}
		x.w.driver = d
		for gen := uint64(1); gen < 3; gen++ {
			if _, err := x.e.Publish(&Stub{Gen: gen, Allowed: Always, Unknown: map[flow.Addr]bool{foot: true, other: true}}); err != nil {
				t.Fatal(err)
			}
			path, _ := x.feedTo(&d.quietDriver, Packet{Final: true, Frame: Segment(t, c.src, c.dst, Flags{SYN: true}, 1)})
			want := c.want
			if gen == 2 && want == PassNew {
				want = PassHit // it survived the update
			}
			if path != want {
				t.Errorf("%s, table %d: took %v, want %v", c.name, gen, path, want)
			}
		}
	}
}

// tunnelDriver knows of a VXLAN device.
type tunnelDriver struct{ hostDriver }

func (d *tunnelDriver) IsTunnel(proto flow.Proto, port uint16) bool {
	return proto == flow.UDP && port == 4789
}

// TestPodsToTunnels: no pod feeds a node's tunnel, whatever policy allows.
func TestPodsToTunnels(t *testing.T) {
	const pod, node, other = "10.0.0.5:9", "192.0.2.1", "192.0.2.2"
	addr := func(s string) flow.Addr { return Key(flow.UDP, s, b4).Src }
	for _, c := range []struct {
		name     string
		src, dst string
		toHost   bool
		want     Path
	}{
		{"to this node", pod, node + ":4789", false, DropTunnel},
		{"to an address of this node that the table does not have", pod, "192.0.2.77:4789", true, DropTunnel},
		{"to another node", pod, other + ":4789", false, DropTunnel},
		{"to another port of the node", pod, node + ":4790", false, PassNew},
		{"to somebody's server at that port", pod, "192.0.2.9:4789", false, PassNew},
		{"from another node", other + ":9", node + ":4789", false, PassNew},
	} {
		x := newBench(t, Config{})
		d := &tunnelDriver{hostDriver{own: addr(node + ":1")}}
		x.w.driver = d
		stub := &Stub{Gen: 1, Allowed: Always, Pods: map[flow.Addr]bool{addr(pod): true}, Nodes: map[flow.Addr]bool{addr(node + ":1"): true, addr(other + ":1"): true}}
		if _, err := x.e.Publish(stub); err != nil {
			t.Fatal(err)
		}
		path, _ := x.feedTo(&d.quietDriver, Packet{Final: true, ToHost: c.toHost, Frame: Datagram(t, c.src, c.dst)})
		if path != c.want {
			t.Errorf("%s: took %v, want %v", c.name, path, c.want)
		}
		events := x.events()
		if c.want == DropTunnel && (len(events) != 1 || events[0].Cause != CauseTunnel) {
			t.Errorf("%s: events %v", c.name, events)
		}
	}
}

// TestUnknownLocalCut: when a pod's address is nobody's any more its connections
// are cut, those of the host's own foot are not.
func TestUnknownLocalCut(t *testing.T) {
	x := newBench(t, Config{})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
		t.Fatal(err)
	}
	x.feed(Packet{Final: true, Frame: Datagram(t, a4, b4)})
	x.feed(Packet{Final: true, FromHost: true, Frame: Datagram(t, "10.0.0.1:7", b4)})
	x.feed(Packet{Final: true, ToHost: true, Frame: Datagram(t, b4, "10.0.0.1:8")})
	cut, err := x.e.Publish(&Stub{Gen: 2, Allowed: Always, Unknown: unknownEnd(Key(flow.TCP, a4, b4))})
	if err != nil || cut != 1 || len(x.keys()) != 2 {
		t.Errorf("cut %d (%v), alive %v", cut, err, x.keys())
	}
}

// TestICMPFollowsItsFlow: an ICMP error concerns who sent the packet it quotes,
// and an echo reply needs a request.
func TestICMPFollowsItsFlow(t *testing.T) {
	ack := Flags{ACK: true}
	quote4 := quoteOf(t, Segment(t, a4, b4, ack, 1))[4:]
	request4, reply4 := Message4(t, "10.0.0.1", "10.0.0.2", 8, 0, 7, nil), Message4(t, "10.0.0.2", "10.0.0.1", 0, 0, 7, nil)
	request6, reply6 := Message6(t, "fd00::1", "fd00::2", 128, 0, []byte{0, 7, 0, 1}), Message6(t, "fd00::2", "fd00::1", 129, 0, []byte{0, 7, 0, 1})
	other4, other6 := Message4(t, "10.0.0.2", "10.0.0.1", 0, 0, 8, nil), Message6(t, "fd00::2", "fd00::1", 129, 0, []byte{0, 8, 0, 1})
	for _, c := range []struct {
		name   string
		before []byte // sent first, allowed
		p      Packet
		want   Path
		cause  Cause // of the event, if dropped
	}{
		{"error to the sender", Segment(t, a4, b4, Flags{SYN: true}, 1), Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quote4)}, PassRelated, 0},
		{"error to a third party", nil, Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.7", 3, 4, 0, quote4)}, DropICMPInner, CauseICMPInner},
		{"error to a third party about a known flow", Segment(t, a4, b4, Flags{SYN: true}, 1), Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.7", 3, 4, 0, quote4)}, DropICMPInner, CauseICMPInner},
		{"error to the receiver", Segment(t, a4, b4, Flags{SYN: true}, 1), Packet{Final: true, Frame: Message4(t, "10.0.0.9", "10.0.0.2", 3, 4, 0, quote4)}, DropICMPInner, CauseICMPInner},
		{"error to a third party, v6", nil, Packet{Final: true, Frame: Message6(t, "fd00::9", "fd00::7", 2, 0, quoteOf(t, Datagram(t, a6, b6)))}, DropICMPInner, CauseICMPInner},
		{"echo reply", request4, Packet{Final: true, Frame: reply4}, PassHit, 0},
		{"echo reply, v6", request6, Packet{Final: true, Frame: reply6}, PassHit, 0},
		{"echo reply without request", nil, Packet{Final: true, Frame: reply4}, DropUnsolicited, CauseUnsolicited},
		{"echo reply without request, v6", nil, Packet{Final: true, Frame: reply6}, DropUnsolicited, CauseUnsolicited},
		{"echo reply to another request", request4, Packet{Final: true, Frame: other4}, DropUnsolicited, CauseUnsolicited},
		{"echo reply to another request, v6", request6, Packet{Final: true, Frame: other6}, DropUnsolicited, CauseUnsolicited},
		{"echo reply, a later hook may know", nil, Packet{Frame: reply4}, DeferDenied, 0},
		{"echo reply that the kernel knows", nil, Packet{Final: true, Reply: true, Frame: reply4}, PassNew, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, Config{})
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
				t.Fatal(err)
			}
			if c.before != nil {
				x.feed(Packet{Final: true, Frame: c.before})
			}
			if path, _ := x.feed(c.p); path != c.want {
				t.Errorf("took %v, want %v", path, c.want)
			}
			events := x.events()
			if c.want.Disposition() != DropPacket {
				if len(events) != 0 {
					t.Errorf("events %+v", events)
				}
			} else if len(events) != 1 || events[0].Cause != c.cause {
				t.Errorf("events %+v, want %v", events, c.cause)
			}
		})
	}
}

// TestFragments: where a later hook sees whole datagrams, no piece is judged
// before; where none does, what cannot be judged is dropped and counted, in
// whatever order the pieces come.
func TestFragments(t *testing.T) {
	whole := Datagram(t, a4, b4)
	first := append([]byte(nil), whole...)
	first = append(first, make([]byte, 4)...) // 16 bytes after the header: a multiple of 8
	first[3] += 4
	first[6] = 0x20 // more fragments
	later := append([]byte(nil), first...)
	later[6], later[7] = 0, 2
	for _, c := range []struct {
		name  string
		final bool
		order [][]byte
		want  []Path
	}{
		{"in order", false, [][]byte{first, later}, []Path{DeferFragment, DeferFragment}},
		{"the other way", false, [][]byte{later, first}, []Path{DeferFragment, DeferFragment}},
		{"final, in order", true, [][]byte{first, later}, []Path{PassNew, DropProblem}},
		{"final, the other way", true, [][]byte{later, first}, []Path{DropProblem, PassNew}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, Config{})
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
				t.Fatal(err)
			}
			for i, f := range c.order {
				if path, p := x.feed(Packet{Final: c.final, Frame: f}); path != c.want[i] {
					t.Errorf("piece %d took %v (%v), want %v", i, path, p.Problem, c.want[i])
				}
			}
			s := x.e.Stats()
			problems := uint64(0)
			for _, n := range s.Problems {
				problems += n
			}
			if problems != s.Paths[DropProblem]+s.Paths[DeferFragment] {
				t.Errorf("%d problems counted, paths %v", problems, s.Paths)
			}
		})
	}
}

// TestRememberDenials: the kernel may drop what nobody is to hear of.
func TestRememberDenials(t *testing.T) {
	for _, c := range []struct {
		name   string
		cfg    Config
		denial classifier.Verdict
		audit  bool
		want   bool
	}{
		{"silent", Config{}, classifier.Drop, false, true},
		{"reject", Config{}, classifier.Reject, false, false},
		{"the rule is audited", Config{}, classifier.Drop, true, false},
		{"every denial is recorded", Config{AuditDenies: true}, classifier.Drop, false, false},
		{"everything is recorded", Config{AuditAll: true}, classifier.Drop, false, false},
	} {
		x := newBench(t, c.cfg)
		if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Never, Denial: c.denial, Audit: c.audit}); err != nil {
			t.Fatal(err)
		}
		if _, p := x.feed(Packet{Final: true, Frame: Datagram(t, a4, b4)}); p.Remember != c.want || p.Disposition != DropPacket {
			t.Errorf("%s: remember %t, told %v", c.name, p.Remember, p.Disposition)
		}
	}
}

// TestReplyIsTold: the driver learns which way a known connection was opened.
func TestReplyIsTold(t *testing.T) {
	x := newBench(t, Config{})
	if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
		t.Fatal(err)
	}
	if _, p := x.feed(Packet{Frame: Datagram(t, a4, b4)}); p.Reply {
		t.Error("the first packet is a reply")
	}
	if _, p := x.feed(Packet{Frame: Datagram(t, b4, a4)}); !p.Reply {
		t.Error("the answer is no reply")
	}
	if _, p := x.feed(Packet{Frame: Datagram(t, a4, b4), Reply: true}); p.Reply {
		t.Error("a packet from the opener is a reply")
	}
}

// TestHostIsDeferred: before the later hook the host's address may be a node
// port, whose backend is not known yet.
func TestHostIsDeferred(t *testing.T) {
	for _, c := range []struct {
		src, dst string
		want     Path
	}{
		{a4, b4, DeferVIP},
		{b4, a4, DeferVIP},
		{b4, "10.0.0.5:1", PassNew},
	} {
		x := newBench(t, Config{})
		d := &hostDriver{own: Key(flow.TCP, a4, b4).Src}
		x.w.driver = d
		if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: Always}); err != nil {
			t.Fatal(err)
		}
		if path, _ := x.feedTo(&d.quietDriver, Packet{Frame: Segment(t, c.src, c.dst, Flags{SYN: true}, 1)}); path != c.want {
			t.Errorf("%s to %s: took %v, want %v", c.src, c.dst, path, c.want)
		}
	}
}

// networkDriver is a driver that knows a network of pods.
type networkDriver struct {
	Driver
	network netip.Prefix
}

func (d *networkDriver) IsPodNetwork(a flow.Addr) bool { return d.network.Contains(a.Netip()) }

// TestPodNetwork: what is opened to an address that a pod of this node may have, and no
// known pod or node has, is left to the later hook, or dropped where there is none.
func TestPodNetwork(t *testing.T) {
	syn := Flags{SYN: true}
	const unknown = "10.0.0.200:80"
	known := Key(flow.TCP, a4, b4).Dst
	for _, c := range []struct {
		name string
		cfg  Config
		stub *Stub
		p    Packet
		want Path
	}{
		{"a later hook", Config{}, &Stub{}, Packet{Frame: Segment(t, a4, unknown, syn, 1)}, DeferDenied},
		{"none", Config{}, &Stub{}, Packet{Final: true, Frame: Segment(t, a4, unknown, syn, 1)}, DropUnknownLocal},
		{"a known pod", Config{}, &Stub{Pods: map[flow.Addr]bool{known: true}}, Packet{Frame: Segment(t, a4, b4, syn, 1)}, PassNew},
		{"a node", Config{}, &Stub{Nodes: map[flow.Addr]bool{known: true}}, Packet{Frame: Segment(t, a4, b4, syn, 1)}, PassNew},
		{"the host", Config{}, &Stub{}, Packet{Final: true, ToHost: true, Frame: Segment(t, a4, unknown, syn, 1)}, PassNew},
		{"from the host", Config{}, &Stub{}, Packet{Final: true, FromHost: true, Frame: Segment(t, a4, unknown, syn, 1)}, PassNew},
		{"fail mode open", Config{FailMode: FailOpen}, &Stub{}, Packet{Frame: Segment(t, a4, unknown, syn, 1)}, PassNew},
		{"elsewhere", Config{}, &Stub{}, Packet{Frame: Segment(t, a4, "192.0.2.9:80", syn, 1)}, PassNew},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := newBench(t, c.cfg)
			x.w.driver = &networkDriver{x.w.driver, netip.MustParsePrefix("10.0.0.0/8")}
			c.stub.Gen, c.stub.Allowed = 1, Always
			if _, err := x.e.Publish(c.stub); err != nil {
				t.Fatal(err)
			}
			if path, _ := x.feed(c.p); path != c.want {
				t.Errorf("took %v, want %v", path, c.want)
			}
		})
	}
	// A connection to a pod that is gone is no longer in force.
	x := newBench(t, Config{})
	x.w.driver = &networkDriver{x.w.driver, netip.MustParsePrefix("10.0.0.0/8")}
	for gen, pods := range []map[flow.Addr]bool{{known: true}, {}} {
		if _, err := x.e.Publish(&Stub{Gen: uint64(gen + 1), Allowed: Always, Pods: pods}); err != nil {
			t.Fatal(err)
		}
		want := []Path{PassNew, DeferDenied}[gen]
		if path, _ := x.feed(Packet{Frame: Segment(t, a4, b4, syn, 1)}); path != want {
			t.Errorf("table %d: took %v, want %v", gen+1, path, want)
		}
	}
}
