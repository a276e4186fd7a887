package afxdp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// stop closes a rig's backend before the test ends.
func (r *rig) stop(t testing.TB) {
	t.Helper()
	if err := r.backend.Close(); err != nil {
		t.Fatal(err)
	}
	<-r.done
}

// While no daemon runs, accepted connections go on and nothing else passes; the
// next one takes over without a gap, and cuts nothing either.
func TestPinsOutliveTheBackend(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	path := nstest.BPFFS(t)
	c := Config{Strict: true, PinPath: path}
	r := startRig(t, node, c)
	r.update(t, a, b)
	tcp, udp := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr), dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr6, openPort).Addr)
	closed := nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort)
	both := func(when string) {
		t.Helper()
		for _, c := range []net.Conn{tcp, udp} {
			if err := echoes(c, nstest.Timeout); err != nil {
				t.Fatalf("%s: accepted %s connection: %v", when, c.LocalAddr().Network(), err)
			}
		}
	}
	both("at first")
	for range 3 {
		// Offered all the time: whatever a gap lets through arrives.
		stop := offer(t, a.NS, closed.Addr)
		r.stop(t)
		if n := programs(t, node.NS, a.HostDevice); n != 2 {
			t.Fatalf("%d programs on the device after Close, want 2", n)
		}
		both("without a daemon")
		nstest.Unreachable(t, a.NS, "tcp", netip.AddrPortFrom(b.Addr4, openPort))
		r = startRig(t, node, c)
		both("between New and Update")
		r.update(t, a, b)
		both("after Update")
		if up := r.upcalls(); len(up) < 2 {
			t.Errorf("%d packets came up: accepted flows were not judged again", len(up))
		}
		nstest.Reach(t, a.NS, "tcp", netip.AddrPortFrom(b.Addr4, openPort))
		if n := programs(t, node.NS, a.HostDevice); n != 2 {
			t.Errorf("%d programs on the device, want 2", n)
		}
		if sent := stop(); sent < 10 {
			t.Errorf("only %d connections were offered", sent)
		}
		if n := closed.Seen(); n != 0 {
			t.Fatalf("%d denied connections arrived", n)
		}
	}
	// A pod that is no longer ours, and one that went while nobody looked.
	r.stop(t)
	if err := node.RemovePod("a"); err != nil {
		t.Fatal(err)
	}
	r = startRig(t, node, c)
	r.update(t)
	if n := programs(t, node.NS, b.HostDevice); n != r.exits() {
		t.Errorf("%d programs on the device of a pod that is not ours", n)
	}
	// Of what is no pod's, egress alone: there are its device and the uplink.
	out, _ := filepath.Glob(filepath.Join(path, "*", "pod-*-out"))
	if left, _ := filepath.Glob(filepath.Join(path, "*", "pod-*")); len(left) != len(out) || len(left) != 2*r.exits() {
		t.Errorf("still pinned: %v", left)
	}
	if err := node.NS.Do(func() error { return Cleanup(path) }); err == nil {
		t.Error("Cleanup beside a running backend succeeded")
	}
	r.stop(t)
	if err := node.NS.Do(func() error { return Cleanup(path) }); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(path, "netns-*")); len(left) != 0 {
		t.Errorf("left after Cleanup: %v", left)
	}
	if _, err := node.NS.Link(kern.UpcallStack); err == nil {
		t.Error("the upcall pair is left after Cleanup")
	}
}

// TestDevicesChangeBeforeTheFirstTable: a backend that has no table yet does not
// know whose devices there are. Whatever happens to them meanwhile, what an earlier
// run put there stays until its own programs are there.
func TestDevicesChangeBeforeTheFirstTable(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	for _, ways := range [][2]attach.Mode{{attach.TCX, attach.TCX}, {attach.Clsact, attach.TCX}, {attach.TCX, attach.Clsact}, {attach.Clsact, attach.Clsact}} {
		t.Run(string(ways[0]+" then "+ways[1]), func(t *testing.T) {
			if slices.Contains(ways[:], attach.TCX) {
				needTCX(t)
			}
			node := nstest.NewNode(t)
			a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
			c := Config{Strict: true, PinPath: nstest.BPFFS(t), AttachConfig: AttachConfig{Attach: ways[0]}}
			r := startRig(t, node, c)
			r.update(t, a, b)
			closed, knocked := nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort), nstest.Echo(t, b.NS, "udp", b.Addr6, closedPort)
			live := dial(t, node.Outside, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
			stop := []func() int{offer(t, a.NS, closed.Addr), offer(t, node.Outside, closed.Addr), offerOver(t, "udp", node.Outside, knocked.Addr)}
			r.stop(t)
			c.Attach = ways[1]
			r = startRig(t, node, c)
			for i := range 5 {
				node.AddPod(t, fmt.Sprintf("late%d", i))
				time.Sleep(2 * attach.SettleTime)
			}
			if n := r.attached(); n != 0 {
				t.Errorf("%d devices attached before a table says which", n)
			}
			r.update(t, a, b)
			if err := echoes(live, nstest.Timeout); err != nil {
				t.Errorf("accepted connection: %v", err)
			}
			for _, stop := range stop {
				if sent := stop(); sent < 10 {
					t.Errorf("only %d connections were offered", sent)
				}
			}
			if n, datagrams := closed.Seen(), knocked.Seen(); n != 0 || datagrams != 0 {
				t.Fatalf("%d denied connections and %d datagrams arrived", n, datagrams)
			}
			if filters, err := filtersIn(node.NS); err != nil || (len(filters) > 0) != (ways[1] == attach.Clsact) {
				t.Errorf("devices with filters: %v, %v", filters, err)
			}
		})
	}
}

func filtersIn(ns *netlab.NS) (names []string, err error) {
	err = ns.Do(func() (err error) { names, err = attach.Filters(); return err })
	return names, err
}

// offer opens connections until told to stop, and says how many.
func offer(t testing.TB, from *netlab.NS, to netip.AddrPort) (stop func() int) {
	t.Helper()
	return offerOver(t, "tcp", from, to)
}

// offerOver is offer, also of datagrams: those need no answer to have arrived.
func offerOver(t testing.TB, network string, from *netlab.NS, to netip.AddrPort) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	n := make(chan int)
	go func() {
		sent := 0
		for ctx.Err() == nil {
			dctx, done := context.WithTimeout(ctx, 5*time.Millisecond)
			if c, err := from.Dial(dctx, network, netip.AddrPort{}, to); err == nil {
				if network == "udp" {
					_, _ = c.Write([]byte("?")) // refused, perhaps
				}
				c.Close()
			}
			done()
			if network == "udp" {
				time.Sleep(time.Millisecond)
			}
			sent++
		}
		n <- sent
	}()
	return func() int { cancel(); return <-n }
}

// Maps of another form are not taken over, but replaced without a gap, also with
// another number of queues.
func TestPinnedMapsOfAnotherForm(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	path := nstest.BPFFS(t)
	c := Config{Strict: true, PinPath: path, Queues: 1, FlowEntries: 1024, LaterEntries: 1024}
	r := startRig(t, node, c)
	r.update(t, a, b)
	open, closed := nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort), nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort)
	for _, queues := range []int{1, 2, 1} {
		stop := offer(t, a.NS, closed.Addr)
		r.stop(t)
		c.Queues, c.FlowEntries = queues, c.FlowEntries+1024
		r = startRig(t, node, c)
		time.Sleep(50 * time.Millisecond) // before there is a policy
		r.update(t, a, b)
		nstest.Reach(t, a.NS, "tcp", open.Addr)
		stop()
		if n := closed.Seen(); n != 0 {
			t.Errorf("%d queues: %d denied connections arrived", queues, n)
		}
		if maps, _ := filepath.Glob(filepath.Join(path, "*", kern.PinMaps+"*")); len(maps) != 1 {
			t.Errorf("%d queues: maps are pinned in %v, want one place", queues, maps)
		}
	}
}

// Fail mode open, or a later hook: what nobody judges passes when the daemon is
// gone, and with a hook it passes unmarked.
func TestWithoutDaemonOpen(t *testing.T) {
	for name, c := range map[string]Config{"open": {Strict: true, FailOpen: true}, "later hook": {}} {
		nstest.Need(t, canRun)
		node := nstest.NewNode(t)
		a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
		c.PinPath = nstest.BPFFS(t)
		r := startRig(t, node, c)
		r.update(t, a, b)
		s := nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort)
		nstest.Unreachable(t, a.NS, "tcp", s.Addr)
		marked := countMarked(t, node.NS, DefaultMarks.Accept)
		r.stop(t)
		nstest.Reach(t, a.NS, "tcp", s.Addr)
		if n := marked(); n != 0 {
			t.Errorf("%s: %d packets nobody judged carried the accept mark", name, n)
		}
	}
}

// A full ring drops; with fail mode open it passes what it has no room for, and
// works again afterwards.
func TestFullRing(t *testing.T) {
	for _, open := range []bool{false, true} {
		r := newRig(t, Config{Strict: true, FailOpen: open, Ring: 64, UpcallRate: -1})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		s := nstest.Echo(t, b.NS, "udp", b.Addr4, closedPort)
		const offered = 500
		var c [offered]net.Conn
		for i := range c {
			c[i] = dial(t, a.NS, "udp", s.Addr)
		}
		before := r.fates(t)
		r.mu.Lock() // the worker gets no further than its first batch
		for i := range c {
			c[i].Write([]byte("x"))
		}
		if open {
			for end := time.Now().Add(nstest.Timeout); s.Seen() < offered/2 && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
			}
		} else {
			time.Sleep(20 * time.Millisecond)
		}
		if n := s.Seen(); open && n < offered/2 || !open && n > 0 {
			t.Errorf("open %t: %d of %d packets passed behind a full ring", open, n, offered)
		}
		r.mu.Unlock()
		allowed := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		nstest.Eventually(t, "the ring works again", func() bool {
			return a.NS.Probe("udp", s.Addr, nstest.Blocked) != nil && a.NS.Probe("udp", allowed.Addr, nstest.Blocked) == nil
		})
		if n := r.counter(t, kern.CountAlonePass); open != (n > 0) || r.fates(t)-before < offered {
			t.Errorf("open %t: %d passed for want of room, %d packets counted", open, n, r.fates(t)-before)
		}
	}
}

// What a namespace that has ended left pinned, the next daemon removes.
func TestSweep(t *testing.T) {
	nstest.Need(t, canRun)
	path := nstest.BPFFS(t)
	dead := func() string {
		lab, err := netlab.NewNode(netlab.NodeConfig{})
		if err != nil {
			t.Fatal(err)
		}
		r := startRig(t, &nstest.Node{Node: lab, Next: 2}, Config{PinPath: path})
		r.stop(t)
		if err := lab.Close(); err != nil {
			t.Fatal(err)
		}
		dirs, _ := filepath.Glob(filepath.Join(path, "netns-*"))
		if len(dirs) != 1 {
			t.Fatalf("pinned: %v, want one directory", dirs)
		}
		return dirs[0]
	}()
	node := nstest.NewNode(t)
	nstest.Eventually(t, "the directory of the dead namespace is removed", func() bool {
		r := startRig(t, node, Config{PinPath: path})
		r.stop(t)
		_, err := os.Stat(dead)
		return os.IsNotExist(err)
	})
}

// A change is about the flows of the addresses it touches; the others stay in
// the kernel. After advance returns, nothing it is about passes.
func TestChangeIsTargeted(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b, d := r.AddPod(t, "a"), r.AddPod(t, "b"), r.AddPod(t, "d")
	r.update(t, a, b, d)
	cut := dial(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
	kept := dial(t, a.NS, "tcp", nstest.Echo(t, d.NS, "tcp", d.Addr6, openPort).Addr)
	exchange(t, cut)
	exchange(t, kept)
	about := touching(flow.AddrFrom(b.Addr4))
	deny := func(k flow.Key, _ *dataplane.Packet) dataplane.Disposition { return dataplane.DropPacket }
	r.policy(deny)
	r.upcalls()
	if err := r.backend.update([]netip.Addr{a.Addr4, a.Addr6, b.Addr4, b.Addr6, d.Addr4, d.Addr6}, dataplane.ChangeWithin(about)); err != nil {
		t.Fatal(err)
	}
	exchange(t, kept)
	for _, s := range r.upcalls() {
		if s.key.Proto == flow.TCP {
			t.Errorf("%v came up after a change about somebody else", s.key)
		}
	}
	if err := echoes(cut, nstest.Blocked); err == nil {
		t.Error("the connection the change is about still works")
	}
	if up := r.upcalls(); len(up) == 0 {
		t.Error("nobody judged the connection the change is about")
	}
}

type touching flow.Addr

func (a touching) Affects(k flow.Key) bool  { return a.Touches(k.Src) || a.Touches(k.Dst) }
func (a touching) Touches(b flow.Addr) bool { return flow.Addr(a) == b }

// One pod that floods is held to its rate; another one's connections open.
func TestUpcallRate(t *testing.T) {
	r := newRig(t, Config{Strict: true, UpcallRate: 1000, UpcallBurst: 50})
	bad, good, b := r.AddPod(t, "bad"), r.AddPod(t, "good"), r.AddPod(t, "b")
	r.update(t, bad, good, b)
	s := nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort)
	start := time.Now()
	flood, err := bad.NS.Dial(t.Context(), "udp", netip.AddrPort{}, netip.AddrPortFrom(b.Addr4, closedPort))
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	const offered = 20000
	came := uint64(0)
	for sent := range uint64(offered) {
		flood.Write([]byte("x"))
		if sent%500 == 499 { // or the queue in front of us is what bounds it, and loses some
			nstest.Eventually(t, "what was sent came up or was too much", func() bool {
				for _, u := range r.upcalls() {
					if u.key.Proto == flow.UDP {
						came++
					}
				}
				return came+r.counter(t, kern.CountLimited) >= (sent+1)*99/100
			})
		}
	}
	nstest.Reach(t, good.NS, "tcp", s.Addr)
	for _, u := range r.upcalls() {
		if u.key.Proto == flow.UDP {
			came++
		}
	}
	took := time.Since(start)
	// The kernel's clock ticks every few ms.
	if most := uint64(1000*(took+50*time.Millisecond).Seconds()) + 50; came > most || came == 0 {
		t.Errorf("%d packets of the flood came up in %v, want at most %d", came, took, most)
	}
	if n := r.counter(t, kern.CountLimited); came+n < offered*99/100 {
		t.Errorf("%d of %d packets came up and %d were counted as too many", came, offered, n)
	}
}

// A flow that was denied is dropped in the kernel for a moment, one way, until
// the policy changes.
func TestDeniedFlowsStayInTheKernel(t *testing.T) {
	r := newRig(t, Config{Strict: true, DenyTime: 10 * time.Second})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.quiet = true
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, closedPort)
	c := dial(t, a.NS, "udp", s.Addr)
	c.Write([]byte("first"))
	nstest.Eventually(t, "the first packet is judged", func() bool { return len(r.upcalls()) == 1 })
	nstest.Eventually(t, "the kernel knows", func() bool {
		c.Write([]byte("again"))
		return r.counter(t, kern.CountDenied) >= 10
	})
	if up := r.upcalls(); len(up) > 2 { // those on their way when it was written
		t.Errorf("came up again: %v", up)
	}
	r.policy(func(flow.Key, *dataplane.Packet) dataplane.Disposition { return dataplane.PassPacket })
	r.update(t, a, b)
	exchange(t, c)
}

// Every packet at a pod's device counts once, under what became of it.
func TestCountersAddUp(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	before, seen := r.fates(t), frames(t, r.NS, a, b)
	s, closed := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort), nstest.Echo(t, b.NS, "udp", b.Addr6, closedPort)
	c := dial(t, a.NS, "udp", s.Addr)
	for range 20 {
		exchange(t, c)
	}
	if err := netlab.Exchange(c, make([]byte, 4000), nstest.Blocked); err == nil {
		t.Error("fragments passed")
	}
	for range 5 {
		dial(t, a.NS, "udp", closed.Addr).Write([]byte("denied"))
	}
	nstest.Reach(t, r.Outside, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
	nstest.Eventually(t, "counters and devices agree", func() bool {
		// What comes back from userspace to a device's ingress is a frame the
		// device counted when it first came; to its egress, one it did not
		// count when it was taken away. Dropped on egress, it never counts.
		got, want := r.fates(t)-before, frames(t, r.NS, a, b)-seen
		return got >= want && got-want <= r.counter(t, kern.CountUpcall)+r.counter(t, kern.CountDrop)+r.counter(t, kern.CountDenied)
	})
	var st dataplane.BackendStats
	nstest.Eventually(t, "nothing moves any more", func() bool {
		before := r.fates(t)
		st = r.backend.Stats()
		return r.fates(t) == before
	})
	f := &st.Fates
	if n := r.fates(t); f.Total()-f[dataplane.DropStray] != n || f[dataplane.FateUpcall] != st.Upcalls || f[dataplane.PassAccepted] != st.Bypassed {
		t.Errorf("%d packets at the devices, reported as %+v", n, st)
	}
	var dropped uint64
	for i, n := range f {
		if dataplane.Fate(i).Disposition() == "drop" {
			dropped += n
		}
	}
	if dropped != st.Dropped || dropped == 0 {
		t.Errorf("%d packets dropped by fate, %d in all", dropped, st.Dropped)
	}
	n := r.counter(t, kern.CountReceived)
	if up := uint64(len(r.upcalls())); n != up || r.counter(t, kern.CountUpcall) != up {
		t.Errorf("%d packets sent up, %d received, %d judged", r.counter(t, kern.CountUpcall), n, up)
	}
}

// fates sums the counters of which each packet takes one.
func (r *rig) fates(t testing.TB) (n uint64) {
	for i := range uint32(kern.CountStray) {
		if i != kern.CountReturned {
			n += r.counter(t, i)
		}
	}
	return n
}

// frames are what pods' devices have sent and received, by the devices' count.
func frames(t testing.TB, ns *netlab.NS, pods ...*netlab.Pod) (n uint64) {
	t.Helper()
	for _, p := range pods {
		l, err := ns.Link(p.HostDevice)
		if err != nil {
			t.Fatal(err)
		}
		n += l.Attrs().Statistics.RxPackets + l.Attrs().Statistics.TxPackets
	}
	return n
}

// What comes up for a daemon that is not at work yet waits in the ring, and Update for
// the worker: the flows it brings up need room there.
func TestUpdateWaitsForTheRing(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	var backend *Backend
	if err := node.NS.Do(func() (err error) {
		backend, err = New(Config{Strict: true, Queues: 1, Ring: 2 * dataplane.BatchSize})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	d := backend.drivers[0]
	wait := func() time.Duration {
		began := time.Now()
		d.catchUp(began.Add(catchUpPatience))
		return time.Since(began)
	}
	if took := wait(); took >= catchUpPatience {
		t.Errorf("%v before an empty ring", took)
	}
	if err := backend.update([]netip.Addr{a.Addr4}, dataplane.Change{}); err != nil {
		t.Fatal(err)
	}
	c := dial(t, a.NS, "udp", netip.AddrPortFrom(b.Addr4, closedPort))
	for range 4 * dataplane.BatchSize {
		if _, err := c.Write([]byte("anybody?")); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Eventually(t, "the ring is full", func() bool { return d.sock.Lost() > 0 })
	if took := wait(); took < catchUpPatience || d.caughtUp.Load() {
		t.Errorf("%v before a full ring that nobody reads", took)
	}
	var batch dataplane.Batch
	for judged := 0; judged < 2*dataplane.BatchSize; judged += batch.N {
		if d.caughtUp.Load() {
			t.Fatalf("caught up with %d judged", judged)
		}
		if err := d.Recv(&batch); err != nil {
			t.Fatal(err)
		}
		for i := range batch.Packets[:batch.N] {
			batch.Packets[i].Disposition = dataplane.DropPacket
		}
		if err := d.Apply(&batch); err != nil {
			t.Fatal(err)
		}
	}
	if took := wait(); took >= catchUpPatience || !d.caughtUp.Load() {
		t.Errorf("%v before a ring that was read", took)
	}
}
