package afxdp

import (
	"net/netip"
	"testing"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Every way out of the programs has a name, and one only.
func TestKernelWaysAreComplete(t *testing.T) {
	named := map[uint32]int{}
	names := map[string]bool{}
	for _, w := range kernelWays {
		named[w.counter]++
		name := string(w.outcome) + " " + w.reason
		if names[name] {
			t.Errorf("%q is the name of two ways", name)
		}
		names[name] = true
	}
	for which := range uint32(numCounters) {
		want := 1
		switch which {
		case countStray, countReceived, countUnheard: // of the upcall pair
			want = 0
		}
		if named[which] != want {
			t.Errorf("counter %d is named %d times, want %d", which, named[which], want)
		}
	}
}

// Whatever a pod sends and receives is counted once: the sum over all ways out is
// the number of packets the pod's device saw, and those that came back from
// userspace and so were seen twice.
func TestKernelCountsAddUp(t *testing.T) {
	r := newRig(t, Config{Strict: true})
	a, b := r.AddPod(t, "a"), r.AddPod(t, "b")
	r.update(t, a) // b's device has no programs
	for _, network := range []string{"tcp", "udp"} {
		for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
			nstest.Echo(t, b.NS, network, addr, openPort)
		}
	}
	device := func() (n uint64) {
		l, err := a.NS.Link("eth0")
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Statistics.TxPackets + l.Attrs().Statistics.RxPackets
	}
	sum := func() (total, returned uint64, by map[dataplane.KernelOutcome]uint64) {
		by = map[dataplane.KernelOutcome]uint64{}
		for _, k := range r.backend.Stats().Kernel {
			total += k.Packets
			by[k.Outcome] += k.Packets
			if k.Reason == "returned" {
				returned = k.Packets
			}
		}
		return total, returned, by
	}
	packets := device()
	total, returned, _ := sum()
	for _, addr := range []netip.Addr{b.Addr4, b.Addr6} {
		for _, network := range []string{"tcp", "udp"} {
			c := dial(t, a.NS, network, netip.AddrPortFrom(addr, openPort))
			exchange(t, c)
			exchange(t, c)
			c.Close()
		}
		nstest.Unreachable(t, a.NS, "udp", netip.AddrPortFrom(addr, closedPort))
		fragments(t, a, netip.AddrPortFrom(addr, openPort))
	}
	nstest.Eventually(t, "all is counted", func() bool {
		now := device()
		all, back, by := sum()
		if by[dataplane.KernelPassed] == 0 || by[dataplane.KernelDropped] == 0 || by[dataplane.KernelUpcall] == 0 {
			t.Fatalf("the traffic does not show every outcome: %v", by)
		}
		return now-packets == all-total-(back-returned)
	})
}

// fragments sends a datagram that does not fit one packet.
func fragments(t *testing.T, from *netlab.Pod, to netip.AddrPort) {
	t.Helper()
	c := dial(t, from.NS, "udp", to)
	if _, err := c.Write(make([]byte, 4000)); err != nil {
		t.Fatal(err)
	}
}
