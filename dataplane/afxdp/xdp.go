package afxdp

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// xdpState is the loaded XDP programs of bpf/guard.c.
type xdpState struct {
	UplinkXdp *ebpf.Program `ebpf:"uplink_xdp"`
	PodXdp    *ebpf.Program `ebpf:"pod_xdp"`
}

func (x *xdpState) close() error { // both may be nil, which Close knows
	return errors.Join(x.UplinkXdp.Close(), x.PodXdp.Close())
}

// uplink is a device of Config.Uplinks that has been seen.
type uplink struct {
	name string
	put  attachment // nil: it could not be
}

// putXDP puts an XDP program on a device. Somebody else's is not replaced.
func putXDP(index int, prog *ebpf.Program, mode UplinkMode) (attachment, error) {
	flags := link.XDPGenericMode
	if mode == UplinkNative {
		flags = link.XDPDriverMode
	}
	ln, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: index, Flags: flags})
	switch {
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST):
		return nil, fmt.Errorf("the device has an XDP program of somebody else, which stays: %w", err)
	case err != nil:
		return nil, fmt.Errorf("attach a %s XDP program: %w", mode, err)
	}
	return xdpLink{ln}, nil
}

// xdpLink is an XDP program. It ends with the process.
type xdpLink struct{ link.Link }

func (x xdpLink) remove() error { return x.Close() }

// loadXDP loads the XDP programs. Beside the programs of pod.c they use those's
// maps; alone they have their own.
func (b *Backend) loadXDP() error {
	spec, err := loadGuard()
	if err != nil {
		return fmt.Errorf("read the XDP programs: %w", err)
	}
	if err := b.configure(spec); err != nil {
		return err
	}
	if b.mode == AttachXDPGeneric {
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
			return fmt.Errorf("load the XDP programs: %w", err)
		}
		b.xdp.PodXdp = own.PodXdp
		b.objects.Guards, b.objects.LocalPods = own.Guards, own.LocalPods
		b.objects.PodCidrs, b.objects.BridgePorts = own.PodCidrs, own.BridgePorts
		b.objects.Counters, b.objects.Drops = own.Counters, own.Drops
		return nil
	}
	if err := spec.Variables["deny_time"].Set(uint64(b.config.DenyTime)); err != nil {
		return fmt.Errorf("set deny_time in the programs: %w", err)
	}
	o := &b.objects
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
	err = load()
	if err != nil { // before Linux 5.18 there are no frames in several buffers
		spec.Programs["uplink_xdp"].Flags &^= unix.BPF_F_XDP_HAS_FRAGS
		err = load()
	}
	if err != nil {
		return fmt.Errorf("load the uplinks' XDP program: %w", err)
	}
	b.xdp.UplinkXdp = own.UplinkXdp
	return nil
}

// refreshUplinks attaches to the uplinks that are there and lets go of those that
// are not. One that fails is reported once, and left alone while it exists: it is
// an extra, the pods' devices are guarded anyway.
func (b *Backend) refreshUplinks(s *scene) error {
	if b.xdp.UplinkXdp == nil {
		return nil
	}
	var errs []error
	for index, u := range b.uplinks {
		if l := s.links[index]; l == nil || l.Attrs().Name != u.name {
			delete(b.uplinks, index)
			if u.put != nil {
				errs = append(errs, u.put.Close())
			}
			b.log.Info("uplink released", "device", u.name, "ifindex", index)
		}
	}
	for index, l := range s.links {
		name := l.Attrs().Name
		if b.uplinks[index] != nil || !slices.Contains(b.config.Uplinks, name) {
			continue
		}
		u := &uplink{name: name}
		b.uplinks[index] = u
		var err error
		if u.put, err = putXDP(index, b.xdp.UplinkXdp, b.config.UplinkMode); err != nil {
			b.log.Warn("uplink has no XDP program of ours; nothing is dropped early there", "device", name, "xdp", describeXDP(l), "error", err)
			continue
		}
		b.log.Info("uplink attached", "device", name, "ifindex", index, "mode", b.config.UplinkMode)
	}
	return errors.Join(errs...)
}

// describeXDP names the XDP program on a device for a log line.
func describeXDP(l netlink.Link) string {
	x := l.Attrs().Xdp
	if x == nil || !x.Attached {
		return "none"
	}
	return fmt.Sprintf("program %d", x.ProgId)
}

// startUplinks loads the program if any uplink wants it.
func (b *Backend) startUplinks() error {
	if b.config.UplinkMode == UplinkOff || len(b.config.Uplinks) == 0 || b.mode == AttachXDPGeneric {
		return nil
	}
	return b.loadXDP()
}

func (b *Backend) stopUplinks() error {
	var errs []error
	for index, u := range b.uplinks {
		if u.put != nil {
			errs = append(errs, u.put.Close())
		}
		delete(b.uplinks, index)
	}
	return errors.Join(append(errs, b.xdp.close())...)
}

// openGuard starts what there is without upcalls.
func (b *Backend) openGuard() (err error) {
	b.mode = AttachXDPGeneric
	if b.config.Accelerate {
		b.log.Warn("accelerate is ignored: these programs judge nothing", "attach", b.mode)
	}
	if err := b.loadXDP(); err != nil {
		return err
	}
	if b.watch, err = newWatch(false); err != nil {
		return err
	}
	return b.startGuard()
}
