package auditlog

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/tierwall/tierwall/dataplane/audit"
)

var update = flag.Bool("update", false, "write the generated parts of docs/audit-log.md anew")

const docFile = "../../../docs/audit-log.md"

// said is what the source says about a field together with another one, or
// leaves to its name.
var said = map[string]string{
	"Record.V":               "schema version, 1",
	"Record.Kind":            "`flow`: a policy decision; `packet`: a packet that could not be decided; `lost`: what is missing; `file`: a hash-chained file begins",
	"Record.Node":            "node that decided",
	"Record.Verdict":         "`Allow`, `Drop`, `Reject`, `Pass`; of a staged policy `would-allow`, `would-drop`, `would-reject`, `would-pass`",
	"Record.Stage":           "`enforce`, or `audit` for a policy that is evaluated only",
	"Record.Band":            "band that decided, as `tierwall explain` names it",
	"Record.Priority":        "priority of the rule inside band and tier, lower wins; absent without a rule",
	"Record.Policy":          "what decided; of an isolation the first of `isolations`, which all denied the connection together",
	"Record.Rule":            "rule that decided; absent for an isolation",
	"Record.Reason":          "`rule`, `isolation`, `default`, `node-local`, `self`, `not-local`, `unknown-peer`, `auth-required`; for other kinds what is wrong with the packet, or where records were lost",
	"Record.Source":          "where the connection comes from",
	"Record.Destination":     "where it goes to, after Service translation",
	"Record.Protocol":        "`TCP`, `UDP`, `SCTP`, `ICMP`, `ICMPv6`, or a number",
	"Record.ICMPType":        "ICMP and ICMPv6",
	"Record.ICMPCode":        "ICMP and ICMPv6",
	"Record.Interface":       "where the recorded packet was seen",
	"Record.Backend":         "`afxdp` or `nfqueue`",
	"Record.TableGeneration": "generation of the decision table that decided",
	"Record.Tier":            "tier inside the band, as its API counts; lower wins",
	"Record.Isolations":      "of reason `isolation`: all policies whose isolation denied the connection",
	"Record.Ports":           "span of destination ports of a folded record: `count` denied packets between two addresses, too many different ones to tell each; the ends have no ports then",
	"Record.Connection":      "id of the admitted connection, hexadecimal; egress and ingress records share it. Absent for packets that were denied",
	"Record.Count":           "packets the record stands for; of kind `lost`: decisions or records",
	"Record.Seq":             "number of the line, across files and restarts, from 1",
	"Record.Events":          "decisions the log accounts for, from its beginning to this line",
	"Record.Prev":            "hash chain: SHA-256 of the line before, without its newline, hexadecimal",
	"Endpoint.Service":       "the address is a Service's",
	"Endpoint.Labels":        "those of the pod's labels that `audit.labels` names",
	"Policy.Group":           "API group",
	"Policy.Kind":            "kind",
	"Policy.Namespace":       "absent for cluster-wide policies",
	"Policy.Name":            "name",
	"Rule.Name":              "the rule's own name, if it has one",
	"Endpoint.IP":            "address",
	"Endpoint.Namespace":     "of the pod that has the address",
	"Endpoint.Pod":           "pod that has the address, when the decision was made",
	"Ports.First":            "lowest port",
	"Ports.Last":             "highest port",
}

// fields renders the field table of the struct, from its types and the comments
// in its source.
func fields(t *testing.T) string {
	t.Helper()
	const source = "../../../dataplane/audit/record.go"
	file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		st, ok := spec.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, f := range st.Fields.List {
			text := f.Doc.Text()
			if text == "" {
				text = f.Comment.Text()
			}
			for _, name := range f.Names {
				comments[spec.Name.Name+"."+name.Name] = strings.Join(strings.Fields(text), " ")
			}
		}
		return true
	})
	used := map[string]bool{}
	var b strings.Builder
	b.WriteString("| Field | Type | Meaning |\n|---|---|---|\n")
	var walk func(typ reflect.Type, prefix string)
	walk = func(typ reflect.Type, prefix string) {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, opts, _ := strings.Cut(f.Tag.Get("json"), ",")
			key := typ.Name() + "." + f.Name
			text := said[key]
			if text != "" {
				used[key] = true
			} else {
				text = comments[key]
				for _, lead := range []string{f.Name + " is ", f.Name + " are "} {
					text = strings.TrimPrefix(text, lead)
				}
			}
			if name == "" || text == "" {
				t.Errorf("%s has no JSON name or no comment: a field nobody can read about", key)
			}
			word, inner := jsonType(f.Type)
			if !strings.Contains(opts, "omitempty") && prefix == "" {
				word += ", always"
			}
			fmt.Fprintf(&b, "| `%s%s` | %s | %s |\n", prefix, name, word, strings.ReplaceAll(text, "|", `\|`))
			// Both endpoints and every policy have the same fields: once is enough.
			if inner != nil && f.Name != "Destination" && f.Name != "Isolations" {
				walk(inner, prefix+name+".")
			}
		}
	}
	walk(reflect.TypeFor[audit.Record](), "")
	for key := range said {
		if !used[key] {
			t.Errorf("said has %s, which is no field", key)
		}
	}
	return b.String()
}

func jsonType(t reflect.Type) (word string, inner reflect.Type) {
	switch t.String() {
	case "time.Time", "*time.Time":
		return "RFC 3339, UTC, ns", nil
	case "netip.Addr":
		return "string", nil
	}
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Struct:
		return "object", t
	case reflect.Slice:
		_, in := jsonType(t.Elem())
		return "list of objects", in
	case reflect.Map:
		return "object of strings", nil
	case reflect.String:
		return "string", nil
	case reflect.Bool:
		return "true", nil
	}
	return "number", nil
}

// antreaLines renders the sample in Antrea's formats.
func antreaLines(t *testing.T) string {
	t.Helper()
	var v1, v2 []byte
	err := Read(t.Context(), "testdata/sample.log", ReadOptions{}, func(line []byte) error {
		r, err := audit.Parse(line)
		if err != nil {
			return err
		}
		if v1, err = r.Append(v1, audit.AntreaV1); err != nil {
			return err
		}
		v2, err = r.Append(v2, audit.AntreaV2)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return "The sample as `antrea-v1`:\n\n```text\n" + string(v1) + "```\n\nand as `antrea-v2`:\n\n```text\n" + string(v2) + "```\n"
}

// replace puts text between two markers of a document.
func replace(t *testing.T, doc []byte, name, text string) []byte {
	t.Helper()
	begin, end := []byte("<!-- "+name+": begin, written by a test -->\n"), []byte("<!-- "+name+": end -->")
	before, rest, ok := bytes.Cut(doc, begin)
	_, after, ok2 := bytes.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for %s", docFile, name)
	}
	return bytes.Join([][]byte{before, begin, []byte(text), end, after}, nil)
}

// TestDoc keeps the generated parts of the documentation up to date.
func TestDoc(t *testing.T) {
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	want := replace(t, doc, "fields", fields(t))
	want = replace(t, want, "antrea", antreaLines(t))
	if bytes.Equal(doc, want) {
		return
	}
	if !*update {
		t.Fatalf("%s is out of date: run with -update and read the change", docFile)
	}
	if err := os.WriteFile(docFile, want, 0o644); err != nil {
		t.Fatal(err)
	}
}

var example = regexp.MustCompile("(?s)```sh\n(jq .*?)```\n\n```text\n(.*?)```\n")

// TestJQ runs the document's examples and compares what they print.
func TestJQ(t *testing.T) {
	if _, err := exec.LookPath("jq"); err != nil {
		t.Skip("jq is not installed")
	}
	sample, err := os.ReadFile("testdata/sample.log")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "audit.log"), sample, 0o600); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(docFile)
	if err != nil {
		t.Fatal(err)
	}
	found := example.FindAllSubmatch(doc, -1)
	if len(found) < 5 || len(found) != bytes.Count(doc, []byte("```sh\njq ")) {
		t.Fatalf("%d examples found", len(found))
	}
	for _, m := range found {
		cmd := exec.Command("sh", "-c", string(m[1]))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "LC_ALL=C")
		var errs bytes.Buffer
		cmd.Stderr = &errs
		out, err := cmd.Output()
		if err != nil || errs.Len() > 0 || len(out) == 0 {
			t.Errorf("%s: %v, output %q %s", m[1], err, out, errs.String())
			continue
		}
		if bytes.Equal(out, m[2]) {
			continue
		}
		if !*update {
			t.Errorf("%sprints\n%sthe document says\n%s", m[1], out, m[2])
			continue
		}
		block := "```sh\n" + string(m[1]) + "```\n\n```text\n"
		doc = bytes.Replace(doc, []byte(block+string(m[2])+"```"), []byte(block+string(out)+"```"), 1)
	}
	if *update {
		if err := os.WriteFile(docFile, doc, 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// The sample is what the writer writes: it comes out of an encoder byte for byte.
func TestSample(t *testing.T) {
	n := 0
	err := Read(t.Context(), "testdata/sample.log", ReadOptions{}, func(line []byte) error {
		n++
		r, err := audit.Parse(line)
		if err != nil {
			return err
		}
		again, err := r.Append(nil, audit.JSON)
		if err == nil && string(again) != string(line)+"\n" {
			t.Errorf("line %d comes back as\n%s, was\n%s", n, again, line)
		}
		return err
	})
	if err != nil || n < 8 {
		t.Errorf("%d records, error %v", n, err)
	}
}
