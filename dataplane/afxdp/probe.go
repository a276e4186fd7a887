package afxdp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// Probe reports whether the backend can run here, how, in a line (Facts), and what it
// does not do here (Limits). The error names the piece that is missing. It does
// everything for real, with a small ring, in a network namespace of its own that ends
// with the call: the programs are loaded, go onto veth devices by tcx and native XDP,
// and a socket is bound. A process that may not make a namespace (CAP_SYS_ADMIN) learns
// nothing from it, and gets no facts and no error: New finds out.
func Probe() (facts string, limits []string, err error) {
	if err := supportedMachine(); err != nil {
		return "", nil, err
	}
	if os.Geteuid() != 0 {
		return "", nil, errors.New("the AF_XDP backend needs root with CAP_BPF, CAP_PERFMON, CAP_NET_ADMIN and CAP_NET_RAW")
	}
	done := make(chan struct{})
	go func() {
		facts, limits, err = probeAside()
		close(done)
	}()
	<-done
	if err != nil {
		return "", nil, fmt.Errorf("this kernel cannot run the AF_XDP backend: %w", err)
	}
	return facts, limits, nil
}

// probeAside runs probeHere in a new namespace and goes back to the old one. A
// thread that cannot go back stays locked and ends with its goroutine. Going
// back matters most for the process's main thread, which never ends: what
// /proc/self/net shows is that thread's namespace.
func probeAside() (facts string, limits []string, err error) {
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		runtime.UnlockOSThread()
		return "", nil, fmt.Errorf("open the network namespace: %w", err)
	}
	defer home.Close()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		if errors.Is(err, unix.EPERM) {
			// A daemon without CAP_SYS_ADMIN cannot have a namespace to try things
			// in. What is missing shows when the backend opens and attaches.
			return "", nil, nil
		}
		return "", nil, fmt.Errorf("create a network namespace to probe in: %w", err)
	}
	facts, limits, err = probeHere()
	if back := netns.Set(home); back != nil {
		return "", nil, errors.Join(err, fmt.Errorf("leave the probe's network namespace: %w", back))
	}
	runtime.UnlockOSThread()
	return facts, limits, err
}

func probeHere() (facts string, limits []string, err error) {
	b, err := New(Config{Queues: min(2, runtime.NumCPU()), Ring: 64, FlowEntries: 64, LaterEntries: 64})
	if err != nil {
		return "", nil, err
	}
	defer func() { err = errors.Join(err, b.Close()) }()
	pod := netip.MustParseAddr("192.0.2.1") // TEST-NET-1
	err = b.thread.do(func() error {
		veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "pod"}, PeerName: "node"}
		if err := b.nl.LinkAdd(veth); err != nil {
			return fmt.Errorf("create a veth pair: %w", err)
		}
		if err := b.nl.LinkSetUp(veth); err != nil {
			return err
		}
		return b.nl.RouteAdd(&netlink.Route{
			LinkIndex: veth.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: netlink.NewIPNet(pod.AsSlice()),
		})
	})
	if err != nil {
		return "", nil, err
	}
	if err := b.update([]netip.Addr{pod}, dataplane.Change{}); err != nil {
		return "", nil, err
	}
	attached := 0
	if err := b.thread.do(func() error { attached = b.devices.Attached(); return nil }); err != nil {
		return "", nil, err
	}
	if attached != 1 {
		return "", nil, fmt.Errorf("%d pod devices found by their routes, want 1", attached)
	}
	return b.Facts(), b.Limits(), nil
}
