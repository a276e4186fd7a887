package attach

import (
	"fmt"

	"github.com/vishvananda/netlink"

	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// FlagsOf says what the kernel side must know about a device.
func FlagsOf(l netlink.Link, shaped bool) (flags uint32) {
	// The kernel drops what is sent to a peer in our own namespace.
	if l.Type() == "veth" && l.Attrs().NetNsID >= 0 && !shaped {
		flags |= kern.DeviceOpen
	}
	return flags
}

// shapedDevices returns the devices whose traffic somebody limits, in either
// direction: what has a queueing discipline has it for that, and an ingress one
// leads packets elsewhere, as the CNI bandwidth plugin's does.
func shapedDevices(nl *netlink.Handle) (map[int]bool, error) {
	qdiscs, err := nl.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list queueing disciplines: %w", err)
	}
	shaped := map[int]bool{}
	for _, q := range qdiscs {
		if t := q.Type(); t != "noqueue" && t != "clsact" {
			shaped[q.Attrs().LinkIndex] = true
		}
	}
	return shaped, nil
}
