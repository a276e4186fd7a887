package decode

import (
	"encoding/json"
	"reflect"
	"strings"
	"sync"
)

// goField is one JSON field of a Go struct.
type goField struct {
	name  string
	index []int // for reflect's FieldByIndex
	typ   reflect.Type
}

// goFields lists a struct's JSON fields the way encoding/json sees them:
// embedded structs without a name of their own are spliced in.
type goFields struct {
	list   []goField // in declaration order
	byName map[string]*goField
}

// fieldCache maps reflect.Type to *goFields. Types are few and fixed, so it
// never needs emptying.
var fieldCache sync.Map

// fieldsOf returns the JSON fields of a struct type.
func fieldsOf(t reflect.Type) *goFields {
	if f, ok := fieldCache.Load(t); ok {
		return f.(*goFields)
	}
	fs := &goFields{byName: map[string]*goField{}}
	fs.collect(t, nil)
	for i := range fs.list {
		fs.byName[fs.list[i].name] = &fs.list[i]
	}
	f, _ := fieldCache.LoadOrStore(t, fs)
	return f.(*goFields)
}

func (fs *goFields) collect(t reflect.Type, prefix []int) {
	for i := range t.NumField() {
		sf := t.Field(i)
		name, _, _ := strings.Cut(sf.Tag.Get("json"), ",")
		index := append(append([]int(nil), prefix...), i)
		switch {
		case name == "-" || (!sf.IsExported() && !sf.Anonymous):
		case sf.Anonymous && name == "" && sf.Type.Kind() == reflect.Struct:
			fs.collect(sf.Type, index)
		case sf.IsExported():
			if name == "" {
				name = sf.Name
			}
			fs.list = append(fs.list, goField{name: name, index: index, typ: sf.Type})
		}
	}
}

// fold finds a field's name whatever its case.
func (fs *goFields) fold(name string) (string, bool) {
	for _, f := range fs.list {
		if strings.EqualFold(f.name, name) {
			return f.name, true
		}
	}
	return "", false
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// parsesItself reports whether values of the type read their own JSON.
func parsesItself(t reflect.Type) bool {
	return t.Implements(unmarshaler) || reflect.PointerTo(t).Implements(unmarshaler)
}

// structOf strips pointers, lists and maps off a type and returns the struct
// inside, nil when there is none we walk into.
func structOf(t reflect.Type) reflect.Type {
	for {
		if parsesItself(t) {
			return nil
		}
		switch t.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			t = t.Elem()
		case reflect.Struct:
			return t
		default:
			return nil
		}
	}
}

// pathTo finds the shortest way from a struct type to a field of that name, not
// counting the struct itself: "from[].podSelector". It returns "" when there is
// none within depth steps.
func pathTo(t reflect.Type, name string, depth int) string {
	type step struct {
		t    reflect.Type
		path string
	}
	level, seen := []step{{t, ""}}, map[reflect.Type]bool{t: true}
	for range depth {
		var next []step
		for _, s := range level {
			for _, f := range fieldsOf(s.t).list {
				inner := structOf(f.typ)
				if inner == nil || seen[inner] {
					continue
				}
				seen[inner] = true
				path := join(s.path, f.name)
				if f.typ.Kind() == reflect.Slice {
					path += "[]"
				}
				if fieldsOf(inner).byName[name] != nil {
					return path
				}
				next = append(next, step{inner, path})
			}
		}
		level = next
	}
	return ""
}

// join appends a field name to a path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
