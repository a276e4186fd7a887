package afxdp

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// onCPU runs f on a thread that is confined to a CPU.
func onCPU(t testing.TB, cpu int, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its affinity
		var s unix.CPUSet
		s.Set(cpu)
		done <- errors.Join(unix.SchedSetaffinity(0, &s), f())
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// What comes up on a CPU is judged by that CPU's worker, and goes on its way; with
// fewer queues than CPUs they share, with more some have nothing to do.
func TestQueueOfCPU(t *testing.T) {
	nstest.TwoProcessors(t)
	nstest.Need(t, canRun)
	for _, queues := range []int{1, 2, 3} {
		r := newRig(t, Config{Strict: true, Queues: queues})
		a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
		r.update(t, a, b)
		to := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
		for cpu := range 2 {
			r.upcalls()
			const flows = 20
			for range flows {
				c := dial(t, a.NS, "udp", to.Addr)
				onCPU(t, cpu, func() error { return netlab.Exchange(c, []byte("hello"), nstest.Timeout) })
			}
			// The packet is on the sender's CPU until it comes up, unless the kernel
			// left that to its own thread, which may be elsewhere.
			right := 0
			for _, s := range r.upcalls() {
				if s.key.Dst == flow.AddrFrom(b.Addr4) && s.queue == cpu%queues {
					right++
				}
			}
			if right < flows*9/10 {
				t.Errorf("%d queues: %d of %d flows that began on CPU %d came to queue %d", queues, right, flows, cpu, cpu%queues)
			}
		}
	}
}

// A daemon with another number of queues takes over: accepted flows go on, and
// what is denied does not pass, meanwhile either.
func TestQueuesChange(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	path := nstest.BPFFS(t)
	c := Config{Strict: true, PinPath: path, Queues: 2}
	r := startRig(t, node, c)
	r.update(t, a, b)
	open, closed := nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort), nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort)
	conn := dial(t, a.NS, "tcp", open.Addr)
	exchange(t, conn)
	pair := func() int {
		l, err := node.NS.Link(kern.UpcallStack)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Index
	}
	for _, queues := range []int{2, 1, 1, 3} {
		// A filter of clsact is not tied to the pair by a pin: a new one is made.
		before, same := pair(), queues == c.Queues && r.backend.devices.Mode() == attach.TCX
		stop := offer(t, a.NS, closed.Addr)
		r.stop(t)
		c.Queues = queues
		r = startRig(t, node, c)
		exchange(t, conn)
		if got := len(r.backend.Drivers()); got != queues {
			t.Fatalf("%d drivers, want %d", got, queues)
		}
		if (pair() == before) != same {
			t.Errorf("%d queues: the pair is the same: %t, want %t", queues, !same, same)
		}
		if !same {
			// The programs at work know the other pair, and are not led to believe
			// that somebody is there.
			up := r.counter(t, kern.CountUpcall)
			nstest.Unreachable(t, a.NS, "tcp", open.Addr)
			if n := r.counter(t, kern.CountUpcall) - up; n != 0 {
				t.Errorf("%d queues: %d packets were sent to a pair that is gone", queues, n)
			}
		}
		r.update(t, a, b)
		exchange(t, conn)
		nstest.Reach(t, a.NS, "tcp", open.Addr)
		stop()
		if n := closed.Seen(); n != 0 {
			t.Fatalf("%d denied connections arrived", n)
		}
	}
	// Nothing is left of the maps that were replaced: the next one takes over.
	r.stop(t)
	r = startRig(t, node, c)
	r.update(t, a, b)
	exchange(t, conn)
	nstest.Reach(t, a.NS, "tcp", open.Addr)
}

// A worker that hangs is no worker: nothing is sent up to it once it has given no
// sign of life, whatever the others do.
func TestOneWorkerHangs(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	var backend *Backend
	if err := node.NS.Do(func() (err error) {
		backend, err = New(Config{Strict: true, Queues: 2, FlowEntries: 64, LaterEntries: 64, AliveTime: minAliveTime})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	r := &rig{Node: node, backend: backend, decide: allowOpenPort, done: make(chan struct{})}
	var workers sync.WaitGroup
	workers.Go(func() { r.work(backend.Drivers()[0]) })
	defer func() {
		if err := backend.Close(); err != nil {
			t.Error(err)
		}
		workers.Wait()
	}()
	r.update(t, a, b)
	conn := dial(t, a.NS, "udp", netip.AddrPortFrom(b.Addr4, closedPort)) // each packet has to be judged
	nstest.Eventually(t, "the daemon counts as dead", func() bool {
		conn.Write([]byte("hello"))
		return r.counter(t, kern.CountAloneDrop) > 0
	})
	// The other one was there all the time.
	var d dataplane.Batch
	if err := backend.Drivers()[1].Recv(&d); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "it counts as alive again", func() bool {
		up := r.counter(t, kern.CountUpcall)
		backend.Drivers()[1].Recv(&d)
		conn.Write([]byte("hello"))
		return r.counter(t, kern.CountUpcall) > up
	})
}

// The CPU of a worker: where its packets come from if they are many, anywhere if
// they are few or more than it can judge there.
func TestAffinity(t *testing.T) {
	nstest.TwoProcessors(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- func() error {
			var both unix.CPUSet
			both.Set(0)
			both.Set(1)
			if err := unix.SchedSetaffinity(0, &both); err != nil {
				return err
			}
			h := newAffinity(1, 2, 2048)
			h.bind()
			now := uint64(1e9)
			// step lets batches of n packets pass, one each millisecond.
			step := func(what string, d time.Duration, n, waiting int, want bool) error {
				for end := now + uint64(d); now < end; now += 1e6 {
					h.account(now, n, waiting)
				}
				var is unix.CPUSet
				if err := unix.SchedGetaffinity(0, &is); err != nil {
					return err
				}
				if at := is.Count() == 1 && is.IsSet(1); at != want || at != h.at || !is.IsSet(1) {
					return fmt.Errorf("%s: confined to its CPU: %t, want %t", what, at, want)
				}
				return nil
			}
			return errors.Join(
				step("few packets", time.Second, 1, 0, false),
				step("many", 50*time.Millisecond, 20, 0, true),
				step("some that wait", time.Second, 20, 500, true),
				step("a crowd", 2*time.Millisecond, 32, 600, false),
				step("a moment after", 50*time.Millisecond, 32, 0, false),
				step("later", 100*time.Millisecond, 32, 0, true),
				step("crowded again", 2*time.Millisecond, 32, 600, false),
				step("stays away for longer", 150*time.Millisecond, 32, 0, false),
				step("but not for ever", 100*time.Millisecond, 32, 0, true),
				step("fewer", 50*time.Millisecond, 3, 0, true),
				step("few again", 50*time.Millisecond, 2, 0, false),
				step("many again", 50*time.Millisecond, 20, 0, true),
				func() error { h.leave(); return step("idle", time.Millisecond, 0, 0, false) }(),
			)
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
	alone := newAffinity(0, 1, 2048)
	alone.bind()
	if alone.account(1e9, 32, 2048); alone.usable || alone.at {
		t.Error("the only queue is confined to a CPU")
	}
}

// The ring of a queue: enough for a burst, and not a gigabyte for all.
func TestDefaultRing(t *testing.T) {
	for queues, want := range map[int]int{1: 2048, 2: 2048, 8: 2048, 9: 1024, 16: 1024, 17: 512, 64: 512, 256: 512} {
		c := Config{Queues: queues}
		if err := c.fill(); err != nil || c.Ring != want {
			t.Errorf("%d queues: ring %d (%v), want %d", queues, c.Ring, err, want)
		}
	}
}

// Workers that judge connections of one name at the same time, led to different
// backends, leave entries that are about one of them.
func TestVeiledEntriesAgree(t *testing.T) {
	nstest.Need(t, canRun)
	var backend *Backend
	if err := nstest.NewNode(t).NS.Do(func() (err error) {
		backend, err = New(Config{Strict: true, Queues: 2, FlowEntries: 1024, LaterEntries: 1024})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	end := func(s string) flow.Addr { return flow.AddrFrom(netip.MustParseAddr(s)) }
	name := flow.Key{Src: end("10.0.0.1"), Dst: end("10.96.0.1"), SrcPort: 40000, DstPort: 80, Proto: flow.UDP}
	key, _ := kern.MakeFlowKey(&name)
	backends := []flow.Addr{end("10.0.0.2"), end("10.0.0.3")}
	accept := func(d *driver, backend flow.Addr) {
		o := kern.Origin{
			Client: name.Src, Service: name.Dst, Backend: backend, ClientPort: name.SrcPort,
			ServicePort: name.DstPort, BackendPort: 8080, Proto: name.Proto, Flags: kern.OriginNAT | kern.OriginDNAT,
		}
		var p dataplane.Packet
		d.origins[0], d.names[0] = o, name
		upcall.DescribeOrigin(&o, &p)
		p.Headers.Key = p.Real
		d.entries.Reset()
		d.remember(&p, kern.FlowState{Generation: 1})
		d.entries.Write()
	}
	for round := range 2000 {
		var workers sync.WaitGroup
		for i, d := range backend.drivers {
			workers.Go(func() { accept(d, backends[i]) })
		}
		workers.Wait()
		var o kern.Origin
		var s kern.FlowState
		if err := errors.Join(backend.objects.Origins.Lookup(&key, &o), backend.objects.Flows.Lookup(&key, &s)); err != nil {
			t.Fatal(err)
		}
		if want := [2]uint16{kern.CellOf(&o.Client), kern.CellOf(&o.Backend)}; s.Cell != want {
			t.Fatalf("round %d: the connection to %v is asked about under cells %d, want %d", round, o.Backend, s.Cell, want)
		}
	}
	// Where one map cannot be written, the other does not speak for it.
	d := backend.drivers[0]
	closed, err := d.entries.Flows.M.Clone()
	if err != nil {
		t.Fatal(err)
	}
	d.entries.Flows.M = closed
	closed.Close()
	accept(d, backends[0])
	var o kern.Origin
	if err := backend.objects.Origins.Lookup(&key, &o); !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Errorf("an origin without its flow: %v (%v)", o.Backend, err)
	}
}
