package upcall

import (
	"encoding/binary"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// TakeOrigin moves the origin out of a frame, which it shortens. ok is false for a
// frame that is too short to have one.
func TakeOrigin(frame []byte, o *kern.Origin) (rest []byte, ok bool) {
	if len(frame) < kern.EtherHeader+kern.OriginLen {
		return nil, false
	}
	b := frame[kern.EtherHeader:][:kern.OriginLen]
	*o = kern.Origin{
		Client: flow.Addr(b[:16]), Service: flow.Addr(b[16:32]), Backend: flow.Addr(b[32:48]),
		ClientPort:  binary.LittleEndian.Uint16(b[48:]),
		ServicePort: binary.LittleEndian.Uint16(b[50:]),
		BackendPort: binary.LittleEndian.Uint16(b[52:]),
		Proto:       flow.Proto(b[54]), Flags: b[55],
	}
	frame[metaOffset+2] &^= metaOrigin >> 24
	n := copy(frame[kern.EtherHeader:], frame[kern.EtherHeader+kern.OriginLen:])
	return frame[:kern.EtherHeader+n], true
}

// DescribeOrigin tells the worker what o says of a packet.
func DescribeOrigin(o *kern.Origin, p *dataplane.Packet) {
	p.FromHost, p.Masked = o.Flags&kern.OriginHost != 0, o.Flags&kern.OriginMasked != 0
	if o.Flags&kern.OriginNAT == 0 {
		return
	}
	real := o.Real()
	if !real.Valid() { // between families, or a bug: nobody knows who it is
		p.Masked = !p.FromHost
		return
	}
	p.Plain = false
	p.Real, p.Reply, p.Related = real, o.Flags&kern.OriginReply != 0, o.Flags&kern.OriginRelated != 0
	if o.Flags&kern.OriginDNAT != 0 {
		p.Service = flow.Service{Addr: o.Service, Port: o.ServicePort}
	}
}

// OwnName is what the kernel side calls the flow of a frame.
func OwnName(frame []byte, length uint32) (k flow.Key) {
	var h packet.Headers
	if packet.ParseEthernetSnap(frame, max(len(frame), int(length)), &h) != packet.OK || h.IsError || h.Fragment {
		return k
	}
	return h.Key
}
