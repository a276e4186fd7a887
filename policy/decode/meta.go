package decode

import (
	"maps"
	"reflect"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/tierwall/tierwall/policy/api"
)

const (
	nameHint  = "use lower-case letters, digits and inner `-`, such as web-1"
	keyHint   = "write `name` or `example.com/name`, of letters, digits, `-`, `_` and `.`"
	valueHint = "use at most 63 letters, digits, `-`, `_` and `.`, or nothing"
)

// checkMeta checks an object's identity as the API server's admission does, and
// fills in the namespace of a namespaced object that names none: "default", as
// kubectl does without a context.
func (w *walker) checkMeta(m *metav1.ObjectMeta, root *node) {
	meta := root.get("metadata")
	at := func(name string) *node {
		for _, n := range []*node{meta.get(name), meta} {
			if n != nil {
				return n
			}
		}
		return root
	}
	switch {
	case m.Name != "":
		for _, e := range nameErrors(w.kind, m.Name) {
			w.errorf(at("name"), "metadata.name", nameHint, "%q is not a valid name: %s", m.Name, e)
		}
	case m.GenerateName != "":
		w.errorf(at("generateName"), "metadata.generateName", "write metadata.name", "generateName is refused: nothing here makes up the rest of the name")
	case meta.get("name") == nil || meta.get("name").kind == stringNode || meta.get("name").kind == nullNode:
		w.errorf(at("name"), "metadata.name", "write metadata.name", "the object has no name")
	}
	switch {
	case !w.kind.Namespaced && m.Namespace != "":
		w.errorf(at("namespace"), "metadata.namespace", "remove it", "%s is cluster-scoped and has no namespace", w.kind.Kind) // S0-01
	case w.kind.Namespaced && m.Namespace == "":
		m.Namespace = metav1.NamespaceDefault
	case w.kind.Namespaced:
		for _, e := range validation.IsDNS1123Label(m.Namespace) {
			w.errorf(at("namespace"), "metadata.namespace", nameHint, "%q is not a valid namespace: %s", m.Namespace, e)
		}
	}
	w.checkLabels(m.Labels, at("labels"))
	for _, k := range slices.Sorted(maps.Keys(m.Annotations)) {
		for _, e := range validation.IsQualifiedName(lower(k)) {
			w.errorf(child(at("annotations"), k), key("metadata.annotations", k), keyHint, "not a valid annotation key: %s", e)
		}
	}
}

func (w *walker) checkLabels(labels map[string]string, n *node) {
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		path := key("metadata.labels", k)
		for _, e := range validation.IsQualifiedName(k) {
			w.errorf(child(n, k), path, keyHint, "not a valid label key: %s", e)
		}
		for _, e := range validation.IsValidLabelValue(labels[k]) {
			w.errorf(child(n, k), path, valueHint, "not a valid label value: %s", e)
		}
	}
}

// child returns the value of a key, or n itself when there is none.
func child(n *node, key string) *node {
	if c := n.get(key); c != nil {
		return c
	}
	return n
}

// lower is strings.ToLower for ASCII: annotation keys may have capitals in the
// prefix, label keys may not.
func lower(s string) string {
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// nameErrors checks a name by its kind's rule.
func nameErrors(k api.Kind, name string) []string {
	if isClusterKind(k) && (k.Kind == "Namespace" || k.Kind == "Service") {
		return validation.IsDNS1123Label(name)
	}
	return validation.IsDNS1123Subdomain(name)
}

// metaOf returns the metadata embedded in the API type v points to; nil for what
// it lacks.
func metaOf(v any) (*metav1.ObjectMeta, *metav1.TypeMeta) {
	s := reflect.ValueOf(v).Elem()
	var om *metav1.ObjectMeta
	var tm *metav1.TypeMeta
	if f := s.FieldByName("ObjectMeta"); f.IsValid() {
		om, _ = f.Addr().Interface().(*metav1.ObjectMeta)
	}
	if f := s.FieldByName("TypeMeta"); f.IsValid() {
		tm, _ = f.Addr().Interface().(*metav1.TypeMeta)
	}
	return om, tm
}
