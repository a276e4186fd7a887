package afxdp

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// remember adds the entries of an accepted packet's flow. What is translated has
// two: by its own name and by the one its client used. A change of policy is about
// the real ends.
func (d *driver) remember(p *dataplane.Packet, s kern.FlowState) {
	e, real := d.epoch, &p.Headers.Key
	s.Cell = [2]uint16{e.Add(&real.Src), e.Add(&real.Dst)}
	if !p.Real.Valid() {
		k, back := kern.MakeFlowKey(real)
		s.Flags = 0
		if back != p.Reply {
			s.Flags = kern.FlowBack
		}
		// Any client may use the host's address if it does not matter who it is,
		// and cannot be known.
		if !(p.Masked && !d.reads) && (d.IsHost(real.Src) || d.IsHost(real.Dst)) {
			s.Flags |= kern.FlowHost
		}
		d.entries.Flows.Add(&k, &s)
		return
	}
	o := d.origins[p.ID]
	// Conntrack and worker may disagree on who opened a connection that was there
	// before both. Its names are conntrack's.
	swapped := p.Reply != (o.Flags&kern.OriginReply != 0)
	add := func(k *kern.FlowKey, back, veiled bool) {
		s.Flags = 0
		if back != swapped {
			s.Flags = kern.FlowBack
		}
		if veiled {
			s.Flags |= kern.FlowTranslated
			d.entries.Translated.Add(k, &o)
		}
		d.entries.Flows.Add(k, &s)
	}
	opened := o.Opened()
	k, back := kern.MakeFlowKey(&opened)
	o.Flags &= kern.OriginNAT | kern.OriginDNAT
	add(&k, back, o.Flags&kern.OriginDNAT != 0)
	if own := &d.names[p.ID]; own.Valid() && kern.HasEntry(own) {
		l, back := kern.MakeFlowKey(own)
		if l != k {
			add(&l, back != (p.Reply != swapped), true)
		}
	}
}

// name is the packet's own name, which the worker may have replaced by the real one.
func (d *driver) name(p *dataplane.Packet) *flow.Key {
	if p.Real.Valid() {
		return &d.names[p.ID]
	}
	return &p.Headers.Key
}

// Remembers implements dataplane.Driver. It costs a system call.
func (d *driver) Remembers(k flow.Key) (reply, ok bool) {
	if !kern.HasEntry(&k) {
		return false, false
	}
	f, back := kern.MakeFlowKey(&k)
	s, ok := d.entries.Lookup(&f)
	return ok && back != (s.Flags&kern.FlowBack != 0), ok
}

// nameable reports whether the kernel side finds the packet's flow by its key.
func nameable(p *dataplane.Packet) bool {
	h := &p.Headers
	return p.Problem == packet.OK && !h.IsError && !h.Fragment && h.Key.Valid() && kern.HasEntry(&h.Key)
}
