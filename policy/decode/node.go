package decode

import (
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// nodeKind is the shape of a node.
type nodeKind uint8

const (
	badNode nodeKind = iota // could not be read and has been reported
	nullNode
	boolNode
	intNode
	floatNode
	stringNode
	listNode
	mapNode
)

// String names the shape in the words messages use.
func (k nodeKind) String() string {
	switch k {
	case nullNode:
		return "null"
	case boolNode:
		return "boolean"
	case intNode:
		return "integer"
	case floatNode:
		return "number"
	case stringNode:
		return "string"
	case listNode:
		return "list"
	}
	return "mapping"
}

// withArticle puts "a" or "an" before what a shape is called.
func withArticle(s string) string {
	switch {
	case s == "null":
		return s
	case strings.ContainsRune("aeiou", rune(s[0])):
		return "an " + s
	}
	return "a " + s
}

// node is one value of a document, whatever it was written in: aliases are
// expanded, keys are unique strings, scalars have their type.
type node struct {
	kind   nodeKind
	text   string // scalars: as written, without quotes
	line   int    // 1-based, in the file
	fields []field
	items  []*node
}

// field is one entry of a map, in the order written.
type field struct {
	key   string
	line  int
	value *node
	// odd is how a reader of YAML 1.1 would type an unquoted key that is not a
	// string to it ("boolean", "integer", …); "" for ordinary keys.
	odd string
}

// get returns the value of a key, nil when absent.
func (n *node) get(key string) *node {
	if n == nil {
		return nil
	}
	for i := range n.fields {
		if n.fields[i].key == key {
			return n.fields[i].value
		}
	}
	return nil
}

// lineOf returns the line of a field path under root, or of the nearest enclosing
// field there is.
func lineOf(root *node, path string) int {
	line, n := root.line, root
	for path != "" && n != nil {
		var next *node
		switch {
		case n.kind == listNode && path[0] == '[':
			digits, rest, _ := strings.Cut(path[1:], "]")
			path = strings.TrimPrefix(rest, ".")
			if i, err := strconv.Atoi(digits); err == nil && 0 <= i && i < len(n.items) {
				next = n.items[i]
				line = next.line
			}
		default:
			for i := range n.fields {
				f := &n.fields[i]
				rest, ok := strings.CutPrefix(path, "["+strconv.Quote(f.key)+"]")
				if !ok {
					rest, ok = strings.CutPrefix(path, f.key)
				}
				if !ok || rest != "" && rest[0] != '.' && rest[0] != '[' {
					continue
				}
				line, next, path = f.line, f.value, strings.TrimPrefix(rest, ".")
				break
			}
		}
		n = next
	}
	return line
}

// str returns the node's text if it is a string, else "".
func (n *node) str() string {
	if n == nil || n.kind != stringNode {
		return ""
	}
	return n.text
}

// decimal is how an integer has to be written. 010 is eight to some readers and
// ten to others, so neither is taken.
var decimal = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// number is how a floating-point number has to be written: as in JSON.
var number = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]{1,4})?$`)

// truth returns the value of a boolean word.
func truth(text string) bool {
	switch strings.ToLower(text) {
	case "true", "yes", "on":
		return true
	}
	return false
}

// raw returns the node as generic values; see [api.Object].Raw.
func (n *node) raw() any {
	switch n.kind {
	case boolNode:
		return truth(n.text)
	case intNode:
		if v, err := strconv.ParseInt(n.text, 10, 64); err == nil && decimal.MatchString(n.text) {
			return v
		}
		return n.rawFloat()
	case floatNode:
		return n.rawFloat()
	case stringNode:
		return n.text
	case listNode:
		l := make([]any, len(n.items))
		for i, it := range n.items {
			l[i] = it.raw()
		}
		return l
	case mapNode:
		m := make(map[string]any, len(n.fields))
		for _, f := range n.fields {
			m[f.key] = f.value.raw()
		}
		return m
	}
	return nil
}

// rawFloat returns the number, or the text where it is not one in JSON: only
// fields nobody types (status) can hold such a thing.
func (n *node) rawFloat() any {
	if v, err := strconv.ParseFloat(n.text, 64); err == nil && number.MatchString(n.text) {
		return v
	}
	return n.text
}

// json returns the node as JSON, for types that parse themselves.
func (n *node) json() ([]byte, error) { return json.Marshal(n.raw()) }
