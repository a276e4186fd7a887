package decode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// parseJSON reads a stream of JSON values. JSON is read by its own parser: YAML
// covers most of it but not, for one, surrogate escapes.
func parseJSON(data []byte) ([]document, *problem) {
	r := &jsonReader{data: data, dec: json.NewDecoder(bytes.NewReader(data)), line: 1}
	r.dec.UseNumber()
	var docs []document
	for {
		r.problems = nil
		n, err := r.value(0)
		if errors.Is(err, io.EOF) {
			return docs, nil
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("unexpected end of file")
			}
			return nil, &problem{line: r.at(), message: "not valid JSON: " + err.Error(), hint: "check commas, quotes and brackets at this place"}
		}
		docs = append(docs, document{root: n, problems: r.problems})
	}
}

type jsonReader struct {
	data     []byte
	dec      *json.Decoder
	line     int // line of data[:offset]
	offset   int
	problems []problem
}

// at returns the line of the token read last.
func (r *jsonReader) at() int {
	end := int(r.dec.InputOffset())
	r.line += bytes.Count(r.data[r.offset:end], []byte("\n"))
	r.offset = end
	return r.line
}

// value reads one value. io.EOF means there is none; inside a value the end of
// input is io.ErrUnexpectedEOF.
func (r *jsonReader) value(depth int) (*node, error) {
	tok, err := r.dec.Token()
	if err != nil {
		return nil, err
	}
	n := &node{line: r.at()}
	switch t := tok.(type) {
	case nil:
		n.kind = nullNode
	case bool:
		n.kind, n.text = boolNode, fmt.Sprint(t)
	case string:
		n.kind, n.text = stringNode, t
	case json.Number:
		n.kind, n.text = intNode, t.String()
		if strings.ContainsAny(n.text, ".eE") {
			n.kind = floatNode
		}
	case json.Delim:
		if depth >= maxDepth {
			return nil, fmt.Errorf("nested deeper than %d levels", maxDepth)
		}
		if t == '[' {
			n.kind = listNode
			err = r.items(n, depth)
		} else {
			n.kind = mapNode
			err = r.fields(n, depth)
		}
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func (r *jsonReader) items(n *node, depth int) error {
	for r.dec.More() {
		it, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		n.items = append(n.items, it)
	}
	_, err := r.dec.Token()
	return err
}

func (r *jsonReader) fields(n *node, depth int) error {
	seen := map[string]int{}
	for r.dec.More() {
		tok, err := r.dec.Token()
		if err != nil {
			return err
		}
		key, ok := tok.(string)
		if !ok {
			return fmt.Errorf("a key has to be a string, got %v", tok)
		}
		line := r.at()
		v, err := r.value(depth + 1)
		if err != nil {
			return err
		}
		if first, dup := seen[key]; dup {
			r.problems = append(r.problems, problem{
				line: line, message: fmt.Sprintf("duplicate key %q, first on line %d", key, first), hint: "keep one of the two",
			})
			continue
		}
		seen[key] = line
		n.fields = append(n.fields, field{key: key, line: line, value: v})
	}
	_, err := r.dec.Token()
	return err
}
