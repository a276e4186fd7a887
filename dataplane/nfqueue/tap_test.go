package nfqueue

import (
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// tapped is a world with a tap that notes what it sees.
type tapped struct {
	*world
	tap *Tap

	mu   sync.Mutex
	keys []string
	hold chan struct{} // not nil: packets wait until it is closed
}

func newTapped(t *testing.T, w *world) *tapped {
	t.Helper()
	p := &tapped{world: w}
	err := w.NS.Do(func() (err error) {
		p.tap, err = NewTap(TapConfig{}, p.handle)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.tap.Close(); err != nil {
			t.Error(err)
		}
		if s := w.leftovers(t); strings.Contains(s, TapTableName) || strings.Contains(s, "7299") {
			t.Errorf("left behind:\n%s", s)
		}
	})
	return p
}

func (p *tapped) handle(frame []byte, release func()) {
	var h packet.Headers
	problem := packet.ParseIP(frame, &h)
	p.mu.Lock()
	p.keys = append(p.keys, flow.MakeKey(h.Key.Proto, netip.AddrPortFrom(h.Key.Src.Netip(), 0), netip.AddrPortFrom(h.Key.Dst.Netip(), 0)).String()+" "+problem.String())
	hold := p.hold
	p.mu.Unlock()
	if hold == nil {
		release()
		return
	}
	go func() { <-hold; release() }()
}

// saw returns what was seen of a protocol, and forgets all of it. The last segments
// of a connection that was closed come whenever they like.
func (p *tapped) saw(proto flow.Proto) (keys []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, k := range p.keys {
		if strings.HasPrefix(k, proto.String()+" ") {
			keys = append(keys, k)
		}
	}
	p.keys = nil
	return keys
}

func (p *tapped) watch(t *testing.T, pods ...netip.Addr) {
	t.Helper()
	if err := p.tap.Watch(pods); err != nil {
		t.Fatal(err)
	}
}

// A tap sees the DNS of its pods, whole and both ways, behind the rules that judge
// them, and nothing else; the accepted connection is still the kernel's.
func TestTap(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, toPort(dnsPort))
	p := newTapped(t, w)
	for _, family := range families {
		nstest.Echo(t, w.b.NS, "udp", w.b.Addr(family), dnsPort)
		nstest.Echo(t, w.b.NS, "tcp", w.b.Addr(family), dnsPort)
		nstest.Echo(t, w.Outside, "udp", map[int]netip.Addr{4: w.Outside4, 6: w.Outside6}[family], dnsPort)
	}
	if strings.Contains(w.leftovers(t), TapTableName) {
		t.Error("a table though there is nobody to watch")
	}
	p.watch(t, w.a.Addr4, w.a.Addr6)
	for _, family := range families {
		outside := map[int]netip.Addr{4: w.Outside4, 6: w.Outside6}[family]
		c := dial(t, w.a.NS, "udp", at(outside, dnsPort))
		alive(t, c, "a watched pod's query")
		alive(t, c, "and another one")
		if s := p.saw(flow.UDP); len(s) != 4 || !strings.HasSuffix(s[0], " ok") || s[0] != s[2] || s[0] == s[1] {
			t.Errorf("IPv%d: saw %q, want two queries and their answers", family, s)
		}
		nstest.Reach(t, w.a.NS, "tcp", at(w.b.Addr(family), dnsPort))
		if s := p.saw(flow.TCP); len(s) < 4 {
			t.Errorf("IPv%d: saw %q of a connection over TCP", family, s)
		}
		alive(t, dial(t, w.b.NS, "udp", at(outside, dnsPort)), "a query of a pod that is not watched")
		if s := p.saw(flow.UDP); len(s) != 0 {
			t.Errorf("IPv%d: saw %q of a pod that is not watched", family, s)
		}
	}
	w.judge.policy(nothing)
	w.update(t)
	dead(t, dial(t, w.a.NS, "udp", at(w.Outside4, dnsPort)), "a query policy denies")
	if s := p.saw(flow.UDP); len(s) != 0 {
		t.Errorf("saw %q, which policy denies", s)
	}
	w.judge.policy(toPort(dnsPort))
	w.update(t)
	p.watch(t)
	nstest.Reach(t, w.a.NS, "udp", at(w.Outside4, dnsPort))
	if s := w.leftovers(t); strings.Contains(s, TapTableName) || len(p.saw(flow.UDP)) != 0 {
		t.Errorf("nobody is watched any more, and there is\n%s", s)
	}
}

// What is held waits and then goes on; other packets pass it.
func TestTapHolds(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	p := newTapped(t, w)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, dnsPort)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, portGood)
	p.watch(t, w.a.Addr4)
	c, hold := dial(t, w.a.NS, "udp", at(w.Outside4, dnsPort)), make(chan struct{})
	p.mu.Lock()
	p.hold = hold
	p.mu.Unlock()
	if _, err := c.Write([]byte("query")); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the query is held", func() bool { return p.tap.Seen() == 1 })
	nstest.Reach(t, w.a.NS, "udp", at(w.Outside4, portGood))
	_ = c.SetReadDeadline(time.Now().Add(nstest.Blocked))
	b := make([]byte, 16)
	if n, err := c.Read(b); err == nil {
		t.Errorf("read %q while the query is held", b[:n])
	}
	close(hold)
	_ = c.SetReadDeadline(time.Now().Add(nstest.Timeout))
	if n, err := c.Read(b); err != nil || string(b[:n]) != "query" {
		t.Errorf("after the release: %q, %v", b[:n], err)
	}
}

// The query counts by the port the pod sent to, wherever a Service leads; where
// nothing is tracked, by the port it has.
func TestTapServiceAndUntracked(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	p := newTapped(t, w)
	p.watch(t, w.a.Addr4)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, 5353)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, dnsPort)
	service := at(netip.MustParseAddr("10.96.0.53"), dnsPort)
	to := w.Outside4.As4()
	dnat := w.nft(t, "service", nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest},
		join(protocolIs(unix.NFPROTO_IPV4), ipv4.load(dst), []expr.Any{
			compare(expr.CmpOpEq, service.Addr().AsSlice()),
			&expr.Immediate{Register: 1, Data: to[:]},
			&expr.Immediate{Register: 2, Data: []byte{5353 >> 8, 5353 & 0xff}},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
		}))
	c := dial(t, w.a.NS, "udp", service)
	alive(t, c, "a query through a Service")
	if s := p.saw(flow.UDP); len(s) != 2 || !strings.Contains(s[0], w.Outside4.String()) {
		t.Errorf("saw %q, want a query and its answer as they are behind the Service", s)
	}
	w.nftDelete(t, dnat)
	w.nft(t, "raw", nftables.Chain{Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityRaw},
		join(transportIs(unix.IPPROTO_UDP), []expr.Any{&expr.Notrack{}}))
	alive(t, dial(t, w.a.NS, "udp", at(w.Outside4, dnsPort)), "a query nobody tracks")
	if s := p.saw(flow.UDP); len(s) != 2 {
		t.Errorf("saw %q, want a query and its answer", s)
	}
}

// Other software may remove the table; the connections there are are found by
// where they go to.
func TestTapCheckAndTalking(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	p := newTapped(t, w)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, dnsPort)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr6, portGood)
	p.watch(t, w.a.Addr4)
	if restored, err := p.tap.Check(); restored || err != nil {
		t.Errorf("restored %t, %v; nothing was removed", restored, err)
	}
	w.nftDelete(t, tapTable())
	if restored, err := p.tap.Check(); !restored || err != nil {
		t.Errorf("restored %t, %v; want true", restored, err)
	}
	c := dial(t, w.a.NS, "udp", at(w.Outside4, dnsPort))
	alive(t, c, "a query after the table was put back")
	if s := p.saw(flow.UDP); len(s) != 2 {
		t.Errorf("saw %q", s)
	}
	alive(t, dial(t, w.a.NS, "tcp", at(w.b.Addr6, portGood)), "a connection")
	addrs := []netip.Addr{w.Outside4, w.b.Addr6, w.a.Addr4, w.Outside6}
	for _, more := range [][]netip.Addr{nil, {netip.MustParseAddr("192.0.2.77"), netip.MustParseAddr("192.0.2.78")}} {
		found, err := p.tap.Talking(append(addrs, more...))
		if err != nil || len(found) != 2 || !found[w.Outside4] || !found[w.b.Addr6] {
			t.Errorf("connections go to %v, %v; want %v and %v", found, err, w.Outside4, w.b.Addr6)
		}
	}
	for _, a := range []netip.Addr{w.b.Addr6, w.a.Addr6} { // one by one, where the kernel's filter is wrong
		if found, err := p.tap.Talking([]netip.Addr{a}); err != nil || found[a] != (a == w.b.Addr6) {
			t.Errorf("connections go to %v: %v, %v", a, found, err)
		}
	}
}

// Without the process, and with its table left, DNS goes on.
func TestTapGone(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	p := newTapped(t, w)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, dnsPort)
	p.watch(t, w.a.Addr4)
	if err := p.tap.driver.Close(); err != nil { // what the end of a process does
		t.Fatal(err)
	}
	nstest.Reach(t, w.a.NS, "udp", at(w.Outside4, dnsPort))
	if err := w.NS.Do(CleanupTap); err != nil {
		t.Fatal(err)
	}
	if s := w.leftovers(t); strings.Contains(s, TapTableName) {
		t.Errorf("after the cleanup:\n%s", s)
	}
}
