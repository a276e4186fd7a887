package nfqueue

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane"
)

// taught makes the ledger of a world complete: as if its time to settle had passed
// since the start.
func (w *world) taught(t testing.TB, settle time.Duration) {
	t.Helper()
	w.backend.ledger.settle, w.backend.ledger.missedAt = settle, never
	w.backend.Learn("nfqueue", nil, false)
	w.update(t)
	if !w.backend.ledger.complete {
		t.Fatal("the ledger is not complete after a walk")
	}
}

// kernelConn is a connection as a test puts it into the kernel's table: the forward
// hook saw key, a worker told it, or not.
type kernelConn struct {
	key         flow.Key
	via         flow.Service // zero if not translated
	orig, reply ctTuple
	zone        uint16
	named       bool // the ruleset found no reason to doubt that the kernel has it under its key
	turned      bool // a worker believes it was opened in the other direction
}

func tupleOf(k flow.Key) ctTuple {
	return ctTuple{k.Src.Netip().String(), k.Dst.Netip().String(), k.SrcPort, k.DstPort, k.Proto}
}

// valid reports whether the tuple's addresses are of one family.
func (t ctTuple) valid() bool { return strings.Contains(t.src, ":") == strings.Contains(t.dst, ":") }

func replyTuple(k flow.Key) ctTuple { return tupleOf(k.Reverse()) }

func (c *kernelConn) family() byte {
	if c.key.Src.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// create puts the connection into the kernel's table, with the accept bit; false if
// the kernel has another one of these ends.
func (c *kernelConn) create(t testing.TB, conn *netlink.Conn) bool {
	t.Helper()
	const ctaTimeout, ctaStatus, ctaProtoinfo = 7, 3, 4
	b := ctMessage(c.family(), c.orig, c.reply, DefaultMarks.Accept|0x4000, c.zone)
	b = appendAttr32(appendAttr32(b, ctaTimeout, 600), ctaStatus, 1<<3|1<<1) // confirmed, seen reply
	if c.key.Proto == flow.TCP {
		state := appendAttr(nil, 1, []byte{3})                                                         // CTA_PROTOINFO_TCP_STATE: established
		b = appendAttr(b, ctaProtoinfo|unix.NLA_F_NESTED, appendAttr(nil, 1|unix.NLA_F_NESTED, state)) // CTA_PROTOINFO_TCP
	}
	_, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: msgCtNew, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl},
		Data:   b,
	})
	if errors.Is(err, unix.EEXIST) {
		return false
	}
	if err != nil {
		t.Fatalf("create %s (%v, %v): %v", c.key, c.orig, c.reply, err)
	}
	return true
}

// accept gives the connection the accept bit once more, as a verdict does that comes
// late.
func (c *kernelConn) accept(t testing.TB, conn *netlink.Conn) {
	t.Helper()
	_, err := conn.Execute(netlink.Message{
		Header: netlink.Header{Type: msgCtNew, Flags: netlink.Request | netlink.Acknowledge},
		Data:   ctMessage(c.family(), c.orig, c.reply, DefaultMarks.Accept|0x4000, c.zone),
	})
	if err != nil {
		t.Fatalf("accept %s (%v, %v): %v", c.key, c.orig, c.reply, err)
	}
}

func (c *kernelConn) delete(conn *netlink.Conn) {
	b := []byte{c.family(), unix.NFNETLINK_V0, 0, 0}
	b = appendAttr(b, ctaTupleOrig|unix.NLA_F_NESTED, c.orig.encode())
	if c.zone != 0 {
		b = appendAttr(b, ctaZone, []byte{byte(c.zone >> 8), byte(c.zone)})
	}
	_, _ = conn.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_CTNETLINK<<8 | 2, Flags: netlink.Request | netlink.Acknowledge}, Data: b,
	})
}

// universe makes random connections of few ends, so that they meet.
type universe struct{ *rand.Rand }

var universeAddrs = [2][]string{{"10.77.0.1", "10.77.0.2", "10.77.0.3"}, {"fd77::1", "fd77::2", "fd77::3"}}

func (u universe) conn() (c kernelConn) {
	addrs := universeAddrs[u.IntN(2)]
	src, dst := addrs[u.IntN(2)], addrs[u.IntN(2)]
	v4 := addrs[0] == "10.77.0.1"
	service, nat := map[bool]string{true: "10.96.0.1", false: "fd00:96::1"}[v4], map[bool]string{true: "10.9.9.9", false: "fd00:9::9"}[v4]
	port := func() uint16 { return uint16(1 + u.IntN(2)) }
	mk := func(p flow.Proto) flow.Key {
		return flow.MakeKey(p, netip.AddrPortFrom(netip.MustParseAddr(src), port()), netip.AddrPortFrom(netip.MustParseAddr(dst), port()))
	}
	switch u.IntN(12) {
	case 0:
		c.key = mk(flow.ICMP)
		typ := uint8(flow.ICMPEchoRequest)
		if !v4 {
			c.key.Proto, typ = flow.ICMPv6, flow.ICMPv6EchoRequest
		}
		c.key.DstPort = flow.ICMPPort(typ, 0)
	case 1:
		c.key = mk(flow.SCTP)
	case 2, 3, 4, 5, 6:
		c.key = mk(flow.TCP)
	default:
		c.key = mk(flow.UDP)
	}
	c.orig, c.reply, c.named = tupleOf(c.key), replyTuple(c.key), true
	if u.IntN(2) == 0 && c.key.Proto.HasPorts() { // DNAT
		to := uint16(80 + u.IntN(2))
		c.orig.dst, c.orig.dport, c.named = service, to, false
		c.via = flow.Service{Addr: flow.AddrFrom(netip.MustParseAddr(service)), Port: to}
	}
	if u.IntN(3) == 0 { // SNAT, which the forward hook does not see
		c.reply.dst = nat
		if c.key.Proto.HasPorts() {
			c.reply.dport = uint16(60000 + u.IntN(4))
		}
	}
	if u.IntN(8) == 0 {
		c.zone, c.named = 7, false
	}
	c.turned = u.IntN(10) == 0 && c.key.Proto == flow.UDP
	return c
}

// record is what a worker makes of the connection's first packets.
func (u universe) record(c *kernelConn, services bool) conntrack.Record {
	r := conntrack.Record{Key: c.key, Plain: c.named}
	if services {
		r.Service = c.via
	}
	r.Packets[0] = 1
	if c.turned {
		r.Key = r.Key.Reverse()
	}
	return r
}

// viaTable decides by Services, too.
type viaTable struct {
	judge
	allow    func(flow.Key, flow.Service) bool
	services []classifier.ServicePort
}

func (v *viaTable) LookupVia(k flow.Key, via flow.Service) classifier.Decision {
	if v.allow(k, via) {
		return classifier.Decision{Verdict: classifier.Allow}
	}
	return classifier.Decision{}
}

func (v *viaTable) Services() []classifier.ServicePort { return v.services }

// has reports whether a connection is in the list.
func (l *list) has(k flow.Key) bool {
	k, _ = canonical(k)
	_, i, ok := l.find(k)
	return ok && l.conns[i].flags&(struck|partly) != struck
}

// wide is a change of addresses nobody can name.
type wide struct{ scope }

func (wide) Touched(int) ([]flow.Addr, bool) { return nil, false }

// After an update no connection in the kernel's table that the change affects and
// the table denies has the accept bit, and nobody else has lost it: whatever was
// translated, told, missed, in the table from before, ended, or meets another
// connection of the same ends. And the kernel's table is not walked for what the
// ledger knows. In every second run nothing settles, and what was cut may get the bit
// once more; then it loses it again.
func TestLedgerAgainstKernel(t *testing.T) {
	w := newWorld(t, Config{Queues: 1}, everything)
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{NetNS: w.NS.FD()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	asker := newAsker(t, w)
	var updates, walks, cuts int
	for seed := range uint64(6) {
		u := universe{rand.New(rand.NewPCG(seed, 1))}
		w.flushConntrack(t)
		w.backend.ledger = newLedger()
		w.backend.lateAt, w.backend.relistAt = [2]time.Time{}, time.Now().Add(time.Hour)
		var settle time.Duration
		if seed%2 == 1 {
			settle = time.Hour
		}
		w.taught(t, settle)
		table := &viaTable{allow: func(flow.Key, flow.Service) bool { return true }}
		var named, inForce bool // rules name the Services, and the kernel side knows
		var open []kernelConn
		for step := range 250 {
			switch u.IntN(12) {
			default:
				c := u.conn()
				if !table.allow(c.key, c.via) || !c.create(t, conn) {
					break
				}
				open = append(open, c)
				r := u.record(&c, inForce)
				// The first packets of two, before anybody was told of the first.
				if d := u.conn(); d.via != (flow.Service{}) && c.via != (flow.Service{}) {
					d.key, d.orig.src, d.orig.sport, d.orig.proto = c.key, c.orig.src, c.orig.sport, c.orig.proto
					d.reply.src, d.reply.sport, d.reply.proto, d.zone, d.turned = c.reply.src, c.reply.sport, c.reply.proto, c.zone, c.turned
					if d.family() == c.family() && (d.via == c.via || !inForce) && table.allow(d.key, d.via) && d.orig.valid() && d.reply.valid() && d.create(t, conn) {
						open = append(open, d)
						r.Packets[0]++
					}
				}
				switch u.IntN(12) {
				case int(settle): // the worker's table forgot it before it was told
					w.backend.Learn("nfqueue", nil, true)
				default:
					w.backend.Learn("nfqueue", []conntrack.Record{r}, false)
				}
			case 0:
				if n := len(open); n > 0 {
					i := u.IntN(n)
					open[i].delete(conn)
					open = slices.Delete(open, i, i+1)
				}
			case 1:
				if err := w.backend.list(); err != nil {
					t.Fatal(err)
				}
			case 2: // with the next table
				if named = !named; named {
					for _, a := range []string{"10.96.0.1", "fd00:96::1"} {
						for _, port := range []uint16{80, 81} {
							for _, p := range []flow.Proto{flow.TCP, flow.UDP, flow.SCTP} {
								table.services = append(table.services, classifier.ServicePort{Service: flow.Service{Addr: flow.AddrFrom(netip.MustParseAddr(a)), Port: port}, Proto: p})
							}
						}
					}
				} else {
					table.services = nil
				}
			case 3, 4:
			}
			if g := w.backend.ledger; g.complete {
				for _, c := range open {
					if !g.current.has(c.key) && asker.accepted(t, &c) {
						t.Fatalf("seed %d, step %d: complete, and %+v is not listed", seed, step, c)
					}
				}
			}
			if u.IntN(4) > 0 {
				continue
			}
			// A policy, and a change that leads to it.
			var secret [8]byte
			binary.LittleEndian.PutUint64(secret[:], u.Uint64())
			before, named := table.allow, named
			inForce = named
			decide := func(k flow.Key, via flow.Service) bool {
				if !named {
					via = flow.Service{}
				}
				h := fnv.New64a()
				h.Write(secret[:])
				fmt.Fprint(h, k, via)
				return h.Sum64()>>7%3 != 0
			}
			var change dataplane.Change
			if u.IntN(10) > 0 {
				var s scope
				for range 1 + u.IntN(2) {
					s.addrs = append(s.addrs, netip.MustParseAddr(universeAddrs[u.IntN(2)][u.IntN(3)]))
				}
				change = dataplane.ChangeWithin(s)
				if u.IntN(4) == 0 {
					change = dataplane.ChangeWithin(wide{s})
				}
			}
			table.allow = func(k flow.Key, via flow.Service) bool {
				if change.Affects(k) {
					return decide(k, via)
				}
				return before(k, via)
			}
			known := w.backend.ledger.complete
			w.backend.walks = 0
			cut, err := w.backend.update(table, change)
			if err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			updates++
			walks += w.backend.walks
			cuts += cut
			var lost, kept []string
			var late []kernelConn
			open = slices.DeleteFunc(open, func(c kernelConn) bool {
				has := asker.accepted(t, &c)
				// Who opened it, the kernel and the worker do not agree about.
				allowed := table.allow(c.key, c.via) || c.turned && table.allow(c.key.Reverse(), c.via)
				switch {
				case has && !allowed:
					kept = append(kept, fmt.Sprintf("%+v", c))
				case !has && allowed && !c.turned:
					lost = append(lost, fmt.Sprintf("%s via %s zone %d named %v", c.key, c.via, c.zone, c.named))
				}
				switch {
				case has:
				case !allowed && settle > 0 && u.IntN(2) == 0:
					c.accept(t, conn)
					late = append(late, c)
				case u.IntN(2) == 0: // else it lives on, without a packet
					c.delete(conn)
				}
				return !has
			})
			w.backend.againAt = time.Time{}
			w.backend.Learn("nfqueue", nil, false)
			for _, c := range late {
				if asker.accepted(t, &c) {
					t.Fatalf("seed %d, step %d: ledger complete %v, %d walks; denied, and accepted later: %+v", seed, step, known, w.backend.walks, c)
				}
				if u.IntN(2) == 0 {
					c.delete(conn)
				}
			}
			if len(kept) > 0 {
				t.Fatalf("seed %d, step %d: ledger complete %v, %d walks, cut %d; denied, and still accepted:\n%q", seed, step, known, w.backend.walks, cut, kept)
			}
			if len(lost) > 0 {
				t.Logf("seed %d, step %d: allowed, and to be judged once more: %q", seed, step, lost)
			}
		}
	}
	t.Logf("%d updates, %d walks, %d connections cut", updates, walks, cuts)
}

// asker asks the kernel's table for one connection at a time. The kernel marks its
// answer as one of several, which the library takes at its word and waits for more.
type asker int

func newAsker(t testing.TB, w *world) (a asker) {
	t.Helper()
	err := w.NS.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		a = asker(fd)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(int(a)) })
	return a
}

// accepted reports whether the kernel's table has the connection with the accept
// bit.
func (a asker) accepted(t testing.TB, c *kernelConn) bool {
	t.Helper()
	b := binary.NativeEndian.AppendUint16(make([]byte, 4), msgCtGet)
	b = append(binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST), make([]byte, 8)...)
	b = append(b, c.family(), unix.NFNETLINK_V0, 0, 0)
	b = appendAttr(b, ctaTupleOrig|unix.NLA_F_NESTED, c.orig.encode())
	if c.zone != 0 {
		b = appendAttr(b, ctaZone, []byte{byte(c.zone >> 8), byte(c.zone)})
	}
	binary.NativeEndian.PutUint32(b, uint32(len(b)))
	answer := make([]byte, 4096)
	if err := unix.Sendto(int(a), b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		t.Fatal(err)
	}
	n, _, err := unix.Recvfrom(int(a), answer, 0)
	if err != nil {
		t.Fatal(err)
	}
	typ, body, _, _ := nextMessage(answer[:n])
	if typ == unix.NLMSG_ERROR {
		t.Fatalf("get %s: %v", c.key, errorCode(body))
	}
	e, _ := parseConnection(body)
	return e.mark&DefaultMarks.Accept != 0
}
