package afxdp

import (
	"bytes"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
)

// wayTime is how long packets of a flow go across (bpf/across.h) before the host's
// stack sees one of them again: a short time for connection tracking, which gives an
// unanswered UDP flow 30 s, and for a route that has changed; a long one for what
// has to catch up with the packets that overtake the one that takes the stack.
const wayTime = time.Second

// tcpLiberal is the setting by which connection tracking accepts a TCP packet
// whose predecessors it has not seen. Otherwise it calls the packet invalid, and
// rules of others drop it for that. It is the setting of the thread's namespace.
const tcpLiberal = "/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"

// liberalTCP reports the setting. Without connection tracking there is none, and
// nothing to fear: a connection that nobody tracks goes across anyway.
func liberalTCP() (liberal, exists bool) {
	v, err := os.ReadFile(tcpLiberal)
	return err == nil && !bytes.Equal(bytes.TrimSpace(v), []byte("0")), err == nil
}

// reportAccelerate says what the option comes to on this node.
func (c *Config) reportAccelerate() {
	if !c.Accelerate {
		return
	}
	c.Logger.Info("accepted flows between pods of this node go past the host's stack")
	if liberal, exists := liberalTCP(); exists && !liberal {
		c.Logger.Warn("TCP connections that connection tracking knows stay in the host's stack: accelerate needs net.netfilter.nf_conntrack_tcp_be_liberal=1 at start")
	}
}

// flagsOf says what the kernel side must know about a device.
func flagsOf(l netlink.Link, shaped bool) (flags uint32) {
	// The kernel drops what is sent to a peer in our own namespace.
	if l.Type() == "veth" && l.Attrs().NetNsID >= 0 && !shaped {
		flags |= deviceOpen
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
