package dataplane

import (
	"errors"
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
// its worker's goroutine, Close, IsHost and IsTunnel excepted. Embed DriverDefaults for
// what a driver cannot do or does not know.
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

	// Reject sends answer back towards the sender of p, a packet of the batch
	// that was received last and not applied yet. answer begins like p.Frame,
	// with an Ethernet header if p.L2; its addresses are those of p turned
	// round, its checksums complete. It is the worker's memory and valid only
	// during the call. What is answered is dropped all the same. Reject must not
	// block: an answer that cannot go at once is lost, with an error. By default
	// every answer is, and a rejected packet is only dropped.
	Reject(p *Packet, answer []byte) error
	// IsHost reports whether a is an address of this host, for drivers that
	// cannot tell by where they see a packet (Packet.FromHost, ToHost). The worker
	// asks about the ends of new connections, the control goroutine about those
	// that would be an unknown pod's.
	IsHost(a flow.Addr) bool
	// IsTunnel reports whether packets with this protocol and destination port are
	// unwrapped by a tunnel of this host, and so by other nodes'. The worker and the
	// control goroutine ask, about new connections only.
	IsTunnel(proto flow.Proto, port uint16) bool
	// IsPodNetwork reports whether an address is in a network from which pods of any
	// node get addresses, where the table does not know which of them are this node's.
	// The worker and the control goroutine ask, about new connections and when policy
	// changes.
	IsPodNetwork(a flow.Addr) bool
	// Remembers reports whether the kernel side has an entry of the connection k
	// belongs to, and whether k travels against the direction it was opened in. The
	// worker asks about packets that concern a connection without being part of it.
	// The policy that accepted the entry may be out of date.
	Remembers(k flow.Key) (reply, ok bool)
	// Scattered reports whether the backend gives a packet to the driver that is
	// next to it (the queue of the CPU it is on), not to the one that had the others
	// of its connection. The workers of such drivers use each other's connection
	// tables.
	Scattered() bool
	// Bind is called once, by the worker, before it receives. It may lock the
	// goroutine to its thread for good, and choose the CPUs it runs on.
	Bind()
}

// DriverDefaults is what a Driver does unless it knows better. The zero value is ready.
type DriverDefaults struct{}

var errCannotAnswer = errors.New("dataplane: the driver cannot answer packets")

// Reject returns an error.
func (DriverDefaults) Reject(*Packet, []byte) error { return errCannotAnswer }

// IsHost knows no address.
func (DriverDefaults) IsHost(flow.Addr) bool { return false }

// IsTunnel knows no tunnel.
func (DriverDefaults) IsTunnel(flow.Proto, uint16) bool { return false }

// IsPodNetwork knows no network.
func (DriverDefaults) IsPodNetwork(flow.Addr) bool { return false }

// Remembers knows no connection.
func (DriverDefaults) Remembers(flow.Key) (reply, ok bool) { return false, false }

// Scattered reports false.
func (DriverDefaults) Scattered() bool { return false }

// Bind does nothing.
func (DriverDefaults) Bind() {}

// Backend is one way of getting packets to userspace: a set of drivers and the
// kernel state around them. Its methods belong to the control goroutine. Embed
// BackendDefaults for what a backend has no use for.
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
	// Where no later hook knows who opened a connection, the kernel side must keep
	// marking replies of those it forgot (Packet.Reply): otherwise the next packet
	// from the other side would open the connection anew, under another policy.
	Update(t *classifier.Table, c Change) (cut int, err error)
	// Stats returns totals since start.
	Stats() BackendStats
	// Close detaches everything the backend put into the kernel, except what
	// its fail mode says must outlive the process.
	Close() error

	// Learns reports whether Learn is to be called; fixed for the backend's life.
	Learns() bool
	// Learn reports connections, of any backend, that a worker saw packets of since
	// the last round: copies of records as they are, or were when they went. A
	// backend that keeps a list of the connections the kernel remembers finds a few
	// of them without dumping the kernel's table. Learn may be called several times
	// in a round. Every connection that a worker has passed with Remember, before
	// the table in force, is reported by the time Update is called; and about twice
	// a second without an update.
	//
	// missed says that some of this round cannot be reported. A reported connection
	// may not be in the kernel's table (yet): the batch is still in the worker's
	// hands, for StallTimeout at most, or else the next round has missed some.
	//
	// Calls come from one goroutine at a time, none during Update. news is valid
	// during the call.
	Learn(backend string, news []conntrack.Record, missed bool)
	// Inherit gives the backend a function to ask about the connections that an
	// earlier process accepted, once, before the first Update: whether the table of
	// that Update accepts one, as far as can be decided without a packet. The
	// packets of those it denies, and of those the backend does not ask about, are
	// judged as after any Update. judge is valid until that Update returns; any
	// goroutine may call it, one at a time.
	Inherit(judge func(*Inherited) bool)
	// Prepare makes the kernel side queue everything that t may concern, and leaves
	// what is accepted already as it is. It is called for the first table, before any
	// worker has it, and before any backend's Update: what other backends defer to
	// this one from then on waits, and is judged by t.
	Prepare(t *classifier.Table) error
	// Drain makes the kernel treat packets as if no daemon ran, and returns when
	// none waits for a verdict any more. The workers go on meanwhile. It gives up
	// after a moment, with an error. It may run beside Stats, and comes before the
	// drivers are closed. Afterwards nothing comes up any more.
	Drain() error
	// Drops reports what the kernel side dropped by itself since the last call, for
	// reasons that the audit log records. Calls come from one goroutine at a time,
	// while packets move.
	Drops(report func(Drop))
}

// BackendDefaults is a backend that keeps no list of connections, inherits none, has
// nothing to prepare or drain and drops nothing by itself. The zero value is ready.
type BackendDefaults struct{}

// Learns reports false.
func (BackendDefaults) Learns() bool { return false }

// Learn does nothing.
func (BackendDefaults) Learn(string, []conntrack.Record, bool) {}

// Inherit asks about nothing.
func (BackendDefaults) Inherit(func(*Inherited) bool) {}

// Prepare does nothing.
func (BackendDefaults) Prepare(*classifier.Table) error { return nil }

// Drain does nothing.
func (BackendDefaults) Drain() error { return nil }

// Drops reports nothing.
func (BackendDefaults) Drops(func(Drop)) {}

// Inherited is a connection that the kernel side accepted before there was this
// process, and goes on passing until the first table is in force.
type Inherited struct {
	Key     flow.Key     // between its two ends, in the direction it was opened in
	Service flow.Service // where it was opened to, if its destination was translated
	// Real is set if Key holds the ends behind translation, and packets carry others;
	// Final and Onward are what they are in a Packet of it.
	Real, Final, Onward bool
	Closing             bool          // one end has closed it
	Idle                time.Duration // since its last packet
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
