package nfqueue

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"runtime"
)

// Marks are the bits of the packet mark and of the connection mark that the
// backend owns. Both are single bits; nothing else on the node may set them.
type Marks struct {
	// Accept, in a packet mark: this packet was judged and passes. In a
	// connection mark: every packet of the connection passes. In the mark of a
	// queued packet: an ICMP error about a connection the kernel knows.
	Accept uint32
	// Reply, in the mark of a queued packet: it travels against the direction
	// its connection was opened in. Together with Accept: the packet is refused.
	// Never in a connection mark.
	Reply uint32
}

// DefaultMarks keep clear of the bits other node software uses: kube-proxy
// 0x4000 and 0x8000, the portmap CNI plugin 0x2000, the AWS VPC CNI 0x80, Cilium
// 0x0f00, and Calico, Cilium and Tailscale in the upper half.
var DefaultMarks = Marks{Accept: 0x20, Reply: 0x40}

func (m Marks) validate() error {
	single := func(b uint32) bool { return b != 0 && b&(b-1) == 0 }
	if !single(m.Accept) || !single(m.Reply) || m.Accept == m.Reply {
		return fmt.Errorf("marks accept %#x and reply %#x: want two different single bits", m.Accept, m.Reply)
	}
	return nil
}

// Config tunes a Backend. The zero value is what the daemon uses.
type Config struct {
	// QueueNum is the first NFQUEUE number; the backend takes Queues numbers
	// from there on. 0 = 7300.
	QueueNum uint16
	// Queues is the number of queues, and so of Drivers. The kernel spreads
	// connections over them by address pair. 0 = one per CPU.
	Queues int
	// MaxPacketLen is how many bytes of a packet, from the IP header on, are
	// copied to userspace. 0 = 128: enough for any header the parser follows in
	// practice; a longer chain of extension headers is judged as truncated.
	MaxPacketLen uint32
	// QueueLen is how many packets wait in the kernel per queue; one more is dropped
	// and counted as overflow, or passed and counted as bypassed (FailOpen). 0 = 8192.
	QueueLen uint32
	// ReadBuffer is the receive buffer per queue in bytes. 0 = 8 MiB.
	ReadBuffer int
	// FailOpen lets packets that would have to be judged pass while no daemon runs,
	// and when a queue is full: whoever can fill it switches the policy off.
	FailOpen bool
	// AllowSpoofing lets packets be judged by a source address their sender cannot
	// have. Without it they are dropped, where the kernel has "fib".
	AllowSpoofing bool
	// AllowTunnels lets policy judge what pods send to nodes' ends of tunnels. Without it
	// that is dropped.
	AllowTunnels bool
	// PodCIDRs are networks that pods get addresses from, those of other nodes
	// included, beside the table's LocalPrefixes. An address in them that no known pod
	// of this node has is dropped on devices that pods may be behind, unless FailOpen.
	PodCIDRs []netip.Prefix
	// Marks; the zero value means DefaultMarks.
	Marks Marks
	// FastMark is a packet mark bit of a fast path in front, 0 if there is none. It
	// is on every packet of a connection the fast path knows; with Marks.Accept on
	// those that userspace has just judged, which accept the connection, and alone
	// on the others, which pass and accept nothing. A fast path that sets
	// Marks.Accept by itself works, too, but then every change of policy walks the
	// kernel's table of connections.
	FastMark uint32
	// FormerMark is the same bit, if programs of a fast path that was alone may be
	// at work until Update, whether or not there will be one in front. They take
	// what bears it without the accept bit for unjudged, so that bit stays.
	FormerMark uint32
	// Logger; nil discards.
	Logger *slog.Logger

	pretend       func(*features) // in tests: that the kernel has less
	noBridgeHooks bool            // in tests: nor br_netfilter
}

// MaxQueues bounds Config.Queues.
const MaxQueues = 64

func (c Config) complete() (Config, error) {
	if c.QueueNum == 0 {
		c.QueueNum = 7300
	}
	if c.Queues == 0 {
		c.Queues = min(runtime.NumCPU(), MaxQueues)
	}
	if c.MaxPacketLen == 0 {
		c.MaxPacketLen = 128
	}
	if c.QueueLen == 0 {
		c.QueueLen = 8192
	}
	if c.ReadBuffer == 0 {
		c.ReadBuffer = 8 << 20
	}
	if c.Marks == (Marks{}) {
		c.Marks = DefaultMarks
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if c.Queues < 0 || c.Queues > MaxQueues || int(c.QueueNum)+c.Queues > 1<<16 {
		errs = append(errs, fmt.Errorf("%d queues from number %d on: want 1 to %d queues with numbers below 65536", c.Queues, c.QueueNum, MaxQueues))
	}
	if c.MaxPacketLen < 64 || c.MaxPacketLen > 0xffff {
		errs = append(errs, fmt.Errorf("maximum packet length %d: want 64 to 65535 bytes", c.MaxPacketLen))
	}
	if c.ReadBuffer < 0 {
		errs = append(errs, fmt.Errorf("read buffer %d: want a number of bytes", c.ReadBuffer))
	}
	for _, p := range c.PodCIDRs {
		if !p.IsValid() || p.Bits() == 0 || p != p.Masked() {
			errs = append(errs, fmt.Errorf("pod CIDR %v: want a network such as 10.244.0.0/16", p))
		}
	}
	errs = append(errs, c.Marks.validate())
	if ours := c.Marks.Accept | c.Marks.Reply; c.FastMark&(c.FastMark-1) != 0 || (c.FastMark|c.FormerMark)&ours != 0 {
		errs = append(errs, fmt.Errorf("fast mark %#x: want a single bit that is neither accept %#x nor reply %#x, or none", c.FastMark, c.Marks.Accept, c.Marks.Reply))
	}
	if err := errors.Join(errs...); err != nil {
		return c, fmt.Errorf("nfqueue configuration: %w", err)
	}
	return c, nil
}
