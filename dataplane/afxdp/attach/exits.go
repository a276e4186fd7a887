package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// exits keeps pod_exit on the devices by which packets leave the node. Namespace
// thread only.
type exits struct {
	*site
	gate   *gate
	prog   *ebpf.Program
	onward bool                   // they are wanted
	pods   map[int]*device        // those with the pods' programs
	on     map[int]*device        // devices that are no pod's, with pod_exit
	told   map[int]bool           // devices whose failure is logged
	listed *mirror[uint32, uint8] // map exits; nil: no program asks
}

// bare reports whether packets may leave by a device without a program of ours. What
// leaves by a bridge leaves by one of its ports.
func (x *exits) bare(l netlink.Link) bool {
	a := l.Attrs()
	return x.pods[a.Index] == nil && x.on[a.Index] == nil && l.Type() != "bridge" && a.EncapType != "loopback" &&
		a.Name != kern.UpcallStack && a.Name != kern.UpcallSocket
}

// gateEarly watches what leaves by a device that has just appeared until it has a
// program.
func (x *exits) gateEarly(l netlink.Link) error {
	if !x.bare(l) {
		return nil
	}
	return x.gate.output(true)
}

// set says whether what leaves by a device is looked at there.
func (x *exits) set(index int, looked bool) error {
	switch {
	case x.listed == nil: // no program asks
		return nil
	case looked:
		return x.listed.put(uint32(index), 1)
	}
	return x.listed.drop(uint32(index))
}

// refresh puts pod_exit on every device by which packets leave the node. One
// that cannot have it is left to gate: the first packet of a connection to a Service
// that leads there is lost.
func (x *exits) refresh(s *scene) error {
	if x.listed == nil {
		return nil
	}
	var errs []error
	for index, d := range x.on {
		if l := s.links[index]; l == nil || l.Attrs().Name != d.name {
			if l != nil {
				errs = append(errs, x.gate.output(true))
			}
			errs = append(errs, x.detach(index))
		}
	}
	for index, l := range s.links {
		if x.pods[index] != nil || x.on[index] != nil || !x.isExit(l) {
			continue
		}
		if err := x.attach(index, l); err != nil && !x.told[index] {
			x.told[index] = true
			x.log.Warn("device has no program of ours; what leaves there is judged from its second packet on", "device", l.Attrs().Name, "error", err)
		}
	}
	// What leaves by a bridge leaves by one of its ports.
	bare, any := map[int]bool{}, false
	for _, l := range s.links {
		if x.bare(l) {
			bare[l.Attrs().MasterIndex], any = true, true
		}
	}
	for index, l := range s.links {
		if l.Type() == "bridge" {
			errs = append(errs, x.set(index, !bare[index]))
		}
	}
	// An earlier run may have had programs where this one has none.
	for index := range x.listed.known {
		l := s.links[int(index)]
		if l == nil || x.pods[int(index)] == nil && x.on[int(index)] == nil && l.Type() != "bridge" {
			errs = append(errs, x.set(int(index), false))
		}
	}
	return errors.Join(append(errs, x.gate.output(any))...)
}

// isExit reports whether pod_exit can look at what leaves by a device. It reads
// Ethernet; and a bridge is looked at by its ports.
func (x *exits) isExit(l netlink.Link) bool {
	a := l.Attrs()
	return x.onward && x.hooks.mode == TCX && a.EncapType == "ether" && l.Type() != "bridge" && a.Name != kern.UpcallStack && a.Name != kern.UpcallSocket &&
		!x.config.excluded(a.Name)
}

func (x *exits) attach(index int, l netlink.Link) error {
	own := [6]byte{}
	copy(own[:], l.Attrs().HardwareAddr)
	if err := x.entries.put(index, own, 0); err != nil {
		return err
	}
	a, err := x.hooks.put(index, x.prog, false)
	if err != nil {
		return errors.Join(err, x.entries.drop(index))
	}
	x.on[index] = &device{name: l.Attrs().Name, put: []attachment{a}}
	x.log.Info("device attached", "device", l.Attrs().Name, "ifindex", index, "attach", x.hooks.mode, "exit", true)
	return x.set(index, true)
}

// detach takes pod_exit off. The kernel has done so already if the device is gone.
func (x *exits) detach(index int) error {
	d := x.on[index]
	delete(x.on, index)
	errs := []error{x.set(index, false)}
	for _, a := range d.put {
		errs = append(errs, a.remove())
	}
	if err := errors.Join(append(errs, x.entries.drop(index))...); err != nil {
		return fmt.Errorf("release device %s: %w", d.name, err)
	}
	return nil
}
