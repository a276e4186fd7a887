package afxdp

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// origin is struct origin of bpf/tierwall.h: the connection of a packet whose own
// addresses do not say whom it is about. bpf/nat.h has the picture.
type origin struct {
	Client, Service, Backend             flow.Addr
	ClientPort, ServicePort, BackendPort uint16
	Proto                                flow.Proto
	Flags                                uint8
}

// originLen is the size of an origin in a frame.
const originLen = 56

// Bits of origin.Flags.
const (
	originNAT     = 1 << iota // the fields before are filled in
	originDNAT                // Service and Backend differ
	originReply               // the packet travels from the backend to the client
	originHost                // this host sent it
	originMasked              // it did not, although the source address says so
	originNew                 // no answer has been seen
	originRelated             // the packet is an error about it
)

// takeOrigin moves the origin out of a frame, which it shortens. ok is false for a
// frame that is too short to have one.
func takeOrigin(frame []byte, o *origin) (rest []byte, ok bool) {
	if len(frame) < etherHeader+originLen {
		return nil, false
	}
	b := frame[etherHeader:][:originLen]
	*o = origin{
		Client: flow.Addr(b[:16]), Service: flow.Addr(b[16:32]), Backend: flow.Addr(b[32:48]),
		ClientPort:  binary.LittleEndian.Uint16(b[48:]),
		ServicePort: binary.LittleEndian.Uint16(b[50:]),
		BackendPort: binary.LittleEndian.Uint16(b[52:]),
		Proto:       flow.Proto(b[54]), Flags: b[55],
	}
	frame[metaOffset+2] &^= metaOrigin >> 24
	n := copy(frame[etherHeader:], frame[etherHeader+originLen:])
	return frame[:etherHeader+n], true
}

// real is the connection between client and backend, in the packet's direction.
func (o *origin) real() flow.Key {
	k := flow.Key{Src: o.Client, Dst: o.Backend, SrcPort: o.ClientPort, DstPort: o.BackendPort, Proto: o.Proto}
	if o.Flags&originReply != 0 {
		return k.Reverse()
	}
	return k
}

// opened is the name of the connection as its client opened it.
func (o *origin) opened() flow.Key {
	return flow.Key{Src: o.Client, Dst: o.Service, SrcPort: o.ClientPort, DstPort: o.ServicePort, Proto: o.Proto}
}

// describe tells the worker what o says of a packet.
func (o *origin) describe(p *dataplane.Packet) {
	p.FromHost, p.Masked = o.Flags&originHost != 0, o.Flags&originMasked != 0
	if o.Flags&originNAT == 0 {
		return
	}
	real := o.real()
	if !real.Valid() { // between families, or a bug: nobody knows who it is
		p.Masked = !p.FromHost
		return
	}
	p.Plain = false
	p.Real, p.Reply, p.Related = real, o.Flags&originReply != 0, o.Flags&originRelated != 0
	if o.Flags&originDNAT != 0 {
		p.Service = flow.Service{Addr: o.Service, Port: o.ServicePort}
	}
}

// ownName is what the kernel side calls the flow of a frame.
func ownName(frame []byte, length uint32) (k flow.Key) {
	var h packet.Headers
	if packet.ParseEthernetSnap(frame, max(len(frame), int(length)), &h) != packet.OK || h.IsError || h.Fragment {
		return k
	}
	return h.Key
}

// name is the packet's own name, which the worker may have replaced by the real one.
func (d *driver) name(p *dataplane.Packet) *flow.Key {
	if p.Real.Valid() {
		return &d.names[p.ID]
	}
	return &p.Headers.Key
}
