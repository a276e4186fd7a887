package nstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// rootState renders what the lab must never change.
func rootState(t *testing.T) string {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	routes, err := netlink.RouteList(nil, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	s := fmt.Sprintln(len(links), "links", len(routes), "routes")
	for _, key := range []string{
		"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/rp_filter",
		"net/ipv6/conf/default/accept_dad", "net/ipv6/conf/default/accept_ra",
	} {
		b, err := os.ReadFile("/proc/sys/" + key)
		s += fmt.Sprintln(key, string(b), err)
	}
	return s
}

// Every pair of the topology can talk, in both families and protocols, before
// anything filters; and the namespace of the test itself is untouched.
func TestNodeConnectivity(t *testing.T) {
	Need(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := rootState(t)
	node := NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	ends := []struct {
		ns     *netlab.NS
		v4, v6 netip.Addr
	}{{a.NS, a.Addr4, a.Addr6}, {b.NS, b.Addr4, b.Addr6}, {node.NS, node.Addr4, node.Addr6}, {node.Outside, node.Outside4, node.Outside6}}
	for _, network := range []string{"tcp", "udp"} {
		for _, to := range ends {
			for _, addr := range []netip.Addr{to.v4, to.v6} {
				s := Echo(t, to.ns, network, addr, 8080)
				for _, from := range ends {
					Reach(t, from.ns, network, s.Addr)
				}
				if got := s.Seen(); got != int64(len(ends)) {
					t.Errorf("%s server at %s saw %d connections, want %d", network, s.Addr, got, len(ends))
				}
				Unreachable(t, a.NS, network, netip.AddrPortFrom(addr, 8081))
			}
		}
	}
	if after := rootState(t); after != before {
		t.Errorf("the test's own namespace changed\nbefore: %s\nafter: %s", before, after)
	}
}

// The lab filters spoofed sources like a real node: without strict reverse path
// filtering a backend that re-injects packets wrongly would look right.
func TestReversePathFilter(t *testing.T) {
	Need(t)
	node := NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	s := Echo(t, b.NS, "udp", b.Addr4, 8080)
	spoofed := netip.MustParseAddr("10.244.0.77")
	if err := a.NS.Addr(netlab.PodDevice, netip.PrefixFrom(spoofed, 32)); err != nil {
		t.Fatal(err)
	}
	if err := a.NS.ProbeFrom("udp", netip.AddrPortFrom(spoofed, 0), s.Addr, Blocked); err == nil {
		t.Error("a datagram with a source that is routed elsewhere got an answer")
	}
	if got := s.Seen(); got != 0 {
		t.Errorf("server saw %d spoofed datagrams, want 0", got)
	}
	Reach(t, a.NS, "udp", s.Addr)
}

func TestRemovePod(t *testing.T) {
	Need(t)
	node := NewNode(t)
	a, b := node.AddPod(t, "a"), node.AddPod(t, "b")
	Echo(t, b.NS, "tcp", b.Addr4, 8080)
	if err := node.RemovePod("b"); err != nil {
		t.Fatal(err)
	}
	Unreachable(t, a.NS, "tcp", netip.AddrPortFrom(b.Addr4, 8080))
	if _, err := node.NS.Link(b.HostDevice); err == nil {
		t.Errorf("device %s is still there", b.HostDevice)
	}
	if err := node.RemovePod("b"); err == nil {
		t.Error("removing a pod twice succeeded")
	}
}

// Do runs inside, returns f's error, and leaves the caller outside.
func TestDo(t *testing.T) {
	Need(t)
	ns := New(t)
	sentinel := errors.New("sentinel")
	var inside []net.Interface
	if err := ns.Do(func() (err error) { inside, err = net.Interfaces(); return errors.Join(err, sentinel) }); !errors.Is(err, sentinel) {
		t.Errorf("Do returned %v, want the function's error", err)
	}
	if len(inside) != 1 || inside[0].Name != "lo" || inside[0].Flags&net.FlagUp == 0 {
		t.Errorf("interfaces inside are %v, want lo, up", inside)
	}
	if err := ns.Do(func() error { runtime.Goexit(); return nil }); err == nil {
		t.Error("Do of a function that exits its goroutine returned nil")
	}
}

// A closed namespace takes its devices with it.
func TestCloseRemovesDevices(t *testing.T) {
	Need(t)
	a := New(t)
	b, err := netlab.New("b")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlab.Pair(a.NS, "x0", b, "x1"); err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "x0 is gone", func() bool { _, err := a.Link("x0"); return err != nil })
	if err := b.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestPin(t *testing.T) {
	Need(t)
	ns := New(t)
	path := t.TempDir() + "/lab/pinned"
	if err := ns.Pin(path); err != nil {
		t.Fatal(err)
	}
	if err := ns.Unpin(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after Unpin %s is still there (%v)", path, err)
	}
}
