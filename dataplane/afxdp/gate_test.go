package afxdp

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// gates is in how many postrouting and input hooks gate is.
func (r *rig) gates(t testing.TB) (output, input int) {
	t.Helper()
	err := r.backend.thread.do(func() error {
		for _, h := range gateHooks {
			switch {
			case r.backend.gates[h.pin] == nil:
			case h.hook == link.NetfilterInetPostRouting:
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
	frame := make([]byte, 2048)
	for i, backend := range []netip.Addr{bad, good} {
		c := dial(t, a.NS, "udp", netip.AddrPortFrom(vip(4), servicePort+uint16(i)))
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
	if arrived[bad] != 0 || arrived[good] == 0 {
		t.Errorf("%v arrived, want packets to %v only", arrived, good)
	}

	if err := r.NS.RemoveLink("tun0"); err != nil {
		t.Fatal(err)
	}
	expect("no gate for what is forwarded when the device is gone", 0)
}
