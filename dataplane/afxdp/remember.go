package afxdp

import (
	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// remember adds the entries of an accepted packet's flow. What is translated has
// two: by its own name and by the one its client used. A change of policy is about
// the real ends.
func (d *driver) remember(p *dataplane.Packet, s flowState) {
	e, real := d.epoch, &p.Headers.Key
	s.Cell = [2]uint16{e.add(&real.Src), e.add(&real.Dst)}
	if !p.Real.Valid() {
		k, back := makeFlowKey(real)
		s.Flags = 0
		if back != p.Reply {
			s.Flags = flowBack
		}
		// Any client may use the host's address if it does not matter who it is,
		// and cannot be known.
		if !(p.Masked && !d.reads) && (d.IsHost(real.Src) || d.IsHost(real.Dst)) {
			s.Flags |= flowHost
		}
		d.entries.flows.add(&k, &s)
		return
	}
	o := d.origins[p.ID]
	// Conntrack and worker may disagree on who opened a connection that was there
	// before both. Its names are conntrack's.
	swapped := p.Reply != (o.Flags&originReply != 0)
	add := func(k *flowKey, back, veiled bool) {
		s.Flags = 0
		if back != swapped {
			s.Flags = flowBack
		}
		if veiled {
			s.Flags |= flowVeiled
			d.entries.translated.add(k, &o)
		}
		d.entries.flows.add(k, &s)
	}
	opened := o.opened()
	k, back := makeFlowKey(&opened)
	o.Flags &= originNAT | originDNAT
	add(&k, back, o.Flags&originDNAT != 0)
	if own := &d.names[p.ID]; own.Valid() && hasEntry(own) {
		l, back := makeFlowKey(own)
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

// Remembers implements dataplane.FlowKnower. It costs a system call.
func (d *driver) Remembers(k flow.Key) (reply, ok bool) {
	if !hasEntry(&k) {
		return false, false
	}
	f, back := makeFlowKey(&k)
	s, ok := d.entries.lookup(&f)
	return ok && back != (s.Flags&flowBack != 0), ok
}

// nameable reports whether the kernel side finds the packet's flow by its key.
func nameable(p *dataplane.Packet) bool {
	h := &p.Headers
	return p.Problem == packet.OK && !h.IsError && !h.Fragment && h.Key.Valid() && hasEntry(&h.Key)
}
