package cli

import (
	"fmt"
	"reflect"
	"unicode/utf8"

	"github.com/tierwall/tierwall/policy/diag"
)

// maxText bounds one string in what is printed for people, in characters.
const maxText = 4096

// Escape makes a string from elsewhere fit for a line that people read: see
// [diag.Escape]. A very long one is cut.
func Escape(s string) string {
	s = diag.Escape(s)
	if len(s) <= maxText {
		return s
	}
	if n := utf8.RuneCountInString(s); n > maxText {
		return string([]rune(s)[:maxText]) + fmt.Sprintf("… (%d more characters)", n-maxText)
	}
	return s
}

// EscapeAll returns a copy of an answer with [Escape] of all its exported strings.
// Functions that print an answer for people begin with it; JSON has the answer
// itself.
func EscapeAll[T any](v T) T {
	return escapeValue(reflect.ValueOf(&v).Elem()).Interface().(T)
}

func escapeValue(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.String:
		return reflect.ValueOf(Escape(v.String())).Convert(v.Type())
	case reflect.Pointer, reflect.Interface:
		if v.IsNil() {
			return v
		}
		if v.Kind() == reflect.Interface {
			return escapeValue(v.Elem())
		}
		p := reflect.New(v.Type().Elem())
		p.Elem().Set(escapeValue(v.Elem()))
		return p
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		list := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			list.Index(i).Set(escapeValue(v.Index(i)))
		}
		return list
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		m := reflect.MakeMapWithSize(v.Type(), v.Len())
		for _, k := range v.MapKeys() {
			m.SetMapIndex(escapeValue(k), escapeValue(v.MapIndex(k)))
		}
		return m
	case reflect.Struct:
		s := reflect.New(v.Type()).Elem()
		s.Set(v)
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				s.Field(i).Set(escapeValue(v.Field(i)))
			}
		}
		return s
	}
	return v
}
