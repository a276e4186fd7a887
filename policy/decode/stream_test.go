package decode

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/yaml"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

var streamed = Decoder{Kinds: []api.Kind{
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Namespaced: true, New: func() any { return new(networkingv1.NetworkPolicy) }},
}}

// streamAll makes all input be read object by object.
func streamAll(t *testing.T) {
	before := streamFrom
	streamFrom = 1
	t.Cleanup(func() { streamFrom = before })
}

const dump = `apiVersion: v1
items:
- apiVersion: v1
  kind: Namespace
  metadata:
    annotations:
      note: |
        - apiVersion: v1
          kind: Pod
        items:
        ---x
    name: a
# a comment between items

- apiVersion: v1
  kind: ConfigMap
  metadata: {name: c, namespace: a}
  data:
    items: "x"
- {apiVersion: v1, kind: Pod, metadata: {name: p, namespace: a}, spec: {containers: [{name: c, image: i,
   ports: [{containerPort: 80}]}]}}
-
  apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: n, namespace: a}
  spec:
    podSelector: {}
    ingress:
    - from:
      - podSelectr: {}
- apiVersion: networking.k8s.io/v1
  kind: NetworkPolicy
  metadata: {name: good, namespace: a}
  spec: {podSelector: {}}
kind: List
metadata:
  resourceVersion: ""
---
apiVersion: example.org/v1
kind: Menu
items:
- kind: Pod
- soup
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicyList
items:
  - metadata: {name: typed, namespace: a}
    spec: {podSelector: {}}
---
apiVersion: v1
kind: Namespace
metadata: {name: [}
---
apiVersion: v1
kind: Namespace
metadata: {name: last}
`

// What is read object by object is read like the whole: the same objects at the same
// lines, and the same findings.
func TestStreamedIsReadLikeTheWhole(t *testing.T) {
	streamAll(t)
	for name, text := range map[string]string{"x.yaml": dump, "x.json": dumpJSON(t), "indented": strings.Replace(dump, "- soup", "- soup\n# end", 1)} {
		whole, wantFound := streamed.Decode(name, []byte(text))
		objs, found, n, err := streamed.DecodeReader(name, strings.NewReader(text))
		if err != nil || n < int64(len(text)) {
			t.Fatalf("%s: %d bytes, %v", name, n, err)
		}
		say := func(objs []*api.Object, l diag.List) string {
			var b strings.Builder
			for _, o := range objs {
				fmt.Fprintln(&b, o.File, o.Kind.Kind, o.Namespace, o.Name, o.Lines["spec"])
			}
			l.Sort()
			for _, d := range append(l.Errors, l.Warnings...) {
				fmt.Fprintln(&b, d)
			}
			return b.String()
		}
		if diff := cmp.Diff(say(whole, wantFound), say(objs, found)); diff != "" {
			t.Errorf("%s (-whole +streamed):\n%s", name, diff)
		}
	}
}

// dumpJSON is the first document of the dump as kubectl -o json writes it.
func dumpJSON(t *testing.T) string {
	first, _, _ := strings.Cut(dump, "\n---\n")
	raw, err := yaml.YAMLToJSON([]byte(first))
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Indent(&b, raw, "", "    "); err != nil {
		t.Fatal(err)
	}
	return b.String() + "\n{\"apiVersion\": \"v1\", \"kind\": \"Namespace\",\n \"metadata\": {\"name\": \"last\"}}\n"
}

// Input that ends in the middle is an error.
func TestStreamedThatBreaks(t *testing.T) {
	streamAll(t)
	text := dumpJSON(t)
	broken := text[:len(text)/2]
	_, found, _, err := streamed.DecodeReader("x.json", strings.NewReader(broken))
	if err != nil || len(found.Errors) == 0 || !strings.Contains(found.Errors[len(found.Errors)-1].Message, "not valid JSON") {
		t.Errorf("%v, %v", found.Errors, err)
	}
	in := io.MultiReader(strings.NewReader(dump), failing{})
	if _, _, _, err := streamed.DecodeReader("x.yaml", in); err == nil {
		t.Error("a failing read was taken for the end")
	}
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// Merge keys are read as kubectl does: the map's own fields come first, then those of
// earlier maps.
func TestMergeKeys(t *testing.T) {
	const text = `apiVersion: v1
kind: Namespace
metadata:
  name: a
  labels: &base {app: web, tier: front}
  annotations:
    <<: [{tier: back, zone: z}, *base]
    app: own
`
	objs, found := streamed.Decode("m.yaml", []byte(text))
	if found.Err() != nil || len(objs) != 1 {
		t.Fatal(found)
	}
	if diff := cmp.Diff(map[string]string{"app": "own", "tier": "back", "zone": "z"}, objs[0].Annotations); diff != "" {
		t.Error(diff)
	}
}

// A description beside spec is what API servers remove, no reason to refuse a policy.
func TestTopLevelDescription(t *testing.T) {
	const text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: n, namespace: a}\ndescription: what it is for\nspec: {podSelector: {}}\n"
	objs, found := streamed.Decode("d.yaml", []byte(text))
	if len(objs) != 1 || found.Err() != nil || len(found.Warnings) != 1 || found.Warnings[0].Path != "description" {
		t.Errorf("%v %v", objs, found)
	}
	// A field like it elsewhere is a mistake.
	if _, found := streamed.Decode("d.yaml", []byte(strings.Replace(text, "podSelector: {}", "podSelector: {}, description: x", 1))); found.Err() == nil {
		t.Error("spec.description was accepted")
	}
}

func TestItemsOfATypedList(t *testing.T) {
	const text = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicyList\nItems:\n- metadata: {name: n, namespace: a}\n  spec: {podSelector: {}}\n"
	if objs, found := streamed.Decode("d.yaml", []byte(text)); len(objs) != 1 || found.Err() != nil {
		t.Errorf("%v %v", objs, found)
	}
}
