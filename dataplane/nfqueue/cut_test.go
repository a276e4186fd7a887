package nfqueue

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// fromMangle is a prerouting chain of other software, before DNAT.
var fromMangle = nftables.Chain{Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityMangle}

// markOf returns the connection marks of the UDP connections to a port.
func (w *world) markOf(t testing.TB, port uint16) (marks []uint32) {
	t.Helper()
	for _, f := range w.connections(t) {
		if f.Forward.Protocol == unix.IPPROTO_UDP && f.Forward.DstPort == port {
			marks = append(marks, f.Mark)
		}
	}
	return marks
}

// What bears the fast mark alone passes unasked and accepts nothing; with the accept
// mark it accepts its connection, unless it is an error about another one, or in a
// zone the fast path cannot see.
func TestFastMark(t *testing.T) {
	const fast = 0x10
	w := newWorld(t, Config{Queues: 1, FastMark: fast}, everything)
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	from := func(pod *netlab.Pod, proto byte, mark uint32) []expr.Any {
		return join(protocolIs(unix.NFPROTO_IPV4), ipv4.load(src), []expr.Any{compare(expr.CmpOpEq, pod.Addr4.AsSlice())}, transportIs(proto), setMark(^uint32(0), mark))
	}
	for _, tc := range []struct {
		name   string
		rules  [][]expr.Any
		judged int    // packets of one exchange
		mark   uint32 // of the connection afterwards
	}{
		{"known to the fast path, the answer is not", [][]expr.Any{from(w.a, unix.IPPROTO_UDP, fast)}, 1, DefaultMarks.Accept},
		{"known both ways", [][]expr.Any{from(w.a, unix.IPPROTO_UDP, fast), from(w.b, unix.IPPROTO_UDP, fast)}, 0, 0},
		{"just judged", [][]expr.Any{from(w.a, unix.IPPROTO_UDP, fast|DefaultMarks.Accept)}, 0, DefaultMarks.Accept},
	} {
		w.flushConntrack(t)
		w.judge.take()
		table := w.nft(t, "fast-path", fromMangle, tc.rules...)
		alive(t, dial(t, w.a.NS, "udp", at(w.b.Addr4, portGood)), tc.name)
		w.nftDelete(t, table)
		if q := w.judge.take(); len(q) != tc.judged {
			t.Errorf("%s: %d packets judged, want %d", tc.name, len(q), tc.judged)
		}
		if marks := w.markOf(t, portGood); len(marks) != 1 || marks[0] != tc.mark {
			t.Errorf("%s: connection marks %#x, want %#x", tc.name, marks, tc.mark)
		}
	}

	// An error that b sends about a connection which nobody has accepted.
	w.flushConntrack(t)
	w.judge.forget.Store(true)
	table := w.nft(t, "fast-path", fromMangle, from(w.b, unix.IPPROTO_ICMP, fast|DefaultMarks.Accept))
	c := dial(t, w.a.NS, "udp", at(w.b.Addr4, 9))
	if err := netlab.Exchange(c, []byte("anybody?"), nstest.Timeout); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("exchange with a closed port: %v, want it refused", err)
	}
	w.nftDelete(t, table)
	if marks := w.markOf(t, 9); len(marks) != 1 || marks[0] != 0 {
		t.Errorf("after an error about it: connection marks %#x, want one without", marks)
	}
	w.judge.forget.Store(false)

	nstest.Need(t, func() error {
		if !w.backend.fw.features.zones {
			return fmt.Errorf("nft \"ct zone\"")
		}
		return nil
	})
	w.flushConntrack(t)
	raw := fromMangle
	raw.Priority = nftables.ChainPriorityRaw
	w.nft(t, "zones", raw, inZone(7))
	w.nft(t, "fast-path", fromMangle, from(w.a, unix.IPPROTO_UDP, fast|DefaultMarks.Accept))
	w.judge.take()
	alive(t, dial(t, w.a.NS, "udp", at(w.b.Addr4, portGood)), "in a zone")
	if q := w.judge.take(); len(q) != 1 || q[0].plain {
		t.Errorf("in a zone: judged %+v, want the answer, as of a connection of another name", q)
	}
}

// inZone puts connections into a zone; it belongs before conntrack.
func inZone(zone uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: reg1, Data: []byte{byte(zone), byte(zone >> 8)}},
		&expr.Ct{Key: expr.CtKeyZONE, Register: reg1, SourceRegister: true},
	}
}

// The driver says of whose packets the kernel has the connection under the ends they
// show. Of what it cannot know it does not say so.
func TestPlain(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	nstest.Since(t, "5.18", "queues that tell a packet's priority", w.backend.fw.features.priority)
	vip := netip.MustParseAddr("10.96.0.10")
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr4, portGood)
	nstest.Echo(t, w.b.NS, "udp", w.b.Addr6, portGood)
	nstest.Echo(t, w.Outside, "udp", w.Outside4, portGood)
	w.nft(t, "services", nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest},
		dnat(vip, w.b.Addr4, portGood))
	w.nft(t, "masquerade", nftables.Chain{Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource},
		join(protocolIs(unix.NFPROTO_IPV4), ipv4.load(dst), []expr.Any{compare(expr.CmpOpEq, w.Outside4.AsSlice()), &expr.Masq{}}))
	for _, tc := range []struct {
		name  string
		to    netip.AddrPort
		plain bool
	}{
		{"direct", at(w.b.Addr4, portGood), true},
		{"direct, IPv6", at(w.b.Addr6, portGood), true},
		{"masqueraded later", at(w.Outside4, portGood), true},
		{"translated", at(vip, 80), false},
	} {
		w.judge.take()
		c := dial(t, w.a.NS, "udp", tc.to)
		alive(t, c, tc.name)
		if q := w.judged(c); len(q) != 1 || q[0].plain != tc.plain {
			t.Errorf("%s: judged %+v, want one packet, plain %v", tc.name, q, tc.plain)
		}
	}
	// Whose connection it is, an answer shows unless there is IPVS.
	w.judge.forget.Store(true)
	for _, there := range []bool{false, true} {
		w.backend.ipvs.Store(there)
		c := dial(t, w.a.NS, "udp", at(w.b.Addr4, portGood))
		w.judge.take()
		alive(t, c, "not remembered")
		if q := w.judge.take(); len(q) != 2 || !q[0].plain || q[1].plain == there || !q[1].reply {
			t.Errorf("with IPVS %v judged %+v, want a plain packet and an answer that is if there is none", there, q)
		}
	}
}

// settled makes the ledger of a running engine complete in no time.
func (w *whole) settled(t *testing.T) {
	t.Helper()
	g := w.backend.ledger
	g.mu.Lock()
	g.settle, g.missedAt = 0, never
	g.mu.Unlock()
	nstest.Eventually(t, "the ledger is complete", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.complete
	})
}

func (w *whole) walks() (n int) {
	w.backend.mu.Lock()
	defer w.backend.mu.Unlock()
	n, w.backend.walks = w.backend.walks, 0
	return n
}

// From packets to their connections' ends: policy denies what is established, direct,
// through a Service, and through a Service with the client's address replaced. The
// kernel's table is walked only where the worker cannot know what the kernel calls a
// connection.
func TestWholeLedger(t *testing.T) {
	for _, tc := range []struct {
		name   string
		family int
		vip    string // "" = direct
		walks  bool
	}{
		{"direct", 4, "", false},
		{"direct, IPv6", 6, "", false},
		{"Service", 4, "web", false},
		{"Service, IPv6", 6, "web", false},
		{"Service, masqueraded", 4, "other", true},
	} {
		for _, network := range networks {
			t.Run(tc.name+" over "+network, func(t *testing.T) {
				w := newWhole(t, dataplane.Config{})
				w.nat(t)
				w.masquerade(t, vips["other"][0])
				to, addr := at(w.b.Addr(tc.family), portGood), w.b.Addr(tc.family)
				if tc.vip != "" {
					to = at(vips[tc.vip][tc.family/6], servicePort)
				}
				nstest.Echo(t, w.b.NS, network, addr, portGood)
				w.apply(t, switched(rule.Allow, rule.Deny))
				w.settled(t)
				for round := range 2 { // UDP goes on with the connection it has
					c := dial(t, w.a.NS, network, to)
					alive(t, c, "allowed")
					w.walks()
					w.apply(t, switched(rule.Deny, rule.Allow))
					// Later, what was cut before and has come back is there, too.
					if n := w.walks(); round == 0 && (n > 0) != tc.walks {
						t.Errorf("%d walks, want some: %v", n, tc.walks)
					}
					dead(t, c, "denied")
					w.apply(t, switched(rule.Allow, rule.Deny))
					if network == "udp" {
						alive(t, c, "allowed again")
					}
					c.Close()
				}
			})
		}
	}
}

// switched has one policy about pod b's good port in the place of another.
func switched(now, before rule.Action) classifier.Delta {
	return classifier.Delta{Policies: []classifier.PolicyChange{to(now, portGood), {Ref: to(before, portGood).Ref}}}
}

// masquerade has connections to an address come from the node.
func (w *whole) masquerade(t *testing.T, vip netip.Addr) {
	t.Helper()
	cmd := exec.Command("nsenter", "--net="+w.NS.Path(), "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf("table ip masq { chain post { type nat hook postrouting priority srcnat; ct original ip daddr %s masquerade\n}\n}\n", vip))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// What a worker has accepted and the kernel's table does not have yet, because the
// packet is held somewhere behind us, is cut when it gets there.
func TestCutWhatIsHeld(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	w.taught(t, time.Minute)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.NS.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asker := newAsker(t, w)
	k := flow.MakeKey(flow.UDP, netip.MustParseAddrPort("10.77.0.1:1"), netip.MustParseAddrPort("10.77.0.2:2"))
	for _, tc := range []struct {
		name   string
		change dataplane.Change
	}{{"a change of one address", dataplane.ChangeWithin(scope{[]netip.Addr{k.Src.Netip()}})}, {"a change of everything", dataplane.Change{}}} {
		c := kernelConn{key: k, orig: tupleOf(k), reply: replyTuple(k)}
		w.judge.policy(everything)
		r := conntrack.Record{Key: k, Plain: true}
		r.Packets[0] = 1
		w.backend.Learn("nfqueue", []conntrack.Record{r}, false)
		w.judge.policy(nothing)
		if _, err := w.backend.update(w.judge, tc.change); err != nil {
			t.Fatal(err)
		}
		if !c.create(t, conn) || !asker.accepted(t, &c) {
			t.Fatal("no connection to cut")
		}
		nstest.Eventually(t, tc.name+": it is cut in the end", func() bool {
			w.backend.Learn("nfqueue", nil, false)
			return !asker.accepted(t, &c)
		})
		c.delete(conn)
	}
}

// A packet that was in the queue when a rule named its Service first was judged
// without; its connection is looked at once more.
func TestCutLateService(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	w.taught(t, 0)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.NS.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asker := newAsker(t, w)
	k := flow.MakeKey(flow.UDP, netip.MustParseAddrPort("10.77.0.1:1"), netip.MustParseAddrPort("10.77.0.2:2"))
	via := flow.Service{Addr: flow.AddrFrom(vips["web"][0]), Port: 80}
	table := &viaTable{
		allow:    func(_ flow.Key, v flow.Service) bool { return v != via },
		services: []classifier.ServicePort{{Service: via, Proto: flow.UDP}},
	}
	if _, err := w.backend.update(table, dataplane.ChangeWithin(scope{[]netip.Addr{k.Src.Netip()}})); err != nil {
		t.Fatal(err)
	}
	c := kernelConn{key: k, via: via, orig: tupleOf(k), reply: replyTuple(k)}
	c.orig.dst, c.orig.dport = via.Addr.String(), via.Port
	if !c.create(t, conn) {
		t.Fatal("no connection to cut")
	}
	r := conntrack.Record{Key: k}
	r.Packets[0] = 1
	w.backend.Learn("nfqueue", []conntrack.Record{r}, false)
	nstest.Eventually(t, "the connection is cut", func() bool {
		w.backend.Learn("nfqueue", nil, false)
		return !asker.accepted(t, &c)
	})
}

// Connections that another one made the kernel expect inherit its mark without a
// worker's word; a change finds them all the same. The kernel reads FTP on the first:
// an expectation of nftables' own ("ct expectation") would do, too, but its time-out
// counts from what the memory held before, and on kernels that clear memory it is over
// at once.
func TestCutExpected(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	nstest.Echo(t, w.b.NS, "tcp", w.b.Addr4, portGood)
	data := nstest.Echo(t, w.a.NS, "tcp", w.a.Addr4, 9876) // it comes back
	conn, err := nftables.New(nftables.WithNetNSFd(w.NS.FD()))
	if err != nil {
		t.Fatal(err)
	}
	helper := conn.AddTable(&nftables.Table{Name: "helper", Family: nftables.TableFamilyIPv4})
	chain := conn.AddChain(&nftables.Chain{Name: "c", Table: helper, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFilter})
	conn.AddObj(&nftables.NamedObj{Table: helper, Name: "ftp", Type: nftables.ObjTypeCtHelper, Obj: &expr.CtHelper{
		Name: "ftp", L3Proto: unix.NFPROTO_IPV4, L4Proto: unix.IPPROTO_TCP,
	}})
	conn.AddRule(&nftables.Rule{Table: helper, Chain: chain, Exprs: join(transportIs(unix.IPPROTO_TCP), []expr.Any{
		&expr.Payload{DestRegister: reg1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		compare(expr.CmpOpEq, []byte{portGood >> 8, portGood & 0xff}),
		&expr.Objref{Type: int(nftables.ObjTypeCtHelper), Name: "ftp"},
	})})
	nstest.Need(t, conn.Flush)
	w.taught(t, 0)
	control := dial(t, w.a.NS, "tcp", at(w.b.Addr4, portGood))
	alive(t, control, "the connection that is known")
	a := w.a.Addr4.As4()
	// The helper looks at the beginning of lines.
	for _, line := range []string{"USER anonymous\r\n", fmt.Sprintf("PORT %d,%d,%d,%d,%d,%d\r\n", a[0], a[1], a[2], a[3], 9876>>8, 9876&0xff)} {
		if err := netlab.Exchange(control, []byte(line), nstest.Timeout); err != nil {
			t.Fatal(err)
		}
	}
	w.judge.take()
	child := dial(t, w.b.NS, "tcp", data.Addr)
	alive(t, child, "the connection that is expected")
	if q := w.judged(child); len(q) != 0 {
		t.Fatalf("the expected connection was judged: %+v; the test tests nothing", q)
	}
	w.judge.policy(func(k flow.Key) bool { return k.DstPort != 9876 })
	cut, err := w.backend.update(w.judge, dataplane.ChangeWithin(scope{[]netip.Addr{w.b.Addr4}}))
	if err != nil || cut != 1 {
		t.Errorf("cut %d, %v, want the expected connection", cut, err)
	}
	dead(t, child, "the connection that was expected")
	alive(t, control, "the other one")
}
