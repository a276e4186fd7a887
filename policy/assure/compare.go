package assure

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/tierwall/tierwall/classifier/flow"
)

// compare finds the pairs of classes between which something changes. Most pairs
// are not looked at: between ends that are unchanged nothing is. Sources are divided
// among all CPUs.
func (f *family) compare() {
	isChanged := make([]bool, len(f.classes))
	var changed []int32
	for i := range f.classes {
		c := &f.classes[i]
		if c.same.Egress && c.same.Ingress && c.same.Peer {
			continue
		}
		isChanged[i], changed = true, append(changed, int32(i))
		for _, d := range flow.Directions {
			if c.local && !(d == flow.Egress && c.same.Egress) && !(d == flow.Ingress && c.same.Ingress) {
				change := f.report.SubjectChange(d, c.ends[0], c.ends[1])
				c.change[d] = &change
			}
		}
	}
	f.pairs = make([][]pair, len(f.classes))
	if len(changed) == 0 {
		return
	}
	const batch = 16
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			w := worker{family: f, reader: f.diff.programs.reader(), cache: map[[4]int32]int32{}}
			for first := next.Add(batch) - batch; first < int64(len(f.classes)); first = next.Add(batch) - batch {
				for src := int32(first); src < int32(min(first+batch, int64(len(f.classes)))); src++ {
					w.source(src, isChanged[src], changed)
				}
			}
		})
	}
	wg.Wait()
}

// worker compares the connections of some of a family's classes.
type worker struct {
	*family
	reader *reader
	cache  map[[4]int32]int32
}

// source compares the connections that a class opens.
func (w *worker) source(src int32, isChanged bool, changed []int32) {
	if !isChanged {
		for _, dst := range changed {
			w.pair(src, dst)
		}
		return
	}
	for dst := range w.classes {
		w.pair(src, int32(dst))
	}
}

func (w *worker) pair(src, dst int32) {
	a, b := &w.classes[src], &w.classes[dst]
	if !a.local && !b.local {
		return
	}
	var sides [2][2]int32 // by direction, then table
	decided := [2]bool{}
	differs := false
	for _, d := range flow.Directions {
		subject, peer := a, b
		if d == flow.Ingress {
			subject, peer = b, a
		}
		if !mayDiffer(d, subject, peer) {
			continue
		}
		for i := range sides[d] {
			sides[d][i] = w.reader.of(i, d, subject.ends[i], peer.ends[i])
		}
		decided[d] = true
		differs = differs || sides[d][0] != sides[d][1]
	}
	if !differs {
		return
	}
	for _, d := range flow.Directions {
		subject, peer := a, b
		if d == flow.Ingress {
			subject, peer = b, a
		}
		if !decided[d] {
			sides[d][0] = w.reader.of(0, d, subject.ends[0], peer.ends[0])
			sides[d][1] = sides[d][0]
		}
	}
	key := [4]int32{sides[flow.Egress][0], sides[flow.Ingress][0], sides[flow.Egress][1], sides[flow.Ingress][1]}
	result, ok := w.cache[key]
	if !ok {
		result = w.result(key)
		w.cache[key] = result
	}
	if result != 0 {
		w.pairs[src] = append(w.pairs[src], pair{dst, result})
	}
}

// result returns the number of what changes for connections with these answers: old
// egress and ingress, then the new ones.
func (f *family) result(key [4]int32) int32 {
	p := f.diff.programs
	p.mu.Lock()
	defer p.mu.Unlock()
	result, ok := f.cache[key]
	if !ok {
		if changes := p.changes(f.is4, key[0], key[1], key[2], key[3]); len(changes) > 0 {
			result = int32(len(f.results))
			f.results = append(f.results, changes)
		}
		f.cache[key] = result
	}
	return result
}

// mayDiffer reports whether what a subject's policies say about a peer may not be
// the same in both tables.
func mayDiffer(d flow.Direction, subject, peer *class) bool {
	switch same := subject.same; {
	case !subject.local:
		return false
	case !peer.same.Peer:
		return true
	case d == flow.Egress && same.Egress, d == flow.Ingress && same.Ingress:
		return false
	}
	return subject.change[d].Concerns(peer.ends[0], peer.ends[1])
}
