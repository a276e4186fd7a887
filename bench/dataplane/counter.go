package dataplane

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"github.com/tierwall/tierwall/dataplane/nstest/netlab"
)

// Offsets in an Ethernet frame with an IPv4 header without options (RFC 791).
const (
	offsetEtherType       = 12
	offsetProtocol        = 23
	offsetSourcePort      = 34
	offsetDestinationPort = 36
)

// counter counts UDP packets that arrive at a pod's device and drops them there,
// before the pod's stack: a socket would cost more than the path under test, and
// a pod without one would answer with ICMP errors. It is a tcx program because a
// native XDP one would switch segmentation offload off for TCP.
type counter struct {
	prog   *ebpf.Program
	counts *ebpf.Map
	link   link.Link
}

// What is counted.
const (
	countAllowed = iota // the port at the given offset is portUDP
	countOther          // any other one but those left to sockets
	countKinds
)

// newCounter attaches a counter to the device of a pod. Packets of the ports
// pass are left to the stack and not counted.
func newCounter(ns *netlab.NS, portOffset int32, pass ...int32) (c *counter, err error) {
	c = &counter{}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("count packets in %s: %w", ns.Name(), err), c.close())
			c = nil
		}
	}()
	c.counts, err = ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: countKinds})
	if err != nil {
		return c, err
	}
	const tcxNext, tcxDrop = -1, 2
	prog := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadAbs(offsetEtherType, asm.Half),
		asm.JNE.Imm(asm.R0, 0x0800, "next"),
		asm.LoadAbs(offsetProtocol, asm.Byte),
		asm.JNE.Imm(asm.R0, 17, "next"),
		asm.LoadAbs(portOffset, asm.Half),
	}
	for _, p := range pass {
		prog = append(prog, asm.JEq.Imm(asm.R0, p, "next"))
	}
	prog = append(prog,
		asm.StoreImm(asm.RFP, -4, countOther, asm.Word),
		asm.JNE.Imm(asm.R0, portUDP, "count"),
		asm.StoreImm(asm.RFP, -4, countAllowed, asm.Word),
		asm.LoadMapPtr(asm.R1, c.counts.FD()).WithSymbol("count"),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "drop"),
		asm.LoadMem(asm.R1, asm.R0, 0, asm.DWord),
		asm.Add.Imm(asm.R1, 1),
		asm.StoreMem(asm.R0, 0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, tcxDrop).WithSymbol("drop"),
		asm.Return(),
		asm.Mov.Imm(asm.R0, tcxNext).WithSymbol("next"),
		asm.Return(),
	)
	c.prog, err = ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, Instructions: prog, License: "Apache-2.0"})
	if err != nil {
		return c, err
	}
	dev, err := ns.Link(netlab.PodDevice)
	if err != nil {
		return c, err
	}
	err = ns.Do(func() (err error) {
		c.link, err = link.AttachTCX(link.TCXOptions{Interface: dev.Attrs().Index, Program: c.prog, Attach: ebpf.AttachTCXIngress})
		return err
	})
	return c, err
}

// read returns how many packets of a kind have arrived since the counter began.
func (c *counter) read(kind uint32) (uint64, error) {
	var perCPU []uint64
	if err := c.counts.Lookup(kind, &perCPU); err != nil {
		return 0, fmt.Errorf("read packet counter: %w", err)
	}
	var n uint64
	for _, v := range perCPU {
		n += v
	}
	return n, nil
}

func (c *counter) close() error {
	var errs []error
	if c.link != nil {
		errs = append(errs, c.link.Close())
	}
	if c.prog != nil {
		errs = append(errs, c.prog.Close())
	}
	if c.counts != nil {
		errs = append(errs, c.counts.Close())
	}
	return errors.Join(errs...)
}
