package kern

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane"
)

// Objects is what the programs of bpf/pod.c consist of.
type Objects struct {
	PodObjects
	Shared *ebpf.Map `ebpf:".data.shared"`
}

// Loaded is the objects in the kernel. The zero value has none.
type Loaded struct {
	Objects
	Spec   *ebpf.CollectionSpec
	Reads  bool  // the connection of a packet can be read on its way out
	Blind  error // why not
	Onward bool  // gate and pod_exit are there
}

func (p *Loaded) Close() error { return errors.Join(p.Objects.Close(), p.Shared.Close()) }

// LoadOptions says how programs are loaded.
type LoadOptions struct {
	Strict bool
	NoNAT  bool // do not even try what nat.h does; for tests
	// adopted says that the upcall pair is that of the process which pinned the maps.
	Adopted bool
	// probeGate finds out whether the kernel has the hooks that gate needs.
	ProbeGate func() error
}

// Load loads the programs, with the maps that an earlier process pinned if
// their form is the same. What is returned with an error has to be closed, too.
func Load(spec *ebpf.CollectionSpec, pins Pins, options LoadOptions) (p Loaded, err error) {
	p.Spec = spec
	old := pins.maps(spec)
	taken := old != nil
	if taken && !options.Adopted {
		// An earlier process's programs know another pair. While they are at work
		// there is nobody to ask by it.
		old["sockets"].Close()
		delete(old, "sockets")
	}
	defer func() {
		for _, m := range old {
			m.Close()
		}
	}()
	if err := p.loadNAT(old, options); err != nil {
		return p, fmt.Errorf("load the programs: %w", missingPrograms(err))
	}
	o := &p.Objects
	switch {
	case taken && !options.Adopted:
		return p, pins.replaceMap(spec, "sockets", o.Sockets)
	case taken:
		return p, nil
	}
	return p, pins.keepMaps(spec, map[string]*ebpf.Map{
		"flows": o.Flows, "later": o.Later, "denied": o.Denied, "cells": o.Cells, "devices": o.Devices,
		"counters": o.Counters, "sockets": o.Sockets, ".data.shared": o.Shared, "origins": o.Origins, "exits": o.Exits,
		"rooms": o.Rooms,
	})
}

// loadNAT loads the programs with what nat.h does, or without if the kernel cannot:
// then masqueraded clients are unknown, and Services are judged by their addresses.
func (p *Loaded) loadNAT(maps map[string]*ebpf.Map, o LoadOptions) error {
	options := ebpf.CollectionOptions{MapReplacements: maps}
	try := func() error {
		if o.NoNAT {
			return errors.New("switched off")
		}
		if o.Strict {
			if err := o.ProbeGate(); err != nil {
				return err
			}
		}
		spec, err := WithNAT(p.Spec, true, o.Strict)
		if err != nil {
			return err
		}
		return spec.LoadAndAssign(&p.Objects, &options)
	}
	why := try()
	if why == nil {
		p.Reads, p.Onward = true, o.Strict
		return nil
	}
	spec, err := WithNAT(p.Spec, false, o.Strict)
	if err != nil {
		return err
	}
	if err := spec.LoadAndAssign(&p.Objects, &options); err != nil {
		return err
	}
	p.Blind = unreadable(why)
	return nil
}

// unreadable says what the kernel lacks for nat.h.
func unreadable(why error) error {
	if missing := (*dataplane.MissingError)(nil); errors.As(why, &missing) {
		return missing
	}
	return &dataplane.MissingError{
		Piece: "way for programs to read a packet's connection", Since: "6.2",
		Option: "CONFIG_DEBUG_INFO_BTF, and not locked down for confidentiality", Cause: OneLine(why),
	}
}

// WithNAT returns the programs with or without what nat.h does. What must not need
// the kernel's help then does nothing, and nobody attaches it.
func WithNAT(spec *ebpf.CollectionSpec, nat, strict bool) (*ebpf.CollectionSpec, error) {
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
			ForgetKernel(p.Instructions)
		}
	}
	return spec, nil
}

// ForgetKernel removes the wish to know offsets in the running kernel's structs, for
// a kernel that does not describe itself (BTF). None of these instructions is reached
// there.
func ForgetKernel(insns asm.Instructions) {
	for i := range insns {
		if btf.CORERelocationMetadata(&insns[i]) != nil {
			insns[i] = btf.WithCORERelocationMetadata(insns[i], nil)
		}
	}
}

// LoadUplink loads the uplinks' program of bpf/guard.c, which shares the maps of o.
func LoadUplink(spec *ebpf.CollectionSpec, o *Objects) (*ebpf.Program, error) {
	shared := map[string]*ebpf.Map{
		"local_pods": o.LocalPods, "denied": o.Denied, "cells": o.Cells, "counters": o.Counters, "drops": o.Drops, ".data.shared": o.Shared,
	}
	for name, m := range shared {
		spec.Maps[name].MaxEntries = m.MaxEntries()
	}
	var own struct {
		UplinkXdp *ebpf.Program `ebpf:"uplink_xdp"`
	}
	load := func() error {
		return spec.LoadAndAssign(&own, &ebpf.CollectionOptions{MapReplacements: shared})
	}
	err := load()
	if err != nil { // before Linux 5.18 there are no frames in several buffers
		spec.Programs["uplink_xdp"].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		err = load()
	}
	if err != nil {
		return nil, fmt.Errorf("load the uplinks' XDP program: %w", err)
	}
	return own.UplinkXdp, nil
}

// LoadAlone loads the pods' program of bpf/guard.c with maps of its own, for kernels
// on which the programs of bpf/pod.c cannot be attached.
func LoadAlone(spec *ebpf.CollectionSpec) (p Loaded, podXDP *ebpf.Program, err error) {
	var own struct {
		PodXdp      *ebpf.Program `ebpf:"pod_xdp"`
		Guards      *ebpf.Map     `ebpf:"guards"`
		LocalPods   *ebpf.Map     `ebpf:"local_pods"`
		PodCidrs    *ebpf.Map     `ebpf:"pod_cidrs"`
		BridgePorts *ebpf.Map     `ebpf:"bridge_ports"`
		Counters    *ebpf.Map     `ebpf:"counters"`
		Drops       *ebpf.Map     `ebpf:"drops"`
	}
	if err := spec.LoadAndAssign(&own, nil); err != nil {
		return p, nil, fmt.Errorf("load the XDP programs: %w", err)
	}
	p.Guards, p.LocalPods = own.Guards, own.LocalPods
	p.PodCidrs, p.BridgePorts = own.PodCidrs, own.BridgePorts
	p.Counters, p.Drops = own.Counters, own.Drops
	return p, own.PodXdp, nil
}
