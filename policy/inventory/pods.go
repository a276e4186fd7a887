package inventory

import (
	"maps"
	"reflect"
	"slices"
	"sort"
	"strings"
)

// podChunk is how many pods a chunk holds at most. A change copies the chunk it is
// in and the list of chunks: some ten kilobytes each with a hundred thousand pods.
const podChunk = 128

// Pods is a list of pods by namespace and name, no two of one name. It is
// immutable; versions of a list share the chunks that are the same, so that
// keeping two of them, or comparing them, costs what differs. The zero value is
// empty. Make one with a [PodEditor].
type Pods struct {
	chunks []*chunk // none is empty
	count  int
}

type chunk struct {
	epoch uint64 // of the editor that made it
	pods  []Pod
}

// Len returns the number of pods.
func (p Pods) Len() int { return p.count }

// List returns the pods in a slice of its own.
func (p Pods) List() []Pod {
	if p.count == 0 {
		return nil
	}
	out := make([]Pod, 0, p.count)
	for _, c := range p.chunks {
		out = append(out, c.pods...)
	}
	return out
}

// Each calls f with every pod, in order. What f gets is read only.
func (p Pods) Each(f func(*Pod)) {
	for _, c := range p.chunks {
		for i := range c.pods {
			f(&c.pods[i])
		}
	}
}

// PodChange is how two lists differ in the pod of one name. Old is nil when it has
// come, New when it has gone. Both are read only.
type PodChange struct{ Old, New *Pod }

// Since returns what changed from another version of a list to this one, by
// namespace and name. Any two lists can be compared, whichever is older; those of
// one editor in time that depends on what differs and on the number of chunks.
func (p Pods) Since(was Pods) []PodChange {
	var out []PodChange
	var a, b podCursor
	for {
		if a.at == 0 && b.at == 0 {
			for a.chunk < len(was.chunks) && b.chunk < len(p.chunks) && was.chunks[a.chunk] == p.chunks[b.chunk] {
				a.chunk++
				b.chunk++
			}
		}
		x, y := a.pod(was), b.pod(p)
		switch {
		case x == nil && y == nil:
			return out
		case y == nil || x != nil && comparePods(x, y) < 0:
			out = append(out, PodChange{Old: x})
			a.next(was)
		case x == nil || comparePods(x, y) > 0:
			out = append(out, PodChange{New: y})
			b.next(p)
		default:
			if !SamePod(x, y) {
				out = append(out, PodChange{x, y})
			}
			a.next(was)
			b.next(p)
		}
	}
}

// podCursor is a place in a list.
type podCursor struct{ chunk, at int }

func (c *podCursor) pod(p Pods) *Pod {
	if c.chunk == len(p.chunks) {
		return nil
	}
	return &p.chunks[c.chunk].pods[c.at]
}

func (c *podCursor) next(p Pods) {
	if c.at++; c.at == len(p.chunks[c.chunk].pods) {
		c.chunk, c.at = c.chunk+1, 0
	}
}

func comparePods(a, b *Pod) int { return compareNames(a, b.Namespace, b.Name) }

func compareNames(p *Pod, namespace, name string) int {
	if c := strings.Compare(p.Namespace, namespace); c != 0 {
		return c
	}
	return strings.Compare(p.Name, name)
}

// SamePod reports whether two pods of one name are the same to policy. Where they
// were read from does not matter.
func SamePod(a, b *Pod) bool {
	return a.Node == b.Node && a.HostNetwork == b.HostNetwork && a.ServiceAccount == b.ServiceAccount &&
		slices.Equal(a.IPs, b.IPs) && slices.Equal(a.Ports, b.Ports) && sameMap(a.Labels, b.Labels)
}

// sameMap is maps.Equal that knows a map from itself.
func sameMap(a, b map[string]string) bool {
	return len(a) == len(b) && (reflect.ValueOf(a).Pointer() == reflect.ValueOf(b).Pointer() || maps.Equal(a, b))
}

// PodEditor makes lists of pods, one version after the other. The zero value is
// an empty list. It is not for concurrent use; the lists it has handed out are.
type PodEditor struct {
	list  Pods
	epoch uint64 // chunks of it nobody else has
	dir   uint64 // epoch of list.chunks
}

// Pods returns the list as it is now. Changes that follow do not show in it.
func (e *PodEditor) Pods() Pods {
	e.epoch++
	return e.list
}

// Len returns the number of pods.
func (e *PodEditor) Len() int { return e.list.count }

// Get returns the pod of a name, nil if there is none. It is read only, and valid
// until the next change.
func (e *PodEditor) Get(namespace, name string) *Pod {
	n, i, ok := e.find(namespace, name)
	if !ok {
		return nil
	}
	return &e.list.chunks[n].pods[i]
}

// find returns where a pod is, or the place it would have: in the last chunk that
// begins before it.
func (e *PodEditor) find(namespace, name string) (n, i int, ok bool) {
	chunks := e.list.chunks
	n = sort.Search(len(chunks), func(i int) bool { return compareNames(&chunks[i].pods[0], namespace, name) > 0 })
	if n--; n < 0 {
		return 0, 0, false
	}
	pods := chunks[n].pods
	i = sort.Search(len(pods), func(i int) bool { return compareNames(&pods[i], namespace, name) >= 0 })
	return n, i, i < len(pods) && compareNames(&pods[i], namespace, name) == 0
}

// own returns a chunk that may be written to, and makes the list of chunks one.
func (e *PodEditor) own(n int) *chunk {
	e.ownDir()
	c := e.list.chunks[n]
	if c.epoch != e.epoch {
		c = &chunk{epoch: e.epoch, pods: append(make([]Pod, 0, len(c.pods)+1), c.pods...)}
		e.list.chunks[n] = c
	}
	return c
}

func (e *PodEditor) ownDir() {
	if e.dir != e.epoch {
		e.list.chunks, e.dir = append(make([]*chunk, 0, len(e.list.chunks)+1), e.list.chunks...), e.epoch
	}
}

// Put adds a pod or replaces the one of its name.
func (e *PodEditor) Put(p Pod) {
	n, i, found := e.find(p.Namespace, p.Name)
	switch {
	case found:
		e.own(n).pods[i] = p
		return
	case len(e.list.chunks) == 0:
		e.ownDir()
		e.list.chunks = append(e.list.chunks, e.fresh(nil, podChunk))
	}
	e.list.count++
	c := e.own(n)
	if len(c.pods) < podChunk {
		c.pods = slices.Insert(c.pods, i, p)
		return
	}
	if n == len(e.list.chunks)-1 && i == len(c.pods) { // sorted input fills chunks
		e.list.chunks = append(e.list.chunks, e.fresh([]Pod{p}, podChunk))
		return
	}
	const half = podChunk / 2
	upper := e.fresh(c.pods[half:], half+1)
	c.pods = append(make([]Pod, 0, half+1), c.pods[:half]...)
	e.list.chunks = slices.Insert(e.list.chunks, n+1, upper)
	if i > half {
		c, i = upper, i-half
	}
	c.pods = slices.Insert(c.pods, i, p)
}

func (e *PodEditor) fresh(pods []Pod, room int) *chunk {
	return &chunk{epoch: e.epoch, pods: append(make([]Pod, 0, room), pods...)}
}

// Delete takes a pod out, if it is there.
func (e *PodEditor) Delete(namespace, name string) {
	n, i, found := e.find(namespace, name)
	if !found {
		return
	}
	e.list.count--
	if len(e.list.chunks[n].pods) == 1 {
		e.ownDir()
		e.list.chunks = slices.Delete(e.list.chunks, n, n+1)
		return
	}
	c := e.own(n)
	c.pods = slices.Delete(c.pods, i, i+1)
}
