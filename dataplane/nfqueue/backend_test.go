package nfqueue

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Pod to pod, to and from outside, both families and protocols: what the judge
// allows works and costs exactly one upcall per connection, replies included;
// what it denies never arrives.
func TestConnectivity(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, toPort(portGood))
	type end struct {
		name string
		addr func(family int) netip.Addr
	}
	outside := func(family int) netip.Addr {
		if family == 6 {
			return w.Outside6
		}
		return w.Outside4
	}
	for _, path := range []struct {
		name     string
		from, to end
	}{
		{"pod to pod", end{"a", w.a.Addr}, end{"b", w.b.Addr}},
		{"pod to outside", end{"a", w.a.Addr}, end{"outside", outside}},
		{"outside to pod", end{"outside", outside}, end{"b", w.b.Addr}},
	} {
		space := map[string]func() *nstest.NS{
			"a": func() *nstest.NS { return &nstest.NS{NS: w.a.NS} }, "b": func() *nstest.NS { return &nstest.NS{NS: w.b.NS} },
			"outside": func() *nstest.NS { return &nstest.NS{NS: w.Outside} },
		}
		from, to := space[path.from.name](), space[path.to.name]()
		for _, family := range families {
			for _, network := range networks {
				name := fmt.Sprintf("%s %s v%d", path.name, network, family)
				src, dst := path.from.addr(family), path.to.addr(family)
				good := nstest.Echo(t, to.NS, network, dst, portGood)
				bad := nstest.Echo(t, to.NS, network, dst, portBad)
				nstest.Reach(t, from.NS, network, good.Addr)
				w.want(t, name+" allowed", key(network, src, dst, portGood))

				nstest.Unreachable(t, from.NS, network, bad.Addr)
				if bad.Seen() != 0 {
					t.Errorf("%s: the denied server saw %d connections", name, bad.Seen())
				}
				for _, q := range w.asked(t, 1) {
					if q.allowed || q.reply || anyPort(q.key) != key(network, src, dst, portBad) {
						t.Errorf("%s: judged %+v for a denied connection", name, q)
					}
				}
				good.Close()
				bad.Close()
			}
		}
	}
	s := w.backend.Stats()
	if s.Bypassed == 0 || s.Upcalls == 0 || s.Overflow != 0 {
		t.Errorf("stats are %+v, want bypassed and upcalls above 0, no overflow", s)
	}
}

// A long exchange costs one upcall: the rest stays in the kernel, counted.
func TestEstablishedBypasses(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, everything)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	c := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	const rounds = 200
	for range rounds {
		alive(t, c, "exchange")
	}
	w.want(t, "one long connection", key("tcp", w.a.Addr4, w.b.Addr4, portGood))
	if s := w.backend.Stats(); s.Upcalls != 1 || s.Bypassed < 2*rounds {
		t.Errorf("stats are %+v, want 1 upcall and at least %d bypassed", s, 2*rounds)
	}
}

// What the node sends its pods is never judged, nor are the answers, and
// no daemon is needed for it.
func TestNodeToPod(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	for _, family := range families {
		for _, network := range networks {
			nstest.Echo(t, w.a.NS, network, w.a.Addr(family), portGood)
			nstest.Reach(t, w.NS, network, at(w.a.Addr(family), portGood))
		}
	}
	w.want(t, "node to pod")
	if cut := w.update(t); cut != 0 {
		t.Errorf("Update cut %d connections of the node", cut)
	}
	w.stop(t)
	nstest.Reach(t, w.NS, "tcp", at(w.a.Addr4, portGood))
}

// What a pod sends its node is egress like any other.
func TestPodToNode(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, toPort(portGood))
	for _, family := range families {
		node := w.Addr4
		if family == 6 {
			node = w.Addr6
		}
		for _, network := range networks {
			good, bad := nstest.Echo(t, w.NS, network, node, portGood), nstest.Echo(t, w.NS, network, node, portBad)
			nstest.Reach(t, w.a.NS, network, good.Addr)
			w.want(t, "pod to node", key(network, w.a.Addr(family), node, portGood))
			nstest.Unreachable(t, w.a.NS, network, bad.Addr)
			if bad.Seen() != 0 {
				t.Errorf("%s v%d: the node saw a denied connection", network, family)
			}
			w.asked(t, 1)
		}
	}
}

// A connection of a pod to its node that an update cuts is not opened again by
// what the node still sends on it.
func TestNodeAnswerDoesNotReopen(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	s := nstest.Echo(t, w.NS, "udp", w.Addr4, portGood)
	c := dial(t, w.a.NS, "udp", s.Addr)
	alive(t, c, "before the update")
	w.judge.policy(nothing)
	if cut := w.update(t); cut != 1 {
		t.Errorf("Update cut %d connections, want 1", cut)
	}
	// The node's side of the same connection goes on talking: what the node
	// sends arrives, what the pod answers does not.
	s.Close()
	node := dialFrom(t, w.NS, "udp", s.Addr, netip.MustParseAddrPort(c.LocalAddr().String()))
	w.judge.take()
	for range 3 {
		if _, err := node.Write([]byte("still there?")); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 64)
		c.SetReadDeadline(time.Now().Add(nstest.Timeout))
		if n, err := c.Read(buf); err != nil || string(buf[:n]) != "still there?" {
			t.Fatalf("the pod read %q, %v, want the node's message", buf[:n], err)
		}
		if _, err := c.Write([]byte("yes")); err != nil {
			t.Fatal(err)
		}
		node.SetReadDeadline(time.Now().Add(nstest.Blocked / 3))
		if _, err := node.Read(buf); err == nil {
			t.Error("the pod's answer on a cut connection arrived at the node")
		}
	}
	if got := w.asked(t, 3); len(got) != 3 || slices.ContainsFunc(got, func(q question) bool { return q.allowed || q.reply }) {
		t.Errorf("judged %+v, want the pod's three packets denied", got)
	}
}

// Neighbour discovery of a pod whose policy denies everything still works
// (RFC 4861), and nothing else slips through with it.
func TestNeighbourDiscovery(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	gw := netip.MustParseAddr("fd00:10:244::ffff")
	if err := w.NS.Addr(w.a.HostDevice, netip.PrefixFrom(gw, 128)); err != nil {
		t.Fatal(err)
	}
	if err := w.a.NS.AddRoute(nstestRoute(gw)); err != nil {
		t.Fatal(err)
	}
	s := nstest.Echo(t, w.NS, "udp", gw, portGood)
	c := dial(t, w.a.NS, "udp", s.Addr)
	link, err := w.a.NS.Link(netlab.PodDevice)
	if err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the pod has resolved its gateway", func() bool {
		c.Write([]byte("hello?"))
		neighbours, err := w.a.NS.Handle().NeighList(link.Attrs().Index, unix.AF_INET6)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range neighbours {
			if a, _ := netip.AddrFromSlice(n.IP); a == gw && len(n.HardwareAddr) == 6 {
				return true
			}
		}
		return false
	})
	var seen []question
	nstest.Eventually(t, "the datagram is judged", func() bool { seen = append(seen, w.judge.take()...); return len(seen) > 0 })
	for _, q := range seen {
		if anyPort(q.key) != key("udp", w.a.Addr6, gw, portGood) {
			t.Errorf("judged %s, want only datagrams", q.key)
		}
	}
	if s.Seen() != 0 {
		t.Error("a denied datagram arrived")
	}
}

// Only selected pods cost anything.
func TestUnselectedPodsAreNotQueued(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	w.judge.selected = nil
	w.update(t)
	nstest.Reach(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	w.want(t, "no pod selected")

	w.judge.selected = []netip.Addr{w.b.Addr4}
	w.update(t)
	nstest.Unreachable(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	w.asked(t, 1)
}

// A connection that is older than its pod's policy is judged in the direction it
// was opened, even when the next packet is a reply.
func TestOldConnectionIsJudgedAsReply(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, toPort(portGood))
	w.judge.selected = nil
	w.update(t)
	s := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	c := dial(t, w.a.NS, "udp", s.Addr)
	alive(t, c, "no pod selected")
	w.judge.selected = []netip.Addr{w.b.Addr4}
	w.update(t)
	s.Close()
	// The server speaks first now.
	reply := dialFrom(t, w.b.NS, "udp", s.Addr, netip.MustParseAddrPort(c.LocalAddr().String()))
	if _, err := reply.Write([]byte("late")); err != nil {
		t.Fatal(err)
	}
	var seen []question
	nstest.Eventually(t, "the reply is judged", func() bool { seen = append(seen, w.judge.take()...); return len(seen) > 0 })
	if len(seen) != 1 || !seen[0].reply || !seen[0].allowed || anyPort(seen[0].key) != key("udp", w.a.Addr4, w.b.Addr4, portGood) {
		t.Errorf("judged %+v, want the connection once, as a reply", seen)
	}
}

// Behind a Service address the judge sees the real destination, once.
func TestDNAT(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, toPort(portGood))
	vip := netip.MustParseAddr("10.96.0.10")
	w.nft(t, "services", nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest},
		join(protocolIs(unix.NFPROTO_IPV4), []expr.Any{
			&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
			compare(expr.CmpOpEq, vip.AsSlice()),
			&expr.Immediate{Register: 1, Data: w.b.Addr4.AsSlice()},
			&expr.Immediate{Register: 2, Data: []byte{portGood >> 8, portGood & 0xff}},
			&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: 1, RegProtoMin: 2, Specified: true},
		}))
	for _, network := range []string{"udp", "tcp"} { // what is cut over TCP tries again
		nstest.Echo(t, w.b.NS, network, w.b.Addr4, portGood)
		c := dial(t, w.a.NS, network, at(vip, 80))
		alive(t, c, "Service over "+network)
		w.want(t, "Service over "+network, key(network, w.a.Addr4, w.b.Addr4, portGood))

		w.judge.policy(nothing)
		if cut := w.update(t); cut != 1 {
			t.Errorf("Update cut %d connections, want the one to the Service", cut)
		}
		dead(t, c, "Service over "+network+" after the update")
		w.asked(t, 1)
		w.judge.policy(toPort(portGood))
	}
}

// The fast path's packet mark stands for a verdict and is remembered; marks of
// other software survive, ours do not leave the hook.
func TestPacketMark(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	const foreign = 0x4000
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	// Queued packets keep the foreign bit through a verdict with a mark.
	w.nft(t, "other-in", nftables.Chain{Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle},
		setMark(^uint32(0), foreign))
	// Anything but exactly the foreign bit is dropped on its way out.
	w.nft(t, "other-out", nftables.Chain{Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityFilter},
		[]expr.Any{&expr.Meta{Key: expr.MetaKeyMARK, Register: reg1}, compare(expr.CmpOpNeq, host32(foreign)), &expr.Verdict{Kind: expr.VerdictDrop}})
	nstest.Reach(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
	w.want(t, "foreign mark", key("udp", w.a.Addr4, w.b.Addr4, portGood))

	w.judge.policy(nothing)
	w.update(t)
	fast := w.nft(t, "fast-path", nftables.Chain{Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle},
		setMark(^uint32(0), DefaultMarks.Accept))
	c := dial(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
	alive(t, c, "marked by the fast path")
	w.nftDelete(t, fast)
	alive(t, c, "connection accepted by the fast path, later packet")
	w.want(t, "fast path")
}

// A packet conntrack calls invalid belongs to no connection: it is judged each
// time, never passed unjudged.
func TestInvalidPackets(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	if err := w.NS.Sysctl("net/netfilter/nf_conntrack_tcp_loose", "0"); err != nil {
		t.Fatal(err)
	}
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	c := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	alive(t, c, "tracked")
	w.want(t, "tracked", key("tcp", w.a.Addr4, w.b.Addr4, portGood))
	w.flushConntrack(t)
	alive(t, c, "untracked and allowed")
	w.asked(t, 2) // every one
	w.judge.policy(nothing)
	dead(t, c, "untracked and denied")
	w.asked(t, 1)
}

// The kernel runs the rules the golden files show.
func TestKernelHasTheRuleset(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, nothing)
	conn, err := nftables.New(nftables.WithNetNSFd(w.NS.FD()))
	if err != nil {
		t.Fatal(err)
	}
	for _, ch := range ruleset(w.backend.config, w.backend.fw.features) {
		if strings.HasPrefix(ch.name, chainService) {
			continue // below: the library cannot read the direction of "ct original"
		}
		rules, err := conn.GetRules(tableRef(), &nftables.Chain{Name: ch.name, Table: tableRef()})
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, r := range rules {
			// The library reads "ct set" back as a load into register 0.
			got = append(got, strings.ReplaceAll(renderExprs(r.Exprs), "ct load mark reg0", "ct set mark reg1"))
		}
		for _, r := range ch.rules {
			want = append(want, renderExprs(r.exprs))
		}
		if !slices.Equal(got, want) {
			t.Errorf("chain %s in the kernel\n%s\nwant\n%s", ch.name, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// nft(8) can show our table, with the rules for Services.
func TestTableIsShown(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, nothing)
	nstest.Need(t, func() error { _, err := exec.LookPath("nft"); return err },
		func() error { _, err := exec.LookPath("nsenter"); return err })
	out, err := exec.Command("nsenter", "--net="+w.NS.Path(), "nft", "-n", "list", "table", "inet", TableName).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"priority set ct original ip daddr . ct protocol . ct original proto-dst map @services4",
		"priority set ct original ip6 daddr . ct protocol . ct original proto-dst map @services6",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestQueueTaken(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	err := w.NS.Do(func() error {
		b, err := New(Config{Queues: 1})
		if err == nil {
			b.Close()
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "queue 7300 is taken") {
		t.Errorf("second backend on the same queue: %v, want an error that says so", err)
	}
	// The failed attempt left the first one working.
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	nstest.Unreachable(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
	w.judge.policy(everything)
	nstest.Reach(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
}

// A closed driver says so, at once and for good.
func TestDriverClose(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, func(flow.Key) bool { return true })
	d := w.backend.Drivers()[0]
	w.stop(t)
	var b dataplane.Batch
	if err := d.Recv(&b); !errors.Is(err, dataplane.ErrClosed) {
		t.Errorf("Recv after Close: %v, want ErrClosed", err)
	}
	b.N = 1
	if err := d.Apply(&b); !errors.Is(err, dataplane.ErrClosed) {
		t.Errorf("Apply after Close: %v, want ErrClosed", err)
	}
	if err := d.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if _, err := w.backend.update(w.judge, dataplane.Change{}); !errors.Is(err, dataplane.ErrClosed) {
		t.Errorf("Update after Close: %v, want ErrClosed", err)
	}
}
