package afxdp

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// gates is in how many postrouting and input hooks gate is.
func (r *rig) gates(t testing.TB) (output, input int) {
	t.Helper()
	err := r.backend.thread.do(func() error {
		for _, h := range attach.GateHooks {
			switch {
			case r.backend.devices.Gate.Links[h.Pin] == nil:
			case h.Hook == link.NetfilterInetPostRouting:
				output++
			default:
				input++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return output, input
}

// What leaves passes gate only while it may leave by a device without a program:
// here one without Ethernet headers that appears and goes. What a pod sends to a
// Service that leads there is judged by its backend.
func TestGateIsWhereItIsNeeded(t *testing.T) {
	t.Parallel()
	needReads(t)
	r := newRig(t, Config{Strict: true})
	a := r.AddPod(t, "a")
	r.know(t, a)
	expect := func(when string, want int) {
		t.Helper()
		nstest.Eventually(t, when, func() bool {
			output, input := r.gates(t)
			return output == want && input == 2
		})
	}
	expect("no gate for what is forwarded while every device has a program", 0)

	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, Queues: 1, NonPersist: true}
	if err := r.NS.Do(func() error { return netlink.LinkAdd(tun) }); err != nil {
		t.Fatal(err)
	}
	defer tun.Fds[0].Close()
	if err := r.NS.Up("tun0"); err != nil {
		t.Fatal(err)
	}
	// The first gets the packets that are sent before the device is known, too.
	good, bad := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("198.51.100.2")
	for i, backend := range []netip.Addr{bad, good} {
		if err := r.NS.AddRoute(netlab.Route{Dst: netip.PrefixFrom(backend, 32), Dev: "tun0"}); err != nil {
			t.Fatal(err)
		}
		service(t, r.NS, netip.AddrPortFrom(vip(4), servicePort+uint16(i)), netip.AddrPortFrom(backend, openPort), false)
	}
	r.policy(judges(func(k flow.Key) bool { return k.Dst == flow.AddrFrom(good) }))
	expect("gate for what leaves by a device without a program", 2)

	arrived := map[netip.Addr]int{}
	for i, backend := range []netip.Addr{bad, good} {
		sendOut(t, dial(t, a.NS, "udp", netip.AddrPortFrom(vip(4), servicePort+uint16(i))), tun, backend, arrived)
	}
	if arrived[bad] != 0 || arrived[good] == 0 {
		t.Errorf("%v arrived, want packets to %v only", arrived, good)
	}

	if err := r.NS.RemoveLink("tun0"); err != nil {
		t.Fatal(err)
	}
	expect("no gate for what is forwarded when the device is gone", 0)
}

// sendOut sends on a connection until something arrives for an address at a device
// without Ethernet headers, five times at most, and counts by IPv4 address what does.
func sendOut(t *testing.T, c net.Conn, tun *netlink.Tuntap, backend netip.Addr, arrived map[netip.Addr]int) {
	t.Helper()
	if err := c.SetDeadline(time.Time{}); err != nil { // of an exchange before
		t.Fatal(err)
	}
	frame := make([]byte, 2048)
	for range 5 {
		if _, err := c.Write([]byte("ping")); err != nil {
			t.Fatal(err)
		}
		poll := []unix.PollFd{{Fd: int32(tun.Fds[0].Fd()), Events: unix.POLLIN}}
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end) && arrived[backend] == 0; {
			if n, _ := unix.Poll(poll, 20); n < 1 { // nothing, or a signal
				continue
			}
			n, err := tun.Fds[0].Read(frame)
			if err != nil {
				t.Fatal(err)
			}
			if n >= 20 && frame[0]>>4 == 4 {
				arrived[netip.AddrFrom4([4]byte(frame[16:20]))]++
			}
		}
	}
}

// A daemon that crashes leaves no gate in the postrouting hooks. What a pod sends to a
// Service and nobody accepted does not get out by a device that appears then, although
// it was left to the program where it leaves; what was accepted goes on, to wherever
// its backend is now.
func TestDeviceThatAppearsAfterACrash(t *testing.T) {
	t.Parallel()
	needReads(t)
	node := nstest.NewNode(t)
	a := node.AddPod(t, "a")
	path := nstest.BPFFS(t)
	r := startRig(t, node, Config{Strict: true, PinPath: path})
	good, bad := r.Outside4, netip.MustParseAddr("198.51.100.2")
	r.policy(judges(func(k flow.Key) bool { return k.Dst == flow.AddrFrom(good) }))
	r.know(t, a)
	if output, _ := r.gates(t); output != 0 {
		t.Fatalf("gate is in %d postrouting hooks before there is anything to watch", output)
	}
	if err := r.NS.AddRoute(netlab.Route{Dst: netip.PrefixFrom(bad, 32), Via: r.Outside4, Dev: netlab.Uplink}); err != nil {
		t.Fatal(err)
	}
	conns := map[netip.Addr]net.Conn{}
	for i, backend := range []netip.Addr{bad, good} {
		service(t, r.NS, netip.AddrPortFrom(vip(4), servicePort+uint16(i)), netip.AddrPortFrom(backend, openPort), false)
		conns[backend] = dial(t, a.NS, "udp", netip.AddrPortFrom(vip(4), servicePort+uint16(i)))
	}
	nstest.Echo(t, r.Outside, "udp", good, openPort)
	exchange(t, conns[good])
	for range 3 {
		if err := echoes(conns[bad], 20*time.Millisecond); err == nil {
			t.Fatal("a denied connection works")
		}
	}
	k := flow.MakeKey(flow.UDP, netip.MustParseAddrPort(conns[bad].LocalAddr().String()), netip.AddrPortFrom(vip(4), servicePort))
	f, _ := kern.MakeFlowKey(&k)
	if err := r.backend.objects.Later.Lookup(&f, new(kern.FlowState)); err != nil {
		t.Fatalf("the denied connection is not left to where it leaves: %v", err)
	}
	r.stop(t)
	// Who crashes has no time to put gate there.
	outputs, _ := filepath.Glob(filepath.Join(path, "*", kern.PinGate+"*-output"))
	if len(outputs) != 2 {
		t.Fatalf("pinned: %v, want gate in two postrouting hooks", outputs)
	}
	for _, pin := range outputs {
		if err := os.Remove(pin); err != nil {
			t.Fatal(err)
		}
	}
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun0"}, Mode: netlink.TUNTAP_MODE_TUN, Queues: 1, NonPersist: true}
	if err := r.NS.Do(func() error { return netlink.LinkAdd(tun) }); err != nil {
		t.Fatal(err)
	}
	defer tun.Fds[0].Close()
	if err := r.NS.Up("tun0"); err != nil {
		t.Fatal(err)
	}
	if err := r.NS.Do(func() error {
		l, err := netlink.LinkByName("tun0")
		if err != nil {
			return err
		}
		return netlink.RouteReplace(&netlink.Route{LinkIndex: l.Attrs().Index, Dst: &net.IPNet{IP: bad.AsSlice(), Mask: net.CIDRMask(32, 32)}, Scope: netlink.SCOPE_LINK})
	}); err != nil {
		t.Fatal(err)
	}
	exchange(t, conns[good])
	arrived := map[netip.Addr]int{}
	sendOut(t, conns[bad], tun, bad, arrived)
	if n := arrived[bad]; n != 0 {
		t.Errorf("%d packets left that nobody judged", n)
	}
	// The node's own packets leave there: it is the way.
	sendOut(t, dial(t, r.NS, "udp", netip.AddrPortFrom(bad, openPort)), tun, bad, arrived)
	if arrived[bad] == 0 {
		t.Error("the route does not lead to tun0: nothing was tested")
	}
}
