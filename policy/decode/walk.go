package decode

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// walker fills a Go value from a node, strictly. It goes on after a problem, so
// that all problems of an object are found; the value is then not used.
type walker struct {
	kind     api.Kind
	lenient  bool // unknown fields that resemble nothing known are warnings
	lines    map[string]int
	stack    []frame // the structs around the current field, outermost first
	errors   []problem
	warnings []problem
}

// frame is a struct being walked.
type frame struct {
	typ  reflect.Type
	path string
}

func (w *walker) errorf(n *node, path, hint, format string, args ...any) {
	w.errors = append(w.errors, problem{line: n.line, path: path, message: fmt.Sprintf(format, args...), hint: hint})
}

// wrongType reports that n does not have the wanted shape.
func (w *walker) wrongType(n *node, path, want, hint string) {
	got := n.kind.String()
	switch n.kind {
	case stringNode:
		text := n.text
		if r := []rune(text); len(r) > 40 {
			text = string(r[:40]) + "…"
		}
		got += " " + strconv.Quote(text)
	case boolNode, intNode, floatNode:
		got += " " + n.text
	}
	w.errorf(n, path, hint, "expected %s, got %s", withArticle(want), withArticle(got))
}

var (
	intOrStringType = reflect.TypeFor[intstr.IntOrString]()
	quantityType    = reflect.TypeFor[resource.Quantity]()
)

// fill sets v, which is settable, from n. name is the last field name of path.
func (w *walker) fill(v reflect.Value, n *node, path, name string) {
	if w.lines != nil && w.lines[path] == 0 {
		w.lines[path] = n.line
	}
	t := v.Type()
	if t.Kind() == reflect.Pointer {
		if n.kind == nullNode || n.kind == badNode {
			return
		}
		p := reflect.New(t.Elem())
		w.fill(p.Elem(), n, path, name)
		v.Set(p)
		return
	}
	switch {
	case n.kind == nullNode || n.kind == badNode:
		return // absent; lists and maps of strings look before they call
	case t == intOrStringType:
		w.intOrString(v, n, path)
		return
	case parsesItself(t):
		w.unmarshal(v, n, path)
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		w.fillStruct(v, n, path, name)
	case reflect.Slice:
		w.fillSlice(v, n, path, name)
	case reflect.Map:
		w.fillMap(v, n, path)
	case reflect.String:
		if n.kind != stringNode {
			w.wrongType(n, path, "string", quoteHint(n))
			return
		}
		v.SetString(n.text)
	case reflect.Bool:
		if n.kind != boolNode {
			w.wrongType(n, path, "boolean", unquoteHint(n, n.text == "true" || n.text == "false", "write true or false"))
			return
		}
		v.SetBool(truth(n.text))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		if i, ok := w.integer(n, path, t.Bits()); ok {
			v.SetInt(i)
		}
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		if i, ok := w.integer(n, path, 64); ok {
			if i < 0 || v.OverflowUint(uint64(i)) {
				w.errorf(n, path, fmt.Sprintf("write a number from 0 to %d", uint64(1)<<t.Bits()-1), "%s is out of range for an unsigned %d-bit integer", n.text, t.Bits())
				return
			}
			v.SetUint(uint64(i))
		}
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(n.text, t.Bits())
		if n.kind != intNode && n.kind != floatNode || !number.MatchString(n.text) || err != nil {
			w.wrongType(n, path, "number", unquoteHint(n, number.MatchString(n.text), "write a decimal number"))
			return
		}
		v.SetFloat(f)
	case reflect.Interface:
		v.Set(reflect.ValueOf(n.raw()))
	default:
		w.errorf(n, path, "", "values of type %s cannot be read", t)
	}
}

// quoteHint answers a scalar that should have been a string.
func quoteHint(n *node) string {
	switch n.kind {
	case boolNode, intNode, floatNode:
		return "quote it: " + strconv.Quote(n.text)
	}
	return "write a text, in quotes where it looks like something else"
}

// unquoteHint answers a string that would be right without its quotes; anything else
// gets the other hint.
func unquoteHint(n *node, right bool, other string) string {
	if n.kind == stringNode && right {
		return "remove the quotes: " + n.text
	}
	return other
}

// integer reads a decimal integer of the given width.
func (w *walker) integer(n *node, path string, bits int) (int64, bool) {
	if n.kind != intNode && n.kind != floatNode {
		w.wrongType(n, path, "integer", unquoteHint(n, decimal.MatchString(n.text), "write a whole number in decimal"))
		return 0, false
	}
	if !decimal.MatchString(n.text) {
		hint := "write a whole number, without a fraction"
		if n.kind == intNode || strings.TrimLeft(n.text, "0123456789_") == "" {
			hint = "write it in decimal, without leading zeros"
		}
		w.errorf(n, path, hint, "expected an integer, got %s", n.text)
		return 0, false
	}
	i, err := strconv.ParseInt(n.text, 10, bits)
	if err != nil {
		w.errorf(n, path, fmt.Sprintf("write a number from %d to %d", -1<<(bits-1), 1<<(bits-1)-1), "%s is out of range for a %d-bit integer", n.text, bits)
		return 0, false
	}
	return i, true
}

// intOrString reads a port and its like: an integer of 32 bits or a string.
func (w *walker) intOrString(v reflect.Value, n *node, path string) {
	switch n.kind {
	case stringNode:
		v.Set(reflect.ValueOf(intstr.FromString(n.text)))
	case intNode, floatNode:
		if i, ok := w.integer(n, path, 32); ok {
			v.Set(reflect.ValueOf(intstr.FromInt32(int32(i))))
		}
	default:
		w.wrongType(n, path, "integer or string", "write a number, or a name in quotes")
	}
}

// hugeExponent finds numbers whose exact value would fill memory.
var hugeExponent = regexp.MustCompile(`[eE][-+]?[0-9]{4,}`)

// unmarshal lets a type read its own JSON: times, quantities, raw fields.
func (w *walker) unmarshal(v reflect.Value, n *node, path string) {
	if v.Type() == quantityType && (len(n.text) > 64 || hugeExponent.MatchString(n.text)) {
		w.errorf(n, path, "write a quantity such as 100m or 64Mi", "%.64s is out of range", n.text)
		return
	}
	data, err := n.json()
	if err == nil {
		err = v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON(data)
	}
	if err != nil {
		w.errorf(n, path, "write it as the API's reference describes it", "not a valid %s: %v", v.Type().Name(), err)
	}
}

func (w *walker) fillStruct(v reflect.Value, n *node, path, name string) {
	t := v.Type()
	if n.kind != mapNode {
		hint := "write its fields below it, or {} for an empty one"
		if n.kind == listNode && name != "" {
			hint = name + " is one object, not a list: remove the `-`"
		}
		w.wrongType(n, path, "object", hint)
		if n.kind == listNode { // look inside for more
			for i, it := range n.items {
				w.fill(reflect.New(t).Elem(), it, index(path, i), name)
			}
		}
		return
	}
	w.stack = append(w.stack, frame{t, path})
	defer func() { w.stack = w.stack[:len(w.stack)-1] }()
	fields := fieldsOf(t)
	for i := range n.fields {
		f := &n.fields[i]
		gf := fields.byName[f.key]
		switch {
		case path == "" && f.key == "status" && !w.lenient:
			// The status of a policy is its implementation's own business, and
			// servers print one for kinds that have lost theirs.
		case path == "" && f.key == "description" && gf == nil:
			// People write one there, and API servers prune it.
			w.warnings = append(w.warnings, problem{
				line: f.line, path: f.key, message: "the field description is ignored: API servers remove it from an object",
				hint: "write an annotation, such as metadata.annotations.description", code: diag.UnknownField,
			})
		case gf == nil:
			w.unknown(f, join(path, f.key))
		default:
			at := join(path, f.key)
			if w.lines != nil {
				w.lines[at] = f.line
			}
			w.fill(v.FieldByIndex(gf.index), f.value, at, f.key)
		}
	}
}

// unknown reports a field its struct does not have.
func (w *walker) unknown(f *field, path string) {
	p := problem{line: f.line, path: path, message: fmt.Sprintf("unknown field %q", f.key), hint: w.unknownHint(f.key), code: diag.UnknownField}
	here := fieldsOf(w.stack[len(w.stack)-1].typ)
	_, d := nearest(here, f.key)
	if w.lenient && d == 0 && caseHint(here, f.key) == "" && path != "metadata" && !strings.HasPrefix(path, "metadata.") {
		p.hint = ""
		p.message = fmt.Sprintf("field %q is not known to this version and ignored", f.key)
		w.warnings = append(w.warnings, p)
		return
	}
	w.errors = append(w.errors, p)
}

func (w *walker) fillSlice(v reflect.Value, n *node, path, name string) {
	t := v.Type()
	if t.Elem().Kind() == reflect.Uint8 {
		data, err := base64.StdEncoding.DecodeString(n.text)
		if n.kind != stringNode || err != nil {
			w.wrongType(n, path, "base64 string", "encode the bytes in base64 and quote the result")
			return
		}
		v.SetBytes(data)
		return
	}
	if n.kind != listNode {
		w.wrongType(n, path, "list", listHint(name, t.Elem(), n))
		if n.kind == mapNode { // read it as the one item it probably is
			w.fill(reflect.New(t.Elem()).Elem(), n, path, name)
		}
		return
	}
	s := reflect.MakeSlice(t, len(n.items), len(n.items))
	for i, it := range n.items {
		if it.kind == nullNode {
			hint := "remove it"
			if structOf(t.Elem()) != nil {
				hint = "write {} for an empty one"
			}
			w.errorf(it, index(path, i), hint, "a list item is null")
			continue
		}
		w.fill(s.Index(i), it, index(path, i), name)
	}
	v.Set(s)
}

func (w *walker) fillMap(v reflect.Value, n *node, path string) {
	t := v.Type()
	if n.kind != mapNode {
		w.wrongType(n, path, "mapping", "write `key: value`, one a line or between braces")
		return
	}
	m := reflect.MakeMapWithSize(t, len(n.fields))
	for i := range n.fields {
		f := &n.fields[i]
		at := key(path, f.key)
		if f.odd != "" {
			w.errors = append(w.errors, problem{
				line: f.line, path: at, message: fmt.Sprintf("the key `%s` is parsed as %s", f.key, withArticle(f.odd)), hint: "quote it: " + strconv.Quote(f.key),
			})
			continue
		}
		if f.value.kind == nullNode && t.Elem().Kind() == reflect.String {
			w.errorf(f.value, at, `write "" for an empty one`, "expected a string, got null")
			continue
		}
		e := reflect.New(t.Elem()).Elem()
		w.fill(e, f.value, at, f.key)
		m.SetMapIndex(reflect.ValueOf(f.key).Convert(t.Key()), e)
	}
	v.Set(m)
}

// key appends a map key to a path.
func key(path, k string) string { return path + "[" + strconv.Quote(k) + "]" }

func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }
