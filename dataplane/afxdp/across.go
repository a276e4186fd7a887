package afxdp

import (
	"bytes"
	"os"
	"time"
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
