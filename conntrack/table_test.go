package conntrack

import (
	"encoding/binary"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
)

const second = int64(time.Second)

// noon is some time; nothing depends on which.
const noon = 1_700_000_000 * second

func tcpPacket(k flow.Key, flags uint8, seq uint32) *Packet {
	return &Packet{Key: k, Length: 60, TCPFlags: flags, TCPSeq: seq}
}

// forget removes the connection that k belongs to, in either direction and however old.
func forget(tab *Table, k flow.Key) bool {
	tab.mu.Lock()
	key := canonical(k)
	s, ok := tab.find(&key, tab.index.hash(&key))
	var rec Record
	if ok {
		rec = *tab.at(s)
	}
	tab.mu.Unlock()
	return ok && tab.Forget(&rec)
}

// numbered returns the i-th of many distinct keys.
func numbered(i int) flow.Key {
	k := key(flow.UDP, "10.0.0.1:1000", "10.1.0.0:53")
	binary.BigEndian.PutUint32(k.Dst[12:], 10<<24|1<<16+uint32(i))
	return k
}

func TestConnection(t *testing.T) {
	for _, k := range []flow.Key{
		key(flow.TCP, "10.0.0.1:1000", "10.0.0.2:80"),
		key(flow.TCP, "10.0.0.2:1000", "10.0.0.1:80"), // the lesser address answers
		key(flow.TCP, "[fd00::1]:1000", "[fd00::2]:80"),
		key(flow.TCP, "10.0.0.1:1000", "10.0.0.1:80"), // a pod to itself
	} {
		tab := New(Limits{Worker: 3})
		var rec Record
		if got := tab.Seen(tcpPacket(k, syn, 7), noon, &rec); got != Miss || rec != (Record{}) {
			t.Fatalf("%v: empty table: %v %+v", k, got, rec)
		}
		adm := Admission{Generation: 5, Egress: 11, Ingress: 12, Device: 4, Verdict: 1, Recorded: true}
		id := tab.Insert(k, tcpPacket(k, syn, 7), adm, noon)
		if id != 3<<48+1 {
			t.Errorf("%v: ID %#x", k, id)
		}
		steps := []struct {
			packet *Packet
			result Result
			state  State
		}{
			{tcpPacket(k, syn, 7), Hit, SynSent},
			{tcpPacket(k.Reverse(), syn|ack, 9), HitReply, SynRecv},
			{tcpPacket(k, ack, 8), Hit, Established},
			{tcpPacket(k.Reverse(), ack, 10), HitReply, Established},
		}
		for i, s := range steps {
			now := noon + int64(i+1)*second
			if got := tab.Seen(s.packet, now, &rec); got != s.result || rec.State != s.state || rec.LastSeen != now {
				t.Fatalf("%v: step %d: %v %+v", k, i, got, rec)
			}
		}
		want := Record{
			Admission: adm, ID: id, Since: noon, LastSeen: noon + 4*second,
			Packets: [2]uint64{3, 2}, Bytes: [2]uint64{180, 120}, ISN: 7, Key: k, State: Established,
		}
		if rec != want {
			t.Errorf("%v:\n got %+v\nwant %+v", k, rec, want)
		}
		if got, reply, ok := tab.Lookup(k.Reverse(), noon); !ok || !reply || got != want {
			t.Errorf("%v: lookup of the reverse: %v %v %+v", k, ok, reply, got)
		}
		if got := (Stats{Records: 1, Inserted: 1, Hits: 4, Misses: 1}); tab.Stats() != got {
			t.Errorf("%v: stats %+v, want %+v", k, tab.Stats(), got)
		}
	}
}

func TestReopened(t *testing.T) {
	tab := New(Limits{})
	k := key(flow.TCP, "10.0.0.1:1000", "10.0.0.2:80")
	var rec Record
	first := tab.Insert(k, tcpPacket(k, syn, 7), Admission{Generation: 1}, noon)
	tab.Seen(tcpPacket(k.Reverse(), rst|ack, 0), noon, &rec)
	if rec.State != Closed {
		t.Fatalf("state %v", rec.State)
	}
	again := tcpPacket(k, syn, 7777)
	for range 2 { // the table is unchanged until Insert, so the second SYN says the same
		if got := tab.Seen(again, noon+second, &rec); got != Reopened || got.Found() || rec.ID != first {
			t.Fatalf("SYN on a closed tuple: %v %+v", got, rec)
		}
	}
	next := tab.Insert(k, again, Admission{Generation: 2}, noon+second)
	if got := tab.Seen(tcpPacket(k, ack, 7778), noon+2*second, &rec); got != Hit || rec.ID != next || rec.ISN != 7777 || rec.Since != noon+1*second || rec.Packets != [2]uint64{2, 0} {
		t.Errorf("new connection: %v %+v", got, rec)
	}
	// The other way round: the new connection's opener is the old one's replier.
	back := tcpPacket(k.Reverse(), syn, 1)
	if got := tab.Seen(back, noon+2*second, &rec); got != Reopened {
		t.Fatalf("SYN from the other side: %v", got)
	}
	tab.Insert(k.Reverse(), back, Admission{}, noon+2*second)
	if got := tab.Seen(tcpPacket(k, syn|ack, 1), noon+2*second, &rec); got != HitReply || rec.Key != k.Reverse() || tab.Len() != 1 {
		t.Errorf("turned around: %v %+v, %d records", got, rec, tab.Len())
	}
	if s := tab.Stats(); s.Replaced != 2 || s.Inserted != 3 {
		t.Errorf("stats %+v", s)
	}
}

// The first packet may come from the replier (known from the kernel).
func TestInsertFromReply(t *testing.T) {
	tab := New(Limits{})
	k := key(flow.TCP, "10.0.0.9:1000", "10.0.0.2:80")
	tab.Insert(k, tcpPacket(k.Reverse(), syn|ack, 99), Admission{}, noon)
	rec, reply, ok := tab.Lookup(k, noon)
	if !ok || reply || rec.Key != k || rec.State != SynRecv || rec.ISN != 0 || rec.Packets != [2]uint64{0, 1} {
		t.Errorf("%v %v %+v", ok, reply, rec)
	}
}

func TestInsertInvalidKey(t *testing.T) {
	tab := New(Limits{})
	if id := tab.Insert(flow.Key{}, &Packet{}, Admission{}, noon); id != 0 || tab.Len() != 0 || tab.Stats().Inserted != 0 {
		t.Errorf("invalid key stored: id %d, %+v", id, tab.Stats())
	}
}

// What may and may not pass for a reply.
func TestReplies(t *testing.T) {
	request := echo(flow.ICMP, "10.0.0.1", "10.0.0.2", 8, 5)
	request6 := echo(flow.ICMPv6, "fd00::2", "fd00::1", 128, 5)
	timestamp := echo(flow.ICMP, "10.0.0.1", "10.0.0.2", 13, 0)
	swap := func(k flow.Key) flow.Key { k.Src, k.Dst = k.Dst, k.Src; return k }
	otherID := request.Reverse()
	otherID.SrcPort++
	tests := []struct {
		name   string
		opened flow.Key
		packet flow.Key
		want   Result
	}{
		{"echo reply", request, request.Reverse(), HitReply},
		{"v6 echo reply", request6, request6.Reverse(), HitReply},
		{"echo reply of another identifier", request, otherID, Miss},
		{"echo request from the other side", request, swap(request), Miss},
		{"echo request after an unasked reply", request.Reverse(), request, Reopened},
		{"v6 echo request after an unasked reply", request6.Reverse(), request6, Reopened},
		{"one-way ICMP", timestamp, swap(timestamp), Miss},
		{"one-way ICMP again", timestamp, timestamp, Hit},
		{"IGMP", echo(flow.IGMP, "10.0.0.1", "10.0.0.2", 0x16, 0), echo(flow.IGMP, "10.0.0.2", "10.0.0.1", 0x16, 0), Miss},
		{"UDP", key(flow.UDP, "10.0.0.1:5", "10.0.0.2:6"), key(flow.UDP, "10.0.0.2:6", "10.0.0.1:5"), HitReply},
		{"UDP from another port", key(flow.UDP, "10.0.0.1:5", "10.0.0.2:6"), key(flow.UDP, "10.0.0.2:7", "10.0.0.1:5"), Miss},
		{"same ports, other protocol", key(flow.UDP, "10.0.0.1:5", "10.0.0.2:6"), key(flow.SCTP, "10.0.0.2:6", "10.0.0.1:5"), Miss},
		{"GRE", echo(47, "10.0.0.1", "10.0.0.2", 0, 0), echo(47, "10.0.0.2", "10.0.0.1", 0, 0), HitReply},
		{"same address and port", key(flow.UDP, "10.0.0.1:5", "10.0.0.1:5"), key(flow.UDP, "10.0.0.1:5", "10.0.0.1:5"), Hit},
	}
	for _, tt := range tests {
		tab := New(Limits{})
		tab.Insert(tt.opened, &Packet{Key: tt.opened}, Admission{}, noon)
		var rec Record
		if got := tab.Seen(&Packet{Key: tt.packet}, noon, &rec); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestExpiry(t *testing.T) {
	k := numbered(1)
	limit := int64(DefaultTimeouts().UDPUnreplied)
	fresh := func() *Table {
		tab := New(Limits{})
		tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
		return tab
	}
	var rec Record

	tab := fresh()
	if got := tab.Seen(&Packet{Key: k}, noon+limit, &rec); got != Hit {
		t.Errorf("at its timeout: %v", got)
	}
	if got := tab.Seen(&Packet{Key: k}, noon+2*limit, &rec); got != Hit {
		t.Errorf("a packet did not renew the record: %v", got)
	}
	tab = fresh()
	if got := tab.Seen(&Packet{Key: k}, noon+limit+1, &rec); got != Miss {
		t.Errorf("past its timeout: %v", got)
	}
	if s := tab.Stats(); s.Expired != 1 || s.Records != 0 {
		t.Errorf("stats %+v", s)
	}
	tab = fresh()
	if _, _, ok := tab.Lookup(k, noon+limit+1); ok || tab.Len() != 1 {
		t.Errorf("Lookup past the timeout: found %v, %d records", ok, tab.Len())
	}
	if n := tab.Expire(noon+limit, 100); n != 0 {
		t.Errorf("swept %d at the timeout", n)
	}
	if n := tab.Expire(noon+limit+1, 100); n != 1 || tab.Len() != 0 {
		t.Errorf("swept %d past the timeout, %d left", n, tab.Len())
	}
	// A clock that steps back forgets nothing and takes no time back.
	tab = fresh()
	if got := tab.Seen(&Packet{Key: k}, noon-3600*second, &rec); got != Hit || rec.LastSeen != noon {
		t.Errorf("clock stepped back: %v, last seen %d", got, rec.LastSeen)
	}
}

// Small sweeps reach every slot in turn, whatever the step.
func TestExpireIsIncremental(t *testing.T) {
	const n = 5*blockSize + 7
	for _, step := range []int{1, 13, blockSize, blockSize + 1, 3 * n} {
		tab := New(Limits{Records: n})
		for i := range n {
			tab.Insert(numbered(i), &Packet{Key: numbered(i)}, Admission{}, noon)
		}
		late := noon + 3600*second
		for i := 0; i < n; i += 2 { // every other one is renewed
			tab.Insert(numbered(i), &Packet{Key: numbered(i)}, Admission{}, late)
		}
		swept := 0
		for examined := 0; examined < n; examined += step {
			got := tab.Expire(late, step)
			if got > step {
				t.Fatalf("step %d: one call swept %d", step, got)
			}
			swept += got
		}
		if swept != n/2 || tab.Len() != n-n/2 {
			t.Errorf("step %d: swept %d of %d, %d left", step, swept, n/2, tab.Len())
		}
		if s := tab.Stats(); s.Expired != uint64(swept) {
			t.Errorf("step %d: stats %+v", step, s)
		}
	}
	if n := New(Limits{}).Expire(noon, 1000); n != 0 {
		t.Errorf("swept %d of nothing", n)
	}
	if n := New(Limits{}).Expire(noon, -1); n != 0 {
		t.Errorf("swept %d with a negative limit", n)
	}
}

// The connection idle for longest goes first; being looked at is not activity.
func TestEviction(t *testing.T) {
	tab := New(Limits{Records: 3})
	var rec Record
	for i := range 3 {
		tab.Insert(numbered(i), &Packet{Key: numbered(i)}, Admission{}, noon+int64(i))
	}
	tab.Seen(&Packet{Key: numbered(0).Reverse()}, noon+3, &rec)
	tab.Lookup(numbered(1), noon+4)
	tab.Each(func(Record) bool { return true })
	tab.Insert(numbered(3), &Packet{Key: numbered(3)}, Admission{}, noon+5)
	var left []int
	for i := range 4 {
		if _, _, ok := tab.Lookup(numbered(i), noon+6); ok {
			left = append(left, i)
		}
	}
	if !slices.Equal(left, []int{0, 2, 3}) {
		t.Errorf("left after eviction: %v", left)
	}
	if s := tab.Stats(); s.Evicted != 1 || s.Records != 3 {
		t.Errorf("stats %+v", s)
	}
	// A replaced connection is as fresh as a new one.
	tab.Insert(numbered(2), &Packet{Key: numbered(2)}, Admission{}, noon+7)
	tab.Insert(numbered(4), &Packet{Key: numbered(4)}, Admission{}, noon+8)
	if _, _, ok := tab.Lookup(numbered(2), noon+9); !ok {
		t.Error("the connection inserted last but one was evicted first")
	}
	if _, _, ok := tab.Lookup(numbered(0), noon+9); ok {
		t.Error("the connection idle for longest is still there")
	}
}

func TestRestampAndForget(t *testing.T) {
	tab := New(Limits{})
	k := numbered(1)
	tab.Insert(k, &Packet{Key: k}, Admission{Generation: 1}, noon)
	old, _, _ := tab.Lookup(k, noon)
	rec := old
	if !tab.Restamp(&rec, Admission{Generation: 2, Egress: 9}) || rec.Generation != 2 || rec.Egress != 9 {
		t.Fatalf("restamp: %+v", rec)
	}
	if got, _, _ := tab.Lookup(k, noon); got != rec {
		t.Errorf("table has %+v, copy says %+v", got, rec)
	}
	// A copy from before the restamp has lost its say.
	stale := old
	if tab.Restamp(&stale, Admission{Generation: 3}) || stale != old {
		t.Error("stale copy restamped")
	}
	if tab.Forget(&old) || tab.Len() != 1 {
		t.Error("stale copy removed the record")
	}
	// So has a copy of an earlier connection on the tuple.
	tab.Insert(k, &Packet{Key: k}, Admission{Generation: 2}, noon)
	if tab.Forget(&rec) || tab.Restamp(&rec, Admission{}) {
		t.Error("copy of the replaced connection had effect")
	}
	rec, _, _ = tab.Lookup(k, noon)
	if !tab.Forget(&rec) || tab.Len() != 0 || tab.Forget(&rec) {
		t.Error("forget of the current copy")
	}
	tab.Insert(k, &Packet{Key: k}, Admission{}, noon)
	if !forget(tab, k.Reverse()) || forget(tab, k) {
		t.Error("remove by the reverse key")
	}
	if s := tab.Stats(); s.Removed != 2 || s.Records != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestEach(t *testing.T) {
	const n = 3*blockSize + 5
	tab := New(Limits{Records: n})
	for i := range n {
		tab.Insert(numbered(i), &Packet{Key: numbered(i)}, Admission{}, noon)
	}
	for i := 0; i < n; i += 3 {
		forget(tab, numbered(i))
	}
	seen := map[flow.Key]int{}
	tab.Each(func(r Record) bool { seen[r.Key]++; return true })
	for i := range n {
		want := 1
		if i%3 == 0 {
			want = 0
		}
		if seen[numbered(i)] != want {
			t.Errorf("record %d visited %d times, want %d", i, seen[numbered(i)], want)
		}
	}
	visits := 0
	tab.Each(func(Record) bool { visits++; return visits < 10 })
	if visits != 10 {
		t.Errorf("%d visits after fn said stop at 10", visits)
	}
	// fn may change the table it walks.
	tab.Each(func(r Record) bool {
		if !tab.Forget(&r) {
			t.Errorf("%v could not be removed from inside", r.Key)
		}
		return true
	})
	if tab.Len() != 0 {
		t.Errorf("%d left", tab.Len())
	}
}

// A worker and a control goroutine at once; the race detector is the judge, and
// the books must balance at the end.
func TestConcurrent(t *testing.T) {
	tab := New(Limits{Records: 200})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for generation := uint64(1); ; generation++ {
			tab.Each(func(r Record) bool {
				if r.ID == 0 || !r.Key.Valid() || r.Packets[FromOpener] == 0 {
					t.Errorf("half a record: %+v", r)
				}
				if r.ID%5 == 0 {
					tab.Forget(&r)
				} else {
					a := r.Admission
					a.Generation = generation
					tab.Restamp(&r, a)
				}
				return true
			})
			tab.Stats()
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	var rec Record
	for i := range 20000 {
		k := numbered(i * 7919 % 400)
		p := &Packet{Key: k}
		if tab.Seen(p, noon+int64(i)*second/10, &rec) == Miss {
			tab.Insert(k, p, Admission{}, noon+int64(i)*second/10)
		}
		tab.Expire(noon+int64(i)*second/10, 8)
	}
	close(stop)
	wg.Wait()
	checkBooks(t, tab)
}

func checkBooks(t *testing.T, tab *Table) {
	t.Helper()
	s := tab.Stats()
	if want := s.Inserted - s.Replaced - s.Evicted - s.Expired - s.Removed; uint64(s.Records) != want {
		t.Errorf("books do not balance: %+v leaves %d", s, want)
	}
	n := 0
	tab.Each(func(Record) bool { n++; return true })
	if n != s.Records || tab.used-len(tab.free) != n {
		t.Errorf("index has %d records, slots %d, of which visited %d", s.Records, tab.used-len(tab.free), n)
	}
}

func TestPathAllocatesNothing(t *testing.T) {
	tab := New(Limits{})
	udp := numbered(1)
	conn := key(flow.TCP, "[fd00::1]:1000", "[fd00::2]:80")
	tab.Insert(udp, &Packet{Key: udp}, Admission{}, noon)
	tab.Insert(conn, tcpPacket(conn, syn, 7), Admission{}, noon)
	full := New(Limits{Records: 100})
	next := 0
	for ; next < 200; next++ {
		full.Insert(numbered(next), &Packet{Key: numbered(next)}, Admission{}, noon)
	}
	var rec Record
	for name, f := range map[string]func(){
		"hit":      func() { tab.Seen(&Packet{Key: udp}, noon, &rec) },
		"reply":    func() { tab.Seen(&Packet{Key: udp.Reverse()}, noon, &rec) },
		"miss":     func() { tab.Seen(&Packet{Key: numbered(2)}, noon, &rec) },
		"tcp":      func() { tab.Seen(&Packet{Key: conn.Reverse(), TCPFlags: syn | ack}, noon, &rec) },
		"reopened": func() { tab.Seen(&Packet{Key: conn, TCPFlags: syn, TCPSeq: 8}, noon, &rec) },
		"lookup":   func() { tab.Lookup(udp, noon) },
		"replace":  func() { tab.Insert(udp, &Packet{Key: udp}, Admission{}, noon) },
		"restamp":  func() { rec, _, _ = tab.Lookup(udp, noon); tab.Restamp(&rec, Admission{}) },
		"expire":   func() { tab.Expire(noon, 100) },
		"forget": func() {
			full.Insert(udp, &Packet{Key: udp}, Admission{}, noon)
			rec, _, _ = full.Lookup(udp, noon)
			full.Forget(&rec)
		},
		"evict": func() { next++; full.Insert(numbered(next), &Packet{Key: numbered(next)}, Admission{}, noon) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// The bound that the package comment states.
func TestMemoryBound(t *testing.T) {
	const most = 220 // bytes per record
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	tab := New(Limits{})
	for i := range 2 * DefaultRecords { // twice: evictions must not add to it
		tab.Insert(numbered(i), &Packet{Key: numbered(i)}, Admission{}, noon)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	per := float64(after.HeapAlloc-before.HeapAlloc) / DefaultRecords
	t.Logf("%.0f bytes per record", per)
	if per > most {
		t.Errorf("%.0f bytes per record, the bound is %d", per, most)
	}
	if n := tab.touchNothing(); n == 0 {
		t.Error("no address was asked about")
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	per = float64(after.HeapAlloc-before.HeapAlloc) / DefaultRecords
	t.Logf("%.0f bytes per record with the index by address", per)
	if per > most+100 {
		t.Errorf("%.0f bytes per record with the index by address, the bound is %d", per, most+100)
	}
	runtime.KeepAlive(tab)
}

// touchNothing brings the index by address up to date and returns how many
// addresses it knows.
func (t *Table) touchNothing() (addrs int) {
	t.EachTouching(func(flow.Addr) bool { addrs++; return false }, func(Record) bool { return true })
	return addrs
}
