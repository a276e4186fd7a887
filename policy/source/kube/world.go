package kube

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unique"

	corev1 "k8s.io/api/core/v1"

	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
)

// listed is a set of named values as a sorted list that is never written to again
// once handed out: changes collect in a map and are merged into the next list.
// There is no second copy of what did not change.
type listed[T any] struct {
	name    func(*T) objectName
	list    []T
	pending map[objectName]*T // nil: removed
}

// get returns a value, nil when there is none. Read only.
func (l *listed[T]) get(n objectName) *T {
	if v, ok := l.pending[n]; ok {
		return v
	}
	if i, ok := l.find(n); ok {
		return &l.list[i]
	}
	return nil
}

func (l *listed[T]) find(n objectName) (int, bool) {
	return slices.BinarySearchFunc(l.list, n, func(v T, n objectName) int { return compareNames(l.name(&v), n) })
}

func compareNames(a, b objectName) int {
	return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
}

// put adds or replaces a value, or removes it when v is nil.
func (l *listed[T]) put(n objectName, v *T) {
	if l.pending == nil {
		l.pending = map[objectName]*T{}
	}
	l.pending[n] = v
}

// flush returns the list with all changes in it.
func (l *listed[T]) flush() []T {
	if len(l.pending) == 0 {
		return l.list
	}
	names := slices.SortedFunc(maps.Keys(l.pending), compareNames)
	next := make([]T, 0, len(l.list)+len(names))
	at := 0
	for _, n := range names {
		i, found := slices.BinarySearchFunc(l.list[at:], n, func(v T, n objectName) int { return compareNames(l.name(&v), n) })
		next = append(next, l.list[at:at+i]...)
		at += i
		if found {
			at++
		}
		if v := l.pending[n]; v != nil {
			next = append(next, *v)
		}
	}
	l.list = append(next, l.list[at:]...)
	l.pending = nil
	return l.list
}

// all calls f with the name of every value.
func (l *listed[T]) names() []objectName {
	out := make([]objectName, 0, len(l.list))
	for i := range l.list {
		n := l.name(&l.list[i])
		if _, changed := l.pending[n]; !changed {
			out = append(out, n)
		}
	}
	for n, v := range l.pending {
		if v != nil {
			out = append(out, n)
		}
	}
	return out
}

func (l *listed[T]) len() int {
	n := len(l.list)
	for name, v := range l.pending {
		_, had := l.find(name)
		switch {
		case v != nil && !had:
			n++
		case v == nil && had:
			n--
		}
	}
	return n
}

// simple is the sink of a resource whose objects stand for themselves: Namespaces,
// Nodes, Services.
type simple[T any] struct {
	listed[T]
	convert func(obj any) (T, diag.List, error)
	same    func(a, b *T) bool
	found   map[objectName]diag.List // what could not be read
}

type simpleItem[T any] struct {
	ident
	value T
	found diag.List
}

func (s *simple[T]) read(obj any) (any, error) {
	if item, ok := obj.(*simpleItem[T]); ok {
		return item, nil
	}
	v, found, err := s.convert(obj)
	if err != nil {
		return nil, err
	}
	n := s.name(&v)
	return &simpleItem[T]{ident: ident(n), value: v, found: found}, nil
}

func (s *simple[T]) set(item any) bool {
	it := item.(*simpleItem[T])
	n := it.id()
	note(&s.found, n, it.found)
	if old := s.get(n); old != nil && s.same(old, &it.value) {
		return false
	}
	s.put(n, &it.value)
	return true
}

func (s *simple[T]) remove(n objectName) bool {
	delete(s.found, n)
	if s.get(n) == nil {
		return false
	}
	s.put(n, nil)
	return true
}

func (s *simple[T]) replace(items []any) bool { return replaceAll(s, s.names(), items) }

// note keeps what was found about an object, as long as there is something.
func note(to *map[objectName]diag.List, n objectName, found diag.List) {
	if len(found.Errors)+len(found.Warnings) == 0 {
		delete(*to, n)
		return
	}
	if *to == nil {
		*to = map[objectName]diag.List{}
	}
	(*to)[n] = found
}

// replaceAll makes a sink hold exactly the items. had names what it holds.
func replaceAll(s sink, had []objectName, items []any) bool {
	news := false
	there := make(map[objectName]struct{}, len(items))
	for _, item := range items {
		there[item.(interface{ id() objectName }).id()] = struct{}{}
	}
	for _, n := range had {
		if _, ok := there[n]; !ok && s.remove(n) {
			news = true
		}
	}
	for _, item := range items {
		if s.set(item) {
			news = true
		}
	}
	return news
}

// intern returns one copy of each text: names of nodes, namespaces and accounts
// come a thousand times.
func intern(s string) string {
	if s == "" {
		return ""
	}
	return unique.Make(s).Value()
}

func newNamespaces() *simple[inventory.Namespace] {
	return &simple[inventory.Namespace]{
		listed: listed[inventory.Namespace]{name: func(n *inventory.Namespace) objectName { return objectName{"", n.Name} }},
		convert: func(obj any) (inventory.Namespace, diag.List, error) {
			v, ok := obj.(*corev1.Namespace)
			if !ok {
				return inventory.Namespace{}, diag.List{}, fmt.Errorf("want a Namespace, got %T", obj)
			}
			n, found := inventory.ReadNamespace(v)
			delete(n.Annotations, corev1.LastAppliedConfigAnnotation)
			return n, found, nil
		},
		same: func(a, b *inventory.Namespace) bool {
			return maps.Equal(a.Labels, b.Labels) && maps.Equal(a.Annotations, b.Annotations)
		},
	}
}

// newNodes makes the sink of Nodes. seen is told of every Node as it is read.
func newNodes(seen func(*corev1.Node)) *simple[inventory.Node] {
	return &simple[inventory.Node]{
		listed: listed[inventory.Node]{name: func(n *inventory.Node) objectName { return objectName{"", n.Name} }},
		convert: func(obj any) (inventory.Node, diag.List, error) {
			v, ok := obj.(*corev1.Node)
			if !ok {
				return inventory.Node{}, diag.List{}, fmt.Errorf("want a Node, got %T", obj)
			}
			seen(v)
			n, found := inventory.ReadNode(v)
			return n, found, nil
		},
		same: func(a, b *inventory.Node) bool {
			return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.PodCIDRs, b.PodCIDRs) &&
				slices.Equal(a.DeviceAddrs, b.DeviceAddrs)
		},
	}
}

func newServices() *simple[inventory.Service] {
	return &simple[inventory.Service]{
		listed: listed[inventory.Service]{name: func(s *inventory.Service) objectName { return objectName{s.Namespace, s.Name} }},
		convert: func(obj any) (inventory.Service, diag.List, error) {
			v, ok := obj.(*corev1.Service)
			if !ok {
				return inventory.Service{}, diag.List{}, fmt.Errorf("want a Service, got %T", obj)
			}
			s, found := inventory.ReadService(v)
			return s, found, nil
		},
		// Traffic policies concern no enforcement: a Service that changes in these alone
		// stays as it was.
		same: func(a, b *inventory.Service) bool {
			return slices.Equal(a.ClusterIPs, b.ClusterIPs) && slices.Equal(a.ExternalIPs, b.ExternalIPs) &&
				maps.Equal(a.Selector, b.Selector) && maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Ports, b.Ports)
		},
	}
}

// withImplied adds the namespaces that only pods mention: their Namespace is on
// its way.
func withImplied(declared []inventory.Namespace, mentioned map[string]int) []inventory.Namespace {
	known := make(map[string]struct{}, len(declared))
	for i := range declared {
		known[declared[i].Name] = struct{}{}
	}
	var more []inventory.Namespace
	for name, n := range mentioned {
		if _, ok := known[name]; !ok && n > 0 {
			more = append(more, inventory.ImpliedNamespace(name))
		}
	}
	if more == nil {
		return declared
	}
	more = append(more, declared...)
	slices.SortFunc(more, func(a, b inventory.Namespace) int { return strings.Compare(a.Name, b.Name) })
	return more
}

// addrsOf is a claim to addresses; see pods.
func without(addrs []netip.Addr, a netip.Addr) []netip.Addr {
	return slices.DeleteFunc(slices.Clone(addrs), func(b netip.Addr) bool { return a == b })
}
