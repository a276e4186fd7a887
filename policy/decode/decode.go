package decode

import (
	"bytes"
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// Decoder decodes the objects of some kinds. The zero value knows the kinds that describe
// the world policies select from only: Pod, Namespace, Node and Service of v1. A Decoder
// is not changed by use and may be shared.
type Decoder struct {
	// Kinds are the policy kinds, as the dialects list them. The type behind each
	// embeds metav1.TypeMeta and metav1.ObjectMeta.
	Kinds []api.Kind
	// Workloads makes Deployments and the other kinds that make pods cluster
	// objects, too. Without it they are ignored with a warning.
	Workloads bool
}

// Decode reads every object in data: YAML of any number of documents, or JSON.
// file is the path findings name; with "" they name no file, as for objects from
// an API server.
//
// Objects come in the order written, policies and cluster objects mixed (see
// [IsCluster]); those with an error are left out. Cluster objects carry neither
// Raw nor Lines. Data without a single object is not an error here.
func (d *Decoder) Decode(file string, data []byte) ([]*api.Object, diag.List) {
	r := d.reader(file)
	docs, bad := r.documents(data)
	if bad != nil {
		r.report(&r.found.Errors, api.Ref{}, *bad)
	}
	for _, doc := range docs {
		if doc.root == nil || len(doc.problems) > 0 {
			var ref api.Ref
			if doc.root != nil {
				ref = identity(doc.root, "", "")
			}
			for _, p := range doc.problems {
				r.report(&r.found.Errors, ref, p)
			}
		}
		if doc.root != nil {
			r.usable = len(doc.problems) == 0
			r.document(doc.root)
		}
	}
	return r.objects, r.found
}

func (d *Decoder) reader(file string) reader {
	r := reader{kinds: append(slices.Clip(d.Kinds), clusterKinds...), file: file}
	if d.Workloads {
		r.kinds = append(r.kinds, workloadKinds...)
	}
	return r
}

// Duplicates reports every object that is there twice: same group, kind,
// namespace and name, whatever the version. Each finding names both places.
func Duplicates(objs []*api.Object) diag.List {
	var l diag.List
	first := make(map[api.Ref]*api.Object, len(objs))
	for _, o := range objs {
		if f := first[o.Ref()]; f != nil {
			message := "duplicate object"
			if f.File != "" {
				message += ", first defined at " + f.File
			}
			l.Errors = append(l.Errors, o.Finding("", message, "keep one of the two"))
			continue
		}
		first[o.Ref()] = o
	}
	return l
}

// reader is one call of Decode.
type reader struct {
	kinds   []api.Kind
	file    string
	usable  bool // the current document had no problem of its own
	objects []*api.Object
	found   diag.List
}

// report files a problem under an object.
func (r *reader) report(to *[]diag.Diagnostic, ref api.Ref, p problem) {
	*to = append(*to, diag.Diagnostic{File: r.place(p.line), Object: ref, Path: p.path, Message: p.message, Hint: p.hint, Code: p.code})
}

func (r *reader) place(line int) string {
	if r.file == "" || line == 0 {
		return r.file
	}
	return r.file + ":" + strconv.Itoa(line)
}

var bom = []byte("\xef\xbb\xbf")

// documents parses data as what it is.
func (r *reader) documents(data []byte) ([]document, *problem) {
	data = bytes.TrimPrefix(data, bom)
	if p := notText(data); p != nil {
		return nil, p
	}
	if t := bytes.TrimLeft(data, " \t\r\n"); len(t) > 0 && (t[0] == '{' || t[0] == '[') {
		docs, bad := parseJSON(data)
		// Without the name of JSON it may still be a YAML flow map.
		if bad == nil || strings.HasSuffix(strings.ToLower(r.file), ".json") {
			return docs, bad
		}
	}
	return parseYAML(data), nil
}

// notText explains why data is not UTF-8 text, nil when it is.
func notText(data []byte) *problem {
	const hint = "save the file as plain UTF-8 text"
	if bytes.HasPrefix(data, []byte{0xff, 0xfe}) || bytes.HasPrefix(data, []byte{0xfe, 0xff}) {
		return &problem{line: 1, message: "the file is UTF-16", hint: hint}
	}
	i := bytes.IndexByte(data, 0)
	message := "the file is binary: it has a NUL byte"
	if i < 0 {
		if utf8.Valid(data) {
			return nil
		}
		for i = 0; ; {
			c, size := utf8.DecodeRune(data[i:])
			if c == utf8.RuneError && size == 1 {
				break
			}
			i += size
		}
		message = fmt.Sprintf("the file is not UTF-8 text: byte 0x%02x", data[i])
	}
	return &problem{line: 1 + bytes.Count(data[:i], []byte("\n")), message: message, hint: hint}
}

// identity names an object before it is decoded, as far as it can be read. version
// (an apiVersion) and kind are those of an object that names none.
func identity(root *node, version, kind string) api.Ref {
	meta := root.get("metadata")
	r := api.Ref{Kind: cmp.Or(root.get("kind").str(), kind), Name: meta.get("name").str()}
	r.Group, _ = cutVersion(cmp.Or(root.get("apiVersion").str(), version))
	if r.Name != "" {
		r.Namespace = meta.get("namespace").str()
	}
	return r
}

// cutVersion takes an apiVersion apart. The core API's group is "".
func cutVersion(s string) (group, version string) {
	if group, version, ok := strings.Cut(s, "/"); ok {
		return group, version
	}
	return "", s
}

// document decodes a top-level value: an object or a list of objects.
func (r *reader) document(root *node) {
	if root.kind == badNode {
		return
	}
	if root.kind != mapNode {
		hint := "every document is an object with apiVersion, kind and metadata"
		if root.kind == listNode {
			hint = "objects in a list need a `kind: List` with items around them"
		}
		r.report(&r.found.Errors, api.Ref{}, problem{line: root.line, message: "expected an object, got " + withArticle(root.kind.String()), hint: hint})
		return
	}
	kind, items := root.get("kind").str(), itemsOf(root)
	if kind == "List" || strings.HasSuffix(kind, "List") && items != nil {
		r.list(root, kind, items)
		return
	}
	r.object(root, "", "")
}

func itemsOf(root *node) *node {
	if items := root.get("items"); items != nil {
		return items
	}
	return root.get("Items")
}

// list decodes the items of a v1 List, as kubectl prints, or of an XxxList, as
// the API server does: its items may leave out apiVersion and kind.
func (r *reader) list(root *node, kind string, items *node) {
	version, elem := root.get("apiVersion").str(), strings.TrimSuffix(kind, "List")
	bad := func(n *node, path, message, hint string) {
		r.report(&r.found.Errors, api.Ref{Kind: kind}, problem{line: n.line, path: path, message: message, hint: hint})
	}
	if version == "" {
		bad(root, "apiVersion", "missing", "every list needs apiVersion and kind, such as v1 and List")
	} else if elem == "" && version != "v1" {
		bad(root, "apiVersion", "expected v1, got "+version, "write apiVersion: v1")
	}
	if elem == "" {
		version = ""
	}
	for i := range root.fields {
		switch f := &root.fields[i]; f.key {
		case "apiVersion", "kind", "metadata", "items", "Items": // Go programs without JSON names write the last
		default:
			bad(f.value, f.key, fmt.Sprintf("unknown field %q", f.key), "a list has only items")
		}
	}
	switch {
	case items == nil:
		bad(root, "items", "missing", "write the objects as `items: [...]`, or without the List around them")
		return
	case items.kind == nullNode: // Go's empty list
		return
	case items.kind != listNode:
		bad(items, "items", "expected a list, got "+withArticle(items.kind.String()), "write each object as an item, behind `- `")
		return
	}
	for i, it := range items.items {
		r.listItem(it, i, version, elem, bad)
	}
}

// listItem decodes an item of a list. version and kind are what items inherit.
func (r *reader) listItem(it *node, i int, version, kind string, bad func(n *node, path, message, hint string)) {
	path := index("items", i)
	itemKind := it.get("kind").str()
	switch {
	case it.kind != mapNode:
		bad(it, path, "expected an object, got "+withArticle(it.kind.String()), "an item is a whole object with apiVersion, kind and metadata")
	case itemKind == "List" || strings.HasSuffix(itemKind, "List") && it.get("items") != nil:
		bad(it, path, "a list inside a list", "move its items up")
	default:
		r.object(it, version, kind)
	}
}

// object decodes one object. version and kind are what an object inherits from
// the list around it.
func (r *reader) object(root *node, version, kind string) {
	ref := identity(root, version, kind)
	ok := true
	read := func(name string, to *string) {
		switch n := root.get(name); {
		case n == nil || n.kind == nullNode || n.kind == stringNode && n.text == "":
			if *to == "" {
				ok = false
				r.report(&r.found.Errors, ref, problem{line: root.line, path: name, message: "missing", hint: "every object needs apiVersion and kind"})
			}
		case n.kind != stringNode:
			ok = false
			r.report(&r.found.Errors, ref, problem{line: n.line, path: name, message: "expected a string, got " + withArticle(n.kind.String()), hint: quoteHint(n)})
		default:
			*to = n.text
		}
	}
	read("apiVersion", &version)
	read("kind", &kind)
	if !ok {
		return
	}
	group, v := cutVersion(version)
	known := slices.IndexFunc(r.kinds, func(k api.Kind) bool { return k.Group == group && k.Version == v && k.Kind == kind })
	if known < 0 {
		p, isError := r.unknownKind(group, v, kind)
		p.line = child(root, p.path).line
		to := &r.found.Warnings
		if isError {
			to = &r.found.Errors
		}
		r.report(to, ref, p)
		return
	}
	r.known(root, r.kinds[known])
}

// known decodes an object of a known kind.
func (r *reader) known(root *node, kind api.Kind) {
	if kind.Select != nil {
		raw, _ := root.raw().(map[string]any)
		chosen, p := kind.Select(raw)
		if p != nil {
			r.report(&r.found.Errors, identity(root, apiVersion(kind), kind.Kind),
				problem{line: lineOf(root, p.Path), path: p.Path, message: p.Message, hint: p.Hint})
			return
		}
		kind = chosen
	}
	w := walker{kind: kind, lenient: isClusterKind(kind)}
	if !w.lenient && r.file != "" {
		w.lines = map[string]int{}
	}
	o := &api.Object{Kind: kind, Value: kind.New(), File: r.place(root.line), Lines: w.lines}
	w.fill(reflect.ValueOf(o.Value).Elem(), root, "", "")
	meta, typeMeta := metaOf(o.Value)
	if meta == nil || typeMeta == nil {
		panic("decode: the type of " + kind.GVK() + " lacks TypeMeta or ObjectMeta")
	}
	*typeMeta = metav1.TypeMeta{APIVersion: apiVersion(kind), Kind: kind.Kind} // a list may imply them
	w.checkMeta(meta, root)
	o.Namespace, o.Name = meta.Namespace, meta.Name
	o.Annotations, o.Generation, o.UID = meta.Annotations, meta.Generation, string(meta.UID)
	if !w.lenient {
		o.Raw, _ = root.raw().(map[string]any)
	}
	ref := o.Ref()
	if o.Name == "" {
		ref = api.Ref{Group: kind.Group, Kind: kind.Kind}
	}
	for _, p := range w.errors {
		r.report(&r.found.Errors, ref, p)
	}
	for _, p := range w.warnings {
		r.report(&r.found.Warnings, ref, p)
	}
	if len(w.errors) == 0 && r.usable {
		r.objects = append(r.objects, o)
	}
}
