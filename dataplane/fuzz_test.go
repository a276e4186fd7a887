package dataplane

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/oracle"
	"github.com/tierwall/tierwall/classifier/oracle/universe"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// stage is a world, and policies for it that follow each other.
type stage struct {
	world  *rule.World
	sets   []rule.Set
	tables []*classifier.Table
	steps  []Change
}

// newStage draws a stage. Its pods live in prefixes that hold more than them.
func newStage(tb testing.TB, seed uint64) *stage {
	r := rand.New(rand.NewPCG(seed, 9))
	all, world := universe.Random(r)
	if seed%2 == 0 {
		world.LocalPrefixes = []netip.Prefix{netip.MustParsePrefix("10.0.1.0/29"), netip.MustParsePrefix("fd00:1::/125")}
	}
	if seed%3 == 0 {
		world.VIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1")}
	}
	s := &stage{world: world}
	var c classifier.Compiler
	for gen := uint64(1); gen <= 4; gen++ {
		set := rule.Set{Rules: slices.Clone(all.Rules), Isolations: slices.Clone(all.Isolations)}
		if len(set.Rules) > 0 && gen%2 == 0 {
			set.Rules = slices.Delete(set.Rules, 0, r.IntN(len(set.Rules)))
		}
		if len(set.Isolations) > 0 && gen > 2 {
			set.Isolations = slices.Delete(set.Isolations, 0, r.IntN(len(set.Isolations)))
		}
		table, report, err := c.Compile(set, world, classifier.Options{Generation: gen})
		if err != nil {
			tb.Fatal(err)
		}
		s.sets, s.tables, s.steps = append(s.sets, set), append(s.tables, table), append(s.steps, ChangeOf(report))
	}
	return s
}

// byHost reports whether the packet says that its host opens, or has opened, the
// connection of k: one of the packet, or of the one that an error quotes.
func byHost(k flow.Key, p *Packet) bool {
	switch h := &p.Headers; {
	case k == h.Key:
		return p.FromHost
	case k == h.Key.Reverse():
		return p.ToHost
	default:
		return h.IsError && k.Src == h.Key.Dst && p.ToHost
	}
}

// allows is the slow answer about a connection that is opened in the direction of k,
// with what fail mode closed adds to it. What the host opens needs no policy.
func (s *stage) allows(gen int, mode FailMode, k flow.Key, p *Packet) bool {
	if byHost(k, p) {
		return true
	}
	if mode == FailClosed && !p.FromHost && !p.ToHost {
		if src, dst := s.tables[gen-1].UnknownLocal(k); src || dst {
			return false
		}
	}
	return oracle.Evaluate(&s.sets[gen-1], s.world, k).Verdict == classifier.Allow
}

// thirdPod reports whether an ICMP error was sent by a pod, or by an address that only
// a pod can have, to which its quote was not addressed: such an error is judged by who
// sends it to whom, whatever it quotes.
func (s *stage) thirdPod(gen int, p *Packet) bool {
	src := p.Headers.Key.Src
	if p.FromHost || src == p.Headers.Inner.Dst {
		return false
	}
	unknown, _ := s.tables[gen-1].UnknownLocal(p.Headers.Key)
	return unknown || s.tables[gen-1].IsPod(src)
}

// randomPacket makes a packet that means something, and then perhaps spoils it.
func randomPacket(r *rand.Rand, w *rule.World, known []flow.Key) Packet {
	k := universe.RandomKey(r, w)
	switch {
	case len(known) > 0 && r.IntN(2) == 0: // of a connection that was allowed
		k = known[r.IntN(len(known))]
		if r.IntN(2) == 0 {
			k = k.Reverse()
		}
	case k.Proto.HasPorts():
		k.SrcPort, k.DstPort = max(k.SrcPort, 1), max(k.DstPort, 1)
	}
	ip := rawPacket(k, uint8(r.IntN(64)), nil)
	if r.IntN(6) == 0 { // an error about it, to its source or to somebody
		router := universe.RandomKey(r, w)
		to := k.Src
		if r.IntN(4) == 0 {
			to = router.Dst
		}
		if router.Src.Is4() == k.Src.Is4() && to.Is4() == k.Src.Is4() {
			e := flow.Key{Src: router.Src, Dst: to, Proto: flow.ICMP, DstPort: flow.ICMPPort(3, 1)}
			if !k.Src.Is4() {
				e.Proto, e.DstPort = flow.ICMPv6, flow.ICMPPort(1, 0)
			}
			ip = rawPacket(e, 0, ip)
		}
	}
	switch r.IntN(12) {
	case 0:
		ip[r.IntN(len(ip))] ^= 1 << r.IntN(8)
	case 1:
		ip = ip[:r.IntN(len(ip)+1)]
	case 2:
		ip = append(ip, make([]byte, r.IntN(8))...)
	case 3:
		for i := range ip {
			ip[i] = byte(r.Uint32())
		}
	}
	p := Packet{Frame: ip, Final: r.IntN(3) > 0, Reply: r.IntN(8) == 0, Related: r.IntN(8) == 0, FromHost: r.IntN(16) == 0, ToHost: r.IntN(16) == 0}
	p.Onward = p.Final && r.IntN(8) == 0
	if real := universe.RandomKey(r, w); r.IntN(8) == 0 && real.Proto == k.Proto && real.Src.Is4() == k.Src.Is4() {
		p.Real = real
	}
	if r.IntN(4) == 0 {
		etherType := uint16(0x0800)
		if len(ip) > 0 && ip[0]>>4 == 6 {
			etherType = 0x86dd
		}
		p.L2, p.Frame = true, append(binary.BigEndian.AppendUint16([]byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}, etherType), ip...)
	}
	return p
}

// rawPacket builds a packet with the key; flags are TCP's. Checksums are zero.
func rawPacket(k flow.Key, flags uint8, payload []byte) []byte {
	var l4 []byte
	switch k.Proto {
	case flow.TCP:
		l4 = make([]byte, 20)
		l4[12], l4[13] = 5<<4, flags
	case flow.UDP:
		l4 = make([]byte, 8)
		binary.BigEndian.PutUint16(l4[4:], uint16(8+len(payload)))
	case flow.ICMP, flow.ICMPv6:
		l4 = make([]byte, 8)
		binary.BigEndian.PutUint16(l4, k.DstPort)
		binary.BigEndian.PutUint16(l4[4:], k.SrcPort)
	default:
		l4 = make([]byte, 12)
	}
	if k.Proto.HasPorts() {
		binary.BigEndian.PutUint16(l4, k.SrcPort)
		binary.BigEndian.PutUint16(l4[2:], k.DstPort)
	}
	l4 = append(l4, payload...)
	if k.Src.Is4() {
		ip := make([]byte, 20, 20+len(l4))
		ip[0], ip[8], ip[9] = 0x45, 64, uint8(k.Proto)
		binary.BigEndian.PutUint16(ip[2:], uint16(20+len(l4)))
		copy(ip[12:], k.Src[12:])
		copy(ip[16:], k.Dst[12:])
		return append(ip, l4...)
	}
	ip := make([]byte, 40, 40+len(l4))
	ip[0], ip[6], ip[7] = 0x60, uint8(k.Proto), 64
	binary.BigEndian.PutUint16(ip[4:], uint16(len(l4)))
	copy(ip[8:], k.Src[:])
	copy(ip[24:], k.Dst[:])
	return append(ip, l4...)
}

// FuzzReceive runs bytes through everything between a driver's Recv and its
// Apply, with tables that come and change on the way, and checks what must hold
// whatever arrives: nothing panics, what the oracle denies does not pass, what is
// deferred is not final or is seen again, nothing is remembered that does not pass, every packet is
// on one path, and a packet seen before costs no allocation.
func FuzzReceive(f *testing.F) {
	stages := make([]*stage, 24)
	for i := range stages {
		stages[i] = newStage(f, uint64(i))
	}
	for i := range 24 {
		f.Add(uint8(i), []byte{byte(i), 3, 200, byte(17 * i)})
	}
	f.Fuzz(func(t *testing.T, which uint8, data []byte) {
		r := universe.FromBytes(data)
		s := stages[int(which)%len(stages)]
		mode := FailMode(which / 128)
		x, d := newRejecter(t, Config{FailMode: mode, CutReset: which&64 != 0, RingSize: 8, Conntrack: conntrack.Limits{Records: 6}})
		var known []flow.Key         // every connection that was ever allowed, as it was opened
		hosts := map[flow.Key]bool{} // those of them that the host opened
		gen := 0
		for range 24 {
			if x.now += int64(r.IntN(1000)) * int64(time.Millisecond); r.IntN(6) == 0 && gen < len(s.tables) {
				gen++
				change := s.steps[gen-1]
				if r.IntN(4) == 0 {
					change = Change{}
				}
				if _, err := x.e.SetTable(s.tables[gen-1], change); err != nil {
					t.Fatal(err)
				}
				x.e.Flows(func(_ string, rec conntrack.Record) bool {
					if rec.Host == 0 && !s.allows(gen, mode, rec.Key, &Packet{}) {
						t.Fatalf("%v is alive after table %d", rec.Key, gen)
					}
					return true
				})
			}
			p := randomPacket(r, s.world, known)
			d.answer = d.answer[:0]
			path, out := x.feedTo(&d.quietDriver, p)
			h := &out.Headers
			switch {
			case out.Disposition != path.Disposition():
				t.Fatalf("%v: the driver was told %v", path, out.Disposition)
			case out.Disposition == DeferPacket && p.Final && !p.onward():
				t.Fatalf("%v of a final packet", path)
			case out.Remember && out.Disposition != PassPacket && (path != DropPolicy || out.Verdict != classifier.Drop || len(d.answer) > 0):
				t.Fatalf("%v with verdict %v is remembered", path, out.Verdict)
			case (out.Verdict == classifier.Allow) != (out.Disposition == PassPacket):
				t.Fatalf("%v with verdict %v", path, out.Verdict)
			case out.Disposition == PassPacket && out.Problem != packet.OK && path != PassNotIP:
				t.Fatalf("%v of a packet that is %v", path, out.Problem)
			case len(d.answer) > 0 && out.Disposition != DropPacket:
				t.Fatalf("%v is answered", path)
			case gen == 0 && out.Disposition == PassPacket && path != PassNotIP && path != PassLinkLocal && (path != PassNotReady || mode != FailOpen):
				t.Fatalf("%v before the first table", path)
			}
			opened := h.Key
			if p.Reply {
				opened = opened.Reverse()
			}
			switch path {
			case PassNew:
				if !s.allows(gen, mode, opened, &out) {
					t.Fatalf("%v passes as a new connection; table %d denies it", opened, gen)
				}
				if isEchoReply(&opened) {
					t.Fatalf("%v opens a connection", opened)
				}
				known = append(known, opened)
				hosts[opened] = hosts[opened] || byHost(opened, &out)
			case PassHit, PassRejudged:
				if !slices.ContainsFunc(known, func(k flow.Key) bool {
					// With one end the host's the record knew more than a packet tells.
					return (k == h.Key || k == h.Key.Reverse()) && (hosts[k] || s.allows(gen, FailOpen, k, &out))
				}) {
					t.Fatalf("%v: %v was never opened, or is denied by table %d", path, h.Key, gen)
				}
			case PassRelated:
				by, third := h.Key, s.thirdPod(gen, &out) // by is what may have been judged
				switch {
				case third:
				case p.Related && p.Reply:
					by = h.Inner
				case p.Related:
					by = h.Inner.Reverse()
				}
				if h.Inner.Src != h.Key.Dst || !s.allows(gen, FailOpen, by, &out) && !slices.ContainsFunc(known, func(k flow.Key) bool {
					return (k == h.Inner || k == h.Inner.Reverse()) && (hosts[k] || s.allows(gen, FailOpen, k, &out)) &&
						(!third || k.Src == h.Key.Src || k.Dst == h.Key.Src)
				}) {
					t.Fatalf("an error to %v about %v passes", h.Key.Dst, h.Inner)
				}
			case DropPolicy:
				if s.allows(gen, mode, opened, &out) {
					t.Fatalf("%v is dropped; table %d allows it", opened, gen)
				}
			}
		}
		if which%32 == 0 {
			secondTime(t, x, randomPacket(r, s.world, known))
		}
	})
}

// secondTime checks that a packet whose like was seen costs no allocation. Only
// adding a connection may, and cells of a table that nobody looked at before.
func secondTime(t *testing.T, x *bench, p Packet) {
	var b Batch
	process := func() Path {
		before := x.w.count.paths
		b.Packets[0], b.N = p, 1
		x.w.process(&b)
		for i := range before {
			if x.w.count.paths[i] != before[i] {
				return Path(i)
			}
		}
		return 0
	}
	process()
	var before, after runtime.MemStats
	least := ^uint64(0)
	for range 3 { // the test's own goroutines may allocate as well
		runtime.ReadMemStats(&before)
		path := process()
		runtime.ReadMemStats(&after)
		if path == PassNew {
			return
		}
		least = min(least, after.Mallocs-before.Mallocs)
	}
	if least != 0 {
		t.Fatalf("%d allocations", least)
	}
}
