// Package bypass recognises pods whose packets pass no place where a backend of ours
// could judge them: neither the forward hook, where nfqueue stands, nor a veth device
// in the node's namespace that keeps its packets for the programs of afxdp.
//
//	netkit       the plugin's program on the pair sends a packet on before any hook
//	Cilium       programs on lxc* devices redirect packets past the node's stack
//	Calico eBPF  programs on cali* devices do the same
//
// Tierwall refuses to run there: it would look as if it protected somebody.
package bypass

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Kind is the way in which packets go past the hooks.
type Kind string

// Kinds of Device.
const (
	Netkit Kind = "netkit" // a netkit pair instead of a veth pair
	BPF    Kind = "bpf"    // programs of another project on a veth pair
)

// Device is a pod's device whose packets nobody here can judge.
type Device struct {
	Name string
	Kind Kind
	By   string // the project whose program it is, or the program's name; "" with Netkit
}

// Find lists such devices of the calling thread's network namespace, in the order of
// their numbers.
//
// The names of programs attached by tcx can be read with CAP_SYS_ADMIN only; Cilium's
// and Calico's usual devices are recognised without.
func Find() ([]Device, error) {
	nl, err := netlink.NewHandle()
	if err != nil {
		return nil, fmt.Errorf("open route netlink: %w", err)
	}
	defer nl.Close()
	links, err := nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index })
	there := map[string]bool{}
	for _, l := range links {
		there[l.Attrs().Name] = true
	}
	var found []Device
	var routed map[int]bool
	for _, l := range links {
		a := l.Attrs()
		if a.NetNsID < 0 { // the other end is in this namespace: no pod's
			continue
		}
		if l.Type() == "netkit" {
			found = append(found, Device{Name: a.Name, Kind: Netkit})
			continue
		}
		if l.Type() != "veth" {
			continue
		}
		by := byName(a.Name, there)
		if by == "" && a.MasterIndex == 0 {
			if by = byProgram(nl, l); by != "" {
				if routed == nil {
					if routed, err = routedDevices(nl); err != nil {
						return nil, err
					}
				}
				// Where a route leads to the device, the stack delivers to the pod.
				if routed[a.Index] {
					by = ""
				}
			}
		}
		if by != "" {
			found = append(found, Device{Name: a.Name, Kind: BPF, By: by})
		}
	}
	return found, nil
}

// byName returns the project whose datapath a device belongs to by its name, if that
// project's own devices are there, too. Cilium has cilium_host on every node, and
// lxc_health before the first pod; Calico has the pair bpfin.cali and bpfout.cali in
// eBPF mode only (bpfnatin before 3.26).
func byName(name string, there map[string]bool) string {
	switch {
	case strings.HasPrefix(name, "lxc") && there["cilium_host"]:
		return "Cilium"
	case strings.HasPrefix(name, "cali") && (there["bpfin.cali"] || there["bpfnatin"]):
		return "Calico"
	}
	return ""
}

// programNames begin the names of the programs that take packets from pods; the kernel
// keeps 15 characters.
var programNames = []string{"cil_from_contai", "cali_tc_", "calico_from_wor"}

func known(program string) bool {
	return slices.ContainsFunc(programNames, func(p string) bool { return strings.HasPrefix(program, p) })
}

// byProgram returns the name of a program of programNames that a device's incoming
// packets meet.
func byProgram(nl *netlink.Handle, l netlink.Link) string {
	if r, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress}); err == nil {
		for _, p := range r.Programs {
			if name := programName(p.ID); known(name) {
				return name
			}
		}
	}
	filters, err := nl.FilterList(l, netlink.HANDLE_MIN_INGRESS)
	if err != nil {
		return ""
	}
	for _, f := range filters {
		if b, ok := f.(*netlink.BpfFilter); ok && known(b.Name) {
			return b.Name
		}
	}
	return ""
}

func programName(id ebpf.ProgramID) string {
	p, err := ebpf.NewProgramFromID(id)
	if err != nil {
		return ""
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return ""
	}
	return info.Name
}

// routedDevices are those that a host route leads to.
func routedDevices(nl *netlink.Handle) (map[int]bool, error) {
	to := map[int]bool{}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := nl.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			if r := &routes[i]; r.Type == unix.RTN_UNICAST && r.Dst != nil && isHost(r.Dst) {
				to[r.LinkIndex] = true
			}
		}
	}
	return to, nil
}

func isHost(n *net.IPNet) bool {
	ones, size := n.Mask.Size()
	return size > 0 && ones == size && !n.IP.IsLinkLocalUnicast() && !n.IP.IsMulticast()
}

// Error says in a sentence for each kind why these devices are refused, nil for none.
func Error(devices []Device) error {
	var errs []error
	for _, kind := range []Kind{Netkit, BPF} {
		var names []string
		by := ""
		for _, d := range devices {
			if d.Kind == kind {
				names, by = append(names, d.Name), d.By
			}
		}
		if len(names) == 0 {
			continue
		}
		list := strings.Join(names[:min(3, len(names))], ", ")
		if more := len(names) - 3; more > 0 {
			list += fmt.Sprintf(" and %d more", more)
		}
		if kind == Netkit {
			errs = append(errs, fmt.Errorf("pods have netkit devices (%s), whose packets pass no hook where Tierwall could judge them: "+
				"use a network plugin that gives pods veth devices and forwards through the node's stack, or do not run Tierwall on this node", list))
			continue
		}
		errs = append(errs, fmt.Errorf("eBPF host routing: programs of %s carry packets of pods (%s) past the node's stack, where Tierwall could judge them: "+
			"use a network plugin that forwards through the stack, or do not run Tierwall on this node", by, list))
	}
	return errors.Join(errs...)
}
