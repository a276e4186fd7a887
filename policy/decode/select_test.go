package decode

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tierwall/tierwall/policy/api"
)

type shapeOne struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	One               string `json:"one"`
}

type shapeTwo struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Two               []struct {
		Deep string `json:"deep"`
	} `json:"two"`
}

// A kind with several shapes is decoded as the one its Select chooses.
func TestSelect(t *testing.T) {
	kind := api.Kind{Group: "example.org", Version: "v1", Kind: "Shape", New: func() any { return new(shapeOne) }}
	two := kind
	two.New, two.Dialect = func() any { return new(shapeTwo) }, "two"
	two.Hint = func(path string) string { return "asked about " + path }
	kind.Select = func(raw map[string]any) (api.Kind, *api.Problem) {
		_, one := raw["one"]
		list, isTwo := raw["two"].([]any)
		switch {
		case one && isTwo:
			return kind, &api.Problem{Path: fmt.Sprintf("two[%d].deep", len(list)-1), Message: "both", Hint: "choose"}
		case isTwo:
			return two, nil
		}
		return kind, nil
	}
	d := Decoder{Kinds: []api.Kind{kind}}
	objs, found := d.Decode("f.yaml", []byte(`apiVersion: example.org/v1
kind: Shape
metadata: {name: a}
one: x
---
apiVersion: example.org/v1
kind: Shape
metadata: {name: b}
two:
- deep: y
---
apiVersion: example.org/v1
kind: Shape
metadata: {name: c}
one: x
two:
- deep: y
- other: z
  deep: y
---
apiVersion: example.org/v1
kind: Shape
metadata: {name: d}
two:
- eno: x
`))
	if len(objs) != 2 || len(found.Errors) != 2 || len(found.Warnings) != 0 {
		t.Fatalf("%d objects, %v", len(objs), found)
	}
	if v, ok := objs[0].Value.(*shapeOne); !ok || v.One != "x" || objs[0].Kind.Dialect != "" {
		t.Errorf("a: %+v", objs[0])
	}
	if v, ok := objs[1].Value.(*shapeTwo); !ok || v.Two[0].Deep != "y" || objs[1].Kind.Dialect != "two" {
		t.Errorf("b: %+v", objs[1])
	}
	for i, want := range []string{
		"f.yaml:19: Shape c: two[1].deep: both (choose)",
		`f.yaml:25: Shape d: two[0].eno: unknown field "eno" (asked about two[0].eno)`,
	} {
		if got := found.Errors[i].String(); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestLineOf(t *testing.T) {
	docs := parseYAML([]byte(`a:
  b.c: {}
  "k/l":
    - x
    - m:
        n: 1
  bb: 2
`))
	for path, want := range map[string]int{
		"":                      1,
		"a":                     1,
		`a["b.c"]`:              2,
		"a.b":                   1, // not there: where it would be
		"a.bb":                  7,
		`a["k/l"]`:              3,
		`a["k/l"][0]`:           4,
		`a["k/l"][1].m.n`:       6,
		`a["k/l"][1].m.o`:       5,
		`a["k/l"][7].m`:         3,
		`a["k/l"][-1]`:          3,
		`a["k/l"][x`:            3,
		"nowhere.to.be[0].seen": 1,
	} {
		if got := lineOf(docs[0].root, path); got != want {
			t.Errorf("%q: line %d, want %d", path, got, want)
		}
	}
}
