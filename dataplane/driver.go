package dataplane

import (
	"time"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/conntrack"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// BatchSize is the most packets one Recv delivers. 32 is what one kernel
// transmit kick of a copy-mode AF_XDP socket sends.
const BatchSize = 32

// Disposition is what a driver must do with a packet.
type Disposition uint8

// Dispositions. The zero value drops.
const (
	// DropPacket discards the packet.
	DropPacket Disposition = iota
	// PassPacket sends the packet on its way and marks it accepted, so that no
	// later hook judges it again.
	PassPacket
	// DeferPacket sends the packet on its way unmarked: a later hook (the
	// forward hook of the nfqueue backend) decides. Drivers that have no later
	// hook never see it.
	DeferPacket
)

// Packet is one packet of a Batch. A driver fills the first group and owns the
// memory behind Frame until Apply returns; a Worker fills the second group.
type Packet struct {
	Frame  []byte // first byte is the Ethernet header if L2, else the IP header
	L2     bool
	Length uint32 // true length when Frame is cut short; 0 = len(Frame)
	ID     uint32 // the driver's own handle
	Device int32  // ifindex the packet was seen on; 0 = unknown
	// Reply is set when the kernel knows that the packet travels against the
	// direction its connection was opened in. A worker that knows the connection
	// corrects it before Apply.
	Reply bool
	// Related is set when the kernel knows the connection that an ICMP error is
	// about. Reply is then about the error itself.
	Related bool
	// Service is where the connection was opened to, if the driver knows that its
	// destination was translated; in replies, too. The zero value says nothing.
	Service flow.Service
	// Real names the two ends of the connection, in the direction the packet
	// travels in, where the packet's own addresses do not because they are
	// translated. The worker puts it in the place of Headers.Key (of an ICMP
	// error, reversed, in that of Headers.Inner). The zero value says that the
	// packet's own are right.
	Real flow.Key
	// Final is set when no later hook can judge the packet again.
	Final bool
	// Plain is set when the driver knows that the kernel's connection table, if it
	// has the packet's connection, has it under the ends the packet shows, one way
	// round or the other, and in zone 0. Service may be set all the same.
	Plain bool
	// Onward is set on a final packet, together with Final, if the driver sees it
	// again behind the translation of Service addresses: what is opened to one may
	// be deferred.
	Onward bool
	// FromHost and ToHost are set when the driver knows that the packet comes
	// from, or goes to, this host itself: an address of the host inside the pod
	// prefix, as bridges have one, is then not taken for an unknown pod's.
	// What the host opens needs no policy.
	FromHost, ToHost bool
	// Masked is set when the source address is the host's, but the host did not
	// send the packet: it was masqueraded, and nobody knows who did.
	Masked bool

	Headers     packet.Headers
	Problem     packet.Problem
	Disposition Disposition
	// Remember asks the driver to let the kernel keep the rest of the connection
	// to itself. With DropPacket it allows the kernel to drop packets like this
	// one by itself for a moment; a driver need not.
	Remember bool
	// Verdict is what the table said, Drop where none was asked. Drivers go by
	// Disposition.
	Verdict classifier.Verdict
}

// Batch is what travels between a driver and a worker.
type Batch struct {
	Packets [BatchSize]Packet
	N       int // packets filled, ≤ BatchSize
}

// Driver moves packets between the kernel and one Worker. A driver belongs to
// its worker's goroutine, Close excepted.
type Driver interface {
	// Recv blocks until at least one packet is there, fills b and returns. It
	// returns ErrClosed after Close, and (with b.N == 0) from time to time when
	// nothing arrives, so that a worker can do housekeeping.
	Recv(b *Batch) error
	// Apply carries out every packet's Disposition and Remember in one go.
	Apply(b *Batch) error
	// Close wakes a blocked Recv and releases the driver. Any goroutine may
	// call it, more than once.
	Close() error
}

// Rejecter is a Driver that can answer packets. Without it Reject drops like
// Drop.
type Rejecter interface {
	Driver
	// Reject sends answer back towards the sender of p, a packet of the batch
	// that was received last and not applied yet. answer begins like p.Frame,
	// with an Ethernet header if p.L2; its addresses are those of p turned
	// round, its checksums complete. It is the worker's memory and valid only
	// during the call. What is answered is dropped all the same. It must not
	// block: an answer that cannot go at once is lost, with an error.
	Reject(p *Packet, answer []byte) error
}

// HostKnower is a Driver that knows this host's own addresses, for those that
// cannot tell by where they see a packet (Packet.FromHost, ToHost).
type HostKnower interface {
	Driver
	// IsHost reports whether a is an address of this host. The worker asks about
	// the ends of new connections, the control goroutine about those that would
	// be an unknown pod's.
	IsHost(a flow.Addr) bool
}

// TunnelKnower is a Driver that knows by which packets this host's tunnels, and so the
// other nodes', are fed.
type TunnelKnower interface {
	Driver
	// IsTunnel reports whether packets with this protocol and destination port are
	// unwrapped. Only for new connections is it asked.
	IsTunnel(proto flow.Proto, port uint16) bool
}

// PodNetworkKnower is a Driver that knows networks from which pods of any node get
// addresses, where the table does not know which of them are this node's.
type PodNetworkKnower interface {
	Driver
	// IsPodNetwork reports whether an address is in such a network. Only for new
	// connections, and when policy changes, is it asked.
	IsPodNetwork(flow.Addr) bool
}

// FlowKnower is a Driver that can look up what its kernel side remembers, for
// packets that are about a connection without being part of it.
type FlowKnower interface {
	Driver
	// Remembers reports whether the kernel side has an entry of the connection k
	// belongs to, and whether k travels against the direction it was opened in.
	// What the entry was judged by may be out of date. Only the worker asks.
	Remembers(k flow.Key) (reply, ok bool)
}

// Scattered is a Driver whose backend gives a packet to the driver that is next to
// it (the queue of the CPU it is on), not to the one that had the others of its
// connection. The workers of such drivers use each other's connection tables.
type Scattered interface {
	Driver
	// Scattered does nothing.
	Scattered()
}

// Bound is a Driver that says on which CPUs its worker runs.
type Bound interface {
	Driver
	// Bind is called once, by the worker, before it receives. It may lock the
	// goroutine to its thread for good.
	Bind()
}

// Backend is one way of getting packets to userspace: a set of drivers and the
// kernel state around them. Its methods belong to the control goroutine.
type Backend interface {
	// Name is "nfqueue" or "afxdp".
	Name() string
	// Drivers returns one driver per queue; fixed for the backend's life.
	Drivers() []Driver
	// Update tells the kernel side about a new table. The engine has already
	// published t to every worker when it calls Update, so no verdict of an
	// older table is issued any more. Update returns after every connection the
	// kernel remembers and t denies has been forgotten by the kernel: its next
	// packet is judged again. cut counts those. Connections that c does not
	// affect need no look. After an error the next call's Change is everything.
	//
	// Where no later hook knows who opened a connection, the kernel side goes on
	// telling it of those it forgot (Packet.Reply): or the next packet from the
	// other side would open the connection anew, by another policy.
	Update(t *classifier.Table, c Change) (cut int, err error)
	// Stats returns totals since start.
	Stats() BackendStats
	// Close detaches everything the backend put into the kernel, except what
	// its fail mode says must outlive the process.
	Close() error
}

// Learner is a Backend that keeps a list of the connections the kernel remembers:
// who looks for a few among them asks the list, and not the kernel for all.
type Learner interface {
	Backend
	// Learn tells of connections, of whatever backend, that a worker saw packets
	// of since the last round: copies of records as they are, or were when they
	// went. It may be called several times in a round. Every connection that a
	// worker has passed with Remember, before the table in force, is told by the
	// time Update is called; and about twice a second without an update.
	//
	// missed says that some in this round cannot be told. What is told may be of a
	// connection the kernel does not remember, or not yet: the batch is still in
	// the worker's hands, for StallTimeout at most, or else the next round has
	// missed some.
	//
	// Calls come from one goroutine at a time, none during Update. news is valid
	// during the call.
	Learn(backend string, news []conntrack.Record, missed bool)
}

// Inherited is a connection that the kernel side accepted before there was this
// process, and goes on passing until the first table is in force.
type Inherited struct {
	Key     flow.Key     // between its two ends, in the direction it was opened in
	Service flow.Service // where it was opened to, if its destination was translated
	// Real is set when Key is not what packets bear, who are translated; Final and
	// Onward are what they are in a Packet of it.
	Real, Final, Onward bool
	Closing             bool          // one end has closed it
	Idle                time.Duration // since its last packet
}

// Heir is a Backend that can take over what an earlier process accepted.
type Heir interface {
	Backend
	// Inherit gives the backend somebody to ask about such connections, once, before
	// the first Update: whether the table of that Update accepts one, as far as can be
	// told without a packet. The packets of those it says no to, and of those the
	// backend does not ask about, are judged as after any Update. judge is valid until
	// that Update returns; any goroutine may call it, one at a time.
	Inherit(judge func(*Inherited) bool)
}

// Preparer is a Backend to which others leave what they do not judge.
type Preparer interface {
	Backend
	// Prepare makes the kernel side ask about everything that t may be about, and
	// leaves what is accepted already as it is. Of the first table it is told before
	// any worker has it, and before any backend's Update: what they leave to it from
	// then on waits, and is judged by it.
	Prepare(t *classifier.Table) error
}

// Drainer is a Backend that can stop bringing packets up without losing those that
// are on their way.
type Drainer interface {
	Backend
	// Drain makes the kernel do with packets what it does when nobody is there, and
	// returns when none waits for a verdict any more. The workers go on meanwhile.
	// It gives up after a moment, with an error. It may run beside Stats, and comes
	// before the drivers are closed. Afterwards nothing comes up any more.
	Drain() error
}

// Dropper is a Backend whose kernel side drops packets by itself for reasons that the
// audit log tells.
type Dropper interface {
	Backend
	// Drops reports those since the last call. Calls come from one goroutine at a time,
	// while packets move.
	Drops(report func(Drop))
}

// Drop is packets of one sender that a kernel side dropped for one reason.
type Drop struct {
	Fate    Fate
	Device  int32     // where they came from, 0 if from this host
	Pod     flow.Addr // who is behind the device; zero if that is not one known pod
	Packets uint64
}

// BackendStats are totals since the backend started.
type BackendStats struct {
	Bypassed    uint64 // packets passed in the kernel without userspace
	Accelerated uint64 // of those: past the host's stack, too
	Dropped     uint64 // packets dropped in the kernel without userspace
	Upcalls     uint64 // packets handed to userspace
	Overflow    uint64 // packets lost because a queue or ring was full
	Restored    uint64 // times the kernel side was put back after other software changed it
	Fates       Fates  // every packet the kernel side saw, by what it did with it
}
