package nfqueue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// Ports every test world has servers on.
const (
	portGood = 8080
	portBad  = 8081
)

// judge is a classifier and a worker that do the least: it decides by a function
// and remembers what it was asked.
type judge struct {
	allow    atomic.Pointer[func(flow.Key) bool]
	forget   atomic.Bool // allow packets without Remember
	refuse   atomic.Bool // tell the sender of denied packets
	selected []netip.Addr
	locals   []netip.Addr
	prefixes []netip.Prefix
	errs     chan error
	wg       sync.WaitGroup

	mu    sync.Mutex
	seen  []question
	since time.Time // of what is in seen
}

// question is one packet the judge was asked about. key is in the direction the
// connection was opened.
type question struct {
	key     flow.Key
	reply   bool
	allowed bool
	plain   bool
	problem packet.Problem
}

func newJudge(allow func(flow.Key) bool) *judge {
	j := &judge{errs: make(chan error, 64), since: time.Now()}
	j.allow.Store(&allow)
	return j
}

func (j *judge) policy(allow func(flow.Key) bool) { j.allow.Store(&allow) }

// Lookup implements Decider.
func (j *judge) Lookup(k flow.Key) classifier.Decision {
	if (*j.allow.Load())(k) {
		return classifier.Decision{Verdict: classifier.Allow}
	}
	return classifier.Decision{}
}

// LookupVia implements Decider.
func (j *judge) LookupVia(k flow.Key, _ flow.Service) classifier.Decision { return j.Lookup(k) }

// Services implements Decider.
func (j *judge) Services() []classifier.ServicePort { return nil }

// Selected implements Decider.
func (j *judge) Selected() []netip.Addr { return j.selected }

// Locals implements Decider.
func (j *judge) Locals() []netip.Addr { return j.locals }

// LocalPrefixes implements Decider.
func (j *judge) LocalPrefixes() []netip.Prefix { return j.prefixes }

// UnknownLocal implements Decider.
func (j *judge) UnknownLocal(k flow.Key) (src, dst bool) {
	unknown := func(a netip.Addr) bool {
		return slices.ContainsFunc(j.prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) && !slices.Contains(j.locals, a)
	}
	return unknown(k.Src.Netip()), unknown(k.Dst.Netip())
}

func (j *judge) serve(d dataplane.Driver) {
	j.wg.Add(1)
	go func() {
		defer j.wg.Done()
		var b dataplane.Batch
		for {
			if err := d.Recv(&b); err != nil {
				if !errors.Is(err, dataplane.ErrClosed) {
					j.errs <- err
				}
				return
			}
			j.decide(&b, d)
			if err := d.Apply(&b); err != nil && !errors.Is(err, dataplane.ErrClosed) {
				j.errs <- err
			}
		}
	}()
}

func (j *judge) decide(b *dataplane.Batch, d dataplane.Driver) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range b.Packets[:b.N] {
		p := &b.Packets[i]
		length := int(p.Length)
		if length == 0 {
			length = len(p.Frame)
		}
		p.Problem = packet.ParseIPSnap(p.Frame, length, &p.Headers)
		q := question{key: p.Headers.Key, reply: p.Reply, plain: p.Plain, problem: p.Problem}
		if p.Reply {
			q.key = q.key.Reverse()
		}
		q.allowed = p.Problem == packet.OK && j.Lookup(q.key).Verdict == classifier.Allow
		if q.allowed {
			p.Disposition, p.Remember = dataplane.PassPacket, !j.forget.Load()
		} else if j.refuse.Load() {
			if err := d.(*driver).Reject(p, nil); err != nil {
				j.errs <- err
			}
		}
		j.seen = append(j.seen, q)
	}
}

// take returns and forgets the questions asked so far.
func (j *judge) take() []question {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.seen
	j.seen, j.since = nil, time.Now()
	return s
}

// asked is take once n questions have been asked: a client that has given up waiting
// for an answer has not waited for the judge.
func (w *world) asked(t testing.TB, n int) []question {
	t.Helper()
	nstest.Eventually(t, fmt.Sprintf("%d packets are judged", n), func() bool {
		w.judge.mu.Lock()
		defer w.judge.mu.Unlock()
		return len(w.judge.seen) >= n
	})
	return w.judge.take()
}

// A SYN without an answer is sent again after a second (RFC 6298 §2). On a machine that
// is too busy to answer it is the same question.
const synTimeout = 900 * time.Millisecond

// world is a node with two pods, one backend, and a judge.
type world struct {
	*nstest.Node
	a, b    *netlab.Pod
	judge   *judge
	backend *Backend
}

// toPort allows connections to one port only.
func toPort(port uint16) func(flow.Key) bool {
	return func(k flow.Key) bool { return k.Proto.HasPorts() && k.DstPort == port }
}

func everything(flow.Key) bool { return true }
func nothing(flow.Key) bool    { return false }

// newWorld builds a world in which both pods are selected.
func newWorld(t testing.TB, c Config, allow func(flow.Key) bool) *world {
	t.Helper()
	nstest.Need(t, queueing)
	w := &world{Node: nstest.NewNode(t)}
	w.a, w.b = w.AddPod(t, "a"), w.AddPod(t, "b")
	w.judge = newJudge(allow)
	w.judge.selected = []netip.Addr{w.a.Addr4, w.b.Addr4, w.a.Addr6, w.b.Addr6}
	w.start(t, c)
	w.update(t)
	t.Cleanup(func() {
		w.stop(t)
		close(w.judge.errs)
		for err := range w.judge.errs {
			t.Error(err)
		}
	})
	return w
}

// queueing is the kernel piece all privileged tests here need.
func queueing() error {
	ns, err := netlab.New("probe")
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.Do(func() error {
		b, err := New(Config{Queues: 1})
		if err != nil {
			return err
		}
		return b.Close()
	})
}

func (w *world) start(t testing.TB, c Config) {
	t.Helper()
	if err := w.NS.Do(func() (err error) { w.backend, err = New(c); return err }); err != nil {
		t.Fatal(err)
	}
	for _, d := range w.backend.Drivers() {
		w.judge.serve(d)
	}
}

func (w *world) stop(t testing.TB) {
	t.Helper()
	if w.backend == nil {
		return
	}
	if err := w.backend.Close(); err != nil {
		t.Error(err)
	}
	w.judge.wg.Wait()
}

func (w *world) update(t testing.TB) (cut int) {
	t.Helper()
	cut, err := w.backend.update(w.judge, dataplane.Change{})
	if err != nil {
		t.Fatal(err)
	}
	return cut
}

func (w *world) cleanup(t testing.TB) {
	t.Helper()
	if err := w.NS.Do(func() error { return Cleanup(Marks{}) }); err != nil {
		t.Fatal(err)
	}
}

// addr returns a server's address and port.
func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

// families and networks are what every connectivity test walks.
var (
	families = []int{4, 6}
	networks = []string{"tcp", "udp"}
)

// want fails the test unless exactly these keys were asked about, each once, in
// any order. Source ports do not matter.
func (w *world) want(t testing.TB, what string, keys ...string) {
	t.Helper()
	w.judge.mu.Lock()
	slow := time.Since(w.judge.since) > synTimeout
	w.judge.mu.Unlock()
	var got []string
	asked := map[question]bool{}
	for _, q := range w.asked(t, len(keys)) {
		if slow && asked[q] && q.key.Proto == flow.TCP && !q.reply {
			continue
		}
		asked[q] = true
		text := anyPort(q.key)
		if q.reply {
			text += " (reply)"
		}
		if q.problem != packet.OK {
			text += " " + q.problem.String()
		}
		got = append(got, text)
	}
	slices.Sort(got)
	slices.Sort(keys)
	if !slices.Equal(got, keys) {
		t.Errorf("%s: judged\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(keys, "\n  "))
	}
}

// anyPort renders a key without its source port.
func anyPort(k flow.Key) string {
	k.SrcPort = 0
	return k.String()
}

func key(network string, from, to netip.Addr, port uint16) string {
	proto := flow.TCP
	if network == "udp" {
		proto = flow.UDP
	}
	return flow.MakeKey(proto, at(from, 0), at(to, port)).String()
}

func dial(t testing.TB, from *netlab.NS, network string, to netip.AddrPort) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), nstest.Timeout)
	defer cancel()
	c, err := from.Dial(ctx, network, netip.AddrPort{}, to)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// alive fails the test unless the connection still echoes.
func alive(t testing.TB, c net.Conn, what string) {
	t.Helper()
	if err := netlab.Exchange(c, []byte("alive?"), nstest.Timeout); err != nil {
		t.Errorf("%s: %v, want an echo", what, err)
	}
}

// dead fails the test if the connection still echoes.
func dead(t testing.TB, c net.Conn, what string) {
	t.Helper()
	if err := netlab.Exchange(c, []byte("dead?"), nstest.Blocked); err == nil {
		t.Errorf("%s: got an echo, want none", what)
	}
}

// nft adds a table of "other software" to the node: a chain of the given kind
// and its rules.
func (w *world) nft(t testing.TB, table string, ch nftables.Chain, rules ...[]expr.Any) *nftables.Table {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(w.NS.FD()))
	if err != nil {
		t.Fatal(err)
	}
	tab := conn.AddTable(&nftables.Table{Name: table, Family: nftables.TableFamilyINet})
	ch.Name, ch.Table = "c", tab
	conn.AddChain(&ch)
	for _, r := range rules {
		conn.AddRule(&nftables.Rule{Table: tab, Chain: &ch, Exprs: r})
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return tab
}

func (w *world) nftDelete(t testing.TB, tab *nftables.Table) {
	t.Helper()
	conn, err := nftables.New(nftables.WithNetNSFd(w.NS.FD()))
	if err != nil {
		t.Fatal(err)
	}
	conn.DelTable(tab)
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
}

// netfilter returns a handle to the node's connection table.
func (w *world) netfilter(t testing.TB) *netlink.Handle {
	t.Helper()
	var h *netlink.Handle
	if err := w.NS.Do(func() (err error) { h, err = netlink.NewHandle(unix.NETLINK_NETFILTER); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Close)
	return h
}

func (w *world) flushConntrack(t testing.TB) {
	t.Helper()
	if err := w.netfilter(t).ConntrackTableFlush(netlink.ConntrackTable); err != nil {
		t.Fatal(err)
	}
}

// connections lists the node's connection table.
func (w *world) connections(t testing.TB) (all []*netlink.ConntrackFlow) {
	t.Helper()
	h := w.netfilter(t)
	for _, family := range []netlink.InetFamily{unix.AF_INET, unix.AF_INET6} {
		flows, err := h.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, flows...)
	}
	return all
}

// leftovers describes what of ours is in the node's namespace.
func (w *world) leftovers(t testing.TB) string {
	t.Helper()
	var s string
	conn, err := nftables.New(nftables.WithNetNSFd(w.NS.FD()))
	if err != nil {
		t.Fatal(err)
	}
	tables, err := conn.ListTables()
	if err != nil {
		t.Fatal(err)
	}
	for _, tab := range tables {
		s += "table " + tab.Name + "\n"
	}
	for _, f := range w.connections(t) {
		if f.Mark != 0 {
			s += "connection " + f.String() + "\n"
		}
	}
	err = w.NS.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/netfilter/nfnetlink_queue")
		s += string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func dialFrom(t testing.TB, from *netlab.NS, network string, src, dst netip.AddrPort) net.Conn {
	t.Helper()
	c, err := from.Dial(context.Background(), network, src, dst)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// nstestRoute is an on-link route of a pod to an address.
func nstestRoute(a netip.Addr) netlab.Route {
	return netlab.Route{Dst: netip.PrefixFrom(a, a.BitLen()), Dev: netlab.PodDevice}
}
