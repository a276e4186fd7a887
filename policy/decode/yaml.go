package decode

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tierwall/tierwall/policy/diag"
)

const (
	// maxDepth bounds nesting. The deepest known API type needs less than 20.
	maxDepth = 100
	// maxAliased bounds the nodes a document may gain through aliases, so that a
	// few lines cannot unfold into gigabytes.
	maxAliased = 10_000
)

// problem is a finding without its object: those are added by who knows them.
type problem struct {
	line                int
	path, message, hint string
	code                diag.Code
}

// document is one document of a stream.
type document struct {
	root     *node // nil when it could not be read
	problems []problem
}

// splitYAML cuts a stream at its "---" lines, so that a syntax error in one
// document does not hide the others. A line starting with --- is a marker
// wherever it stands, block scalars included (YAML 1.2.2, §9.1.4).
func splitYAML(data []byte) (chunks [][]byte, firstLines []int) {
	start, startLine, line := 0, 1, 1
	content := false // something but comments and directives since start
	for pos := 0; pos < len(data); line++ {
		end := bytes.IndexByte(data[pos:], '\n')
		if end < 0 {
			end = len(data)
		} else {
			end += pos + 1
		}
		text := bytes.TrimRight(data[pos:end], "\r\n")
		if isMarker(text) {
			if content {
				chunks, firstLines = append(chunks, data[start:pos]), append(firstLines, startLine)
				start, startLine = pos, line
			}
			content = true
		} else if t := bytes.TrimSpace(text); len(t) > 0 && t[0] != '#' && text[0] != '%' {
			content = true
		}
		pos = end
	}
	return append(chunks, data[start:]), append(firstLines, startLine)
}

func isMarker(line []byte) bool {
	return bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || line[3] == ' ' || line[3] == '\t')
}

// parseYAML reads a stream of documents. Empty ones (null, only comments) are
// left out.
func parseYAML(data []byte) []document {
	var docs []document
	chunks, lines := splitYAML(data)
	for i, chunk := range chunks {
		offset := lines[i] - 1
		dec := yaml.NewDecoder(bytes.NewReader(chunk))
		for {
			var y yaml.Node
			err := dec.Decode(&y)
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				docs = append(docs, document{problems: []problem{syntaxProblem(err, chunk, offset)}})
				break
			}
			c := converter{offset: offset}
			root := c.convert(&y, 0)
			if len(c.problems) == 0 && (root == nil || root.kind == nullNode) {
				continue
			}
			docs = append(docs, document{root: root, problems: c.problems})
		}
	}
	return docs
}

// converter turns the parser's tree into ours. A problem leaves a badNode in the
// tree; the document is then not used, only searched for more problems.
type converter struct {
	offset   int
	problems []problem
	active   map[*yaml.Node]bool // anchors being expanded, to find cycles
	aliased  int                 // nodes gained through aliases
	inAlias  int
}

func (c *converter) problem(y *yaml.Node, message, hint string) *node {
	c.problems = append(c.problems, problem{line: y.Line + c.offset, message: message, hint: hint})
	return &node{kind: badNode, line: y.Line + c.offset}
}

func (c *converter) convert(y *yaml.Node, depth int) *node {
	if depth > maxDepth {
		return c.problem(y, fmt.Sprintf("nested deeper than %d levels", maxDepth), "no policy is this deep: check for brackets that are not closed")
	}
	if c.inAlias > 0 {
		if c.aliased++; c.aliased > maxAliased {
			if c.aliased == maxAliased+1 {
				return c.problem(y, fmt.Sprintf("aliases expand to more than %d values", maxAliased), "write the values out")
			}
			return &node{kind: badNode, line: y.Line + c.offset}
		}
	}
	n := &node{line: y.Line + c.offset}
	switch y.Kind {
	case yaml.DocumentNode:
		if len(y.Content) == 0 {
			return nil
		}
		return c.convert(y.Content[0], depth)
	case yaml.AliasNode:
		return c.alias(y, depth)
	case yaml.SequenceNode:
		if tag := y.ShortTag(); tag != "!!seq" {
			return c.problem(y, "the tag "+tag+" is not supported", "remove it")
		}
		n.kind = listNode
		for _, it := range y.Content {
			n.items = append(n.items, c.convert(it, depth+1))
		}
	case yaml.MappingNode:
		if tag := y.ShortTag(); tag != "!!map" {
			return c.problem(y, "the tag "+tag+" is not supported", "remove it")
		}
		n.kind = mapNode
		c.fields(n, y, depth)
	case yaml.ScalarNode:
		kind, ok := scalarKind(y)
		if !ok {
			return c.problem(y, "the tag "+y.ShortTag()+" is not supported", "remove it")
		}
		n.kind, n.text = kind, y.Value
	default:
		return nil
	}
	return n
}

func (c *converter) alias(y *yaml.Node, depth int) *node {
	if c.active[y.Alias] {
		return c.problem(y, fmt.Sprintf("the anchor &%s contains itself", y.Value), "write the values out in place of *"+y.Value)
	}
	if c.active == nil {
		c.active = map[*yaml.Node]bool{}
	}
	c.active[y.Alias] = true
	c.inAlias++
	n := c.convert(y.Alias, depth)
	c.inAlias--
	delete(c.active, y.Alias)
	return n
}

func (c *converter) fields(n *node, y *yaml.Node, depth int) {
	seen := make(map[string]int, len(y.Content)/2)
	var merged []*yaml.Node
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		switch {
		case k.Kind != yaml.ScalarNode:
			c.problem(k, "a key must be a string, this one is a "+kindWord(k), "write a name before the `:`")
			continue
		case k.ShortTag() == "!!merge":
			merged = append(merged, v)
			continue
		}
		if first, dup := seen[k.Value]; dup {
			c.problem(k, fmt.Sprintf("duplicate key %q, first on line %d", k.Value, first), "keep one of the two")
			continue
		}
		seen[k.Value] = k.Line + c.offset
		f := field{key: k.Value, line: k.Line + c.offset, value: c.convert(v, depth+1)}
		if kind, ok := scalarKind(k); !ok || kind != stringNode {
			f.odd = kind.String()
		} else if k.Style == 0 && (strings.EqualFold(k.Value, "y") || strings.EqualFold(k.Value, "n")) {
			f.odd = boolNode.String() // kubectl turns the key y into "true"
		}
		n.fields = append(n.fields, f)
	}
	for _, m := range merged {
		c.merge(n, m, depth, seen)
	}
}

// merge adds the fields of what a merge key (<<) names, a map or a list of maps, that
// are not there yet: the map's own come first, then those of earlier maps.
func (c *converter) merge(n *node, y *yaml.Node, depth int, seen map[string]int) {
	from := c.convert(y, depth+1)
	list := []*node{from}
	if from.kind == listNode {
		list = from.items
	}
	for _, m := range list {
		switch m.kind {
		case badNode: // said already
		case mapNode:
			for _, f := range m.fields {
				if _, has := seen[f.key]; !has {
					seen[f.key] = f.line
					n.fields = append(n.fields, f)
				}
			}
		default:
			c.problem(y, "a merge key (<<) takes a mapping or a list of mappings, this is "+withArticle(m.kind.String()), "name an anchor of a mapping: `<<: *name`")
		}
	}
}

func kindWord(y *yaml.Node) string {
	if y.Kind == yaml.SequenceNode {
		return "list"
	}
	return "map"
}

// yaml11Bools are words YAML 1.1, and so kubectl, reads as booleans and the
// parser here does not.
var yaml11Bools = map[string]bool{
	"yes": true, "Yes": true, "YES": true, "no": true, "No": true, "NO": true,
	"on": true, "On": true, "ON": true, "off": true, "Off": true, "OFF": true,
}

// oddNumber finds unquoted text that some YAML reader takes for a number.
var oddNumber = regexp.MustCompile(`^[-+]?[0-9][0-9_]*(\.[0-9_]*)?([eE][-+]?[0-9]+)?$`)

// scalarKind types a scalar; false means a tag we do not support.
func scalarKind(y *yaml.Node) (nodeKind, bool) {
	switch y.ShortTag() {
	case "!!str":
		if y.Style == 0 && yaml11Bools[y.Value] {
			return boolNode, true
		}
		if y.Style == 0 && oddNumber.MatchString(y.Value) {
			return floatNode, true
		}
		return stringNode, true
	case "!!timestamp": // kubectl keeps dates as they are written
		return stringNode, true
	case "!!int":
		return intNode, true
	case "!!float":
		return floatNode, true
	case "!!bool":
		return boolNode, true
	case "!!null":
		return nullNode, true
	case "!!merge": // "<<" as a value is just a string
		return stringNode, true
	}
	return 0, false
}

var errorLine = regexp.MustCompile(`^yaml: (?:line ([0-9]+): )?`)

// syntaxProblem makes the parser's error usable: the line is that of the file,
// and the message says what to write.
func syntaxProblem(err error, chunk []byte, offset int) problem {
	message, line := err.Error(), 1
	if m := errorLine.FindStringSubmatch(message); m != nil {
		message = message[len(m[0]):]
		if m[1] != "" {
			line, _ = strconv.Atoi(m[1]) // digits by the expression; an overflow leaves a line nobody has
		}
	}
	// The parser counts from zero for these and from one for the others.
	if strings.HasPrefix(message, "did not find expected") && line > 1 {
		line++
	}
	lines := strings.Split(string(chunk), "\n")
	if len(lines) > 1 && lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	line = min(line, len(lines))
	hint := "check quotes, brackets and indentation at this place"
	if l, ok := findLine(lines, line, tabIndent.MatchString); ok && strings.HasPrefix(message, "found") {
		line, message = l, "a tab in the indentation"
		hint = "YAML does not allow tabs for indentation: use spaces"
	} else if l, ok := findLine(lines, line, flowSemicolon.MatchString); ok && strings.HasPrefix(message, "did not find expected ',' or") {
		line, message = l, "the entries of { } are separated by commas, not semicolons"
		if strings.Contains(lines[l-1], "matchExpressions") {
			hint = "matchExpressions must be a list; write `- {key: …, operator: …}`"
		} else {
			hint = "write `,` instead of `;`"
		}
	} else {
		if name, ok := strings.CutPrefix(message, "unknown anchor '"); ok {
			name, _, _ = strings.Cut(name, "'")
			if l, ok := findLine(lines, line, func(s string) bool { return strings.Contains(s, "*"+name) }); ok {
				line, hint = l, "define it with &"+name+" before, or quote a text that starts with *"
			}
		}
		for _, h := range syntaxHints {
			if strings.HasPrefix(message, h.prefix) {
				hint = h.hint
				break
			}
		}
		message = "not valid YAML: " + message
	}
	return problem{line: line + offset, message: message, hint: hint}
}

var (
	tabIndent     = regexp.MustCompile(`^ *\t`)
	flowSemicolon = regexp.MustCompile(`\{[^}#]*;`)
	syntaxHints   = []struct{ prefix, hint string }{
		{"mapping values are not allowed", "check the indentation, and quote a value that contains `: `"},
		{"did not find expected key", "the indentation does not line up with the lines above"},
		{"did not find expected '-'", "the indentation does not line up with the list above"},
		{"did not find expected ',' or '}'", "a `{` is not closed, or a comma is missing"},
		{"did not find expected ',' or ']'", "a `[` is not closed, or a comma is missing"},
		{"could not find expected ':'", "a key needs a `:` after it"},
		{"found unexpected end of stream", "a quote is not closed"},
		{"found character that cannot start any token", "quote a value that starts with @, ` or %"},
		{"found incompatible YAML document", "remove the %YAML line"},
		{"control characters are not allowed", "save the file as plain UTF-8 text"},
	}
)

// findLine returns the matching line nearest to the reported one: the parser
// reports where it gave up, which is often before or after the cause.
func findLine(lines []string, near int, match func(string) bool) (int, bool) {
	best, found := 0, false
	for i, text := range lines {
		d, b := i+1-near, best-near
		if match(text) && (!found || d*d < b*b) {
			best, found = i+1, true
		}
	}
	return best, found
}
