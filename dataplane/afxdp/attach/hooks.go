package attach

import (
	"errors"
	"fmt"
	"io"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// hooks puts programs on devices in the way that was chosen. Namespace thread only.
type hooks struct {
	nl   *netlink.Handle
	pins kern.Pins
	mode Mode // never AttachAuto after choose
}

// attachment is a program on one side of a device.
type attachment interface {
	// remove takes the program off. It is no error if the device has gone.
	remove() error
	// Close lets go of it: what is made to outlive the process stays.
	Close() error
}

// put puts a program on one side of a device in the way that was chosen.
func (h *hooks) put(index int, prog *ebpf.Program, ingress bool) (attachment, error) {
	if h.mode == Clsact {
		return PutClsact(h.nl, index, prog, ingress)
	}
	at := ebpf.AttachTCXEgress
	if ingress {
		at = ebpf.AttachTCXIngress
	}
	ln, err := h.attachTCX(index, prog, at)
	if err != nil {
		return nil, fmt.Errorf("attach a tcx program (Linux 6.6): %w", err)
	}
	return &tcxLink{ln, h.pins, index, at}, nil
}

// attachTCX puts a program onto a device, first in line: programs of others see
// every packet once, and what goes up they see when it has come back. If it is
// pinned, it replaces the program of an earlier process in one step.
func (h *hooks) attachTCX(index int, prog *ebpf.Program, at ebpf.AttachType) (link.Link, error) {
	name := kern.PinName(index, at)
	if ln, ok := h.pins.Takeover(name, index, prog); ok {
		return ln, nil
	}
	ln, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: at, Anchor: link.Head()})
	if err != nil {
		return nil, err
	}
	if err := h.pins.Keep(name, ln); err != nil {
		return nil, errors.Join(err, ln.Close())
	}
	return ln, nil
}

// tcxLink is a tcx program; if it is pinned it outlives the process.
type tcxLink struct {
	link.Link
	pins  kern.Pins
	index int
	at    ebpf.AttachType
}

// remove takes a program off, pinned or not. The kernel has done so already
// if the device is gone.
func (t *tcxLink) remove() error {
	return errors.Join(t.pins.Drop(kern.PinName(t.index, t.at)), t.Close())
}

// choose settles the way of attaching by trying it on a device of our own.
func (h *hooks) choose(own netlink.Link, c *Options) error {
	h.mode = c.Attach
	if h.mode != Auto {
		return nil
	}
	index := own.Attrs().Index
	try := func(at ebpf.AttachType, put func(*ebpf.Program) (io.Closer, error)) error {
		prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Name: "tierwall_probe", Type: ebpf.SchedCLS, AttachType: at, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
		})
		if err != nil {
			return fmt.Errorf("load a program: %w", err)
		}
		defer prog.Close()
		a, err := put(prog)
		if err != nil {
			return err
		}
		return a.Close()
	}
	tcx := try(ebpf.AttachTCXIngress, func(p *ebpf.Program) (io.Closer, error) {
		return link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
	})
	if tcx == nil {
		h.mode = TCX
		return nil
	}
	clsact := try(ebpf.AttachNone, func(p *ebpf.Program) (io.Closer, error) {
		f, err := PutClsact(h.nl, index, p, true)
		if err == nil {
			err = f.remove()
		}
		return f, err
	})
	switch {
	case clsact == nil:
		h.mode = Clsact
	case !c.Strict:
		h.mode = XDPGeneric
	default:
		return kern.MissingAttach(fmt.Errorf("tcx: %w; clsact: %w", kern.OneLine(tcx), kern.OneLine(clsact)))
	}
	c.Log.Info("tcx is not available", "attach", h.mode, "reason", errors.Join(tcx, clsact))
	return nil
}

// configure sets the guard's constants and what the kernel must know about the
// programs before it loads them.
func (c *Options) configure(spec *ebpf.CollectionSpec, mode Mode) error {
	flag := func(v bool) (n uint8) {
		if v {
			n = 1
		}
		return n
	}
	for name, v := range map[string]uint8{
		"pass_unknown":  flag(c.PassUnknown),
		"anti_spoofing": flag(!c.AllowSpoofing),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s in the programs: %w", name, err)
		}
	}
	if mode != TCX { // older kernels know no attach type for these
		for _, p := range spec.Programs {
			if p.Type == ebpf.SchedCLS {
				p.AttachType = ebpf.AttachNone
			}
		}
	}
	return nil
}
