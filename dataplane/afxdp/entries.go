package afxdp

import (
	"github.com/cilium/ebpf"

	"github.com/tierwall/tierwall/dataplane"
)

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

// entries collects what a worker remembers of a batch of packets. It belongs to the
// worker's goroutine.
type entries struct {
	epoch                *epoch
	flows, later, denied mapBatch[flowState]
	// translated has the ends of those flows whose packets' addresses are translated.
	translated mapBatch[origin]
	told       bool // the kernel side knows that there are translated flows
}

func (e *entries) init(epoch *epoch, o *objects) {
	e.epoch = epoch
	e.flows.init(o.Flows)
	e.later.init(o.Later)
	e.denied.init(o.Denied)
	e.translated.init(o.Origins)
}

// reset begins another batch.
func (e *entries) reset() { e.flows.n, e.later.n, e.denied.n, e.translated.n = 0, 0, 0, 0 }

// write puts the entries into the kernel's maps. It returns how many accepted ones
// could not be written.
func (e *entries) write() (lost int) {
	if e.translated.n+e.later.n > 0 && !e.told {
		e.told = e.epoch.marks.SetTranslated() == nil
	}
	lost = e.writeFlows()
	_, _ = e.later.write() // these two only save upcalls
	_, _ = e.denied.write()
	return lost
}

// writeFlows remembers what was accepted. Whom a translated flow is about and what it
// was judged by are in two maps under one name, and a worker that judged another
// connection of the name may be writing, too: both maps get what the same one says.
func (e *entries) writeFlows() (lost int) {
	n, err := 0, error(nil)
	if e.translated.n > 0 {
		e.epoch.veil.Lock()
		defer e.epoch.veil.Unlock()
		_, err = e.translated.write()
	}
	if err == nil {
		n, err = e.flows.write()
	}
	if err == nil {
		return 0
	}
	for i := range e.translated.n { // one map may have what an earlier connection was judged by
		_ = e.translated.m.Delete(&e.translated.keys[i]) // judged again without it
	}
	return e.flows.n - n
}

// lookup returns what the kernel remembers of an accepted flow. It costs a system call.
func (e *entries) lookup(k *flowKey) (s flowState, ok bool) {
	err := e.flows.m.Lookup(k, &s)
	return s, err == nil
}
