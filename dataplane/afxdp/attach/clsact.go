package attach

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// filterName begins the name of every filter of ours; operators see it in "tc
// filter show".
const filterName = "tierwall_"

// Our filters come first: at priority 1, handle 1, in direct-action mode.
const filterPlace = 1

// clsactFilter is a program on one side of a device as a filter of its clsact
// qdisc. Unlike a link it stays when the process ends, pinned or not.
type clsactFilter struct {
	nl     *netlink.Handle
	index  int
	parent uint32
}

func ClsactParent(ingress bool) uint32 {
	if ingress {
		return netlink.HANDLE_MIN_INGRESS
	}
	return netlink.HANDLE_MIN_EGRESS
}

// PutClsact adds the qdisc where it is missing, and the filter, in place of one
// of an earlier run.
func PutClsact(nl *netlink.Handle, index int, prog *ebpf.Program, ingress bool) (*clsactFilter, error) {
	l, err := nl.LinkByIndex(index)
	if err != nil {
		return nil, fmt.Errorf("find the device: %w", err)
	}
	qdisc := &netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	if err := nl.QdiscAdd(qdisc); err != nil {
		if !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("add a clsact qdisc: %w", err)
		}
		if has, err := HasQdisc(nl, l, "clsact"); err != nil || !has {
			return nil, errors.Join(errors.New("the device has an ingress qdisc of somebody else, which leaves no room for clsact"), err)
		}
	}
	f := &clsactFilter{nl, index, ClsactParent(ingress)}
	filters, err := nl.FilterList(l, f.parent)
	if err != nil {
		return nil, fmt.Errorf("list filters: %w", err)
	}
	for _, other := range filters {
		if a := other.Attrs(); a.Priority <= filterPlace && !ourFilter(other) {
			return nil, fmt.Errorf("a %s filter of somebody else has the first place (priority %d, handle %#x)", other.Type(), a.Priority, a.Handle)
		}
	}
	side := "egress"
	if ingress {
		side = "ingress"
	}
	err = nl.FilterReplace(&netlink.BpfFilter{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: index, Parent: f.parent, Handle: filterPlace, Priority: filterPlace, Protocol: unix.ETH_P_ALL,
		},
		Fd: prog.FD(), Name: filterName + side, DirectAction: true,
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("add a clsact filter: %w", err), f.remove())
	}
	return f, nil
}

func HasQdisc(nl *netlink.Handle, l netlink.Link, kind string) (bool, error) {
	qdiscs, err := nl.QdiscList(l)
	if err != nil {
		return false, fmt.Errorf("list qdiscs: %w", err)
	}
	for _, q := range qdiscs {
		if q.Type() == kind {
			return true, nil
		}
	}
	return false, nil
}

func ourFilter(f netlink.Filter) bool {
	b, ok := f.(*netlink.BpfFilter)
	return ok && strings.HasPrefix(b.Name, filterName)
}

// Close does nothing.
func (f *clsactFilter) Close() error { return nil }

// remove removes the filter, and the qdisc when it is empty.
func (f *clsactFilter) remove() error {
	l, err := f.nl.LinkByIndex(f.index)
	if err != nil {
		if missing := (netlink.LinkNotFoundError{}); errors.As(err, &missing) {
			return nil
		}
		return fmt.Errorf("find the device: %w", err)
	}
	return removeFilters(f.nl, l, f.parent)
}

// removeFilters removes our filters from the given sides of a device.
func removeFilters(nl *netlink.Handle, l netlink.Link, parents ...uint32) error {
	if has, err := HasQdisc(nl, l, "clsact"); err != nil || !has {
		return err
	}
	for _, parent := range parents {
		filters, err := nl.FilterList(l, parent)
		if err != nil {
			return fmt.Errorf("list filters: %w", err)
		}
		for _, f := range filters {
			if !ourFilter(f) {
				continue
			}
			// By number alone: the library would send the whole filter back.
			a := f.Attrs()
			err := nl.FilterDel(&netlink.BpfFilter{FilterAttrs: netlink.FilterAttrs{
				LinkIndex: a.LinkIndex, Parent: parent, Handle: a.Handle, Priority: a.Priority, Protocol: a.Protocol,
			}})
			if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
				return fmt.Errorf("remove a clsact filter: %w", err)
			}
		}
	}
	for _, ingress := range []bool{true, false} {
		if left, err := nl.FilterList(l, ClsactParent(ingress)); err != nil || len(left) > 0 {
			return err
		}
	}
	err := nl.QdiscDel(&netlink.GenericQdisc{QdiscType: "clsact", QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}})
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("remove the empty clsact qdisc: %w", err)
	}
	return nil
}

// RemoveAllFilters removes what runs that were killed left on the namespace's
// devices.
func RemoveAllFilters(nl *netlink.Handle) error {
	links, err := nl.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	var errs []error
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		if err := removeFilters(nl, l, ClsactParent(true), ClsactParent(false)); err != nil {
			errs = append(errs, fmt.Errorf("device %s: %w", l.Attrs().Name, err))
		}
	}
	return errors.Join(errs...)
}

// sweepFilters removes filters of an earlier run from devices that have no use
// for them: all, if we attach in another way.
func (ds *Devices) sweepFilters(keep map[int]place) error {
	var errs []error
	for index, l := range ds.scene.links {
		if _, ok := keep[index]; l.Type() != "veth" || ok && ds.hooks.mode == Clsact || l.Attrs().Name == kern.UpcallStack {
			continue
		}
		errs = append(errs, removeFilters(ds.nl, l, ClsactParent(true), ClsactParent(false)))
	}
	return errors.Join(errs...)
}

// Filters lists the devices in the calling thread's network namespace that have
// filters of ours, sorted by name: a run with AttachClsact leaves them.
func Filters() ([]string, error) {
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	defer nl.Close()
	links, err := nl.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	var names []string
	for _, l := range links {
		if l.Type() != "veth" {
			continue
		}
		if has, err := HasQdisc(nl, l, "clsact"); err != nil || !has {
			continue // a device that goes away meanwhile has none
		}
		for _, ingress := range []bool{true, false} {
			filters, err := nl.FilterList(l, ClsactParent(ingress))
			if err == nil && slices.ContainsFunc(filters, ourFilter) {
				names = append(names, l.Attrs().Name)
				break
			}
		}
	}
	slices.Sort(names)
	return names, nil
}
