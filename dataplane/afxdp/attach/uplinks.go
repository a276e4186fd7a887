package attach

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// uplinks keeps the XDP program on the uplinks. Namespace thread only.
type uplinks struct {
	*site
	prog *ebpf.Program // nil: none is wanted
	On   map[int]*uplink
}

// uplink is a device of Config.Uplinks that has been seen.
type uplink struct {
	name string
	Put  attachment // nil: it could not be
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

// refresh attaches to the uplinks that are there and lets go of those that
// are not. One that fails is reported once, and left alone while it exists: it is
// an extra, the pods' devices are guarded anyway.
func (up *uplinks) refresh(s *scene) error {
	if up.prog == nil {
		return nil
	}
	var errs []error
	for index, u := range up.On {
		if l := s.links[index]; l == nil || l.Attrs().Name != u.name {
			delete(up.On, index)
			if u.Put != nil {
				errs = append(errs, u.Put.Close())
			}
			up.log.Info("uplink released", "device", u.name, "ifindex", index)
		}
	}
	for index, l := range s.links {
		name := l.Attrs().Name
		if up.On[index] != nil || !slices.Contains(up.config.Uplinks, name) {
			continue
		}
		u := &uplink{name: name}
		up.On[index] = u
		var err error
		if u.Put, err = putXDP(index, up.prog, up.config.UplinkMode); err != nil {
			up.log.Warn("uplink has no XDP program of ours; nothing is dropped early there", "device", name, "xdp", describeXDP(l), "error", err)
			continue
		}
		up.log.Info("uplink attached", "device", name, "ifindex", index, "mode", up.config.UplinkMode)
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

// start loads the program if any uplink wants it.
func (u *uplinks) start(o *kern.Objects) error {
	u.On = map[int]*uplink{}
	if u.config.UplinkMode == UplinkOff || len(u.config.Uplinks) == 0 || u.hooks.mode == XDPGeneric {
		return nil
	}
	spec, err := u.config.guardSpec(u.hooks.mode)
	if err != nil {
		return err
	}
	if err := spec.Variables["deny_time"].Set(uint64(u.config.DenyTime)); err != nil {
		return fmt.Errorf("set deny_time in the programs: %w", err)
	}
	u.prog, err = kern.LoadUplink(spec, o)
	return err
}

func (u *uplinks) stop() error {
	var errs []error
	for index, l := range u.On {
		if l.Put != nil {
			errs = append(errs, l.Put.Close())
		}
		delete(u.On, index)
	}
	return errors.Join(append(errs, u.prog.Close())...) // nil is fine
}

// guardSpec reads the programs of bpf/guard.c and configures them.
func (c *Options) guardSpec(mode Mode) (*ebpf.CollectionSpec, error) {
	spec, err := kern.LoadGuard()
	if err != nil {
		return nil, fmt.Errorf("read the XDP programs: %w", err)
	}
	return spec, c.configure(spec, mode)
}
