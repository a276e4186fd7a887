package decode

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/api/kepanp"
	"github.com/tierwall/tierwall/policy/diag"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// testDecoder knows two policy kinds: one namespaced, one cluster-scoped.
var testDecoder = Decoder{Kinds: []api.Kind{
	{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy", Namespaced: true, New: func() any { return new(networkingv1.NetworkPolicy) }},
	{Group: "policy.networking.k8s.io", Version: "v1alpha1", Kind: "AdminNetworkPolicy", New: func() any { return new(kepanp.AdminNetworkPolicy) }},
}}

// TestGolden decodes every input of testdata/*.txtar and compares what comes out
// with the file of the same name and the ending ".want".
func TestGolden(t *testing.T) {
	archives, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, path := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			ar, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			out := &txtar.Archive{Comment: ar.Comment}
			for i, f := range ar.Files {
				if strings.HasSuffix(f.Name, ".want") {
					continue
				}
				got := render(testDecoder.Decode(f.Name, unescape(f.Data)))
				want := ""
				if i+1 < len(ar.Files) && ar.Files[i+1].Name == f.Name+".want" {
					want = string(ar.Files[i+1].Data)
				}
				if !*update {
					if d := cmp.Diff(want, got); d != "" {
						t.Errorf("%s: (-want +got)\n%s", f.Name, d)
					}
				}
				out.Files = append(out.Files, f, txtar.File{Name: f.Name + ".want", Data: []byte(got)})
			}
			if *update {
				if err := os.WriteFile(path, txtar.Format(out), 0o666); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// unescape makes invisible bytes writable in golden files: → is a tab, ␀ a NUL.
func unescape(data []byte) []byte {
	data = bytes.ReplaceAll(data, []byte("→"), []byte("\t"))
	return bytes.ReplaceAll(data, []byte("␀"), []byte{0})
}

// render prints the result of Decode in the order found.
func render(objs []*api.Object, found diag.List) string {
	var b strings.Builder
	found.Add(Duplicates(objs))
	for _, d := range found.Errors {
		fmt.Fprintf(&b, "error: %s\n", d)
	}
	for _, d := range found.Warnings {
		fmt.Fprintf(&b, "warning: %s\n", d)
	}
	for _, o := range objs {
		fmt.Fprintf(&b, "%s: %s\n", o.File, o.Ref())
	}
	return b.String()
}

// TestSeedSamples decodes the sample policies of the design documents that are
// broken as printed: no object may come out of them.
func TestSeedSamples(t *testing.T) {
	for name, s := range map[string]struct{ line, message, hint string }{
		"x07-tenant.yaml":      {":8", "separated by commas", "matchExpressions must be a list"},
		"x08-matchlabels.yaml": {":21", `unknown field "matchlabels"`, "write matchLabels"},
	} {
		ar, err := txtar.ParseFile("testdata/seeds.txtar")
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range ar.Files {
			if f.Name != name {
				continue
			}
			found = true
			objs, l := testDecoder.Decode(name, f.Data)
			if len(objs) != 0 || len(l.Errors) == 0 {
				t.Fatalf("%s: got %d objects, findings %v", name, len(objs), l)
			}
			d := l.Errors[0]
			if !strings.HasSuffix(d.File, s.line) || !strings.Contains(d.Message, s.message) || !strings.Contains(d.Hint, s.hint) {
				t.Errorf("%s: got %s", name, d)
			}
		}
		if !found {
			t.Errorf("%s: no such sample", name)
		}
	}
}

// TestHint asks the kind first about a field it does not have.
func TestHint(t *testing.T) {
	kind := testDecoder.Kinds[1]
	var asked string
	kind.Hint = func(path string) string { asked = path; return "this is the released API" }
	d := Decoder{Kinds: []api.Kind{kind}}
	_, l := d.Decode("f", []byte("apiVersion: policy.networking.k8s.io/v1alpha1\nkind: AdminNetworkPolicy\nmetadata: {name: a}\nspec: {subject: {pods: {}}}\n"))
	if len(l.Errors) != 1 || l.Errors[0].Hint != "this is the released API" || asked != "spec.subject.pods" {
		t.Errorf("asked about %q, got %v", asked, l.Errors)
	}
}

// TestValue checks that what is decoded is what was written.
func TestValue(t *testing.T) {
	objs, l := testDecoder.Decode("dir/np.yaml", []byte(`# comment
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: web
  generation: 7
  annotations: {tierwall.io/audit: "true"}
spec:
  podSelector: &sel
    matchLabels: {app: "80"}
  policyTypes: [Ingress, Egress]
  ingress:
  - from:
    - podSelector: *sel
    ports:
    - {port: 80, endPort: 90}
    - {port: http, protocol: UDP}
  egress: null
status: {anything: [goes, 1, 1.5, yes]}
`))
	if err := l.Err(); err != nil || len(l.Warnings) != 0 || len(objs) != 1 {
		t.Fatalf("got %d objects, %v", len(objs), l)
	}
	o := objs[0]
	np := o.Value.(*networkingv1.NetworkPolicy)
	if o.Namespace != "default" || np.Namespace != "default" || o.Name != "web" || o.Generation != 7 || o.Annotations["tierwall.io/audit"] != "true" {
		t.Errorf("metadata: %+v", o)
	}
	if o.Kind.GVK() != "networking.k8s.io/v1 NetworkPolicy" || np.Kind != "NetworkPolicy" || np.APIVersion != "networking.k8s.io/v1" {
		t.Errorf("type: %s %s", np.APIVersion, np.Kind)
	}
	rule := np.Spec.Ingress[0]
	if rule.From[0].PodSelector.MatchLabels["app"] != "80" || rule.Ports[0].Port.IntVal != 80 || *rule.Ports[0].EndPort != 90 ||
		rule.Ports[1].Port.StrVal != "http" || *rule.Ports[1].Protocol != "UDP" || np.Spec.Egress != nil {
		t.Errorf("spec: %+v", np.Spec)
	}
	// null and absent differ in Raw only.
	spec := o.Raw["spec"].(map[string]any)
	if v, ok := spec["egress"]; !ok || v != nil {
		t.Errorf("raw egress: %v, %v", v, ok)
	}
	want := map[string]any{"anything": []any{"goes", int64(1), 1.5, true}}
	if d := cmp.Diff(want, o.Raw["status"]); d != "" {
		t.Errorf("raw status: (-want +got)\n%s", d)
	}
	// Findings made later point at the line of the field, or of what is around it.
	for path, line := range map[string]string{
		"": "2", "spec.ingress[0].ports[1].port": "17", "spec.ingress[0].ports[0].protocol": "16", "spec.nothing": "8", `spec.podSelector.matchLabels["app"]`: "10", `metadata.annotations["tierwall.io/audit"]`: "7",
	} {
		if got := o.Finding(path, "m", "").File; got != "dir/np.yaml:"+line {
			t.Errorf("%s is at %s, want line %s", path, got, line)
		}
	}
}

// TestNotShared makes sure that an anchor used twice gives two values.
func TestNotShared(t *testing.T) {
	objs, l := testDecoder.Decode("", []byte(`apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: a}
spec: {podSelector: {matchLabels: &l {a: b}}, ingress: [{from: [{podSelector: {matchLabels: *l}}]}]}`))
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	np := objs[0].Value.(*networkingv1.NetworkPolicy)
	np.Spec.PodSelector.MatchLabels["a"] = "changed"
	if got := np.Spec.Ingress[0].From[0].PodSelector.MatchLabels["a"]; got != "b" {
		t.Errorf("the copy has %q", got)
	}
}

// TestBounds feeds inputs made to exhaust memory or the stack.
func TestBounds(t *testing.T) {
	laughs := "a: &a [x, x, x, x, x, x, x, x, x]\n"
	for c := 'b'; c < 'j'; c++ {
		laughs += fmt.Sprintf("%c: &%c [*%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c, *%c]\n", c, c, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1, c-1)
	}
	for name, tc := range map[string]struct{ in, want string }{
		"billion laughs":   {laughs, "aliases expand to more than 10000 values"},
		"self reference":   {"a: &a [*a]\n", "contains itself"},
		"cycle":            {"a: &a {b: &b {c: *a}}\n", "contains itself"},
		"deep YAML":        {strings.Repeat("[", 9000) + strings.Repeat("]", 9000), "nested deeper than 100 levels"},
		"deeper YAML":      {strings.Repeat("[", 200_000), "exceeded max depth"},
		"deep JSON":        {`{"a":` + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}", "nested deeper than 100 levels"},
		"quantity":         {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: a, resources: {limits: {cpu: 1e999999999}}}]}", "out of range"},
		"quantity, quoted": {"apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: a, resources: {limits: {cpu: \"1e999999999\"}}}]}", "out of range"},
	} {
		objs, l := testDecoder.Decode(name, []byte(tc.in))
		if len(objs) != 0 || len(l.Errors) == 0 || !strings.Contains(l.Err().Error(), tc.want) {
			t.Errorf("%s: got %d objects, %.300v", name, len(objs), l.Err())
		}
	}
}

// TestNotText names the encoding instead of a parser's complaint.
func TestNotText(t *testing.T) {
	for in, want := range map[string]string{
		"\xff\xfea\x00":          "f:1: the file is UTF-16",
		"a: 1\nb: \x00\n":        "f:2: the file is binary: it has a NUL byte",
		"a: 1\nb: 2\nc: caf\xe9": "f:3: the file is not UTF-8 text: byte 0xe9",
	} {
		_, l := testDecoder.Decode("f", []byte(in))
		if len(l.Errors) != 1 || !strings.HasPrefix(l.Errors[0].String(), want) {
			t.Errorf("%q: got %v, want %s", in, l.Errors, want)
		}
	}
	// A byte order mark is no mistake.
	if objs, l := testDecoder.Decode("f", []byte("\xef\xbb\xbfapiVersion: v1\r\nkind: Namespace\r\nmetadata:\r\n  name: x\r\n")); len(objs) != 1 || l.Err() != nil {
		t.Errorf("BOM and CRLF: %v", l.Err())
	}
}
