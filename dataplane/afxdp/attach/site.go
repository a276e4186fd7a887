package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// deviceMap is map devices. Its Map is nil where no program asks.
type deviceMap struct{ *ebpf.Map }

// put writes the kernel side's entry and keeps what that side wrote in it.
func (m deviceMap) put(index int, own [6]byte, flags uint32) error {
	var s kern.DeviceState
	if err := m.Lookup(uint32(index), &s); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read the device map: %w", err)
	}
	s.Own, s.Flags = own, flags
	if err := m.Put(uint32(index), &s); err != nil {
		return fmt.Errorf("write the device map: %w", err)
	}
	return nil
}

// drop removes the kernel side's entry, if there is one.
func (m deviceMap) drop(index int) error {
	if m.Map == nil { // the programs that ask are not there
		return nil
	}
	if err := m.Delete(uint32(index)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("write the device map: %w", err)
	}
	return nil
}

// reportOthers says who else is on a device. They stay.
func (s *site) reportOthers(index int, l netlink.Link) {
	for _, q := range []struct {
		direction string
		at        ebpf.AttachType
	}{{"ingress", ebpf.AttachTCXIngress}, {"egress", ebpf.AttachTCXEgress}} {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: q.at})
		if err == nil && len(r.Programs) > 0 {
			s.log.Info("other tcx programs on pod device run behind ours", "device", l.Attrs().Name, "direction", q.direction, "programs", len(r.Programs))
		}
	}
	if x := l.Attrs().Xdp; x != nil && x.Attached {
		s.log.Info("another XDP program on pod device runs before ours", "device", l.Attrs().Name, "program", x.ProgId)
	}
	qdiscs, err := s.nl.QdiscList(l)
	if err != nil {
		return
	}
	for _, q := range qdiscs {
		if q.Type() == "clsact" || q.Type() == "ingress" {
			s.log.Info("traffic control filters on pod device run behind our programs", "device", l.Attrs().Name, "qdisc", q.Type())
		}
	}
}
