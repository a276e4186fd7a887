package afxdp

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane"
)

// natState is what the backend has for packets whose addresses are translated:
// bpf/nat.h has the picture. Namespace thread only.
type natState struct {
	reads  bool                   // the connection of a packet can be read on its way out
	blind  error                  // why not
	onward bool                   // gate is in force
	gates  map[string]link.Link   // the hooks it is in, by their pins' names
	exits  map[int]*device        // devices that are no pod's, with pod_exit; nil: it could not be put there
	told   map[int]bool           // devices whose failure is logged
	listed *mirror[uint32, uint8] // map exits
}

// loadNAT loads the programs with what nat.h does, or without if the kernel cannot:
// then masqueraded clients are unknown, and Services are judged by their addresses.
func (b *Backend) loadNAT(spec *ebpf.CollectionSpec, maps map[string]*ebpf.Map) error {
	options := ebpf.CollectionOptions{MapReplacements: maps}
	try := func() error {
		if b.config.noNAT {
			return errors.New("switched off")
		}
		if b.config.Strict {
			if err := probeGate(); err != nil {
				return err
			}
		}
		spec, err := withNAT(spec, true, b.config.Strict)
		if err != nil {
			return err
		}
		return spec.LoadAndAssign(&b.objects, &options)
	}
	why := try()
	if why == nil {
		b.reads, b.onward = true, b.config.Strict
		return nil
	}
	spec, err := withNAT(spec, false, b.config.Strict)
	if err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&b.objects, &options); err != nil {
		return err
	}
	b.blind = unreadable(why)
	b.log.Warn("translated connections cannot be read: who is masqueraded counts as unknown, and Services are judged by their addresses where there is no later hook",
		"reason", b.blind)
	return nil
}

// unreadable says what the kernel lacks for nat.h.
func unreadable(why error) error {
	if missing := (*dataplane.MissingError)(nil); errors.As(why, &missing) {
		return missing
	}
	return &dataplane.MissingError{
		Piece: "way for programs to read a packet's connection", Since: "6.2",
		Option: "CONFIG_DEBUG_INFO_BTF, and not locked down for confidentiality", Cause: oneLine(why),
	}
}

// withNAT returns the programs with or without what nat.h does. What must not need
// the kernel's help then does nothing, and nobody attaches it.
func withNAT(spec *ebpf.CollectionSpec, nat, strict bool) (*ebpf.CollectionSpec, error) {
	spec = spec.Copy()
	if !nat || !strict {
		for _, name := range []string{"gate", "pod_exit"} {
			spec.Programs[name] = &ebpf.ProgramSpec{
				Name: name, Type: ebpf.SchedCLS, License: "Dual BSD/GPL",
				Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()}, // TCX_NEXT
			}
		}
	}
	if nat {
		if err := spec.Variables["nat"].Set(uint8(1)); err != nil {
			return nil, fmt.Errorf("set nat in the programs: %w", err)
		}
	} else if _, err := btf.LoadKernelSpec(); err != nil {
		for _, p := range spec.Programs {
			forgetKernel(p.Instructions)
		}
	}
	return spec, nil
}

// forgetKernel removes the wish to know offsets in the running kernel's structs, for
// a kernel that does not describe itself (BTF). None of these instructions is reached
// there.
func forgetKernel(insns asm.Instructions) {
	for i := range insns {
		if btf.CORERelocationMetadata(&insns[i]) != nil {
			insns[i] = btf.WithCORERelocationMetadata(insns[i], nil)
		}
	}
}

// Gate is behind everybody else's rules, before conntrack confirms a connection. No
// two programs of a hook have one priority: that of an earlier run may be there.
const gatePriority = math.MaxInt32 - 1

var gateHooks = []struct {
	pin    string
	family link.NetfilterProtocolFamily
	hook   link.NetfilterInetHook
}{
	{pinGate + "4-output", link.NetfilterProtoIPv4, link.NetfilterInetPostRouting},
	{pinGate + "4-input", link.NetfilterProtoIPv4, link.NetfilterInetLocalIn},
	{pinGate + "6-output", link.NetfilterProtoIPv6, link.NetfilterInetPostRouting},
	{pinGate + "6-input", link.NetfilterProtoIPv6, link.NetfilterInetLocalIn},
}

// attachGate puts a program into one of the hooks.
func attachGate(prog *ebpf.Program, family link.NetfilterProtocolFamily, hook link.NetfilterInetHook) (ln link.Link, err error) {
	for i := range int32(4) {
		ln, err = link.AttachNetfilter(link.NetfilterOptions{Program: prog, ProtocolFamily: family, Hook: hook, Priority: gatePriority - i})
		if err == nil {
			return ln, nil
		}
	}
	return nil, fmt.Errorf("attach a netfilter program: %w", err)
}

// probeGate finds out whether there are programs in the stack's hooks by putting one
// there that does nothing.
func probeGate() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tierwall_probe", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // NF_ACCEPT
	})
	missing := func(err error) error {
		return &dataplane.MissingError{Piece: "netfilter programs", Since: "6.4", Option: "CONFIG_NETFILTER_BPF_LINK", Cause: oneLine(err)}
	}
	if err != nil {
		return missing(err)
	}
	defer prog.Close()
	for _, h := range gateHooks {
		ln, err := attachGate(prog, h.family, h.hook)
		if err != nil {
			return missing(err)
		}
		if err := ln.Close(); err != nil {
			return err
		}
	}
	return nil
}

// openGate puts gate in force, before any program leaves something to it. That of an
// earlier run is at work until then.
func (b *Backend) openGate() (err error) {
	b.told = map[int]bool{}
	if b.listed, err = newMirror[uint32, uint8](b.objects.Exits); err != nil {
		return err
	}
	b.gates = map[string]link.Link{}
	for _, h := range gateHooks {
		if !b.onward {
			err = b.pins.drop(h.pin)
		} else {
			err = b.putGate(h.pin, h.family, h.hook)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *Backend) putGate(pin string, family link.NetfilterProtocolFamily, hook link.NetfilterInetHook) error {
	ln, err := attachGate(b.objects.Gate, family, hook)
	if err != nil {
		return err
	}
	b.gates[pin] = ln
	return b.pins.keep(pin, ln)
}

// gateOutput puts gate into the postrouting hooks or takes it out of them. All that is
// forwarded would pass it, at a few percent of what forwarding costs, so it is there
// only while something can leave by a device without a program of ours.
func (b *Backend) gateOutput(wanted bool) error {
	if !b.onward || b.gates == nil {
		return nil
	}
	var errs []error
	for _, h := range gateHooks {
		ln := b.gates[h.pin]
		switch {
		case h.hook != link.NetfilterInetPostRouting || wanted == (ln != nil):
		case wanted:
			errs = append(errs, b.putGate(h.pin, h.family, h.hook))
		default:
			delete(b.gates, h.pin)
			errs = append(errs, b.pins.drop(h.pin), ln.Close())
		}
	}
	return errors.Join(errs...)
}

// closeGate is the last thing to be done: programs on devices may still leave
// something to it. While nobody watches, devices may appear.
func (b *Backend) closeGate(keep bool) error {
	var errs []error
	if keep {
		errs = append(errs, b.gateOutput(true))
	}
	for pin, ln := range b.gates {
		if !keep {
			errs = append(errs, b.pins.drop(pin))
		}
		errs = append(errs, ln.Close())
	}
	b.gates = nil
	return errors.Join(errs...)
}

// bare reports whether packets may leave by a device without a program of ours. What
// leaves by a bridge leaves by one of its ports.
func (b *Backend) bare(l netlink.Link) bool {
	a := l.Attrs()
	return b.devices[a.Index] == nil && b.exits[a.Index] == nil && l.Type() != "bridge" && a.EncapType != "loopback" &&
		a.Name != UpcallStack && a.Name != UpcallSocket
}

// gateEarly watches what leaves by a device that has just appeared until it has a
// program.
func (b *Backend) gateEarly(l netlink.Link) error {
	if !b.bare(l) {
		return nil
	}
	return b.gateOutput(true)
}

// setExit says whether what leaves by a device is looked at there.
func (b *Backend) setExit(index int, looked bool) error {
	switch {
	case b.listed == nil: // no program asks
		return nil
	case looked:
		return b.listed.put(uint32(index), 1)
	}
	return b.listed.drop(uint32(index))
}

// refreshExits puts pod_exit on every device by which packets leave the node. One
// that cannot have it is left to gate: the first packet of a connection to a Service
// that leads there is lost.
func (b *Backend) refreshExits(s *scene) error {
	if b.listed == nil {
		return nil
	}
	var errs []error
	for index, d := range b.exits {
		if l := s.links[index]; l == nil || l.Attrs().Name != d.name {
			if l != nil {
				errs = append(errs, b.gateOutput(true))
			}
			errs = append(errs, b.detachExit(index))
		}
	}
	for index, l := range s.links {
		if b.devices[index] != nil || b.exits[index] != nil || !b.isExit(l) {
			continue
		}
		if err := b.attachExit(index, l); err != nil && !b.told[index] {
			b.told[index] = true
			b.log.Warn("device has no program of ours; what leaves there is judged from its second packet on", "device", l.Attrs().Name, "error", err)
		}
	}
	// What leaves by a bridge leaves by one of its ports.
	bare, any := map[int]bool{}, false
	for _, l := range s.links {
		if b.bare(l) {
			bare[l.Attrs().MasterIndex], any = true, true
		}
	}
	for index, l := range s.links {
		if l.Type() == "bridge" {
			errs = append(errs, b.setExit(index, !bare[index]))
		}
	}
	// An earlier run may have had programs where this one has none.
	for index := range b.listed.known {
		l := s.links[int(index)]
		if l == nil || b.devices[int(index)] == nil && b.exits[int(index)] == nil && l.Type() != "bridge" {
			errs = append(errs, b.setExit(int(index), false))
		}
	}
	return errors.Join(append(errs, b.gateOutput(any))...)
}

// isExit reports whether pod_exit can look at what leaves by a device. It reads
// Ethernet; and a bridge is looked at by its ports.
func (b *Backend) isExit(l netlink.Link) bool {
	a := l.Attrs()
	return b.onward && b.mode == AttachTCX && a.EncapType == "ether" && l.Type() != "bridge" && a.Name != UpcallStack && a.Name != UpcallSocket &&
		!b.config.excluded(a.Name)
}

func (b *Backend) attachExit(index int, l netlink.Link) error {
	own := [6]byte{}
	copy(own[:], l.Attrs().HardwareAddr)
	if err := b.putDevice(index, own, 0); err != nil {
		return err
	}
	a, err := b.put(index, b.objects.PodExit, false)
	if err != nil {
		return errors.Join(err, b.dropDevice(index))
	}
	b.exits[index] = &device{name: l.Attrs().Name, put: []attachment{a}}
	b.log.Info("device attached", "device", l.Attrs().Name, "ifindex", index, "attach", b.mode, "exit", true)
	return b.setExit(index, true)
}

// detachExit takes pod_exit off. The kernel has done so already if the device is gone.
func (b *Backend) detachExit(index int) error {
	d := b.exits[index]
	delete(b.exits, index)
	errs := []error{b.setExit(index, false)}
	for _, a := range d.put {
		errs = append(errs, a.remove())
	}
	if err := errors.Join(append(errs, b.dropDevice(index))...); err != nil {
		return fmt.Errorf("release device %s: %w", d.name, err)
	}
	return nil
}
