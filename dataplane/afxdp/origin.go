package afxdp

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
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

// describeOrigin tells the worker what o says of a packet.
func describeOrigin(o *origin, p *dataplane.Packet) {
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
