package nfqueue

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Update cuts the live connections the new table denies, TCP and UDP, both
// families, and no other; a table that allows them again lets them go on.
func TestUpdateCuts(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, everything)
	for _, family := range families {
		for _, network := range networks {
			name := fmt.Sprintf("%s v%d", network, family)
			nstest.Echo(t, w.b.NS, network, w.b.Addr(family), portGood)
			nstest.Echo(t, w.b.NS, network, w.b.Addr(family), portBad)
			good := dial(t, w.a.NS, network, at(w.b.Addr(family), portGood))
			bad := dial(t, w.a.NS, network, at(w.b.Addr(family), portBad))
			alive(t, good, name)
			alive(t, bad, name)
			w.judge.take()

			// By its port: what an earlier round cut may try again meanwhile.
			w.judge.policy(func(k flow.Key) bool { return k.SrcPort != localPort(bad) })
			if cut := w.update(t); cut != 1 {
				t.Errorf("%s: Update cut %d connections, want 1", name, cut)
			}
			dead(t, bad, name+" denied")
			alive(t, good, name+" allowed")
			for _, q := range w.judge.take() {
				if q.key.SrcPort == localPort(good) || q.key.SrcPort == localPort(bad) && q.allowed {
					t.Errorf("%s: judged %+v, want packets of the denied connection only, denied", name, q)
				}
			}
			if cut := w.update(t); cut != 0 {
				t.Errorf("%s: the same table again cut %d connections", name, cut)
			}
			w.judge.policy(everything)
			w.update(t)
		}
	}
}

// Connections of pods that are not selected any more, and the node's own, stay.
func TestUpdateLeavesOthersAlone(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	own := dial(t, w.NS, "tcp", at(w.b.Addr4, portGood))
	alive(t, own, "node to pod")
	w.judge.policy(nothing)
	if cut := w.update(t); cut != 0 {
		t.Errorf("Update cut %d connections of the node", cut)
	}
	alive(t, own, "node to pod after the update")
	w.want(t, "node to pod")
}

// The sets follow Selected by element changes: the table is the same object, and
// packets that wait in a queue survive the update.
func TestUpdateKeepsTheQueue(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	s := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	release := make(chan struct{})
	asked := make(chan struct{}, 1)
	w.judge.policy(func(flow.Key) bool {
		select {
		case asked <- struct{}{}:
		default:
		}
		<-release
		return true
	})
	done := make(chan error, 1)
	go func() { done <- w.a.NS.Probe("udp", s.Addr, nstest.Timeout) }()
	<-asked // the packet waits for its verdict now
	other := &stubTable{selected: []netip.Addr{w.a.Addr4, netip.MustParseAddr("10.244.0.99"), netip.MustParseAddr("fd00::99")}}
	if _, err := w.backend.update(other, dataplane.Change{}); err != nil {
		t.Fatal(err)
	}
	close(release)
	if err := <-done; err != nil {
		t.Errorf("a packet that waited while the sets changed: %v, want an echo", err)
	}
	got, err := w.backend.fw.installed()
	if err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(sorted(got.selected)) != "[10.244.0.2 10.244.0.99 fd00::99]" {
		t.Errorf("the kernel's sets hold %v, want those of the table", sorted(got.selected))
	}
}

type stubTable struct {
	judge
	selected []netip.Addr
}

func (s *stubTable) Selected() []netip.Addr { return s.selected }

// Many pods at once fit into one transaction, and go again.
func TestUpdateManyPods(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	var many []netip.Addr
	for i := range 5000 {
		many = append(many, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}),
			netip.AddrFrom16([16]byte{0xfd, 14: byte(i >> 8), 15: byte(i)}))
	}
	for _, want := range [][]netip.Addr{many, many[:10], nil} {
		if _, err := w.backend.update(&stubTable{selected: want}, dataplane.Change{}); err != nil {
			t.Fatal(err)
		}
		got, err := w.backend.fw.installed()
		if err != nil {
			t.Fatal(err)
		}
		if len(got.selected) != len(want) {
			t.Errorf("the kernel's sets hold %d addresses, want %d", len(got.selected), len(want))
		}
	}
}

// A daemon restart under traffic: no denied packet passes at any moment, accepted
// connections go on, new ones work again once the new daemon judges. It has no
// table of its own yet: the selection of the earlier run holds.
func TestRestart(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, toPort(portGood))
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	bad := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portBad)
	live := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	alive(t, live, "before the restart")

	var sent atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	flood := dial(t, w.a.NS, "udp", bad.Addr)
	go func() {
		defer wg.Done()
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := flood.Write([]byte("denied")); err == nil {
					sent.Add(1)
				}
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	for range 5 {
		before := sent.Load()
		nstest.Eventually(t, "traffic flows", func() bool { return sent.Load() > before+50 })
		w.stop(t)
		before = sent.Load()
		alive(t, live, "accepted connection while no daemon runs")
		nstest.Eventually(t, "traffic flows", func() bool { return sent.Load() > before+50 })
		w.start(t, Config{Queues: 2})
		alive(t, live, "accepted connection after the restart")
	}
	close(stop)
	wg.Wait()
	if bad.Seen() != 0 {
		t.Errorf("%d of %d denied datagrams arrived", bad.Seen(), sent.Load())
	}
	nstest.Reach(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
}

// Closed fail mode: with the daemon gone, new connections of policed pods are
// dropped and accepted ones go on. Cleanup then leaves nothing.
func TestCloseClosed(t *testing.T) {
	w := newWorld(t, Config{Queues: 2}, everything)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	live := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	alive(t, live, "before Close")
	w.stop(t)
	nstest.Unreachable(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	alive(t, live, "accepted connection after Close")
	w.cleanup(t)
	if left := w.leftovers(t); left != "" {
		t.Errorf("after Cleanup there is still\n%s", left)
	}
	nstest.Reach(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	w.cleanup(t) // nothing left to remove is no error
}

// Open fail mode: Close opens the node, and so does a daemon that dies without
// Close.
func TestCloseOpen(t *testing.T) {
	w := newWorld(t, Config{Queues: 2, FailOpen: true}, nothing)
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	nstest.Unreachable(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
	for _, d := range w.backend.Drivers() {
		d.Close() // what a dying process amounts to: the table stays
	}
	nstest.Reach(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
	w.stop(t)
	nstest.Reach(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
	w.cleanup(t)
	if left := w.leftovers(t); left != "" {
		t.Errorf("after Cleanup there is still\n%s", left)
	}
}

// A full queue drops and counts, also with FailOpen: overload must not switch a
// policy off.
func TestOverflow(t *testing.T) {
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("open=", open), func(t *testing.T) {
			w := newWorld(t, Config{Queues: 1, QueueLen: 4, FailOpen: open}, nothing)
			s := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portBad)
			release := make(chan struct{})
			w.judge.policy(func(flow.Key) bool { <-release; return false })
			c := dial(t, w.a.NS, "udp", s.Addr)
			sent := uint64(0)
			nstest.Eventually(t, "the queue overflows", func() bool {
				for range 100 {
					c.Write([]byte("flood"))
				}
				sent += 100
				st := w.backend.Stats()
				return st.Overflow > 0 || st.Bypassed > 0
			})
			time.Sleep(20 * time.Millisecond)
			st := w.backend.Stats()
			// The echoes may pass unjudged, too.
			if n := uint64(s.Seen()); open && (n == 0 || st.Bypassed < n || st.Overflow > 0) || !open && (s.Seen() > 0 || st.Bypassed > 0) {
				t.Errorf("%d of %d packets passed behind a full queue: %+v", s.Seen(), sent, st)
			}
			close(release)
			w.judge.policy(everything)
			nstest.Eventually(t, "the queue works again", func() bool {
				return w.a.NS.Probe("udp", at(w.b.Addr4, portBad), nstest.Blocked) == nil
			})
			nstest.Eventually(t, "every packet is counted", func() bool {
				st := w.backend.Stats()
				return st.Upcalls+st.Overflow+st.Bypassed >= sent
			})
		})
	}
}

// fillConntrack puts n UDP connections with the accept bit into the node's
// connection table, one per source port and pod address pair.
func fillConntrack(tb testing.TB, ns *netlab.NS, n int) {
	tb.Helper()
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: ns.FD()})
	if err != nil {
		tb.Fatal(err)
	}
	defer conn.Close()
	const ctaTimeout, ctaStatus = 7, 3
	for i := range n {
		src := netip.AddrFrom4([4]byte{10, 245, byte(i >> 14), 1}).String()
		port := uint16(1024 + i%(1<<14))
		orig := ctTuple{src, "10.244.0.3", port, portGood, flow.UDP}
		reply := ctTuple{"10.244.0.3", src, portGood, port, flow.UDP}
		b := ctMessage(unix.AF_INET, orig, reply, DefaultMarks.Accept|0x4000, 0)
		b = appendAttr32(appendAttr32(b, ctaTimeout, 600), ctaStatus, 1<<3|1<<1) // confirmed, seen reply
		_, err := conn.Execute(netlink.Message{
			Header: netlink.Header{Type: msgCtNew, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
			Data:   b,
		})
		if err != nil {
			tb.Fatalf("create connection %d: %v", i, err)
		}
	}
}

// The sweep finds what is denied among many, exactly, and keeps foreign mark
// bits.
func TestSweepIsExact(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	fillConntrack(t, w.NS, 1000)
	w.judge.policy(func(k flow.Key) bool { return k.SrcPort%2 == 0 })
	if cut := w.update(t); cut != 500 {
		t.Errorf("Update cut %d connections, want 500", cut)
	}
	flows := w.connections(t)
	if len(flows) != 1000 {
		t.Errorf("%d connections left, want all 1000", len(flows))
	}
	for _, f := range flows {
		want := uint32(0x4000)
		if f.Forward.SrcPort%2 == 0 {
			want |= DefaultMarks.Accept
		}
		if f.Mark != want {
			t.Fatalf("%s: mark %#x, want %#x", f, f.Mark, want)
		}
	}
}

// scope is a change of a few addresses.
type scope struct{ addrs []netip.Addr }

func (s scope) Touches(a flow.Addr) bool { return slices.Contains(s.addrs, a.Netip()) }
func (s scope) Affects(k flow.Key) bool  { return s.Touches(k.Src) || s.Touches(k.Dst) }
func (s scope) Touched(limit int) (addrs []flow.Addr, ok bool) {
	for _, a := range s.addrs {
		addrs = append(addrs, flow.AddrFrom(a))
	}
	return addrs, len(addrs) <= limit
}

// Update looks only at connections the change may be about, and cuts of these
// what is denied: by an address at either end, behind a Service as well, in both
// families; and by walking all of them where the addresses are many.
func TestUpdateIsTargeted(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	vip := netip.MustParseAddr("10.96.0.10")
	w.nft(t, "services", nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest},
		dnat(vip, w.b.Addr4, portGood))
	fillConntrack(t, w.NS, 500) // from 10.245.0.1 to 10.244.0.3, which is b
	for _, addr := range []netip.Addr{w.b.Addr4, w.b.Addr6} {
		nstest.Echo(t, w.b.NS, "tcp", addr, portGood)
	}
	nstest.Echo(t, w.Outside, "tcp", w.Outside4, portGood)
	service, direct := dial(t, w.a.NS, "tcp", at(vip, 80)), dial(t, w.a.NS, "tcp", at(w.b.Addr6, portGood))
	other := dial(t, w.a.NS, "tcp", at(w.Outside4, portGood))
	var looked []flow.Key
	w.judge.policy(func(k flow.Key) bool { looked = append(looked, k); return false })
	many := make([]netip.Addr, fewAddrs)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, 9, 9, byte(i)})
	}
	for _, tc := range []struct {
		name  string
		addrs []netip.Addr
		cut   int
	}{
		{"nobody", nil, 0},
		{"an address without connections", many[:1], 0},
		{"the source of one, and a VIP", []netip.Addr{netip.MustParseAddr("192.0.2.77"), vip}, 0},
		{"the destination, IPv6", []netip.Addr{w.b.Addr6}, 1},
		{"the source of many", []netip.Addr{netip.MustParseAddr("10.245.0.1")}, 500},
		{"the destination behind a Service", []netip.Addr{w.b.Addr4, w.b.Addr6}, 1},
		{"many addresses", append(many, w.Outside4), 1},
		{"all that is left", nil, 0},
	} {
		looked = nil
		cut, err := w.backend.update(w.judge, dataplane.ChangeWithin(scope{tc.addrs}))
		if err != nil || cut != tc.cut || len(looked) != tc.cut {
			t.Errorf("%s: Update cut %d connections and looked at %d, %v, want %d", tc.name, cut, len(looked), err, tc.cut)
		}
	}
	w.judge.policy(nothing)
	for name, c := range map[string]net.Conn{"service": service, "direct": direct, "other": other} {
		dead(t, c, name)
	}
}

// BenchmarkUpdate measures Update with many accepted connections in the kernel: for a
// change of everything, of a pod with one connection, which is cut, and of the pod all
// the others go to, of which none is; with the ledger, and without as where nobody
// tells of connections.
func BenchmarkUpdate(b *testing.B) {
	one := flow.MakeKey(flow.UDP, netip.MustParseAddrPort("10.77.0.1:1"), netip.MustParseAddrPort("10.77.0.2:2"))
	for _, bc := range []struct {
		name   string
		conns  int
		ledger bool
		change string
	}{
		{"10k-everything", 10000, false, ""}, {"10k-everything-denied", 10000, false, "denied"},
		{"10k-one-pod/walks", 10000, false, "10.77.0.1"}, {"10k-one-pod/ledger", 10000, true, "10.77.0.1"},
		{"65k-one-pod/walks", 65000, false, "10.77.0.1"}, {"65k-one-pod/ledger", 65000, true, "10.77.0.1"},
		{"65k-busy-pod/walks", 65000, false, "10.244.0.3"}, {"65k-busy-pod/ledger", 65000, true, "10.244.0.3"},
	} {
		b.Run(bc.name, func(b *testing.B) {
			w := newWorld(b, Config{Queues: 1}, everything)
			conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.NS.FD()})
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close()
			fillConntrack(b, w.NS, bc.conns)
			if bc.ledger {
				w.taught(b, 0)
			}
			var change dataplane.Change
			want := 0
			switch bc.change {
			case "denied":
				w.judge.policy(nothing)
				want = bc.conns
			case "":
			default:
				change = dataplane.ChangeWithin(scope{[]netip.Addr{netip.MustParseAddr(bc.change)}})
				w.judge.policy(func(k flow.Key) bool { return k != one })
				if bc.change == one.Src.String() {
					want = 1
				}
			}
			w.backend.walks = 0
			for b.Loop() {
				b.StopTimer()
				c := kernelConn{key: one, orig: tupleOf(one), reply: replyTuple(one)}
				if want == 1 && c.create(b, conn) && bc.ledger {
					w.backend.Learn("nfqueue", []conntrack.Record{plainRecord(one)}, false)
				}
				b.StartTimer()
				cut, err := w.backend.update(w.judge, change)
				b.StopTimer()
				if err != nil || cut != want {
					b.Fatalf("Update cut %d connections, %v, want %d", cut, err, want)
				}
				if bc.change == "denied" {
					w.flushConntrack(b)
					fillConntrack(b, w.NS, bc.conns)
				} else if want == 1 {
					c.delete(conn)
				}
				b.StartTimer()
			}
			if bc.ledger && w.backend.walks != 0 {
				b.Errorf("%d walks", w.backend.walks)
			}
		})
	}
}
