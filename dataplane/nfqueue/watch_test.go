package nfqueue

import (
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
)

// recoverWithin is how soon a changed table must be back. A machine that is busy
// with other things may take longer now and then, but not every time.
const recoverWithin = 100 * time.Millisecond

// vandals are what other software does to a table that is not its own.
var vandals = map[string]func(c *nftables.Conn, t *nftables.Table){
	"delete the table":  func(c *nftables.Conn, t *nftables.Table) { c.DelTable(t) },
	"flush the ruleset": func(c *nftables.Conn, _ *nftables.Table) { c.FlushRuleset() },
	"flush a chain": func(c *nftables.Conn, t *nftables.Table) {
		c.FlushChain(&nftables.Chain{Name: "forward4", Table: t})
	},
	"empty a set": func(c *nftables.Conn, t *nftables.Table) { c.FlushSet(set(t, setSelected, ipv4)) },
	"accept in front": func(c *nftables.Conn, t *nftables.Table) {
		c.InsertRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: "forward", Table: t}, Exprs: verdict(expr.VerdictAccept)})
	},
}

// Whatever other software does to the table, it is back at once, whole, and the
// counters go on.
func TestRestore(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, toPort(portGood))
	s := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portBad)
	good := nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	live := dial(t, w.a.NS, "tcp", good.Addr)
	alive(t, live, "before")
	before := w.backend.Stats()
	want, err := w.backend.fw.installed()
	if err != nil {
		t.Fatal(err)
	}
	restored := before.Restored
	fastest := nstest.Timeout
	for name, vandal := range vandals {
		conn, err := nftables.New(nftables.WithNetNSFd(w.NS.FD()))
		if err != nil {
			t.Fatal(err)
		}
		vandal(conn, tableRef())
		if err := conn.Flush(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		nstest.Eventually(t, name+": restored", func() bool { return w.backend.Stats().Restored > restored })
		fastest = min(fastest, time.Since(began))
		if n := w.backend.Stats().Restored; n != restored+1 {
			t.Errorf("%s: restored %d times, want once", name, n-restored)
		}
		restored = w.backend.Stats().Restored
		got, err := w.backend.fw.installed()
		if err != nil || len(got.selected) != len(want.selected) {
			t.Errorf("%s: the sets hold %d addresses, %v, want %d", name, len(got.selected), err, len(want.selected))
		}
		nstest.Unreachable(t, w.a.NS, "udp", s.Addr)
		nstest.Reach(t, w.a.NS, "tcp", good.Addr)
		alive(t, live, name)
	}
	if fastest > recoverWithin {
		t.Errorf("restored after %v at best, want at most %v", fastest, recoverWithin)
	}
	if s.Seen() != 0 {
		t.Errorf("%d denied datagrams arrived after a restoration", s.Seen())
	}
	if after := w.backend.Stats(); after.Bypassed < before.Bypassed || after.Upcalls <= before.Upcalls {
		t.Errorf("stats went from %+v to %+v", before, after)
	}
	// Our own changes, and those to other tables, are none of this.
	for range 3 {
		w.judge.selected = append(w.judge.selected, netip.MustParseAddr("10.244.0.77"))
		w.update(t)
		w.judge.selected = w.judge.selected[:len(w.judge.selected)-1]
		w.update(t)
		w.nftDelete(t, w.nft(t, "other", nftables.Chain{}))
	}
	time.Sleep(recoverWithin)
	if n := w.backend.Stats().Restored; n != restored {
		t.Errorf("restored %d times without need", n-restored)
	}
}

// An update that comes before the watch finds no table installs it, too.
func TestUpdateRestoresTheTable(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, nothing)
	w.backend.mu.Lock() // holds the watch off
	conn := w.backend.fw.conn
	conn.DelTable(tableRef())
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	w.backend.mu.Unlock()
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	nstest.Reach(t, w.a.NS, "udp", at(w.b.Addr4, portGood)) // open: proves that the table was needed
	w.flushConntrack(t)
	w.update(t)
	nstest.Unreachable(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
}

func TestIsOurs(t *testing.T) {
	msg := func(typ netlink.HeaderType, family byte, attrs ...[]byte) netlink.Message {
		m := netlink.Message{Header: netlink.Header{Type: typ}, Data: []byte{family, 0, 0, 0}}
		for _, a := range attrs {
			m.Data = append(m.Data, a...)
		}
		return m
	}
	name := func(s string) []byte { return appendAttr(nil, tableNameOf, append([]byte(s), 0)) }
	const delTable, newRule = unix.NFNL_SUBSYS_NFTABLES<<8 | 2, unix.NFNL_SUBSYS_NFTABLES<<8 | 6
	for _, tc := range []struct {
		name string
		m    netlink.Message
		want bool
	}{
		{"table", msg(delTable, unix.NFPROTO_INET, name("tierwall")), true},
		{"rule, name not first", msg(newRule, unix.NFPROTO_INET, appendAttr(nil, 7, []byte{1}), name("tierwall")), true},
		{"other table", msg(delTable, unix.NFPROTO_INET, name("tierwall-probe")), false},
		{"other family", msg(delTable, unix.NFPROTO_IPV4, name("tierwall")), false},
		{"other subsystem", msg(unix.NFNL_SUBSYS_QUEUE<<8, unix.NFPROTO_INET, name("tierwall")), false},
		{"no name", msg(delTable, unix.NFPROTO_INET), false},
		{"cut short", msg(delTable, unix.NFPROTO_INET, name("tierwall")[:6]), false},
		{"length 0", msg(delTable, unix.NFPROTO_INET, []byte{0, 0, 1, 0}), false},
		{"empty", netlink.Message{Header: netlink.Header{Type: delTable}}, false},
	} {
		if got := isOurs(tc.m); got != tc.want {
			t.Errorf("%s: %v, want %v", tc.name, got, tc.want)
		}
	}
}

// Every packet that was queued is accounted for: received, lost in front of a full
// queue, or without anybody to receive it.
func TestQueuedPacketsAreConserved(t *testing.T) {
	for _, open := range []bool{false, true} {
		w := newWorld(t, Config{Queues: 1, QueueLen: 4, FailOpen: open}, nothing)
		s := nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portBad)
		c := dial(t, w.a.NS, "udp", s.Addr)
		var echoes atomic.Uint64
		go func() { // until the connection is closed
			for buf := make([]byte, 64); ; echoes.Add(1) {
				if _, err := c.Read(buf); err != nil {
					return
				}
			}
		}()
		release := make(chan struct{})
		w.judge.policy(func(flow.Key) bool { <-release; return false })
		send := func(n int) {
			for range n {
				if _, err := c.Write([]byte("flood")); err != nil {
					t.Fatal(err)
				}
			}
		}
		send(100) // most of it meets a full queue
		nstest.Eventually(t, "the queue overflows", func() bool { st := w.backend.Stats(); return st.Overflow > 0 || st.Bypassed > 0 })
		if st := w.backend.Stats(); st.Dropped != 0 || !open && st.Upcalls+st.Overflow > 100 {
			t.Errorf("while packets wait: %+v", st)
		}
		close(release)
		w.judge.policy(nothing)
		queued := func() uint64 {
			n, err := w.backend.fw.counters()
			if err != nil {
				t.Fatal(err)
			}
			return n[counterQueued]
		}
		all := func(st dataplane.BackendStats) uint64 {
			return st.Upcalls + st.Overflow + st.Fates[dataplane.DropUnheard] + st.Fates[dataplane.PassUnheard]
		}
		nstest.Eventually(t, "nothing waits or is under way, and every packet is counted", func() bool {
			st, n, arrived, back := w.backend.Stats(), queued(), uint64(s.Seen()), echoes.Load()
			return all(st) == n && st.Fates.Total() == n && n == 100+arrived && st.Bypassed == arrived+back
		})
		if got := queued(); !open && got != 100 { // else there are echoes
			t.Errorf("%d packets queued, want 100", got)
		}
		before := w.backend.Stats()
		for _, d := range w.backend.Drivers() {
			d.Close()
		}
		send(10)
		if open { // and their echoes
			nstest.Eventually(t, "all pass", func() bool {
				st := w.backend.Stats()
				return st.Bypassed-before.Bypassed == 20 && st.Dropped == 0 && all(st) == all(before)+20
			})
		} else {
			nstest.Eventually(t, "10 packets of 110 are dropped", func() bool {
				st := w.backend.Stats()
				return st.Dropped == 10 && all(st) == 110
			})
			if s.Seen() != 0 {
				t.Errorf("%d packets passed", s.Seen())
			}
		}
	}
}
