package bypass

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/nstest"
	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

func find(t *testing.T, ns *nstest.NS) (found []Device) {
	t.Helper()
	err := ns.Do(func() (err error) {
		found, err = Find()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// lone makes a veth pair with both ends in the node's namespace.
func lone(t *testing.T, ns *nstest.NS, name, peer string) {
	t.Helper()
	if err := ns.Handle().LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: peer}); err != nil {
		t.Fatal(err)
	}
}

// A real netkit pair of a pod is refused, one within the node's namespace is not.
func TestNetkitIsRefused(t *testing.T) {
	node, pod := nstest.New(t), nstest.New(t)
	pair := func(name, peer string, peerNS int) error {
		nk := &netlink.Netkit{LinkAttrs: netlink.NewLinkAttrs(), Mode: netlink.NETKIT_MODE_L3}
		nk.Name = name
		other := netlink.NewLinkAttrs()
		other.Name = peer
		if peerNS >= 0 {
			other.Namespace = netlink.NsFd(peerNS)
		}
		nk.SetPeerAttrs(&other)
		return node.Handle().LinkAdd(nk)
	}
	if err := pair("nk0", "nk1", -1); err != nil {
		t.Skipf("no netkit devices here (Linux 6.7, CONFIG_NETKIT): %v", err)
	}
	if found := find(t, node); len(found) != 0 {
		t.Errorf("a pair that is no pod's: %v", found)
	}
	if err := pair("nkpod", "eth0", pod.FD()); err != nil {
		t.Fatal(err)
	}
	found := find(t, node)
	if len(found) != 1 || found[0] != (Device{Name: "nkpod", Kind: Netkit}) {
		t.Fatalf("found %v", found)
	}
	if text := Error(found).Error(); !strings.Contains(text, "netkit devices (nkpod)") || strings.Contains(text, "\n") {
		t.Errorf("not one sentence with the device: %s", text)
	}
}

// Cilium and Calico's eBPF mode are recognised by the devices they have.
func TestBPFDatapathsAreRefusedByDevice(t *testing.T) {
	for _, tt := range []struct {
		marker, pod, other, by string
	}{
		{"cilium_host", "lxc_health", "cilium_net", "Cilium"},
		{"cilium_host", "lxc8a1f", "cilium_net", "Cilium"},
		{"bpfin.cali", "cali12ab", "bpfout.cali", "Calico"},
		{"bpfnatin", "cali12ab", "bpfnatout", "Calico"},
		{"other0", "lxc8a1f", "other1", ""},    // LXC's own containers
		{"other0", "cali12ab", "other1", ""},   // Calico with iptables or nftables
		{"cilium_host", "eni1a", "other1", ""}, // beside another plugin, whose routes the stack follows
	} {
		t.Run(tt.marker+" "+tt.pod, func(t *testing.T) {
			node, pod := nstest.New(t), nstest.New(t)
			lone(t, node, tt.marker, tt.other)
			nstest.Pair(t, node, tt.pod, pod, "eth0")
			found := find(t, node)
			if tt.by == "" {
				if len(found) != 0 {
					t.Errorf("found %v", found)
				}
				return
			}
			if len(found) != 1 || found[0] != (Device{Name: tt.pod, Kind: BPF, By: tt.by}) {
				t.Fatalf("found %v", found)
			}
			if text := Error(found).Error(); !strings.Contains(text, tt.by) || !strings.Contains(text, tt.pod) || strings.Contains(text, "\n") {
				t.Errorf("not one sentence with project and device: %s", text)
			}
		})
	}
}

// Under other device names the program that takes packets from pods gives it away,
// unless the stack still has the route to the pod.
func TestBPFDatapathIsRefusedByProgram(t *testing.T) {
	for _, way := range []string{"tcx", "clsact"} {
		t.Run(way, func(t *testing.T) {
			node, pod := nstest.New(t), nstest.New(t)
			nstest.Pair(t, node, "veth1", pod, "eth0")
			if found := find(t, node); len(found) != 0 {
				t.Fatalf("before: %v", found)
			}
			attach(t, node, "veth1", way, "cil_from_container")
			found := find(t, node)
			if len(found) != 1 || found[0].Kind != BPF || !strings.HasPrefix(found[0].By, "cil_from_contai") {
				t.Fatalf("found %v", found)
			}
			if err := node.AddRoute(netlab.Route{Dst: netip.MustParsePrefix("10.0.0.7/32"), Dev: "veth1"}); err != nil {
				t.Fatal(err)
			}
			if found := find(t, node); len(found) != 0 {
				t.Errorf("the stack delivers to the pod: %v", found)
			}
		})
	}
	t.Run("somebody else's", func(t *testing.T) {
		node, pod := nstest.New(t), nstest.New(t)
		nstest.Pair(t, node, "veth1", pod, "eth0")
		attach(t, node, "veth1", "clsact", "handle_ingress")
		if found := find(t, node); len(found) != 0 {
			t.Errorf("found %v", found)
		}
	})
}

func attach(t *testing.T, ns *nstest.NS, dev, way, name string) {
	t.Helper()
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: name[:min(15, len(name))], Type: ebpf.SchedCLS, License: "Apache-2.0",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // next program, please
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { prog.Close() })
	l, err := ns.Link(dev)
	if err != nil {
		t.Fatal(err)
	}
	if way == "tcx" {
		err := ns.Do(func() error {
			at, err := link.AttachTCX(link.TCXOptions{Interface: l.Attrs().Index, Program: prog, Attach: ebpf.AttachTCXIngress})
			if err == nil {
				t.Cleanup(func() { at.Close() })
			}
			return err
		})
		if err != nil {
			t.Skipf("no tcx here (Linux 6.6): %v", err)
		}
		return
	}
	nl := ns.Handle()
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := nl.QdiscAdd(qdisc); err != nil {
		t.Fatal(err)
	}
	err = nl.FilterAdd(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{LinkIndex: l.Attrs().Index, Parent: netlink.HANDLE_MIN_INGRESS, Handle: 1, Priority: 1, Protocol: unix.ETH_P_ALL},
		Fd:          prog.FD(), Name: name + "-" + dev, DirectAction: true,
	})
	if err != nil {
		t.Fatal(err)
	}
}
