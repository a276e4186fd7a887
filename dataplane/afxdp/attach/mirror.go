package attach

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
)

// mirror writes a kernel map that nobody else writes, and remembers what is in
// it, so that setting it to what it is costs no system call.
type mirror[K, V comparable] struct {
	m       *ebpf.Map
	known   map[K]V
	changed bool // written to since somebody looked; see Backend.guardChanged
}

// newMirror takes over what is in the map already.
func newMirror[K, V comparable](m *ebpf.Map) (*mirror[K, V], error) {
	r := &mirror[K, V]{m: m, known: map[K]V{}}
	var k K
	var v V
	it := m.Iterate()
	for it.Next(&k, &v) {
		r.known[k] = v
	}
	if err := it.Err(); err != nil {
		return nil, fmt.Errorf("read map %s: %w", m, err)
	}
	return r, nil
}

func (r *mirror[K, V]) put(k K, v V) error {
	if old, ok := r.known[k]; ok && old == v {
		return nil
	}
	if err := r.m.Put(&k, &v); err != nil {
		return fmt.Errorf("write map %s: %w", r.m, err)
	}
	r.known[k], r.changed = v, true
	return nil
}

func (r *mirror[K, V]) drop(k K) error {
	if err := r.m.Delete(&k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("write map %s: %w", r.m, err)
	}
	delete(r.known, k)
	r.changed = true
	return nil
}

// set makes the map equal to want: additions first.
func (r *mirror[K, V]) set(want map[K]V) error {
	var errs []error
	for k, v := range want {
		errs = append(errs, r.put(k, v))
	}
	for k := range r.known {
		if _, ok := want[k]; !ok {
			errs = append(errs, r.drop(k))
		}
	}
	return errors.Join(errs...)
}
