package afxdp

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// filters returns the filters on both sides of a device, and whether it has a
// clsact qdisc.
func filters(t *testing.T, ns *netlab.NS, device string) (all []netlink.Filter, qdisc bool) {
	t.Helper()
	l, err := ns.Link(device)
	if err != nil {
		t.Fatal(err)
	}
	if qdisc, err = attach.HasQdisc(ns.Handle(), l, "clsact"); err != nil {
		t.Fatal(err)
	}
	for _, ingress := range []bool{true, false} {
		f, err := ns.Handle().FilterList(l, attach.ClsactParent(ingress))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, f...)
	}
	return all, qdisc
}

// By clsact filters everything is as by tcx, for routed and bridged pods, and
// nothing is left.
func TestClsact(t *testing.T) {
	t.Parallel()
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	r := startRig(t, node, Config{Strict: true, AttachConfig: AttachConfig{Attach: attach.Clsact}})
	addBridge(t, r.Node)
	b := r.AddPod(t, "b")
	c, d := addBridged(t, r.Node, "c"), addBridged(t, r.Node, "d")
	// Not in the bridge's subnet, as its pods see it.
	a, err := r.Node.Node.AddPod("a", netip.MustParseAddr("10.245.0.2"), netip.MustParseAddr("fd00:10:245::2"))
	if err != nil {
		t.Fatal(err)
	}
	r.know(t, a, b, c, d)
	for _, network := range []string{"tcp", "udp"} {
		for _, family := range []int{4, 6} {
			for _, pair := range [][2]*netlab.Pod{{a, b}, {c, d}, {a, d}} {
				open := nstest.Echo(t, pair[1].NS, network, pair[1].Addr(family), openPort)
				closed := nstest.Echo(t, pair[1].NS, network, pair[1].Addr(family), closedPort)
				nstest.Reach(t, pair[0].NS, network, open.Addr)
				nstest.Unreachable(t, pair[0].NS, network, closed.Addr)
				if n := closed.Seen(); n != 0 {
					t.Errorf("%s %s: %d denied connections arrived", network, closed.Addr, n)
				}
				open.Close()
				closed.Close()
			}
		}
	}
	s := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
	conn := dial(t, a.NS, "udp", s.Addr)
	exchange(t, conn)
	r.upcalls()
	for range 10 {
		exchange(t, conn)
	}
	if up := r.upcalls(); len(up) != 0 {
		t.Errorf("packets of an accepted flow came up: %v", up)
	}
	if hasTCX() {
		if n := tcxPrograms(t, r.NS, a.HostDevice); n != 0 {
			t.Errorf("%d tcx programs although clsact was asked for", n)
		}
	}
	if all, qdisc := filters(t, r.NS, a.HostDevice); len(all) != 2 || !qdisc {
		t.Errorf("filters %v, qdisc %v, want ours on both sides", all, qdisc)
	}
	// Other software takes the filters off, with the qdisc.
	closed := nstest.Echo(t, b.NS, "udp", b.Addr4, closedPort)
	for _, dev := range []string{a.HostDevice, b.HostDevice, kern.UpcallStack} {
		l, err := r.NS.Link(dev)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.NS.Handle().QdiscDel(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}); err != nil {
			t.Fatal(err)
		}
	}
	nstest.Eventually(t, "they are put back", func() bool { return r.backend.Stats().Restored == 5 })
	nstest.Unreachable(t, a.NS, "udp", closed.Addr)
	nstest.Reach(t, a.NS, "udp", s.Addr)
	filtered := func() (names []string) {
		t.Helper()
		if err := r.NS.Do(func() (err error) { names, err = attach.Filters(); return err }); err != nil {
			t.Fatal(err)
		}
		return names
	}
	if names := filtered(); !slices.Contains(names, a.HostDevice) || !slices.Contains(names, c.HostDevice) || slices.Contains(names, netlab.Uplink) {
		t.Errorf("filters are reported on %v", names)
	}
	r.know(t, b, c, d) // a is nobody's any more, and its device nobody's business
	if err := r.backend.Close(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*netlab.Pod{a, b, c, d} {
		if all, qdisc := filters(t, r.NS, p.HostDevice); len(all) != 0 || qdisc {
			t.Errorf("left on %s: %v, qdisc %v", p.HostDevice, all, qdisc)
		}
	}
	if names := filtered(); len(names) != 0 {
		t.Errorf("filters are still reported on %v", names)
	}
}

// nothing is a program that passes.
func nothing(t *testing.T, kind ebpf.ProgramType, result int32) *ebpf.Program {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "other", Type: kind, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, result), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

// What others have put on a device stays, and the device is reported as not
// ours. A filter of our own that was left behind is no obstacle.
func TestClsactNeighbours(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	first, ingress, behind, left := node.AddPod(t, "a"), node.AddPod(t, "b"), node.AddPod(t, "c"), node.AddPod(t, "d")
	nl := node.NS.Handle()
	prog := nothing(t, ebpf.SchedCLS, -1)
	index := func(p *netlab.Pod) int {
		l, err := node.NS.Link(p.HostDevice)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Index
	}
	clsact := func(p *netlab.Pod) netlink.QdiscAttrs {
		return netlink.QdiscAttrs{LinkIndex: index(p), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT}
	}
	other := func(p *netlab.Pod, priority uint16) {
		if err := nl.QdiscAdd(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: clsact(p)}); err != nil {
			t.Fatal(err)
		}
		if err := nl.FilterAdd(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index(p), Parent: attach.ClsactParent(true), Handle: 1, Priority: priority, Protocol: unix.ETH_P_ALL,
		}, Fd: prog.FD(), Name: "other", DirectAction: true}); err != nil {
			t.Fatal(err)
		}
	}
	other(first, 1)
	other(behind, 7)
	if err := nl.QdiscAdd(&netlink.Ingress{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index(ingress), Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS,
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := attach.PutClsact(nl, index(left), prog, true); err != nil {
		t.Fatal(err)
	}
	r := startRig(t, node, Config{AttachConfig: AttachConfig{Attach: attach.Clsact}})
	var locals []netip.Addr
	for _, p := range []*netlab.Pod{first, ingress, behind, left} {
		locals = append(locals, p.Addr4)
	}
	if err := r.backend.update(locals, dataplane.Change{}); err == nil {
		t.Error("no word of the devices that could not be had")
	}
	if n := r.attached(); n != 2 {
		t.Errorf("%d devices attached, want 2", n)
	}
	for _, c := range []struct {
		pod  *netlab.Pod
		want int
	}{{first, 1}, {behind, 3}, {left, 2}} {
		if all, _ := filters(t, node.NS, c.pod.HostDevice); len(all) != c.want {
			t.Errorf("%s: %d filters, want %d", c.pod.Name, len(all), c.want)
		}
	}
	if err := r.backend.Close(); err != nil {
		t.Fatal(err)
	}
	if all, qdisc := filters(t, node.NS, behind.HostDevice); len(all) != 1 || !qdisc {
		t.Errorf("the other's filter: %v, qdisc %v", all, qdisc)
	}
	// Cleanup knows ours by name.
	if _, err := attach.PutClsact(nl, index(left), prog, true); err != nil {
		t.Fatal(err)
	}
	if err := node.NS.Do(func() error { return Cleanup("") }); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[*netlab.Pod]int{left: 0, first: 1, behind: 1} {
		if all, _ := filters(t, node.NS, p.HostDevice); len(all) != want {
			t.Errorf("after Cleanup, %s: %v", p.Name, all)
		}
	}
}

// Generic XDP keeps out what no pod may send and leaves the rest to the later
// hook. It cannot be alone.
func TestXDPGeneric(t *testing.T) {
	if _, err := New(Config{Strict: true, AttachConfig: AttachConfig{Attach: attach.XDPGeneric}}); err == nil {
		t.Error("started without a later hook")
	}
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	var backend *Backend
	if err := node.NS.Do(func() (err error) {
		backend, err = New(Config{AttachConfig: AttachConfig{Attach: attach.XDPGeneric, PodCIDRs: podCIDRs}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	if d := backend.Drivers(); len(d) != 0 {
		t.Errorf("%d drivers", len(d))
	}
	r := &rig{Node: node, backend: backend}
	a, b, unknown := r.AddPod(t, "a"), r.AddPod(t, "b"), r.AddPod(t, "unknown")
	r.know(t, a, b)
	if n := r.attached(); n != 3 {
		t.Fatalf("%d devices attached, want 3", n)
	}
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		for _, network := range []string{"tcp", "udp"} {
			s := nstest.Echo(t, b.NS, network, addr, closedPort)
			nstest.Reach(t, a.NS, network, s.Addr)
			seen := s.Seen()
			nstest.Unreachable(t, unknown.NS, network, s.Addr)
			if s.Seen() != seen {
				t.Errorf("%s: an unknown pod was heard at %s", network, s.Addr)
			}
		}
	}
	if r.counter(t, kern.CountUnknown) == 0 || r.counter(t, kern.CountUnparsed) == 0 {
		t.Errorf("%d packets counted as unknown, %d as left to the later hook", r.counter(t, kern.CountUnknown), r.counter(t, kern.CountUnparsed))
	}
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		before := r.counter(t, kern.CountForged)
		if err := a.NS.Addr(netlab.PodDevice, netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			t.Fatal(err)
		}
		to := netip.AddrPortFrom(r.Outside4, openPort)
		if addr.Is6() {
			to = netip.AddrPortFrom(r.Outside6, openPort)
		}
		if _, err := dialFrom(t, a.NS, netip.AddrPortFrom(addr, 4444), to).Write([]byte("forged")); err != nil {
			t.Fatal(err)
		}
		nstest.Eventually(t, "the packet is dropped and counted", func() bool { return r.counter(t, kern.CountForged) == before+1 })
	}
	if s := backend.Stats(); s.Dropped < 2 || s.Upcalls != 0 {
		t.Errorf("stats: %+v", s)
	}
	if err := backend.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := node.NS.Link(a.HostDevice)
	if err != nil || l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
		t.Errorf("after Close: %v, %+v", err, l.Attrs().Xdp)
	}
}

// An uplink's program drops what is known to be denied, and what says it is from
// a pod of this node, before the stack sees it; it lets in nothing else.
func TestUplink(t *testing.T) {
	t.Parallel()
	for _, mode := range []attach.UplinkMode{attach.UplinkNative, attach.UplinkGeneric} {
		t.Run(string(mode), func(t *testing.T) {
			r := newRig(t, Config{Strict: true, AttachConfig: AttachConfig{Uplinks: []string{netlab.Uplink, "eth9"}, UplinkMode: mode}})
			b := r.AddPod(t, "b")
			r.know(t, b)
			closed := nstest.Echo(t, b.NS, "udp", b.Addr4, closedPort)
			open := nstest.Echo(t, b.NS, "udp", b.Addr4, openPort)
			nstest.Reach(t, r.Outside, "udp", open.Addr)
			nstest.Reach(t, r.Outside, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr6, openPort).Addr)
			nstest.Unreachable(t, r.Outside, "udp", closed.Addr)

			from := netip.AddrPortFrom(r.Outside4, 5555)
			c := dialFrom(t, r.Outside, from, closed.Addr)
			deny := func(generation uint64) {
				k, back := kern.MakeFlowKey(&flow.Key{
					Src: flow.AddrFrom(from.Addr()), Dst: flow.AddrFrom(b.Addr4), SrcPort: from.Port(), DstPort: closedPort, Proto: flow.UDP,
				})
				if back {
					k.Back = 1
				}
				s := kern.FlowState{Generation: generation, Last: kern.Now() + uint64(nstest.Timeout)}
				if err := r.backend.thread.do(func() error { return r.backend.objects.Denied.Put(&k, &s) }); err != nil {
					t.Fatal(err)
				}
			}
			deny(r.backend.epoch.Current())
			before, forwarded := r.counter(t, kern.CountDenied), snmp(t, r.NS, "Ip", "ForwDatagrams")
			const n = 20
			for range n {
				if _, err := c.Write([]byte("denied")); err != nil {
					t.Fatal(err)
				}
			}
			nstest.Eventually(t, "the packets are dropped and counted", func() bool { return r.counter(t, kern.CountDenied) == before+n })
			if now := snmp(t, r.NS, "Ip", "ForwDatagrams"); now != forwarded {
				t.Errorf("%s packets forwarded, before %s: they were dropped late", now, forwarded)
			}
			// A denial of an older policy says nothing, and an answer is not the
			// question: both are judged.
			deny(0)
			r.policy(allowAll)
			exchange(t, c)

			// Somebody outside in a pod's name.
			if err := r.Outside.Addr(netlab.PodDevice, netip.PrefixFrom(b.Addr6, 128)); err != nil {
				t.Fatal(err)
			}
			forged := r.counter(t, kern.CountForged)
			if _, err := dialFrom(t, r.Outside, netip.AddrPortFrom(b.Addr6, 4444), netip.AddrPortFrom(r.Addr6, openPort)).Write([]byte("forged")); err != nil {
				t.Fatal(err)
			}
			nstest.Eventually(t, "the packet is dropped and counted", func() bool { return r.counter(t, kern.CountForged) == forged+1 })
			if err := r.backend.Close(); err != nil {
				t.Fatal(err)
			}
			if l, err := r.NS.Link(netlab.Uplink); err != nil || l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
				t.Errorf("after Close: %v, %+v", err, l.Attrs().Xdp)
			}
		})
	}
}

// Another agent's XDP program stays on an uplink, and the backend runs without.
func TestUplinkOfSomebodyElse(t *testing.T) {
	nstest.Need(t, canRun)
	node := nstest.NewNode(t)
	l, err := node.NS.Link(netlab.Uplink)
	if err != nil {
		t.Fatal(err)
	}
	other := nothing(t, ebpf.XDP, 2) // XDP_PASS
	info, err := other.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	var ln link.Link
	if err := node.NS.Do(func() (err error) {
		ln, err = link.AttachXDP(link.XDPOptions{Program: other, Interface: l.Attrs().Index, Flags: link.XDPGenericMode})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	r := startRig(t, node, Config{Strict: true, AttachConfig: AttachConfig{Uplinks: []string{netlab.Uplink}, UplinkMode: attach.UplinkNative}})
	b := r.AddPod(t, "b")
	r.know(t, b)
	nstest.Reach(t, r.Outside, "tcp", nstest.Echo(t, b.NS, "tcp", b.Addr4, openPort).Addr)
	if l, err = node.NS.Link(netlab.Uplink); err != nil || l.Attrs().Xdp == nil || l.Attrs().Xdp.ProgId != uint32(id) {
		t.Errorf("the other program is gone: %v, %+v", err, l.Attrs().Xdp)
	}
	if err := r.backend.thread.do(func() error {
		for _, u := range r.backend.devices.Uplinks.On {
			if u.Put != nil {
				t.Error("the uplink counts as ours")
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
