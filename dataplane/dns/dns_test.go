package dns

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"golang.org/x/net/dns/dnsmessage"
)

// bench is an observer with a clock and two sets.
type bench struct {
	t   *testing.T
	now time.Time
	n   *Names
	o   *Observer
}

func newBench(t *testing.T, c Config) *bench {
	b := &bench{t: t, now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	clock := func() time.Time { return b.now }
	c.Clock = clock
	b.n = NewNames(c)
	b.n.Watch([]Set{wild, exact})
	b.o = &Observer{Names: b.n, Hold: 20 * time.Millisecond, Clock: clock}
	return b
}

var (
	wild  = Set{"wild", func(n string) bool { return strings.HasSuffix(n, ".test") }}
	exact = Set{"exact", func(n string) bool { return n == "a.test" }}
)

// holds fails the test unless the set holds exactly these addresses.
func (b *bench) holds(set string, want ...string) uint64 {
	b.t.Helper()
	sets := map[string][]netip.Prefix{set: nil, "service:x/y": nil}
	mark := b.n.Fill(sets)
	var got []string
	for _, p := range sets[set] {
		got = append(got, p.Addr().String())
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		b.t.Errorf("%s holds %v, want %v", set, got, want)
	}
	if sets["service:x/y"] != nil {
		b.t.Error("a set that is not learnt was touched")
	}
	return mark
}

// end is one end of a conversation.
var (
	pod    = netip.MustParseAddrPort("10.244.0.2:40000")
	server = netip.MustParseAddrPort("10.96.0.10:53")
	pod6   = netip.MustParseAddrPort("[fd00::2]:40000")
	dns6   = netip.MustParseAddrPort("[fd00::53]:53")
)

// datagram wraps a message.
func datagram(t testing.TB, from, to netip.AddrPort, msg []byte) []byte {
	t.Helper()
	udp := &layers.UDP{SrcPort: layers.UDPPort(from.Port()), DstPort: layers.UDPPort(to.Port())}
	return serialize(t, from, to, layers.IPProtocolUDP, udp, msg)
}

// segment wraps messages as TCP does.
func segment(t testing.TB, from, to netip.AddrPort, stream []byte) []byte {
	t.Helper()
	tcp := &layers.TCP{SrcPort: layers.TCPPort(from.Port()), DstPort: layers.TCPPort(to.Port()), ACK: true, PSH: true, Window: 1}
	return serialize(t, from, to, layers.IPProtocolTCP, tcp, stream)
}

func serialize(t testing.TB, from, to netip.AddrPort, proto layers.IPProtocol, l4 gopacket.SerializableLayer, payload []byte) []byte {
	t.Helper()
	var ip gopacket.SerializableLayer
	if from.Addr().Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: proto, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
		ip = v4
	} else {
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: proto, SrcIP: from.Addr().AsSlice(), DstIP: to.Addr().AsSlice()}
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ip, l4, gopacket.Payload(payload)); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func ask(t testing.TB, id uint16, name string) []byte {
	t.Helper()
	return pack(t, dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	})
}

// reply answers ask; records are "OWNER TTL ADDRESS" or "OWNER TTL CNAME".
func reply(t testing.TB, id uint16, name string, records ...string) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: id, Response: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	for _, r := range records {
		var owner, value string
		var ttl uint32
		if _, err := fmt.Sscan(r, &owner, &ttl, &value); err != nil {
			t.Fatal(err)
		}
		h := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(owner), Class: dnsmessage.ClassINET, TTL: ttl}
		var body dnsmessage.ResourceBody
		switch a, err := netip.ParseAddr(value); {
		case err != nil:
			h.Type, body = dnsmessage.TypeCNAME, &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(value)}
		case a.Is4():
			h.Type, body = dnsmessage.TypeA, &dnsmessage.AResource{A: a.As4()}
		default:
			h.Type, body = dnsmessage.TypeAAAA, &dnsmessage.AAAAResource{AAAA: a.As16()}
		}
		m.Answers = append(m.Answers, dnsmessage.Resource{Header: h, Body: body})
	}
	return pack(t, m)
}

func pack(t testing.TB, m dnsmessage.Message) []byte {
	t.Helper()
	b, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// packet hands a packet over and returns a channel that is closed with its release.
func (b *bench) packet(p []byte) <-chan struct{} {
	done := make(chan struct{})
	b.o.Packet(p, func() { close(done) })
	return done
}

func (b *bench) passed(what string, done <-chan struct{}) {
	b.t.Helper()
	select {
	case <-done:
	default:
		b.t.Errorf("%s waits, want it on its way", what)
	}
}

// resolve is a query and its answer.
func (b *bench) resolve(name string, records ...string) <-chan struct{} {
	b.t.Helper()
	b.passed("a query", b.packet(datagram(b.t, pod, server, ask(b.t, 7, name))))
	return b.packet(datagram(b.t, server, pod, reply(b.t, 7, name, records...)))
}

// The answer waits until its addresses are in force, and no longer.
func TestHold(t *testing.T) {
	b := newBench(t, Config{})
	b.o.Hold = time.Minute
	first := b.resolve("a.test.", "a.test. 60 192.0.2.1", "a.test. 60 2001:db8::1")
	mark := b.holds("wild", "192.0.2.1", "2001:db8::1")
	second := b.resolve("b.test.", "b.test. 60 192.0.2.2")
	b.n.InForce(mark)
	<-first
	select {
	case <-second:
		t.Fatal("released by an older table")
	case <-b.n.News():
	}
	b.n.InForce(b.holds("exact", "192.0.2.1", "2001:db8::1"))
	<-second
	b.passed("an answer that tells nothing new", b.resolve("a.test.", "a.test. 60 192.0.2.1"))
	b.passed("an answer for a name nobody wants", b.resolve("a.example.", "a.example. 60 192.0.2.1"))
	// S4-22: held, not dropped, and passed as they were.
	if s := b.o.Stats(); s.Waited != 2 || s.Late != 0 || s.Answers != 4 || s.Queries != 4 {
		t.Errorf("stats %+v", s)
	}
	b.o.Hold = time.Millisecond
	<-b.resolve("c.test.", "c.test. 60 192.0.2.3") // nobody publishes: it goes on
	if s := b.o.Stats(); s.Late != 1 {
		t.Errorf("stats %+v, want one late", s)
	}
}

// What nobody asked for teaches nothing, and passes.
func TestUnasked(t *testing.T) {
	good := "a.test. 60 192.0.2.1"
	other := netip.MustParseAddrPort("10.96.0.11:53")
	for name, tc := range map[string]struct {
		from, to netip.AddrPort
		msg      []byte
	}{
		"another server":       {other, pod, reply(t, 7, "a.test.", good)},
		"another port":         {netip.AddrPortFrom(server.Addr(), 5353), pod, reply(t, 7, "a.test.", good)},
		"another client":       {server, netip.MustParseAddrPort("10.244.0.3:40000"), reply(t, 7, "a.test.", good)},
		"another client port":  {server, netip.AddrPortFrom(pod.Addr(), 40001), reply(t, 7, "a.test.", good)},
		"another number":       {server, pod, reply(t, 8, "a.test.", good)},
		"another name":         {server, pod, reply(t, 7, "b.test.", "b.test. 60 192.0.2.1")},
		"records of others":    {server, pod, reply(t, 7, "a.test.", "b.test. 60 192.0.2.1")},
		"an unrelated alias":   {server, pod, reply(t, 7, "a.test.", "b.test. 60 c.test.", "c.test. 60 192.0.2.1")},
		"a query as an answer": {server, pod, ask(t, 7, "a.test.")},
		"no message":           {server, pod, []byte("hello")},
		"addresses of nobody":  {server, pod, reply(t, 7, "a.test.", "a.test. 60 0.0.0.0", "a.test. 60 127.0.0.1", "a.test. 60 224.0.0.1", "a.test. 60 ::1", "a.test. 60 ::ffff:192.0.2.1", "a.test. 60 255.255.255.255")},
	} {
		b := newBench(t, Config{})
		b.packet(datagram(t, pod, server, ask(t, 7, "a.test.")))
		b.passed(name, b.packet(datagram(t, tc.from, tc.to, tc.msg)))
		if b.holds("wild"); t.Failed() { // S4-22: passed; S4-23: nothing learnt
			t.Fatal(name)
		}
	}
	b := newBench(t, Config{})
	<-b.resolve("a.test.", good)
	again := b.packet(datagram(t, server, pod, reply(t, 7, "a.test.", "a.test. 60 192.0.2.66")))
	b.passed("a second answer", again)
	b.packet(datagram(t, pod, server, ask(t, 7, "a.test.")))
	b.now = b.now.Add(askedFor + time.Second)
	b.passed("an answer that comes too late", b.packet(datagram(t, server, pod, reply(t, 7, "a.test.", "a.test. 60 192.0.2.66"))))
	b.holds("wild", "192.0.2.1")
	b.o.Believe = func(a netip.Addr) bool { return a == netip.MustParseAddr("10.0.0.53") }
	b.passed("an answer of a server that is not believed", b.resolve("a.test.", "a.test. 60 192.0.2.66"))
	b.holds("wild", "192.0.2.1")
	if s := b.o.Stats(); s.Unasked != 2 || s.Foreign != 1 {
		t.Errorf("stats %+v", s)
	}
}

// Names in any case, IPv6, TCP with two messages in a segment, and an alias in a
// ring.
func TestForms(t *testing.T) {
	b := newBench(t, Config{})
	b.packet(datagram(t, pod6, dns6, ask(t, 1, "A.tEst.")))
	<-b.packet(datagram(t, dns6, pod6, reply(t, 1, "a.TesT.", "A.TEST. 60 Cdn.Example.", "cdn.example. 60 192.0.2.1", "cdn.example. 60 a.test.")))
	b.holds("exact", "192.0.2.1")
	framed := func(msgs ...[]byte) (s []byte) {
		for _, m := range msgs {
			s = append(binary.BigEndian.AppendUint16(s, uint16(len(m))), m...)
		}
		return s
	}
	b.packet(segment(t, pod, server, framed(ask(t, 1, "b.test."), ask(t, 2, "c.test."))))
	answers := framed(reply(t, 1, "b.test.", "b.test. 60 192.0.2.2"), reply(t, 2, "c.test.", "c.test. 60 192.0.2.3"))
	<-b.packet(segment(t, server, pod, answers))
	b.holds("wild", "192.0.2.1", "192.0.2.2", "192.0.2.3")
	b.passed("a segment with a piece", b.packet(segment(t, server, pod, answers[:20])))
}

// An address stays for the least TTL of its chain and the grace, and beyond it
// while a connection uses it.
func TestExpire(t *testing.T) {
	b := newBench(t, Config{Grace: 5 * time.Second})
	<-b.resolve("a.test.", "a.test. 30 x.example.", "x.example. 300 192.0.2.1")
	<-b.resolve("b.test.", "b.test. 300 192.0.2.2")
	<-b.resolve("c.test.", "c.test. 0 192.0.2.3")
	in := map[netip.Addr]bool{}
	asked := 0
	sweep := func(after time.Duration, want ...string) {
		t.Helper()
		b.now = b.now.Add(after)
		if err := b.n.Expire(func(addrs []netip.Addr) (map[netip.Addr]bool, error) { asked += len(addrs); return in, nil }); err != nil {
			t.Fatal(err)
		}
		b.holds("wild", want...)
	}
	sweep(6*time.Second, "192.0.2.1", "192.0.2.2", "192.0.2.3") // 0 counts as a second
	sweep(time.Second, "192.0.2.1", "192.0.2.2")
	sweep(28*time.Second, "192.0.2.1", "192.0.2.2")
	in[netip.MustParseAddr("192.0.2.1")] = true
	asked = 0
	sweep(time.Second, "192.0.2.1", "192.0.2.2")
	sweep(time.Second, "192.0.2.1", "192.0.2.2")
	if asked != 1 {
		t.Errorf("asked %d times about an address in use, want once in a while", asked)
	}
	delete(in, netip.MustParseAddr("192.0.2.1"))
	sweep(againAfter, "192.0.2.2")
	<-b.resolve("b.test.", "b.test. 300 192.0.2.2") // again: its time begins anew
	sweep(300*time.Second, "192.0.2.2")
	b.now = b.now.Add(time.Hour)
	if err := b.n.Expire(func([]netip.Addr) (map[netip.Addr]bool, error) { return nil, os.ErrDeadlineExceeded }); err == nil {
		t.Error("no error")
	}
	b.holds("wild", "192.0.2.2")
	sweep(0)
}

// The bounds put out what was resolved least recently.
func TestBounds(t *testing.T) {
	b := newBench(t, Config{PerSet: 3, Total: 4, PerName: 2})
	for i, name := range []string{"a.test.", "b.test.", "c.test.", "a.test.", "d.test."} {
		b.resolve(name, fmt.Sprintf("%s 60 192.0.2.%d", name, i))
	}
	b.holds("wild", "192.0.2.0", "192.0.2.3", "192.0.2.2", "192.0.2.4") // b is out
	b.resolve("a.test.", "a.test. 90 192.0.2.9")
	b.holds("exact", "192.0.2.9", "192.0.2.3")
	b.n.Watch([]Set{{"all", func(string) bool { return true }}, {"wild", func(n string) bool { return strings.HasSuffix(n, ".other") }}, exact})
	for i := range 3 {
		b.resolve(fmt.Sprintf("%d.other.", i), fmt.Sprintf("%d.other. 60 198.51.100.%d", i, i))
	}
	b.holds("wild", "198.51.100.0", "198.51.100.1", "198.51.100.2")
	b.holds("all", "198.51.100.0", "198.51.100.1", "198.51.100.2")
	if s := b.n.Stats(); s.Names > 4 || s.Evicted == 0 {
		t.Errorf("stats %+v", s)
	}
	check(t, b.n)
}

// TestFloodOfNames lets one pod resolve names without end under the star of a rule that
// another pod uses (it may ask the same server): the other pod's names stay.
func TestFloodOfNames(t *testing.T) {
	b := newBench(t, Config{PerSet: 20, Total: 30})
	b.n.Watch([]Set{wild, {"every", func(string) bool { return true }}})
	hostile := netip.MustParseAddrPort("10.244.0.3:40000")
	from := func(client netip.AddrPort, name, addr string) {
		b.packet(datagram(t, client, server, ask(t, 7, name)))
		b.packet(datagram(t, server, client, reply(t, 7, name, name+" 60 "+addr)))
		b.n.InForce(b.n.changes)
	}
	from(pod, "mine.test.", "192.0.2.1")
	from(pod, "both.test.", "192.0.2.2")
	from(hostile, "both.test.", "192.0.2.2")
	from(hostile, "used.test.", "192.0.2.3")
	for i := range 100 {
		if i == 50 { // by now there is no room, and a connection goes to one of them
			if err := b.n.Expire(func([]netip.Addr) (map[netip.Addr]bool, error) {
				return map[netip.Addr]bool{netip.MustParseAddr("198.51.100.40"): true}, nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		from(hostile, fmt.Sprintf("n%d.test.", i), fmt.Sprintf("198.51.100.%d", i))
	}
	for _, name := range []string{"mine.test", "both.test", "n40.test"} {
		if e, ok := b.n.names.Peek(name); !ok || len(e.sets) != 2 {
			t.Errorf("%s is out", name)
		}
	}
	if b.n.Stats().Names != 20 {
		t.Errorf("stats %+v", b.n.Stats())
	}
	from(pod, "late.test.", "192.0.2.9")
	if _, ok := b.n.names.Peek("late.test"); !ok {
		t.Error("there is no room for a name of the pod that has few")
	}
	check(t, b.n)
	if err := b.n.Expire(func(addrs []netip.Addr) (map[netip.Addr]bool, error) {
		all := map[netip.Addr]bool{}
		for _, a := range addrs {
			all[a] = true
		}
		return all, nil
	}); err != nil {
		t.Fatal(err)
	}
	from(hostile, "over.test.", "203.0.113.1")
	if _, ok := b.n.names.Peek("over.test"); ok || b.n.Stats().Refused == 0 {
		t.Errorf("a name put out one that is in use: %+v", b.n.Stats())
	}
	check(t, b.n)
}

// TestHeldByClient holds back answers of one pod until no more may wait: those of
// another pod wait all the same.
func TestHeldByClient(t *testing.T) {
	b := newBench(t, Config{})
	b.o.Hold = time.Hour
	answer := func(client netip.AddrPort, i int) (held bool) {
		name := fmt.Sprintf("h%d.test.", i)
		b.packet(datagram(t, client, server, ask(t, uint16(i), name)))
		crowded := b.o.Stats().Crowded
		b.o.Packet(datagram(t, server, client, reply(t, uint16(i), name, fmt.Sprintf("%s 60 198.51.%d.%d", name, i/250, i%250))), func() {})
		return b.o.Stats().Crowded == crowded
	}
	hostile := netip.MustParseAddrPort("10.244.0.3:40000")
	for i := range maxHeldFor {
		if !answer(hostile, i) {
			t.Fatalf("answer %d does not wait", i)
		}
	}
	if answer(hostile, maxHeldFor) {
		t.Error("a pod has more answers waiting than its share")
	}
	if !answer(pod, maxHeldFor+1) {
		t.Error("another pod's answer does not wait")
	}
	b.n.InForce(b.n.changes)
}

// check compares the names with the sets they say they are in, and both with
// their bounds.
func check(t *testing.T, n *Names) {
	t.Helper()
	count := map[string]int{}
	for _, e := range n.names.Values() {
		for _, s := range e.sets {
			count[s]++
			if in, ok := n.perSet[s].Peek(e.name); !ok || in != e {
				t.Errorf("%s is not in set %s", e.name, s)
			}
		}
	}
	for s, in := range n.perSet {
		sole := map[netip.Addr]int{}
		for _, e := range in.Values() {
			if len(e.clients) == 1 {
				sole[e.clients[0]]++
			}
		}
		if !maps.Equal(sole, in.sole) {
			t.Errorf("set %s counts %v names of one client, it has %v", s, in.sole, sole)
		}
		if count[s] != in.Len() || in.Len() > n.cfg.PerSet {
			t.Errorf("set %s has %d names, %d say that they are in it; at most %d may", s, in.Len(), count[s], n.cfg.PerSet)
		}
	}
	if n.names.Len() > n.cfg.Total {
		t.Errorf("%d names, at most %d may be", n.names.Len(), n.cfg.Total)
	}
}

// A client that asks much puts out its own questions and nobody else's.
func TestAskedBounds(t *testing.T) {
	b := newBench(t, Config{})
	b.packet(datagram(t, pod, server, ask(t, 7, "a.test.")))
	noisy := netip.MustParseAddrPort("10.244.0.9:1024")
	for i := range 2 * perClient {
		b.packet(datagram(t, noisy, server, ask(t, uint16(i), "b.test.")))
	}
	b.passed("the answer to a question put out", b.packet(datagram(t, server, noisy, reply(t, 0, "b.test.", "b.test. 60 192.0.2.2"))))
	<-b.packet(datagram(t, server, noisy, reply(t, 2*perClient-1, "b.test.", "b.test. 60 192.0.2.3")))
	<-b.packet(datagram(t, server, pod, reply(t, 7, "a.test.", "a.test. 60 192.0.2.1")))
	b.holds("wild", "192.0.2.1", "192.0.2.3")
	b.now = b.now.Add(2 * askedFor)
	b.packet(datagram(t, netip.MustParseAddrPort("10.244.0.4:1"), server, ask(t, 7, "a.test.")))
	if n := len(b.o.asked.clients); n != 1 {
		t.Errorf("%d clients remembered, want the one that is not silent", n)
	}
}

// What was learnt survives, TTLs included; a broken file changes nothing.
func TestState(t *testing.T) {
	b := newBench(t, Config{Grace: -1})
	path := filepath.Join(t.TempDir(), "deep", "dns.json")
	<-b.resolve("a.test.", "a.test. 60 192.0.2.1", "a.test. 60 2001:db8::1")
	<-b.resolve("b.test.", "b.test. 10 192.0.2.2")
	if err := b.n.Save(path); err != nil {
		t.Fatal(err)
	}
	next := newBench(t, Config{Grace: -1})
	next.n.Watch(nil) // sets come with the first table
	next.now = b.now.Add(20 * time.Second)
	if err := next.n.Load(path); err != nil {
		t.Fatal(err)
	}
	next.n.Watch([]Set{wild, exact})
	next.holds("exact", "192.0.2.1", "2001:db8::1")
	next.holds("wild", "192.0.2.1", "192.0.2.2", "2001:db8::1")
	if err := next.n.Expire(nil); err != nil {
		t.Fatal(err)
	}
	next.holds("wild", "192.0.2.1", "2001:db8::1")
	if l := next.n.List(); len(l) != 1 || l[0].Name != "a.test" || l[0].Addrs[netip.MustParseAddr("192.0.2.1")] != 40 || !slices.Equal(l[0].Sets, []string{"exact", "wild"}) {
		t.Errorf("list %+v", l)
	}
	check(t, next.n)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := b.n.Save(path); err != nil { // nothing new: no file
		t.Fatal(err)
	}
	if err := next.n.Load(path); err != nil {
		t.Errorf("no file: %v", err)
	}
	for _, text := range []string{"{", `{"version":9,"names":[{"name":"x.test","addrs":{"192.0.2.9":"2026-01-02T03:04:05Z"}}]}`} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := next.n.Load(path); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
	next.holds("wild", "192.0.2.1", "2001:db8::1")
}

// Sets that come find what is known; a set that goes and comes back, too.
func TestWatch(t *testing.T) {
	b := newBench(t, Config{})
	<-b.resolve("a.test.", "a.test. 60 192.0.2.1")
	b.n.Watch([]Set{exact})
	b.holds("exact", "192.0.2.1")
	b.holds("wild")
	b.n.Watch(nil)
	if b.n.Wanted() {
		t.Error("without sets something is wanted")
	}
	b.n.Watch([]Set{wild})
	b.holds("wild", "192.0.2.1")
	check(t, b.n)
}

// Whatever a packet holds, it is released once, and the counts stay right.
func FuzzPacket(f *testing.F) {
	f.Add(uint8(0), reply(f, 7, "a.test.", "a.test. 60 b.test.", "b.test. 60 192.0.2.1"))
	f.Add(uint8(1), ask(f, 7, "a.test."))
	f.Add(uint8(2), append([]byte{0, 40}, reply(f, 7, "a.test.", "a.test. 60 192.0.2.1")...))
	f.Add(uint8(0), []byte{0, 7, 0x80, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0xc0, 12, 0, 1, 0, 1}) // a name that points at itself
	f.Fuzz(func(t *testing.T, form uint8, msg []byte) {
		if len(msg) > 4000 {
			return
		}
		b := newBench(t, Config{PerSet: 2, Total: 3, PerName: 2})
		b.o.Hold = time.Nanosecond
		b.packet(datagram(t, pod, server, ask(t, 7, "a.test.")))
		if len(msg) >= 12 { // most would fail at the number
			msg = slices.Clone(msg)
			msg[0], msg[1] = 0, 7
		}
		var p []byte
		switch form % 3 {
		case 0:
			p = datagram(t, server, pod, msg)
		case 1:
			p = datagram(t, pod, server, msg)
		case 2:
			p = segment(t, server, pod, msg)
		}
		<-b.packet(p)
		check(t, b.n)
		for _, n := range b.n.List() {
			for a := range maps.Keys(n.Addrs) {
				if n.Name != "a.test" || len(appendAddr(nil, a, 0)) == 0 {
					t.Errorf("learnt %s for %s", a, n.Name)
				}
			}
		}
	})
}
