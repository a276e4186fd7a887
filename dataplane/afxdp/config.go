package afxdp

import (
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"path"
	"runtime"
	"time"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/attach"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// AttachConfig says which devices get programs and how.
type AttachConfig = attach.Config

// Config tunes a Backend. The zero value is what a node with a later hook uses.
type Config struct {
	// Strict says that no later hook judges what this backend leaves alone:
	// fragments, tagged frames and packets too large for an upcall are dropped,
	// and Packet.Final is set on every packet. Without Strict the forward hook
	// of the nfqueue backend must be in force.
	Strict bool
	// FrameSize is the size of a packet buffer in bytes, 2048 or 4096; default
	// 2048. The kernel uses 256 of them, so the largest pod MTU whose packets
	// can be judged is FrameSize-270: 1778, or 3498 for 4096 (the veth driver's
	// own limit for XDP). Larger packets count as unparsable. GSO packets are
	// cut into packets of the MTU first and are always fine.
	FrameSize int
	// Queues is the number of queues of the upcall pair, each with a socket and a
	// driver of its own, which gets what comes up on its CPU; with fewer queues
	// than CPUs, several share one. At most MaxQueues; default one per CPU that the
	// process may use, but no more than 8.
	Queues int
	// Ring is the number of packet buffers of a queue, a power of two of at least
	// 64. A burst of more first packets than that is lost. Default 2048, less with
	// more than 8 queues: 16384 in all (32 MB), but at least 512.
	Ring int
	// FlowEntries bounds the accepted connections the kernel remembers; default
	// 262144 (about 33 MB). LaterEntries bounds the flows known to be the later
	// hook's business, and those remembered as denied; default 65536.
	FlowEntries, LaterEntries int
	// PinPath is a directory in a BPF file system, which is mounted if missing,
	// that keeps programs and maps at work when the process ends: accepted flows
	// go on, and what nobody judged does not pass. "" keeps nothing: the kernel
	// takes the programs off and all passes. Cleanup removes it.
	PinPath string
	// FailOpen passes what nobody judges: while a pinned backend has no living
	// daemon, and when the ring is full. Without it that is dropped, or left to the
	// later hook if there is one; a full ring drops in any case then.
	FailOpen bool
	// AliveTime is how long a daemon may give no sign of life, which each of its
	// workers does at least five times in this time, before it counts as dead;
	// default 2 s, at least 500 ms.
	AliveTime time.Duration
	// UpcallRate bounds the first packets per second of one source: a pod's
	// device, or the address (IPv6: the /64) of somebody else. UpcallBurst is how
	// many it may send at once. Default 50000 and 1024; a negative rate is no
	// limit.
	UpcallRate, UpcallBurst int
	// DenyTime is how long the kernel drops packets of a flow after userspace
	// denied it, if nothing about them is to be recorded; default 1 s.
	DenyTime time.Duration
	Timeouts Timeouts
	Marks    Marks
	// Accelerate sends packets of accepted flows between two pods of this node
	// straight from one's device into the other's namespace, past the host's stack:
	// its firewall rules, connection tracking and captures see one packet a second
	// of such a flow, and those that open or close a TCP connection. See
	// bpf/across.h. Not with AttachXDPGeneric, which ignores it.
	Accelerate bool
	// Devices restricts the devices that are considered to names that match one
	// of these patterns (path.Match); empty means every veth device.
	Devices []string
	AttachConfig
	noNAT bool // do not even try what nat.h does; for tests
	// Logger receives state changes. Nil discards them.
	Logger *slog.Logger
}

// Timeouts are the idle times after which the kernel forgets a flow. A forgotten
// flow's next packet is judged again; nothing is cut. Zero takes the default.
// They need not be long, because userspace has its own connection records: they
// bound how long the kernel may pass packets of a flow userspace has expired.
type Timeouts struct {
	TCP     time.Duration // default 1 h
	Closing time.Duration // after FIN or RST; default 10 s
	UDP     time.Duration // default 2 min, the least RFC 4787 REQ-5 allows
	SCTP    time.Duration // default 10 min
	ICMP    time.Duration // default 60 s, the least RFC 5508 REQ-1 allows
	Other   time.Duration // default 2 min
}

// of is the idle time of a flow.
func (t *Timeouts) of(p flow.Proto, closing bool) time.Duration {
	switch p {
	case flow.TCP:
		if closing {
			return t.Closing
		}
		return t.TCP
	case flow.UDP:
		return t.UDP
	case flow.SCTP:
		return t.SCTP
	case flow.ICMP, flow.ICMPv6:
		return t.ICMP
	}
	return t.Other
}

// Marks are the packet mark bits the backend uses; each must be one bit of its
// own. The zero value means DefaultMarks.
type Marks struct {
	// Accept is on packets from a pod that userspace has just judged and accepted. It
	// must be the accept bit of the nfqueue backend, whose forward hook trusts it and
	// accepts the connection.
	Accept uint32
	// Fast is on these, too, and alone on the later packets of their flows; it must
	// be the fast mark of the nfqueue backend, whose forward hook passes these. It
	// stays on the packet: the program of the destination's device then insists on a
	// flow entry of its own.
	Fast uint32
	// Return is on packets userspace sent back, from the upcall pair to the
	// program of their device, and nowhere else.
	Return uint32
}

// DefaultMarks keep clear of the bits other node software uses: kube-proxy
// 0x4000 and 0x8000, the portmap CNI plugin 0x2000, the AWS VPC CNI 0x80, Cilium
// 0x0f00, and Calico, Cilium and Tailscale in the upper half.
var DefaultMarks = Marks{Accept: 0x20, Fast: 0x10, Return: 0x08}

// headroom is what the kernel keeps in front of a packet in its buffer
// (XDP_PACKET_HEADROOM).
const headroom = 256

// maxMTU is the largest MTU of a veth device with a native XDP program that
// wants a packet in one piece: a page minus headroom, Ethernet header, and
// skb_shared_info (320 bytes), rounded down for other kernels' sizes.
const maxMTU = 3498

// maxFrame is the largest frame an upcall can carry.
func (c *Config) maxFrame() int { return min(c.FrameSize-headroom, maxMTU+kern.EtherHeader) }

func (c *Config) fill() error {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	wait := func(v *time.Duration, d time.Duration) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.FrameSize, 2048)
	def(&c.Queues, min(runtime.NumCPU(), mostQueues))
	def(&c.Ring, defaultRing(c.Queues))
	def(&c.FlowEntries, 262144)
	def(&c.LaterEntries, 65536)
	def(&c.UpcallRate, 50_000)
	def(&c.UpcallBurst, 1024)
	wait(&c.AliveTime, 2*time.Second)
	wait(&c.DenyTime, time.Second)
	wait(&c.Timeouts.TCP, time.Hour)
	wait(&c.Timeouts.Closing, 10*time.Second)
	wait(&c.Timeouts.UDP, 2*time.Minute)
	wait(&c.Timeouts.SCTP, 10*time.Minute)
	wait(&c.Timeouts.ICMP, time.Minute)
	wait(&c.Timeouts.Other, 2*time.Minute)
	if c.Marks == (Marks{}) {
		c.Marks = DefaultMarks
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := errors.Join(c.Fill(c.Strict), c.check()); err != nil {
		return fmt.Errorf("afxdp configuration: %w", err)
	}
	return nil
}

func (c *Config) check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.FrameSize != 2048 && c.FrameSize != 4096 {
		bad("frame size %d: want 2048 or 4096", c.FrameSize)
	}
	if c.Queues < 1 || c.Queues > kern.MaxQueues {
		bad("%d queues: want 1 to %d", c.Queues, kern.MaxQueues)
	}
	if c.Ring < 2*dataplane.BatchSize || c.Ring > 1<<16 || c.Ring&(c.Ring-1) != 0 {
		bad("ring %d: want a power of two from %d to 65536", c.Ring, 2*dataplane.BatchSize)
	}
	if c.UpcallBurst < 1 || c.UpcallRate > 1e9 {
		bad("upcall rate %d and burst %d: want a burst of at least one packet and less than a packet per nanosecond", c.UpcallRate, c.UpcallBurst)
	}
	if c.AliveTime < minAliveTime || c.DenyTime < 0 {
		bad("times %v and %v: want at least %v and not less than nothing", c.AliveTime, c.DenyTime, minAliveTime)
	}
	if c.FlowEntries < 1 || c.LaterEntries < 1 {
		bad("flow map of %d and %d entries: want at least one connection in each", c.FlowEntries, c.LaterEntries)
	}
	for _, d := range []time.Duration{c.Timeouts.TCP, c.Timeouts.Closing, c.Timeouts.UDP, c.Timeouts.SCTP, c.Timeouts.ICMP, c.Timeouts.Other} {
		if d < 0 {
			bad("negative idle time %v", d)
		}
	}
	m := c.Marks
	if bits.OnesCount32(m.Accept) != 1 || bits.OnesCount32(m.Fast) != 1 || bits.OnesCount32(m.Return) != 1 ||
		bits.OnesCount32(m.Accept|m.Fast|m.Return) != 3 {
		bad("packet marks %#x, %#x and %#x: want three different single bits", m.Accept, m.Fast, m.Return)
	}
	for _, p := range c.Devices {
		if _, err := path.Match(p, ""); err != nil {
			bad("device pattern %q: %w", p, err)
		}
	}
	return errors.Join(errs...)
}

// mostQueues bounds what nobody asked for: eight CPUs judge more first packets than
// a node has, and each queue has buffers and a table of connections of its own.
const mostQueues = 8

// minAliveTime allows for a scheduler under load.
const minAliveTime = 500 * time.Millisecond

// recvWait is how long an idle Recv sleeps before it returns empty-handed, in ms.
func (c *Config) recvWait() int { return int(c.AliveTime.Milliseconds() / 5) }

// defaultRing is Config.Ring for a number of queues.
func defaultRing(queues int) int {
	ring := 2048
	for ring > 512 && ring*queues > 16384 {
		ring /= 2
	}
	return ring
}

// upcallLimit is the rate limit as the kernel side has it: ns that a packet costs,
// and ns of credit. The kernel's clock is coarse: a credit of less than a few
// ticks would not even allow the rate.
func (c *Config) upcallLimit() (cost, credit uint64) {
	if c.UpcallRate < 0 {
		return 0, 0
	}
	cost = uint64(time.Second) / uint64(c.UpcallRate)
	return cost, max(uint64(c.UpcallBurst)*cost, uint64(20*time.Millisecond))
}

// options is the part of the configuration that decides where programs go.
func (c *Config) options() *attach.Options {
	return &attach.Options{
		Config: c.AttachConfig, Strict: c.Strict, Accelerate: c.Accelerate, Patterns: c.Devices,
		MaxMTU: c.maxFrame() - kern.EtherHeader, DenyTime: c.DenyTime, Log: c.Logger,
	}
}
