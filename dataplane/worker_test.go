package dataplane

import (
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

// TestNoAllocations walks every branch of the packet path with full batches.
func TestNoAllocations(t *testing.T) {
	ack, syn := Flags{ACK: true}, Flags{SYN: true}
	vip := map[flow.Addr]bool{Key(flow.TCP, "10.9.9.9:1", b4).Src: true}
	unknown := map[flow.Addr]bool{Key(flow.TCP, "10.8.8.8:1", b4).Src: true}
	later := Raw(t, "10.0.0.1", "10.0.0.2", 17, make([]byte, 16))
	later[7] = 10
	icmp := func(inner []byte) []byte { return Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, quoteOf(t, inner)[4:]) }
	onlyPort80 := func(k flow.Key) bool { return k.DstPort == 80 }

	for _, c := range []struct {
		name  string
		want  Path
		p     Packet
		cfg   Config
		stub  *Stub
		stale bool // make the records belong to an older table
	}{
		{name: "not ip", want: PassNotIP, p: Packet{L2: true, Frame: append(make([]byte, 12), 8, 6)}},
		{name: "link local", want: PassLinkLocal, p: Packet{Frame: Message6(t, "fe80::1", "ff02::1", 135, 0, make([]byte, 20))}},
		{name: "router advertisement", want: DropRouterMessage, p: Packet{Frame: Message6(t, "fe80::1", "ff02::1", 134, 0, make([]byte, 12))}},
		{name: "hit", want: PassHit, p: Packet{Frame: Segment(t, a4, b4, ack, 1)}},
		{name: "hit, reply", want: PassHit, p: Packet{Frame: Segment(t, b4, a4, ack, 1)}},
		{name: "rejudged", want: PassRejudged, p: Packet{Frame: Segment(t, a4, b4, ack, 1)}, stale: true},
		{name: "kept", want: PassKept, p: Packet{Frame: Segment(t, a4, b4, ack, 1)}, cfg: Config{Established: Keep}, stale: true},
		{name: "related", want: PassRelated, p: Packet{Frame: icmp(Segment(t, a4, b4, ack, 1))}},
		{name: "not ready, open", want: PassNotReady, p: Packet{Final: true, Frame: Datagram(t, a4, b4)}, cfg: Config{FailMode: FailOpen}, stub: nil},
		{name: "not ready, deferred", want: DeferNotReady, p: Packet{Frame: Datagram(t, a4, b4)}, cfg: Config{FailMode: FailOpen}},
		{name: "not ready, closed", want: DropNotReady, p: Packet{Frame: Datagram(t, a4, b4)}},
		{name: "fragment", want: DeferFragment, p: Packet{Frame: later}},
		{name: "vip", want: DeferVIP, p: Packet{Frame: Segment(t, a4, "10.9.9.9:80", syn, 1)}},
		{name: "denied, deferred", want: DeferDenied, p: Packet{Frame: Datagram(t, a4, "10.0.0.2:81")}},
		{name: "related, deferred", want: DeferRelated, p: Packet{Frame: icmp(Datagram(t, a4, "10.0.0.2:81"))}},
		{name: "malformed", want: DropProblem, p: Packet{Frame: []byte{0x45}}},
		{name: "denied", want: DropPolicy, p: Packet{Final: true, Frame: Datagram(t, a4, "10.0.0.2:81")}, cfg: Config{AuditDenies: true}},
		{name: "error denied", want: DropRelated, p: Packet{Final: true, Frame: icmp(Datagram(t, a4, "10.0.0.2:81"))}, cfg: Config{AuditDenies: true}},
		{name: "unknown local", want: DropUnknownLocal, p: Packet{Final: true, Frame: Datagram(t, "10.8.8.8:1", b4)}},
		{name: "echo reply unasked for", want: DropUnsolicited, p: Packet{Final: true, Frame: Message4(t, "10.0.0.1", "10.0.0.2", 0, 0, 7, nil)}},
		{name: "error unreadable", want: DropICMPInner, p: Packet{Frame: Message4(t, "10.0.0.9", "10.0.0.1", 3, 4, 0, nil)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.cfg.RingSize = 64 // overflows: losing events must not allocate either
			x := newBench(t, c.cfg)
			if c.want != PassNotReady && c.want != DeferNotReady && c.want != DropNotReady {
				stub := &Stub{Gen: 1, Allowed: onlyPort80, VIPs: vip, Unknown: unknown, Quiet: true}
				if _, err := x.e.Publish(stub); err != nil {
					t.Fatal(err)
				}
				x.feed(Packet{Frame: Segment(t, a4, b4, syn, 1)})
			}
			var b Batch
			for i := range b.Packets {
				b.Packets[i] = c.p
			}
			b.N = BatchSize
			next := 0
			const tries = 3
			snaps := [tries * 21]*snapshot{} // one per run, with the first that is not measured
			if c.stale {
				for i := range snaps {
					stub := &Stub{Gen: uint64(2 + i), Allowed: onlyPort80, Quiet: true}
					snaps[i] = &snapshot{classifier: stub, generation: stub.Gen}
				}
			}
			var before uint64
			allocs := 1.0
			// The runtime and what earlier tests left behind allocate, too, but not
			// every time.
			for try := 0; try < tries && allocs != 0; try++ {
				before = x.w.count.paths[c.want]
				allocs = testing.AllocsPerRun(20, func() {
					if c.stale {
						x.e.current.Store(snaps[next])
						next++
					}
					x.now += int64(time.Millisecond)
					x.w.process(&b)
				})
			}
			if allocs != 0 {
				t.Errorf("%v allocations per batch", allocs)
			}
			if c.want == PassRejudged {
				// The first packet of each batch is, the rest are hits.
				if n := x.w.count.paths[c.want] - before; n != 21 {
					t.Errorf("%d packets took the path, want one per batch", n)
				}
			} else if n := x.w.count.paths[c.want] - before; n != 21*BatchSize {
				t.Errorf("%d packets took the path, want all %d", n, 21*BatchSize)
			}
			x.check()
		})
	}
}

// BenchmarkWorker is the cost per packet of a full batch, parse to counters,
// with a driver and a classifier that cost nothing.
func BenchmarkWorker(b *testing.B) {
	seg := Segment(b, a4, b4, Flags{ACK: true}, 1)
	for _, c := range []struct {
		name    string
		cfg     Config
		allowed func(flow.Key) bool
		audit   bool
		miss    bool
	}{
		{name: "hit", allowed: Always},
		{name: "miss", allowed: Always, miss: true},
		{name: "drop", allowed: Never},
		{name: "audited", allowed: Never, audit: true},
	} {
		b.Run(c.name, func(b *testing.B) {
			x := newBench(b, c.cfg)
			if _, err := x.e.Publish(&Stub{Gen: 1, Allowed: c.allowed, Audit: c.audit, Quiet: true}); err != nil {
				b.Fatal(err)
			}
			var batch Batch
			batch.N = BatchSize
			frames := make([][]byte, BatchSize)
			for i := range frames {
				frames[i] = append([]byte(nil), seg...)
				batch.Packets[i] = Packet{Frame: frames[i], Final: true}
			}
			drain := make([]Event, 256)
			n := uint32(0)
			b.ReportAllocs()
			b.ResetTimer()
			for i := 0; i < b.N; i += BatchSize {
				if c.miss {
					for _, f := range frames { // a new tuple each: 32 bits of source address and port
						n++
						f[13], f[14], f[20], f[21] = byte(n>>24), byte(n>>16), byte(n>>8)|0x80, byte(n)
					}
				}
				x.now += int64(time.Microsecond)
				x.w.process(&batch)
				if c.audit {
					for x.w.ring.Drain(drain) > 0 {
					}
				}
			}
			b.StopTimer()
			x.check()
		})
	}
}
