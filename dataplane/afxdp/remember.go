package afxdp

import (
	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/classifier/flow"
	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/packet"
)

// remember adds the entries of an accepted packet's flow. What is translated has
// two: by its own name and by the one its client used. A change of policy is about
// the real ends.
func (d *driver) remember(p *dataplane.Packet, s flowState) {
	e, real := d.epoch, &p.Headers.Key
	s.Cell = [2]uint16{e.addrs.add(&real.Src), e.addrs.add(&real.Dst)}
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
		d.flows.add(&k, &s)
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
			d.veiled.add(k, &o)
		}
		d.flows.add(k, &s)
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

// writeFlows remembers what was accepted. Whom a translated flow is about and what it
// was judged by are in two maps under one name, and a worker that judged another
// connection of the name may be writing, too: both maps get what the same one says.
func (d *driver) writeFlows() {
	n, err := 0, error(nil)
	if d.veiled.n > 0 {
		d.epoch.veil.Lock()
		defer d.epoch.veil.Unlock()
		_, err = d.veiled.write()
	}
	if err == nil {
		n, err = d.flows.write()
	}
	if err == nil {
		return
	}
	d.forgotten.Add(uint64(d.flows.n - n))
	for i := range d.veiled.n { // one map may have what an earlier connection was judged by
		_ = d.veiled.m.Delete(&d.veiled.keys[i]) // judged again without it
	}
}

// Remembers implements dataplane.FlowKnower. It costs a system call.
func (d *driver) Remembers(k flow.Key) (reply, ok bool) {
	if !hasEntry(&k) {
		return false, false
	}
	f, back := makeFlowKey(&k)
	var s flowState
	if err := d.flows.m.Lookup(&f, &s); err != nil {
		return false, false
	}
	return back != (s.Flags&flowBack != 0), true
}

// nameable reports whether the kernel side finds the packet's flow by its key.
func nameable(p *dataplane.Packet) bool {
	h := &p.Headers
	return p.Problem == packet.OK && !h.IsError && !h.Fragment && h.Key.Valid() && hasEntry(&h.Key)
}

// mapBatch collects entries for one BatchUpdate: a system call per packet would
// cost more than everything else done to it. A packet has two entries at most.
type mapBatch[V any] struct {
	m      *ebpf.Map
	n      int
	keys   [2 * dataplane.BatchSize]flowKey
	values [2 * dataplane.BatchSize]V
	// The first i entries as BatchUpdate wants them. Converting a slice to an
	// interface allocates; these were converted once.
	keysOf, valuesOf [2*dataplane.BatchSize + 1]any
}

func (f *mapBatch[V]) init(m *ebpf.Map) {
	f.m = m
	for i := range f.keysOf {
		f.keysOf[i], f.valuesOf[i] = f.keys[:i], f.values[:i]
	}
}

func (f *mapBatch[V]) add(k *flowKey, s *V) {
	f.keys[f.n], f.values[f.n] = *k, *s
	f.n++
}

// write reports how many entries it wrote.
func (f *mapBatch[V]) write() (int, error) {
	if f.n == 0 {
		return 0, nil
	}
	return f.m.BatchUpdate(f.keysOf[f.n], f.valuesOf[f.n], nil)
}
