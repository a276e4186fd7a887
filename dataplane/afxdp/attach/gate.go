package attach

import (
	"errors"
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// Gate is behind everybody else's rules, before conntrack confirms a connection. No
// two programs of a hook have one priority: that of an earlier run may be there.
const gatePriority = math.MaxInt32 - 1

var GateHooks = []struct {
	Pin    string
	family link.NetfilterProtocolFamily
	Hook   link.NetfilterInetHook
}{
	{kern.PinGate + "4-output", link.NetfilterProtoIPv4, link.NetfilterInetPostRouting},
	{kern.PinGate + "4-input", link.NetfilterProtoIPv4, link.NetfilterInetLocalIn},
	{kern.PinGate + "6-output", link.NetfilterProtoIPv6, link.NetfilterInetPostRouting},
	{kern.PinGate + "6-input", link.NetfilterProtoIPv6, link.NetfilterInetLocalIn},
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

// ProbeGate finds out whether there are programs in the stack's hooks by putting one
// there that does nothing.
func ProbeGate() error {
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "tierwall_probe", Type: ebpf.Netfilter, AttachType: ebpf.AttachNetfilter, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()}, // NF_ACCEPT
	})
	missing := func(err error) error {
		return &dataplane.MissingError{Piece: "netfilter programs", Since: "6.4", Option: "CONFIG_NETFILTER_BPF_LINK", Cause: kern.OneLine(err)}
	}
	if err != nil {
		return missing(err)
	}
	defer prog.Close()
	for _, h := range GateHooks {
		ln, err := attachGate(prog, h.family, h.Hook)
		if err != nil {
			return missing(err)
		}
		if err := ln.Close(); err != nil {
			return err
		}
	}
	return nil
}

// gate is the program gate of bpf/nat.h in the stack's own hooks. Namespace thread
// only. The zero value is in none, and stays so.
type gate struct {
	pins   kern.Pins
	prog   *ebpf.Program
	onward bool                 // it is wanted
	Links  map[string]link.Link // the hooks it is in, by their pins' names
}

// open puts gate in force, before any program leaves something to it. That of an
// earlier run is at work until then.
func (g *gate) open(p *kern.Loaded, pins kern.Pins) (err error) {
	*g = gate{pins: pins, prog: p.Gate, onward: p.Onward, Links: map[string]link.Link{}}
	for _, h := range GateHooks {
		if !g.onward {
			err = g.pins.Drop(h.Pin)
		} else {
			err = g.put(h.Pin, h.family, h.Hook)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (g *gate) put(pin string, family link.NetfilterProtocolFamily, hook link.NetfilterInetHook) error {
	ln, err := attachGate(g.prog, family, hook)
	if err != nil {
		return err
	}
	g.Links[pin] = ln
	return g.pins.Keep(pin, ln)
}

// output puts gate into the postrouting hooks or takes it out of them. All that is
// forwarded would pass it, at a few percent of what forwarding costs, so it is there
// only while something can leave by a device without a program of ours.
func (g *gate) output(wanted bool) error {
	if !g.onward || g.Links == nil {
		return nil
	}
	var errs []error
	for _, h := range GateHooks {
		ln := g.Links[h.Pin]
		switch {
		case h.Hook != link.NetfilterInetPostRouting || wanted == (ln != nil):
		case wanted:
			errs = append(errs, g.put(h.Pin, h.family, h.Hook))
		default:
			delete(g.Links, h.Pin)
			errs = append(errs, g.pins.Drop(h.Pin), ln.Close())
		}
	}
	return errors.Join(errs...)
}

// close is the last thing to be done: programs on devices may still leave
// something to it. While nobody watches, devices may appear.
func (g *gate) close(keep bool) error {
	var errs []error
	if keep {
		errs = append(errs, g.output(true))
	}
	for pin, ln := range g.Links {
		if !keep {
			errs = append(errs, g.pins.Drop(pin))
		}
		errs = append(errs, ln.Close())
	}
	g.Links = nil
	return errors.Join(errs...)
}
