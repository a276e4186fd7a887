package scale

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// object is what every stored value can do.
type object interface {
	metav1.Object
	runtime.Object
}

// message is a value with the protobuf form of the API.
type message interface {
	object
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// resource is one resource served.
type resource struct {
	group, version, plural, kind string
	namespaced                   bool
	fresh                        func() message // nil: JSON only, as custom resources are

	objects map[string]*entry // by namespace/name
	log     []event           // since the start
	news    chan struct{}     // closed and replaced with every event
}

// entry is an object as it goes over the wire.
type entry struct {
	key     string
	version uint64
	data    []byte // protobuf without envelope where the resource has it, else JSON
}

// event is a change of a resource. kind is ADDED, MODIFIED, DELETED or BOOKMARK.
type event struct {
	kind    string
	version uint64
	data    []byte
}

func (r *resource) name() string {
	if r.group == "" {
		return r.plural
	}
	return r.plural + "." + r.group
}

func (r *resource) apiVersion() string { return strings.TrimPrefix(r.group+"/"+r.version, "/") }

// encode returns what an entry keeps of an object.
func (r *resource) encode(o object) ([]byte, error) {
	if m, ok := o.(message); ok && r.fresh != nil {
		return m.Marshal()
	}
	return json.Marshal(o)
}

// decode is the opposite.
func (r *resource) decode(data []byte) (object, error) {
	if r.fresh == nil {
		u := &unstructured.Unstructured{}
		return u, u.UnmarshalJSON(data)
	}
	m := r.fresh()
	return m, m.Unmarshal(data)
}

// form is a representation a client asks for.
type form int

const (
	asJSON form = iota
	asProtobuf
	asMetadata // JSON of metadata alone
)

const (
	contentJSON     = "application/json"
	contentProtobuf = runtime.ContentTypeProtobuf
)

// formOf reads an Accept header.
func (r *resource) formOf(accept string) form {
	switch {
	case strings.Contains(accept, "PartialObjectMetadata"):
		return asMetadata
	case r.fresh != nil && strings.Contains(accept, contentProtobuf):
		return asProtobuf
	}
	return asJSON
}

func (f form) contentType(watch bool) string {
	switch {
	case f == asProtobuf && watch:
		return contentProtobuf + ";stream=watch"
	case f == asProtobuf:
		return contentProtobuf
	}
	return contentJSON
}

// envelope precedes every protobuf object (k8s.io/apimachinery, serializer/protobuf).
const envelope = "k8s\x00"

func wrapped(apiVersion, kind string, raw []byte) ([]byte, error) {
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		return nil, err
	}
	return append([]byte(envelope), b...), nil
}

// whole returns stored data as a document of its own.
func (r *resource) whole(data []byte, f form) ([]byte, error) {
	switch {
	case f == asProtobuf:
		return wrapped(r.apiVersion(), r.kind, data)
	case f == asJSON && r.fresh == nil:
		return data, nil
	}
	o, err := r.decode(data)
	if err != nil {
		return nil, err
	}
	if f == asMetadata {
		return json.Marshal(metadataOf(o))
	}
	o.GetObjectKind().SetGroupVersionKind(schema.GroupVersionKind{Group: r.group, Version: r.version, Kind: r.kind})
	return json.Marshal(o)
}

func metadataOf(o metav1.Object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		ObjectMeta: metav1.ObjectMeta{
			Name: o.GetName(), Namespace: o.GetNamespace(), UID: o.GetUID(), ResourceVersion: o.GetResourceVersion(),
			Labels: o.GetLabels(), Annotations: o.GetAnnotations(),
		},
	}
}

// list returns entries as one list document.
func (r *resource) list(entries []*entry, meta metav1.ListMeta, f form) ([]byte, error) {
	if f == asProtobuf {
		// Every list message is {1: ListMeta, 2: items}.
		b, err := meta.Marshal()
		if err != nil {
			return nil, err
		}
		raw := field(nil, 1, b)
		for _, e := range entries {
			raw = field(raw, 2, e.data)
		}
		return wrapped(r.apiVersion(), r.kind+"List", raw)
	}
	items := make([]json.RawMessage, len(entries))
	for i, e := range entries {
		var err error
		if items[i], err = r.whole(e.data, f); err != nil {
			return nil, err
		}
	}
	of := metav1.TypeMeta{APIVersion: r.apiVersion(), Kind: r.kind + "List"}
	if f == asMetadata {
		of = metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}
	}
	return json.Marshal(struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        metav1.ListMeta   `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}{of, meta, items})
}

// field appends a length-delimited protobuf field.
func field(to []byte, number uint64, value []byte) []byte {
	to = binary.AppendUvarint(to, number<<3|2)
	to = binary.AppendUvarint(to, uint64(len(value)))
	return append(to, value...)
}

// frame returns an event as it goes into a watch.
func (r *resource) frame(e event, f form) ([]byte, error) {
	doc, err := r.whole(e.data, f)
	if err != nil {
		return nil, err
	}
	if f != asProtobuf {
		return fmt.Appendf(nil, "{\"type\":%q,\"object\":%s}\n", e.kind, doc), nil
	}
	b, err := (&metav1.WatchEvent{Type: e.kind, Object: runtime.RawExtension{Raw: doc}}).Marshal()
	if err != nil {
		return nil, err
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(b))), b...), nil
}

// bookmark is an object that only says how far a watch is.
func (r *resource) bookmark(version uint64, initial bool) (event, error) {
	var o object = &unstructured.Unstructured{Object: map[string]any{"apiVersion": r.apiVersion(), "kind": r.kind}}
	if r.fresh != nil {
		o = r.fresh()
	}
	o.SetResourceVersion(strconv.FormatUint(version, 10))
	if initial {
		o.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	data, err := r.encode(o)
	return event{"BOOKMARK", version, data}, err
}

// The messages that have protobuf.
var (
	_ message = (*corev1.Pod)(nil)
	_ message = (*corev1.Node)(nil)
)
