package main

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/tierwall/tierwall/policy/api/antrea"
)

type schema = v1.JSONSchemaProps

var (
	timeType        = reflect.TypeFor[metav1.Time]()
	objectMetaType  = reflect.TypeFor[metav1.ObjectMeta]()
	typeMetaType    = reflect.TypeFor[metav1.TypeMeta]()
	conditionType   = reflect.TypeFor[metav1.Condition]()
	selectorType    = reflect.TypeFor[metav1.LabelSelector]()
	requirementType = reflect.TypeFor[metav1.LabelSelectorRequirement]()
	intOrStringType = reflect.TypeFor[intstr.IntOrString]()
	numberType      = reflect.TypeFor[antrea.Number]()
)

// of returns the schema of a Go type's JSON form. Every object keeps the fields
// it does not know.
func (d docs) of(t reflect.Type) (schema, error) {
	switch t {
	case timeType:
		return schema{Type: "string", Format: "date-time"}, nil
	case intOrStringType, numberType:
		return schema{XIntOrString: true}, nil
	case objectMetaType:
		return schema{Type: "object"}, nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return d.of(t.Elem())
	case reflect.Bool:
		return schema{Type: "boolean"}, nil
	case reflect.String:
		return schema{Type: "string"}, nil
	case reflect.Int32:
		return schema{Type: "integer", Format: "int32"}, nil
	case reflect.Int64, reflect.Int:
		return schema{Type: "integer", Format: "int64"}, nil
	case reflect.Float64:
		return schema{Type: "number"}, nil
	case reflect.Slice:
		items, err := d.of(t.Elem())
		list := schema{Type: "array", Items: &v1.JSONSchemaPropsOrArray{Schema: &items}}
		if t.Elem() == conditionType {
			list.XListType, list.XListMapKeys = ptr.To("map"), []string{"type"}
		}
		return list, err
	case reflect.Map:
		values, err := d.of(t.Elem())
		return schema{Type: "object", AdditionalProperties: &v1.JSONSchemaPropsOrBool{Allows: true, Schema: &values}}, err
	case reflect.Struct:
		return d.ofStruct(t)
	}
	return schema{}, fmt.Errorf("no schema for %s", t)
}

func (d docs) ofStruct(t reflect.Type) (schema, error) {
	s := schema{
		Type: "object", Properties: map[string]schema{}, Description: d.ofType(t), XPreserveUnknownFields: ptr.To(true),
	}
	for _, f := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type == typeMetaType {
			s.Properties["apiVersion"], s.Properties["kind"] = schema{Type: "string"}, schema{Type: "string"}
			continue
		}
		if len(f.Index) > 1 || name == "" || options == "inline" {
			if len(f.Index) > 1 { // of an embedded struct that is treated above
				continue
			}
			return schema{}, fmt.Errorf("%s.%s has no name in JSON", t, f.Name)
		}
		field, err := d.of(f.Type)
		if err != nil {
			return schema{}, fmt.Errorf("%s.%s: %w", t, f.Name, err)
		}
		if text := d.ofField(t, f, name); text != "" {
			field.Description = text
		}
		s.Properties[name] = field
	}
	switch t {
	case conditionType:
		s.Required = []string{"status", "type"} // what the samples of S2-82 have
		s.XPreserveUnknownFields = nil
	case requirementType:
		s.Required = []string{"key", "operator"}
	case selectorType:
		s.XMapType = ptr.To("atomic")
	}
	return s, nil
}

// union merges the schemas of one kind's shapes: what any of them allows, as far
// as one structural schema can say it.
func union(a, b schema) (schema, error) {
	if a.Type != b.Type || a.XIntOrString != b.XIntOrString || a.Format != b.Format {
		return schema{}, fmt.Errorf("%s and %s", a.Type, b.Type)
	}
	if a.XMapType == nil || b.XMapType == nil {
		a.XMapType = nil
	}
	if a.Description == "" || b.Description != "" && len(b.Description) < len(a.Description) {
		a.Description = b.Description
	}
	a.Required = slices.DeleteFunc(slices.Clone(a.Required), func(name string) bool { return !slices.Contains(b.Required, name) })
	if a.Items != nil {
		items, err := union(*a.Items.Schema, *b.Items.Schema)
		if err != nil {
			return schema{}, fmt.Errorf("[]: %w", err)
		}
		a.Items = &v1.JSONSchemaPropsOrArray{Schema: &items}
	}
	if a.Properties != nil {
		a.Properties = maps.Clone(a.Properties)
	}
	for _, name := range slices.Sorted(maps.Keys(b.Properties)) {
		have, both := a.Properties[name]
		if !both {
			a.Properties[name] = b.Properties[name]
			continue
		}
		merged, err := union(have, b.Properties[name])
		if err != nil {
			return schema{}, fmt.Errorf("%s: %w", name, err)
		}
		a.Properties[name] = merged
	}
	return a, nil
}

// edit applies f to the schema at path: names separated by dots, each followed by
// [] for the items of a list: "spec.ingress[].from[]".
func edit(s *schema, path string, f func(*schema)) error {
	name, rest, more := strings.Cut(path, ".")
	name, isList := strings.CutSuffix(name, "[]")
	next, ok := s.Properties[name]
	if !ok {
		return fmt.Errorf("there is no field %q", name)
	}
	target := &next
	if isList {
		if next.Items == nil {
			return fmt.Errorf("field %q is no list", name)
		}
		items := *next.Items.Schema // not shared with other versions
		next.Items = &v1.JSONSchemaPropsOrArray{Schema: &items}
		target = &items
	}
	if more {
		if err := edit(target, rest, f); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	} else {
		f(target)
	}
	s.Properties[name] = next
	return nil
}
