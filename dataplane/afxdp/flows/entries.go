package flows

import (
	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/dataplane"
	"github.com/tierwall/tierwall/dataplane/afxdp/kern"
)

// mapBatch collects entries for one BatchUpdate: a system call per packet would
// cost more than everything else done to it. A packet has two entries at most.
type mapBatch[V any] struct {
	M      *ebpf.Map
	n      int
	keys   [2 * dataplane.BatchSize]kern.FlowKey
	values [2 * dataplane.BatchSize]V
	// The first i entries as BatchUpdate wants them. Converting a slice to an
	// interface allocates; these were converted once.
	keysOf, valuesOf [2*dataplane.BatchSize + 1]any
}

func (f *mapBatch[V]) init(m *ebpf.Map) {
	f.M = m
	for i := range f.keysOf {
		f.keysOf[i], f.valuesOf[i] = f.keys[:i], f.values[:i]
	}
}

func (f *mapBatch[V]) Add(k *kern.FlowKey, s *V) {
	f.keys[f.n], f.values[f.n] = *k, *s
	f.n++
}

// write reports how many entries it wrote.
func (f *mapBatch[V]) write() (int, error) {
	if f.n == 0 {
		return 0, nil
	}
	return f.M.BatchUpdate(f.keysOf[f.n], f.valuesOf[f.n], nil)
}

// Entries collects what a worker remembers of a batch of packets. It belongs to the
// worker's goroutine.
type Entries struct {
	epoch                *Epoch
	Flows, Later, Denied mapBatch[kern.FlowState]
	// translated has the ends of those flows whose packets' addresses are translated.
	Translated mapBatch[kern.Origin]
	told       bool // the kernel side knows that there are translated flows
}

func (e *Entries) Init(epoch *Epoch, o *kern.Objects) {
	e.epoch = epoch
	e.Flows.init(o.Flows)
	e.Later.init(o.Later)
	e.Denied.init(o.Denied)
	e.Translated.init(o.Origins)
}

// Reset begins another batch.
func (e *Entries) Reset() { e.Flows.n, e.Later.n, e.Denied.n, e.Translated.n = 0, 0, 0, 0 }

// Write puts the entries into the kernel's maps. It returns how many accepted ones
// could not be written.
func (e *Entries) Write() (lost int) {
	if e.Translated.n+e.Later.n > 0 && !e.told {
		e.told = e.epoch.marks.SetTranslated() == nil
	}
	lost = e.writeFlows()
	_, _ = e.Later.write() // these two only save upcalls
	_, _ = e.Denied.write()
	return lost
}

// writeFlows remembers what was accepted. Whom a translated flow is about and what it
// was judged by are in two maps under one name, and a worker that judged another
// connection of the name may be writing, too: both maps get what the same one says.
func (e *Entries) writeFlows() (lost int) {
	n, err := 0, error(nil)
	if e.Translated.n > 0 {
		e.epoch.veil.Lock()
		defer e.epoch.veil.Unlock()
		_, err = e.Translated.write()
	}
	if err == nil {
		n, err = e.Flows.write()
	}
	if err == nil {
		return 0
	}
	for i := range e.Translated.n { // one map may have what an earlier connection was judged by
		_ = e.Translated.M.Delete(&e.Translated.keys[i]) // judged again without it
	}
	return e.Flows.n - n
}

// Lookup returns what the kernel remembers of an accepted flow. It costs a system call.
func (e *Entries) Lookup(k *kern.FlowKey) (s kern.FlowState, ok bool) {
	err := e.Flows.M.Lookup(k, &s)
	return s, err == nil
}
