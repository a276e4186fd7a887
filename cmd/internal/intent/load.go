package intent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/policy/assure"
)

// Test is one expectation.
type Test struct {
	File     string
	Line     int
	Name     string
	From, To string         // ends, see assure.EndForms
	Port     string         // see assure.ParsePorts
	Expect   string         // allow, deny or reject
	By       string         // the policy that has to decide; "" for any
	Forever  bool           // to be proved, not only tested
	Rights   *assure.Rights // what a claim allows; nil for the default
	// Namespace is that of names without one; "" if the file does not say.
	Namespace string
}

// Expectations are the words that expect knows. deny is any refusal.
var Expectations = []string{"allow", "deny", "reject"}

// APIVersion and Kind of our own form.
const (
	APIVersion = "tierwall.io/v1"
	Kind       = "Intent"
)

// Error is a mistake in a file.
type Error struct {
	File    string
	Line    int
	Message string
	Hint    string
}

// Error names file and line.
func (e *Error) Error() string {
	s := e.File
	if e.Line > 0 {
		s += ":" + strconv.Itoa(e.Line)
	}
	s += ": " + e.Message
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Options of Load.
type Options struct {
	Stdin io.Reader // read for the path "-"
	// Expect is what tests expect that do not say so: traffic.json has no field for
	// it. "" makes that an error.
	Expect string
}

// Load reads the tests of files and directories. The error joins everything that is
// wrong with them.
func Load(paths []string, opt Options) ([]Test, error) {
	var tests []Test
	var errs []error
	for _, path := range paths {
		files := []string{path}
		if path != "-" {
			info, err := os.Stat(path)
			if err != nil {
				errs = append(errs, fmt.Errorf("read tests: %w", err))
				continue
			}
			if info.IsDir() {
				if files, err = filesIn(path); err != nil {
					errs = append(errs, err)
					continue
				}
				if len(files) == 0 {
					errs = append(errs, &Error{File: path, Message: "the directory has no tests", Hint: "put *.yaml, *.yml or *.json files there"})
				}
			}
		}
		for _, file := range files {
			l := loader{file: file, opt: opt}
			l.load()
			tests = append(tests, l.tests...)
			errs = append(errs, l.errs...)
		}
	}
	return tests, errors.Join(errs...)
}

func filesIn(dir string) ([]string, error) {
	var out []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(e.Name(), ".") && path != dir:
			if e.IsDir() {
				return filepath.SkipDir
			}
		case !e.IsDir() && slices.Contains([]string{".yaml", ".yml", ".json"}, strings.ToLower(filepath.Ext(path))):
			out = append(out, path)
		}
		return nil
	})
	return out, err
}

type loader struct {
	file  string
	opt   Options
	tests []Test
	errs  []error
}

func (l *loader) errorf(n *yaml.Node, hint, format string, args ...any) {
	line := 0
	if n != nil {
		line = n.Line
	}
	l.errs = append(l.errs, &Error{l.file, line, fmt.Sprintf(format, args...), hint})
}

// maxFile bounds a file of tests, in bytes.
const maxFile = 32 << 20

func (l *loader) load() {
	in := l.opt.Stdin
	if l.file != "-" {
		f, err := os.Open(l.file)
		if err != nil {
			l.errs = append(l.errs, fmt.Errorf("read tests: %w", err))
			return
		}
		defer f.Close()
		in = f
	} else {
		l.file = "stdin"
	}
	data, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	if err != nil {
		l.errs = append(l.errs, fmt.Errorf("read tests: %w", err))
		return
	}
	if len(data) > maxFile {
		l.errorf(nil, "split the file", "more than %d MiB", maxFile>>20)
		return
	}
	before := len(l.errs)
	dec := yaml.NewDecoder(bytes.NewReader(data))
	for {
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			l.errorf(nil, "", "%s", strings.TrimPrefix(err.Error(), "yaml: "))
			return
		}
		if len(doc.Content) == 1 && doc.Content[0].Tag != "!!null" {
			l.document(doc.Content[0])
		}
	}
	if len(l.tests) == 0 && len(l.errs) == before {
		l.errorf(nil, "a file has tests of kind Intent, of netassert, or of policy-assistant", "the file has no test")
	}
}

// document reads one document by its structure.
func (l *loader) document(n *yaml.Node) {
	switch {
	case n.Kind == yaml.MappingNode:
		l.intent(n)
	case n.Kind != yaml.SequenceNode:
		l.errorf(n, "write apiVersion: "+APIVersion+" and kind: "+Kind, "want a document of kind Intent or a list of tests")
	default:
		for _, item := range n.Content {
			switch {
			case item.Kind != yaml.MappingNode:
				l.errorf(item, "", "want a test, got %s", kindOf(item))
			case child(item, "Source") != nil || child(item, "Destination") != nil:
				l.traffic(item)
			case child(item, "src") != nil || child(item, "dst") != nil || child(item, "type") != nil:
				l.netassert(item)
			default:
				l.errorf(item, "write them under tests: in a document of kind Intent", "a list of tests has the fields of netassert (src, dst) or of policy-assistant (Source, Destination)")
			}
		}
	}
}

func kindOf(n *yaml.Node) string {
	return map[yaml.Kind]string{yaml.MappingNode: "a mapping", yaml.SequenceNode: "a list", yaml.ScalarNode: "a value", yaml.AliasNode: "an alias"}[n.Kind]
}

// child returns the value of a key, nil if it is not there.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return resolve(n.Content[i+1])
		}
	}
	return nil
}

func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// fields wants a mapping of known fields, none of them twice.
func (l *loader) fields(n *yaml.Node, what string, known ...string) bool {
	if n == nil || n.Kind != yaml.MappingNode {
		l.errorf(n, "", "%s: want a mapping", what)
		return false
	}
	ok, seen := true, map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		switch {
		case seen[key.Value]:
			l.errorf(key, "", "%s: field %q is there twice", what, key.Value)
			ok = false
		case !slices.Contains(known, key.Value):
			hint := "known fields: " + strings.Join(known, ", ")
			for _, k := range known {
				if strings.EqualFold(k, key.Value) || distance(k, key.Value) <= 2 {
					hint = "did you mean " + k + "?"
					break
				}
			}
			l.errorf(key, hint, "%s: unknown field %q", what, key.Value)
			ok = false
		}
		seen[key.Value] = true
	}
	return ok
}

// text reads a scalar field; "" if it is not there.
func (l *loader) text(n *yaml.Node, key string) string {
	v := child(n, key)
	switch {
	case v == nil || v.Tag == "!!null":
		return ""
	case v.Kind != yaml.ScalarNode:
		l.errorf(v, "", "%s: want a value, got %s", key, kindOf(v))
		return ""
	}
	return v.Value
}

func (l *loader) intent(n *yaml.Node) {
	if v, k := l.text(n, "apiVersion"), l.text(n, "kind"); v != APIVersion || k != Kind {
		l.errorf(n, fmt.Sprintf("write apiVersion: %s and kind: %s", APIVersion, Kind), "not a file of tests: apiVersion %q, kind %q", v, k)
		return
	}
	if !l.fields(n, "Intent", "apiVersion", "kind", "metadata", "rights", "tests") {
		return
	}
	if m := child(n, "metadata"); m != nil && !l.fields(m, "metadata", "name", "namespace", "labels", "annotations") {
		return
	}
	rights := l.rights(n, "")
	list := child(n, "tests")
	if list == nil || list.Kind != yaml.SequenceNode || len(list.Content) == 0 {
		l.errorf(n, "write tests: [{from: …, to: …, port: …, expect: …}]", "tests: want a list of at least one test")
		return
	}
	for i, item := range list.Content {
		item = resolve(item)
		what := fmt.Sprintf("tests[%d]", i)
		if !l.fields(item, what, "name", "from", "to", "port", "expect", "by", "forever", "rights") {
			continue
		}
		t := Test{
			File: l.file, Line: item.Line, Name: l.text(item, "name"), From: l.text(item, "from"), To: l.text(item, "to"),
			Port: l.text(item, "port"), Expect: strings.ToLower(l.text(item, "expect")), By: l.text(item, "by"),
			Namespace: l.text(child(n, "metadata"), "namespace"), Rights: rights,
		}
		if own := l.rights(item, what+"."); own != nil {
			t.Rights = own
		}
		for _, key := range []string{"from", "to", "port", "expect"} {
			if l.text(item, key) == "" && (key != "expect" || l.opt.Expect == "") {
				l.errorf(item, "", "%s: %s is missing", what, key)
			}
		}
		if v := child(item, "forever"); v != nil && v.Decode(&t.Forever) != nil {
			l.errorf(v, "write true or false", "%s: forever is %q", what, v.Value)
		}
		l.add(item, t)
	}
}

// add takes a test that has an expectation we know.
func (l *loader) add(n *yaml.Node, t Test) {
	if t.Expect == "" {
		t.Expect = l.opt.Expect
	}
	switch {
	case t.Expect == "":
		l.errorf(n, "add expect: allow or deny, or give --expect", "the test does not say what it expects")
		return
	case !slices.Contains(Expectations, t.Expect):
		line := n
		if v := child(n, "expect"); v != nil {
			line = v
		}
		l.errorf(line, "write "+strings.Join(Expectations, ", "), "expect: %q is no expectation", t.Expect)
		return
	}
	if t.Name == "" {
		t.Name = t.From + " → " + t.To + " " + t.Port + ": " + t.Expect
	}
	l.tests = append(l.tests, t)
}

// netassert reads a test of netassert v2. Its exit code 0 is a connection that is
// made.
func (l *loader) netassert(n *yaml.Node) {
	if !l.fields(n, "test", "name", "type", "protocol", "targetPort", "timeoutSeconds", "attempts", "exitCode", "src", "dst", "pause") {
		return
	}
	if typ := l.text(n, "type"); typ != "" && typ != "k8s" {
		l.errorf(n, "type is k8s", "type %q is not supported", typ)
		return
	}
	t := Test{File: l.file, Line: n.Line, Name: l.text(n, "name"), Expect: "deny"}
	if code := l.text(n, "exitCode"); code == "0" || code == "" {
		t.Expect = "allow"
	}
	proto := strings.ToUpper(l.text(n, "protocol"))
	if proto == "" {
		proto = "TCP"
	}
	t.Port = l.text(n, "targetPort") + "/" + proto
	before := len(l.errs)
	t.From, t.To = l.netassertEnd(n, "src"), l.netassertEnd(n, "dst")
	if len(l.errs) == before {
		l.add(n, t)
	}
}

func (l *loader) netassertEnd(test *yaml.Node, key string) string {
	n := child(test, key)
	if n == nil {
		l.errorf(test, "", "%s is missing", key)
		return ""
	}
	if !l.fields(n, key, "k8sResource", "host") {
		return ""
	}
	if h := child(n, "host"); h != nil {
		if !l.fields(h, key+".host", "name") {
			return ""
		}
		name := l.text(h, "name")
		if _, err := netip.ParseAddr(name); err != nil {
			l.errorf(h, "write its address", "%s: what the name %s resolves to is not in manifests", key, name)
		}
		return name
	}
	r := child(n, "k8sResource")
	if r == nil {
		l.errorf(n, "", "%s: k8sResource or host is missing", key)
		return ""
	}
	if !l.fields(r, key+".k8sResource", "kind", "name", "namespace") {
		return ""
	}
	return l.workload(r, l.text(r, "kind"), l.text(r, "namespace"), l.text(r, "name"))
}

func (l *loader) workload(n *yaml.Node, kind, namespace, name string) string {
	if kind == "" || name == "" {
		l.errorf(n, "", "kind or name is missing")
	}
	if namespace == "" {
		namespace = "default"
	}
	return strings.ToLower(kind) + "/" + namespace + "/" + name
}

// traffic reads an entry of policy-assistant's traffic.json. It has no expectation
// of its own; we read a field Expect, and Name.
func (l *loader) traffic(n *yaml.Node) {
	if !l.fields(n, "traffic", "Source", "Destination", "Protocol", "ResolvedPort", "ResolvedPortName", "Expect", "Name") {
		return
	}
	proto := l.text(n, "Protocol")
	if proto == "" {
		proto = "TCP"
	}
	port := l.text(n, "ResolvedPort")
	if port == "" {
		port = l.text(n, "ResolvedPortName")
	}
	before := len(l.errs)
	t := Test{
		File: l.file, Line: n.Line, Name: l.text(n, "Name"), Port: port + "/" + proto, Expect: strings.ToLower(l.text(n, "Expect")),
		From: l.trafficEnd(n, "Source"), To: l.trafficEnd(n, "Destination"),
	}
	if len(l.errs) == before {
		l.add(n, t)
	}
}

func (l *loader) trafficEnd(entry *yaml.Node, key string) string {
	n := child(entry, key)
	if n == nil {
		l.errorf(entry, "", "%s is missing", key)
		return ""
	}
	if !l.fields(n, key, "Internal", "IP") {
		return ""
	}
	in := child(n, "Internal")
	if in == nil || in.Tag == "!!null" {
		ip := l.text(n, "IP")
		if ip == "" {
			l.errorf(n, "", "%s: Internal or IP is missing", key)
		}
		return ip
	}
	if !l.fields(in, key+".Internal", "Workload", "Namespace", "PodLabels", "NamespaceLabels", "NodeLabels", "Node", "Pods") {
		return ""
	}
	if w := l.text(in, "Workload"); w != "" {
		parts := strings.Split(w, "/")
		if len(parts) != 3 {
			l.errorf(in, "", "%s: Workload %q: want NAMESPACE/KIND/NAME", key, w)
			return ""
		}
		return l.workload(in, parts[1], parts[0], parts[2])
	}
	namespace := l.text(in, "Namespace")
	pods := l.labels(in, "PodLabels")
	switch {
	case namespace != "" && pods != "":
		return namespace + "/" + pods
	case namespace != "":
		return "ns:" + namespace
	case pods != "":
		return pods
	}
	l.errorf(in, "", "%s: Workload, Namespace and PodLabels are missing", key)
	return ""
}

func (l *loader) labels(n *yaml.Node, key string) string {
	m := child(n, key)
	if m == nil || m.Kind != yaml.MappingNode {
		return ""
	}
	var parts []string
	for i := 0; i+1 < len(m.Content); i += 2 {
		parts = append(parts, m.Content[i].Value+"="+m.Content[i+1].Value)
	}
	return strings.Join(parts, ",")
}

// distance is the edit distance of two words (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range a {
		prev := row[0]
		row[0] = i + 1
		for j := range b {
			cost := prev
			if a[i] != b[j] {
				cost++
			}
			prev = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
