package kube

import (
	"encoding/json"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/decode"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/lower/networkpolicy"
)

// policies is the sink of one policy resource. An object that cannot be decoded is
// kept as one with Problems: who loads decides what that means.
//
// An update that changes nothing policy can see, such as one of the status, keeps
// the decoded object: the pointer stays the same, and everybody who remembers
// something about the object still does.
type policies struct {
	kind    api.Kind
	decoder decode.Decoder

	mu    sync.RWMutex // held for writing with the Source's lock; read alone by read
	items map[objectName]*policyItem
	// sorted is items by name, nil until it is asked for, and objects their objects,
	// never written to once handed out. warned counts items with warnings.
	sorted  []*policyItem
	objects []*api.Object
	warned  int
}

type policyItem struct {
	ident
	sum      uint64 // of what was decoded
	object   *api.Object
	warnings []diag.Diagnostic
}

func newPolicies(kind api.Kind) *policies {
	return &policies{kind: kind, decoder: decode.Decoder{Kinds: []api.Kind{kind}}, items: map[objectName]*policyItem{}}
}

var sumSeed = maphash.MakeSeed()

func (s *policies) read(obj any) (any, error) {
	if item, ok := obj.(*policyItem); ok {
		return item, nil
	}
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("want an object of %s, got %T", s.kind.GVK(), obj)
	}
	n := objectName{u.GetNamespace(), u.GetName()}
	data, err := json.Marshal(trimmed(u.Object))
	if err != nil {
		return nil, fmt.Errorf("%s %s/%s: %w", s.kind.Kind, n.namespace, n.name, err)
	}
	sum := maphash.Bytes(sumSeed, data)
	s.mu.RLock()
	old := s.items[n]
	s.mu.RUnlock()
	if old != nil && old.sum == sum {
		return old, nil
	}
	return decodePolicy(&s.decoder, s.kind, n, data, sum), nil
}

func decodePolicy(d *decode.Decoder, kind api.Kind, n objectName, data []byte, sum uint64) *policyItem {
	item := &policyItem{ident: ident{namespace: intern(n.namespace), name: strings.Clone(n.name)}, sum: sum}
	objs, found := d.Decode("", data)
	item.warnings = found.Warnings
	switch {
	case len(found.Errors) == 0 && len(objs) == 1:
		item.object = objs[0]
		if kind.Group == networkpolicy.Group {
			// No field of it tells null from absent, and there are thousands: the
			// document would be half of what each takes.
			item.object.Raw = nil
		}
	case len(found.Errors) == 0: // a warning for what the decoder thinks is no policy
		found.Errors = []diag.Diagnostic{{Message: "the object cannot be read as " + kind.GVK(), Hint: "see that apiVersion and kind are right, and write the object anew"}}
		fallthrough
	default:
		item.object = &api.Object{Kind: kind, Namespace: item.namespace, Name: item.name, Problems: found.Errors}
		for i := range found.Errors {
			found.Errors[i].Object = item.object.Ref()
		}
	}
	return item
}

// trimmed returns a policy object without what policy cannot see and what others
// keep writing: its status, who manages which field, and the copy of itself that
// kubectl leaves. The rest is decoded strictly. obj is not modified.
func trimmed(obj map[string]any) map[string]any {
	out := maps.Clone(obj)
	delete(out, "status")
	meta, ok := out["metadata"].(map[string]any)
	if !ok {
		return out
	}
	meta = maps.Clone(meta)
	for _, k := range []string{"managedFields", "resourceVersion", "selfLink"} {
		delete(meta, k)
	}
	if a, ok := meta["annotations"].(map[string]any); ok {
		if _, there := a[corev1.LastAppliedConfigAnnotation]; there {
			a = maps.Clone(a)
			delete(a, corev1.LastAppliedConfigAnnotation)
			meta["annotations"] = a
		}
	}
	out["metadata"] = meta
	return out
}

func (s *policies) set(item any) bool {
	it := item.(*policyItem)
	s.mu.Lock()
	defer s.mu.Unlock()
	n := it.id()
	if old := s.items[n]; old != nil && old.object == it.object {
		return false
	}
	s.items[n] = it
	if s.sorted == nil {
		return true
	}
	i, found := s.find(n)
	s.objects = slices.Clone(s.objects)
	if found {
		s.warn(s.sorted[i], -1)
		s.sorted[i], s.objects[i] = it, it.object
	} else {
		s.sorted, s.objects = slices.Insert(s.sorted, i, it), slices.Insert(s.objects, i, it.object)
	}
	s.warn(it, 1)
	return true
}

func (s *policies) remove(n objectName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	it, ok := s.items[n]
	if !ok {
		return false
	}
	delete(s.items, n)
	if s.sorted == nil {
		return true
	}
	i, _ := s.find(n)
	s.objects = slices.Delete(slices.Clone(s.objects), i, i+1)
	s.sorted = slices.Delete(s.sorted, i, i+1)
	s.warn(it, -1)
	return true
}

func (s *policies) find(n objectName) (int, bool) {
	return slices.BinarySearchFunc(s.sorted, n, func(it *policyItem, n objectName) int { return compareNames(it.id(), n) })
}

func (s *policies) warn(it *policyItem, n int) {
	if len(it.warnings) > 0 {
		s.warned += n
	}
}

func (s *policies) replace(items []any) bool {
	s.mu.Lock()
	s.sorted, s.objects = nil, nil // not one by one
	s.mu.Unlock()
	return replaceAll(s, slices.Collect(maps.Keys(s.items)), items)
}

func (s *policies) len() int { return len(s.items) }

// load returns what there is, by name, and appends the warnings about it. The list
// is read only, and the same memory as long as nothing has changed.
func (s *policies) load(warnings []diag.Diagnostic) ([]*api.Object, []diag.Diagnostic) {
	if s.sorted == nil {
		s.sorted = make([]*policyItem, 0, len(s.items))
		s.objects = make([]*api.Object, 0, len(s.items))
		s.warned = 0
		for _, n := range slices.SortedFunc(maps.Keys(s.items), compareNames) {
			it := s.items[n]
			s.sorted, s.objects = append(s.sorted, it), append(s.objects, it.object)
			s.warn(it, 1)
		}
	}
	if s.warned > 0 {
		for _, it := range s.sorted {
			warnings = append(warnings, it.warnings...)
		}
	}
	return s.objects, warnings
}
