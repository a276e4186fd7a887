package afxdp

import (
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/afxdp/upcall"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// programs returns how many programs are on a device, both directions: by tcx, or by
// clsact where the kernel has no tcx.
func programs(t *testing.T, ns *netlab.NS, device string) int {
	t.Helper()
	if hasTCX() {
		return tcxPrograms(t, ns, device)
	}
	all, _ := filters(t, ns, device)
	return len(all)
}

// tcxPrograms is programs on a kernel with tcx.
func tcxPrograms(t *testing.T, ns *netlab.NS, device string) (n int) {
	t.Helper()
	l, err := ns.Link(device)
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do(func() error {
		for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
			r, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: at})
			if err != nil {
				return err
			}
			n += len(r.Programs)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return n
}

// rings returns the AF_XDP ring mappings of this process.
func rings(t *testing.T) (n int) {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "socket:[")
}

// Close leaves nothing: no program, no device, no mapping, and traffic flows.
func TestCloseLeavesNothing(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	s := nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort)
	before := rings(t)
	for range 3 {
		r := startRig(t, node, Config{Strict: true})
		r.update(t, a, b)
		if n := programs(t, node.NS, a.HostDevice); n != 2 {
			t.Fatalf("%d programs on %s, want 2", n, a.HostDevice)
		}
		nstest.Unreachable(t, a.NS, "tcp", s.Addr)
		stats := r.backend.Stats()
		if err := r.backend.Close(); err != nil {
			t.Fatal(err)
		}
		<-r.done
		if got := r.backend.Stats(); got.Upcalls < stats.Upcalls || got.Upcalls == 0 {
			t.Errorf("stats after Close: %+v, before: %+v", got, stats)
		}
		if err := r.backend.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		if err := r.backend.update(nil, dataplane.Change{}); err == nil {
			t.Error("Update after Close succeeded")
		}
		if n := programs(t, node.NS, a.HostDevice); n != 0 {
			t.Errorf("%d programs left on %s", n, a.HostDevice)
		}
		for _, name := range []string{kern.UpcallStack, kern.UpcallSocket} {
			if _, err := node.NS.Link(name); err == nil {
				t.Errorf("device %s is left", name)
			}
		}
		if n := rings(t); n != before {
			t.Errorf("%d ring mappings left", n-before)
		}
	}
	nstest.Reach(t, a.NS, "tcp", s.Addr)
}

// A driver that is closed while its worker holds packets keeps the memory under
// them until the worker lets go.
func TestCloseWithBatchOut(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	var backend *Backend
	if err := node.NS.Do(func() (err error) {
		backend, err = New(Config{Strict: true, Queues: 1, Ring: 64, FlowEntries: 64})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	r := &rig{Node: node, backend: backend}
	r.update(t, a, b)
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	c.Write([]byte("hello"))
	d := backend.Drivers()[0]
	var batch dataplane.Batch
	nstest.Eventually(t, "the packet comes up", func() bool {
		if err := d.Recv(&batch); err != nil {
			t.Fatal(err)
		}
		return batch.N == 1
	})
	frame := batch.Packets[0].Frame
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if frame[12] != 0x08 || frame[13] != 0x00 { // would fault if it were gone
		t.Errorf("EtherType % x", frame[12:14])
	}
	batch.Packets[0].Disposition = dataplane.PassPacket
	if err := d.Apply(&batch); err != nil {
		t.Errorf("apply: %v", err)
	}
	<-backend.drivers[0].released
	for range 2 {
		if err := d.Recv(&batch); !errors.Is(err, dataplane.ErrClosed) {
			t.Errorf("Recv after Close: %v", err)
		}
		if err := d.Apply(&batch); err != nil {
			t.Errorf("Apply after Close: %v", err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("Close after Close: %v", err)
		}
	}
}

// Close wakes a worker that waits for packets.
func TestCloseWakesRecv(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	for _, d := range r.backend.Drivers() {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	<-r.done
}

// Pods come and go between updates; other devices are none of our business.
func TestDevicesFollowRoutes(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a := r.AddPod(t, "a")
	// The table knows b before its device exists.
	b4, b6 := a.Addr4.Next(), a.Addr6.Next()
	ghost := &netlab.Pod{Addr4: b4, Addr6: b6}
	r.update(t, a, ghost)
	if n := r.attached(); n != 1 {
		t.Fatalf("%d devices attached, want 1", n)
	}
	b := r.AddPod(t, "b")
	if b.Addr4 != b4 {
		t.Fatalf("pod b has address %s, want %s", b.Addr4, b4)
	}
	nstest.Eventually(t, "the new pod's device is attached", func() bool { return programs(t, r.NS, b.HostDevice) == 2 })
	if n := programs(t, r.NS, netlab.Uplink); n != r.exits() {
		t.Errorf("%d programs on the uplink", n)
	}
	// Judged in both directions at once.
	s := nstest.Echo(t, b.NS, "tcp", b.Addr6, openPort)
	nstest.Reach(t, a.NS, "tcp", s.Addr)
	nstest.Unreachable(t, r.Outside, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, closedPort).Addr)
	if err := r.RemovePod("b"); err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, "the gone pod's device is released", func() bool { return r.attached() == 1 })
	// No longer known: whoever still runs there says nothing to anybody, in whatever name.
	r.policy(allowAll)
	open := nstest.Echo(t, r.Outside, "udp", r.Outside4, openPort)
	nstest.Reach(t, a.NS, "udp", open.Addr)
	r.update(t)
	nstest.Unreachable(t, a.NS, "udp", open.Addr)
	if n := programs(t, r.NS, a.HostDevice); n != 2 {
		t.Errorf("%d programs on the device of a pod that is not known any more, want 2", n)
	}
}

func TestDevicePatterns(t *testing.T) {
	r := newRig(t, Config{Strict: true, Devices: []string{"veth*"}})
	a := r.AddPod(t, "a")
	r.update(t, a)
	if n := r.attached(); n != 0 {
		t.Errorf("%d devices attached although their names do not match", n)
	}
}

// Another agent's program on the device keeps its place and sees each packet.
func TestOtherProgramsStay(t *testing.T) {
	t.Parallel()
	needTCX(t)
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	l, err := r.NS.Link(a.HostDevice)
	if err != nil {
		t.Fatal(err)
	}
	// A program that counts nothing and passes: the smallest neighbour.
	spec, err := kern.LoadPod()
	if err != nil {
		t.Fatal(err)
	}
	other, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	var ln link.Link
	if err := r.NS.Do(func() (err error) {
		ln, err = link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: other.Programs["pod_ingress"], Attach: ebpf.AttachTCXIngress})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r.update(t, a, b)
	if n := programs(t, r.NS, a.HostDevice); n != 3 {
		t.Fatalf("%d programs, want ours and the other one", n)
	}
	c := dial(t, a.NS, "udp", nstest.Echo(t, b.NS, "udp", b.Addr4, openPort).Addr)
	for range 5 {
		exchange(t, c)
	}
	// It has no daemon, so it leaves alone what it sees, and counts it.
	var perCPU []uint64
	if err := other.Maps["counters"].Lookup(uint32(kern.CountAlonePass), &perCPU); err != nil {
		t.Fatal(err)
	}
	var n uint64
	for _, c := range perCPU {
		n += c
	}
	if n != 5 {
		t.Errorf("the other program saw %d of 5 packets", n)
	}
}

func cleanup() error { return Cleanup("") }

// A pair left by a killed run is replaced; a pair in use is not touched.
func TestCleanup(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	nl := node.NS.Handle()
	leave := func(alias string) {
		l := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: kern.UpcallStack}, PeerName: kern.UpcallSocket}
		if err := nl.LinkAdd(l); err != nil {
			t.Fatal(err)
		}
		if err := nl.LinkSetAlias(l, alias); err != nil {
			t.Fatal(err)
		}
	}
	leave(upcall.Alias)
	if err := node.NS.Do(cleanup); err != nil {
		t.Fatal(err)
	}
	if _, err := node.NS.Link(kern.UpcallStack); err == nil {
		t.Error("the pair is still there")
	}
	if err := node.NS.Do(cleanup); err != nil {
		t.Errorf("with nothing to do: %v", err)
	}
	leave("somebody else's")
	if err := node.NS.Do(cleanup); err == nil {
		t.Error("a device that is not ours was removed")
	}
	if err := node.NS.Do(func() error { _, err := New(Config{}); return err }); err == nil {
		t.Error("a backend started on a device that is not ours")
	}
	l, err := node.NS.Link(kern.UpcallStack)
	if err != nil {
		t.Fatal("a device that is not ours is gone")
	}
	if err := nl.LinkDel(l); err != nil {
		t.Fatal(err)
	}
	leave(upcall.Alias)
	r := startRig(t, node, Config{}) // replaces it
	for name, f := range map[string]func() error{
		"Cleanup": cleanup,
		"New":     func() error { _, err := New(Config{}); return err },
	} {
		if err := node.NS.Do(f); err == nil || !strings.Contains(err.Error(), "another tierwall daemon") {
			t.Errorf("%s beside a running backend: %v", name, err)
		}
	}
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	r.update(t, a, b)
	nstest.Reach(t, a.NS, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
}

// A worker is told, not crashed, when somebody removes the upcall pair.
func TestUpcallPairRemoved(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	var backend *Backend
	if err := node.NS.Do(func() (err error) { backend, err = New(Config{Ring: 64, FlowEntries: 64}); return err }); err != nil {
		t.Fatal(err)
	}
	if err := node.NS.RemoveLink(kern.UpcallStack); err != nil {
		t.Fatal(err)
	}
	var batch dataplane.Batch
	nstest.Eventually(t, "Recv fails", func() bool { return backend.Drivers()[0].Recv(&batch) != nil })
	if err := backend.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// An end of the upcall pair that other software takes down comes up again, and
// packets are judged as before.
func TestUpcallPairDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a, b)
	s := nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort)
	for i, dev := range []string{kern.UpcallStack, kern.UpcallSocket} {
		l, err := r.NS.Link(dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.NS.Handle().LinkSetDown(l); err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, dev+" is up again", func() bool { return r.backend.Stats().Restored == uint64(i+1) })
		nstest.Reach(t, a.NS, "tcp", s.Addr)
	}
}
