package afxdp

import (
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/classifier/flow"
)

// attachState is what the backend knows about devices and the guard. Namespace
// thread only.
type attachState struct {
	mode  Attach // what was chosen; never AttachAuto after start
	cidrs []netip.Prefix
	stale bool // scene is not what netlink would say now
	scene *scene
	peers *peers
	// behind remembers the answers of peers, by ifindex.
	behind map[int][]netip.Addr
	twice  int // pods in conflict when last reported
	swept  bool

	guards *mirror[uint32, guardState]
	pods   *mirror[flow.Addr, localPod]
	ranges *mirror[prefixKey, uint8]
	ports  *mirror[uint32, uint32]
	nodes  *mirror[flow.Addr, uint8] // the node's own addresses; nil with AttachXDPGeneric

	xdp     xdpState
	uplinks map[int]*uplink
}

// attachment is a program on one side of a device.
type attachment interface {
	// remove takes the program off. It is no error if the device has gone.
	remove() error
	// Close lets go of it: what is made to outlive the process stays.
	Close() error
}

// put puts a program on one side of a device in the way that was chosen.
func (b *Backend) put(index int, prog *ebpf.Program, ingress bool) (attachment, error) {
	if b.mode == AttachClsact {
		return putClsact(b.nl, index, prog, ingress)
	}
	at := ebpf.AttachTCXEgress
	if ingress {
		at = ebpf.AttachTCXIngress
	}
	ln, err := b.attachTCX(index, prog, at)
	if err != nil {
		return nil, fmt.Errorf("attach a tcx program (Linux 6.6): %w", err)
	}
	return &tcxLink{ln, b, index, at}, nil
}

// tcxLink is a tcx program; if it is pinned it outlives the process.
type tcxLink struct {
	link.Link
	b     *Backend
	index int
	at    ebpf.AttachType
}

func (t *tcxLink) remove() error { return t.b.detachTCX(t.index, t.Link, t.at) }

// choose settles the way of attaching by trying it on a device of our own.
func (b *Backend) choose(own netlink.Link) error {
	b.mode = b.config.Attach
	if b.mode != AttachAuto {
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
		b.mode = AttachTCX
		return nil
	}
	clsact := try(ebpf.AttachNone, func(p *ebpf.Program) (io.Closer, error) {
		f, err := putClsact(b.nl, index, p, true)
		if err == nil {
			err = f.remove()
		}
		return f, err
	})
	switch {
	case clsact == nil:
		b.mode = AttachClsact
	case !b.config.Strict:
		b.mode = AttachXDPGeneric
	default:
		return missingAttach(fmt.Errorf("tcx: %w; clsact: %w", oneLine(tcx), oneLine(clsact)))
	}
	b.log.Info("tcx is not available", "attach", b.mode, "reason", errors.Join(tcx, clsact))
	return nil
}

// configure sets the guard's constants and what the kernel must know about the
// programs before it loads them.
func (b *Backend) configure(spec *ebpf.CollectionSpec) error {
	flag := func(v bool) (n uint8) {
		if v {
			n = 1
		}
		return n
	}
	for name, v := range map[string]uint8{
		"pass_unknown":  flag(b.config.PassUnknown),
		"anti_spoofing": flag(!b.config.AllowSpoofing),
	} {
		if err := spec.Variables[name].Set(v); err != nil {
			return fmt.Errorf("set %s in the programs: %w", name, err)
		}
	}
	if b.mode != AttachTCX { // older kernels know no attach type for these
		for _, p := range spec.Programs {
			if p.Type == ebpf.SchedCLS {
				p.AttachType = ebpf.AttachNone
			}
		}
	}
	return nil
}

// startGuard takes over the guard's maps. It needs them loaded.
func (b *Backend) startGuard() (err error) {
	b.behind, b.uplinks, b.stale = map[int][]netip.Addr{}, map[int]*uplink{}, true
	if b.guards, err = newMirror[uint32, guardState](b.objects.Guards); err != nil {
		return err
	}
	if b.pods, err = newMirror[flow.Addr, localPod](b.objects.LocalPods); err != nil {
		return err
	}
	if b.ranges, err = newMirror[prefixKey, uint8](b.objects.PodCidrs); err != nil {
		return err
	}
	if b.ports, err = newMirror[uint32, uint32](b.objects.BridgePorts); err != nil {
		return err
	}
	if b.objects.NodeAddresses != nil {
		if b.nodes, err = newMirror[flow.Addr, uint8](b.objects.NodeAddresses); err != nil {
			return err
		}
	}
	if b.peers, err = newPeers(); err != nil {
		return err
	}
	b.cidrs = b.config.PodCIDRs
	b.log.Info("programs will be attached", "attach", b.mode)
	return b.startUplinks()
}

// guardChanged reports whether what the guard knows has changed since the last
// call. Then somebody must start a generation: what CPUs noted of flows says that
// the guard let their packets in.
func (b *Backend) guardChanged() bool {
	changed := b.guards.changed || b.pods.changed || b.ranges.changed
	b.guards.changed, b.pods.changed, b.ranges.changed = false, false, false
	return changed
}

// stopGuard undoes startGuard, as far as it came.
func (b *Backend) stopGuard() error {
	errs := []error{b.stopUplinks()}
	if b.peers != nil {
		errs = append(errs, b.peers.close())
	}
	return errors.Join(errs...)
}
