package afxdp

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
	"github.com/tierwall/tierwall/dataplane/packet"
)

var probed = sync.OnceValues(func() (facts string, err error) {
	facts, _, err = Probe()
	return facts, err
})

func canRun() error {
	_, err := probed()
	return err
}

// readsConnections reports whether this kernel lets programs read the connection of a
// packet. Before Linux 6.4 it does not; a kernel that this fails on otherwise is caught
// by TestConnectionsAreRead.
func readsConnections() bool {
	facts, err := probed()
	return err == nil && strings.Contains(facts, "can be read")
}

// needReads skips a test about what takes a packet's connection, where that cannot be
// read.
func needReads(t testing.TB) {
	t.Helper()
	nstest.Need(t, canRun)
	nstest.Since(t, "6.4", "programs that read a packet's connection", readsConnections())
}

// needWays skips a test about packets of TCP that go across (bpf/across.h), where the
// programs cannot tell which connections are tracked, and leave TCP to the stack.
func needWays(t testing.TB) {
	t.Helper()
	nstest.Need(t, canRun)
	has := false
	if spec, err := btf.LoadKernelSpec(); err == nil {
		var f *btf.Func
		has = spec.TypeByName("bpf_cast_to_kern_ctx", &f) == nil
	}
	nstest.Since(t, "6.2", "programs that tell whether a packet's connection is tracked", has)
}

// hasTCX reports whether the kernel has tcx. Where it has not, the programs are on clsact.
func hasTCX() bool {
	facts, err := probed()
	return err == nil && strings.Contains(facts, "attached by "+string(attach.TCX))
}

// needTCX skips a test of tcx where there is none.
func needTCX(t testing.TB) {
	t.Helper()
	nstest.Need(t, canRun)
	nstest.Since(t, "6.6", "tcx", hasTCX())
}

// openPort is what the rig's policy allows to everybody; closedPort is denied.
const openPort, closedPort = 8080, 9090

// seen is one packet that came up.
type seen struct {
	key          flow.Key
	problem      packet.Problem
	reply, final bool
	queue        int
}

// rig is a node with a running backend and workers that are a page long.
type rig struct {
	*nstest.Node
	backend *Backend

	mu     sync.Mutex
	decide func(k flow.Key, p *dataplane.Packet) dataplane.Disposition
	forget bool // do not ask the kernel to remember
	quiet  bool // let the kernel remember denials
	seen   []seen
	done   chan struct{}
	errs   []error
}

// newRig starts a backend in a node of its own. Pods are attached by update.
func newRig(t testing.TB, c Config) *rig {
	t.Helper()
	nstest.Need(t, canRun)
	return startRig(t, nstest.NewNode(t), c)
}

// startRig is newRig in a node that exists.
func startRig(t testing.TB, node *nstest.Node, c Config) *rig {
	t.Helper()
	r := &rig{Node: node, done: make(chan struct{}), decide: allowOpenPort}
	if c.FlowEntries == 0 {
		c.FlowEntries, c.LaterEntries = 4096, 4096
	}
	if err := r.NS.Do(func() (err error) { r.backend, err = New(c); return err }); err != nil {
		t.Fatal(err)
	}
	var workers sync.WaitGroup
	for _, d := range r.backend.Drivers() {
		workers.Go(func() { r.work(d) })
	}
	go func() {
		workers.Wait()
		close(r.done)
	}()
	t.Cleanup(func() {
		if err := r.backend.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		<-r.done
		if err := errors.Join(r.errs...); err != nil {
			t.Errorf("worker: %v", err)
		}
	})
	return r
}

// allowOpenPort allows by the port of the opener's destination. ICMP is allowed
// by type: echo.
func allowOpenPort(k flow.Key, _ *dataplane.Packet) dataplane.Disposition {
	switch {
	case k.DstPort == openPort, k.Proto == flow.ICMP && k.DstPort == 8<<8, k.Proto == flow.ICMPv6 && k.DstPort == 128<<8:
		return dataplane.PassPacket
	}
	return dataplane.DropPacket
}

func (r *rig) work(d dataplane.Driver) {
	failed := func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	}
	var b dataplane.Batch
	for {
		if err := d.Recv(&b); errors.Is(err, dataplane.ErrClosed) {
			return
		} else if err != nil {
			failed(err)
			return
		}
		r.mu.Lock()
		for i := range b.Packets[:b.N] {
			p := &b.Packets[i]
			p.Problem = packet.ParseEthernetSnap(p.Frame, max(len(p.Frame), int(p.Length)), &p.Headers)
			if p.Real.Valid() { // as a worker does
				p.Headers.Key = p.Real
			}
			k := p.Headers.Key
			if p.Reply {
				k = k.Reverse()
			}
			if p.Problem == packet.OK {
				p.Disposition = r.decide(k, p)
				p.Remember = !r.forget && p.Disposition == dataplane.PassPacket || r.quiet && p.Disposition == dataplane.DropPacket
			}
			if len(r.seen) < 1<<16 {
				r.seen = append(r.seen, seen{p.Headers.Key, p.Problem, p.Reply, p.Final, d.(*driver).queue})
			}
		}
		r.mu.Unlock()
		if err := d.Apply(&b); err != nil {
			failed(err)
			return
		}
	}
}

// policy replaces the rules. Packets under way are judged by either.
func (r *rig) policy(decide func(flow.Key, *dataplane.Packet) dataplane.Disposition) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.decide = decide
}

// update does what Backend.Update does, for every pod of the node.
func (r *rig) update(t testing.TB, pods ...*netlab.Pod) {
	t.Helper()
	var locals []netip.Addr
	for _, p := range pods {
		locals = append(locals, p.Addr4, p.Addr6)
	}
	if err := r.backend.update(locals, dataplane.Change{}); err != nil {
		t.Fatal(err)
	}
}

// upcalls returns the packets that came up since the last call.
func (r *rig) upcalls() []seen {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.seen
	r.seen = nil
	return s
}

// counter reads one of the kernel side's counters.
func (r *rig) counter(t testing.TB, which uint32) (n uint64) {
	t.Helper()
	if err := r.backend.thread.do(func() error { n = r.backend.count(which); return nil }); err != nil {
		t.Fatal(err)
	}
	return n
}

// exits is how many programs a device of the node has that is no pod's.
func (r *rig) exits() int {
	if r.backend.objects.Onward {
		return 1
	}
	return 0
}

// attached returns how many devices carry our programs.
func (r *rig) attached() (n int) {
	r.backend.thread.do(func() error { n = r.backend.devices.Attached(); return nil })
	return n
}

// snmp sums the counters with that name in a namespace's /proc/net/snmp.
func snmp(t testing.TB, ns *netlab.NS, protocol, name string) string {
	t.Helper()
	var text []byte
	if err := ns.Do(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/snmp"); return err }); err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if f[0] != protocol+":" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i := range names {
			if names[i] == name {
				return f[i]
			}
		}
	}
	t.Fatalf("no %s %s in /proc/net/snmp", protocol, name)
	return ""
}

// onOneCPU keeps the goroutine on a CPU, because what is noted is the CPU's. The
// thread ends with the goroutine.
func onOneCPU(t testing.TB) {
	t.Helper()
	runtime.LockOSThread()
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	set.Zero()
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
}

func coarseTick(t testing.TB) time.Duration {
	t.Helper()
	tick, err := coarseResolution()
	if err != nil {
		t.Fatal(err)
	}
	return tick
}
