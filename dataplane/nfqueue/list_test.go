package nfqueue

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

// numberedConn is the i-th of many connections, of 256 clients to one server.
func numberedConn(i int) flow.Key {
	return flow.MakeKey(flow.TCP, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 7, 0, byte(i)}), uint16(1024+i>>8)), netip.MustParseAddrPort("10.8.0.1:80"))
}

func plainRecord(k flow.Key) conntrack.Record {
	r := conntrack.Record{Key: k, Plain: true}
	r.Packets[0] = 1
	return r
}

// timedLedger is a ledger with a clock of the test's.
func timedLedger() (*ledger, *time.Duration) {
	now := new(time.Duration)
	g := newLedger()
	g.clock = func() time.Duration { return *now }
	return g, now
}

func denyAll(flow.Key, flow.Service) bool { return true }

// listedKeys are the connections the ledger has of an address.
func listedKeys(g *ledger, a string) (n int, complete bool) {
	v, complete := g.denied(dataplane.ChangeWithin(scope{[]netip.Addr{netip.MustParseAddr(a)}}), denyAll)
	return len(v), complete
}

// The list is complete only if somebody tells of connections, and after a walk that
// began when everything missed before had had time to get its bit.
func TestLedgerComplete(t *testing.T) {
	g, now := timedLedger()
	walk := func(everything bool) bool {
		g.end(g.begin(), everything)
		_, complete := listedKeys(g, "10.8.0.1")
		return complete
	}
	check := func(what string, got, want bool) {
		t.Helper()
		if got != want {
			t.Errorf("%s: complete %v, want %v", what, got, want)
		}
	}
	*now = time.Hour
	check("nobody tells", walk(true), false)
	g.learn(nil)
	check("half a walk", walk(false), false)
	check("a walk", walk(true), true)
	g.lose()
	check("something missed", func() bool { _, c := listedKeys(g, "10.8.0.1"); return c }(), false)
	*now += settleTime
	check("a walk too early", walk(true), false)
	*now++
	check("a walk in time", walk(true), true)
	g.expect(0)
	check("as many expected connections as before", func() bool { _, c := listedKeys(g, "10.8.0.1"); return c }(), true)
	g.expect(1)
	check("one more", func() bool { _, c := listedKeys(g, "10.8.0.1"); return c }(), false)

	d := g.begin()
	*now += time.Hour
	g.lose()
	g.end(d, true)
	check("missed during the walk", func() bool { _, c := listedKeys(g, "10.8.0.1"); return c }(), false)
}

// What was told a moment ago may get its bit yet: no walk makes the ledger forget it.
func TestLedgerSettles(t *testing.T) {
	g, now := timedLedger()
	*now = time.Hour
	g.learn([]conntrack.Record{plainRecord(numberedConn(1))})
	for _, after := range []time.Duration{0, settleTime, settleTime + 1} {
		*now = time.Hour + after
		want := 1
		if after > settleTime {
			want = 0
		}
		g.end(g.begin(), true) // a walk that does not find it
		if n, _ := listedKeys(g, "10.8.0.1"); n != want {
			t.Errorf("%v after it was told: %d connections listed, want %d", after, n, want)
		}
	}
}

// What is cut a moment after it was told is struck: looked at until it has settled or
// is allowed, whatever list it is in, and denied no second time unless it is told
// again.
func TestLedgerStrikes(t *testing.T) {
	g, now := timedLedger()
	*now = time.Hour
	tell := func() { g.learn([]conntrack.Record{plainRecord(numberedConn(1))}) }
	cut := func() {
		v, _ := g.denied(dataplane.ChangeWithin(scope{[]netip.Addr{netip.MustParseAddr("10.8.0.1")}}), denyAll)
		g.strike(append(v, g.condemned(denyAll)...))
	}
	walk := func() { g.end(g.begin(), true) }
	check := func(what string, denied, condemned, listed int) {
		t.Helper()
		n, _ := listedKeys(g, "10.8.0.1")
		if c := len(g.condemned(denyAll)); n != denied || c != condemned || g.current.len() != listed || g.current.struck != c {
			t.Errorf("%s: %d denied, %d condemned, %d struck, of %d, want %d, %d of %d", what, n, c, g.current.struck, g.current.len(), denied, condemned, listed)
		}
	}
	tell()
	check("told", 1, 0, 1)
	cut()
	check("cut", 0, 1, 1)
	walk()
	check("a walk later", 0, 1, 1)
	cut()
	check("cut once more", 0, 1, 1)
	tell()
	check("told again", 1, 0, 1)
	cut()
	d := g.begin()
	g.condemned(func(flow.Key, flow.Service) bool { return false })
	check("allowed", 1, 0, 1)
	g.end(d, true)
	check("allowed during a walk", 1, 0, 1)
	d = g.begin()
	cut()
	g.end(d, true)
	check("cut during a walk", 0, 1, 1)
	tell()
	g.unsettled(denyAll)
	check("cut by a walk", 1, 1, 1)
	cut()
	check("cut by its name after that", 0, 1, 1)
	*now += settleTime
	walk()
	check("about to settle", 0, 1, 1)
	*now++
	walk()
	check("settled, and not cut since", 0, 1, 1)
	cut()
	check("settled", 0, 0, 0)
	tell()
	*now += settleTime + 1
	cut()
	check("cut when it had settled", 0, 0, 0)
}

// A list that is too long is given up, but for what is struck. That there were others
// that may get the bit yet the ledger says as long as they may.
func TestLedgerBurnt(t *testing.T) {
	g, now := timedLedger()
	*now = time.Hour
	g.learn([]conntrack.Record{plainRecord(numberedConn(0))})
	g.unsettled(denyAll)
	if g.burnt() {
		t.Error("burnt with one connection")
	}
	var news []conntrack.Record
	for i := range mostListed {
		news = append(news, plainRecord(numberedConn(1+i)))
	}
	g.learn(news)
	if n := g.current.len(); n != 1 || !g.burnt() || len(g.condemned(denyAll)) != 1 {
		t.Errorf("%d connections, burnt: %v; want the one that is struck", n, g.burnt())
	}
	*now += settleTime + 1
	if g.burnt() {
		t.Error("burnt when all have settled")
	}
}

// A walk takes in what is told while it goes on, and forgets what it does not find.
func TestLedgerRelist(t *testing.T) {
	g, now := timedLedger()
	g.learn([]conntrack.Record{plainRecord(numberedConn(1)), plainRecord(numberedConn(2))})
	*now = time.Hour
	d := g.begin()
	g.learn([]conntrack.Record{plainRecord(numberedConn(3))})
	k := numberedConn(2)
	e, _ := parseConnection(ctMessage(2, tupleOf(k), replyTuple(k), 0x20, 0))
	g.found(d, &e, k)
	g.end(d, true)
	for i, want := range []int{0, 0, 1, 1} {
		if n, _ := listedKeys(g, numberedConn(i).Src.String()); n != want {
			t.Errorf("connection %d: listed %d times, want %d", i, n, want)
		}
	}
	if _, complete := listedKeys(g, "10.8.0.1"); !complete {
		t.Error("not complete after a walk")
	}
}

// The list is made anew when it has outgrown what there was, and when it has been
// asked in vain; never while somebody is at it.
func TestLedgerStale(t *testing.T) {
	g, now := timedLedger()
	*now = settleTime + 1
	if g.stale() {
		t.Error("stale although nobody tells of connections")
	}
	g.learn(nil)
	if !g.stale() {
		t.Error("not stale although no walk has been made")
	}
	d := g.begin()
	if g.stale() {
		t.Error("stale while a walk goes on")
	}
	g.end(d, true)
	for i := range relistGrowth {
		g.learn([]conntrack.Record{plainRecord(numberedConn(i))})
	}
	if g.stale() {
		t.Errorf("stale with %d connections", relistGrowth)
	}
	g.learn([]conntrack.Record{plainRecord(numberedConn(relistGrowth))})
	if !g.stale() {
		t.Errorf("not stale with %d connections, none of which a walk found", relistGrowth+1)
	}
	g.lose()
	*now *= 3
	if g.stale() {
		t.Error("stale although nobody asked since it was incomplete")
	}
	for range patience {
		listedKeys(g, "10.8.0.1")
	}
	if !g.stale() {
		t.Errorf("not stale although asked %d times in vain", patience)
	}
}

// A list is bounded in connections, and each takes some hundred bytes.
func TestLedgerBound(t *testing.T) {
	g, now := timedLedger()
	*now = time.Hour
	g.learn(nil)
	g.end(g.begin(), true)
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	news := make([]conntrack.Record, 64)
	for i := 0; i < mostListed; i += len(news) {
		for j := range news {
			news[j] = plainRecord(numberedConn(i + j))
		}
		g.learn(news)
	}
	n, complete := listedKeys(g, "10.8.0.1")
	if bytes := (heap() - before) / mostListed; n != mostListed || !complete || bytes > 130 {
		t.Errorf("%d connections listed at %d bytes each, complete %v; want %d, at most 130, complete", n, bytes, complete, mostListed)
	} else {
		t.Logf("%d bytes per connection", bytes)
	}
	g.learn([]conntrack.Record{plainRecord(numberedConn(mostListed))})
	if n, complete := listedKeys(g, "10.8.0.1"); n != 0 || complete {
		t.Errorf("one more than fit: %d listed, complete %v", n, complete)
	}
	runtime.KeepAlive(g)
}

// Only connections of touched addresses are judged; of one that was told in both
// directions it is enough that one is denied.
func TestListJudgesWhatIsTouched(t *testing.T) {
	l := newList()
	k := numberedConn(1)
	there, back, far := plainRecord(k), plainRecord(k.Reverse()), plainRecord(flow.MakeKey(flow.TCP, netip.MustParseAddrPort("10.9.0.1:1"), netip.MustParseAddrPort("10.9.0.2:2")))
	for _, r := range []conntrack.Record{there, back, far} {
		l.tell(&r, 0)
	}
	for _, c := range []dataplane.Change{
		dataplane.ChangeWithin(scope{[]netip.Addr{k.Dst.Netip()}}), dataplane.ChangeWithin(wide{scope{[]netip.Addr{k.Dst.Netip()}}}),
	} {
		for _, denied := range []flow.Key{k, k.Reverse()} {
			v := l.denied(c, func(asked flow.Key, _ flow.Service) bool {
				if asked == far.Key {
					t.Errorf("asked about %s, which is not touched", asked)
				}
				return asked == denied
			})
			if first, _ := canonical(k); len(v) != 1 || v[0].key != first || v[0].flags != plain {
				t.Errorf("%s denied: %+v", denied, v)
			}
		}
	}
	if v := l.denied(dataplane.ChangeWithin(scope{}), denyAll); v != nil {
		t.Errorf("a change of nobody denies %v", v)
	}
}

// A name that was told, and may be another, is no name any more once a second
// connection may have it: told again, of two packets, or found by a walk.
func TestListTellsApart(t *testing.T) {
	k := numberedConn(1)
	once, twice := plainRecord(k), plainRecord(k)
	once.Plain, twice.Plain = false, false
	twice.Packets[0] = 2
	vip := tupleOf(k)
	vip.dst, vip.dport = "10.96.0.1", 80
	e, _ := parseConnection(ctMessage(2, vip, replyTuple(k), 0x20, 0))
	for name, tc := range map[string]struct {
		do    func(l *list)
		flags uint8
	}{
		"told":                {func(l *list) { l.tell(&once, 0) }, other},
		"told twice":          {func(l *list) { l.tell(&once, 0); l.tell(&once, 0) }, other | again},
		"told with a reply":   {func(l *list) { r := once; r.Packets[1]++; l.tell(&r, 0) }, other | again},
		"told of two packets": {func(l *list) { l.tell(&twice, 0) }, other | again},
		"told, then found":    {func(l *list) { l.tell(&once, 0); l.found(&e, k) }, other | again},
		"found, then told":    {func(l *list) { l.found(&e, k); l.tell(&once, 0) }, other | again},
		"plain, then told":    {func(l *list) { r := plainRecord(k); l.tell(&r, 0); l.tell(&once, 0) }, plain | other | again},
		"told, then plain":    {func(l *list) { r := plainRecord(k); l.tell(&once, 0); l.tell(&r, 0) }, plain | other | again},
		"plain twice":         {func(l *list) { r := plainRecord(k); l.tell(&r, 0); l.tell(&r, 0) }, plain},
		"found":               {func(l *list) { l.found(&e, k) }, 0},
	} {
		l := newList()
		tc.do(l)
		v := l.denied(dataplane.ChangeWithin(scope{[]netip.Addr{k.Src.Netip()}}), denyAll)
		if len(v) != 1 || v[0].flags != tc.flags {
			t.Errorf("%s: %+v, want flags %b", name, v, tc.flags)
		}
	}
}

// The message that takes the bit away names a connection as the kernel does.
func TestNamed(t *testing.T) {
	for _, k := range []flow.Key{
		flow.MakeKey(flow.TCP, netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.2:80")),
		flow.MakeKey(flow.SCTP, netip.MustParseAddrPort("[fd00::1]:1000"), netip.MustParseAddrPort("[fd00::2]:80")),
		{Src: flow.AddrFrom(netip.MustParseAddr("10.0.0.1")), Dst: flow.AddrFrom(netip.MustParseAddr("10.0.0.2")), SrcPort: 7, DstPort: flow.ICMPPort(8, 0), Proto: flow.ICMP},
		{Src: flow.AddrFrom(netip.MustParseAddr("fd00::1")), Dst: flow.AddrFrom(netip.MustParseAddr("fd00::2")), SrcPort: 7, DstPort: flow.ICMPPort(129, 0), Proto: flow.ICMPv6},
	} {
		names := named(k)
		for i, want := range []ctTuple{tupleOf(k), replyTuple(k)} {
			if string(names[i].orig) != string(want.encode()) || (names[i].family == 2) != k.Src.Is4() {
				t.Errorf("%s: name %d is %x of family %d, want %x", k, i, names[i].orig, names[i].family, want.encode())
			}
		}
		if !nameable(&k) {
			t.Errorf("%s has a name", k)
		}
	}
	for _, k := range []flow.Key{{Proto: 47}, {Proto: flow.IGMP}, {Proto: flow.ICMP, DstPort: flow.ICMPPort(13, 0)}, {Proto: flow.ICMPv6, DstPort: flow.ICMPPort(1, 0)}} {
		if nameable(&k) {
			t.Errorf("protocol %d type %d has a name", k.Proto, k.DstPort>>8)
		}
	}
}
