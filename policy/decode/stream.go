package decode

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
)

// streamFrom is the size, in bytes, from which on input is read object by object.
// Smaller input is read as a whole: anchors may then reach over all items of a list.
var streamFrom = 4 << 20 // tests have less

// DecodeReader is Decode of input of any size. Large input is read object by object,
// items of a list included, so that memory holds one object's text at a time; of Pods
// only what policy sees is kept then. It returns how many bytes other than white space
// the input has, or a greater number. The error is the reader's.
func (d *Decoder) DecodeReader(file string, in io.Reader) ([]*api.Object, diag.List, int64, error) {
	counted := &countReader{in: in}
	head, err := io.ReadAll(io.LimitReader(counted, int64(streamFrom)))
	if err != nil {
		return nil, diag.List{}, counted.n, err
	}
	if len(head) < streamFrom {
		objs, found := d.Decode(file, head)
		return objs, found, int64(len(bytes.TrimSpace(head))), nil
	}
	s := &stream{reader: d.reader(file)}
	s.usable = true
	if p := notText(bytes.TrimPrefix(head[:min(len(head), 4096)], bom)); p != nil && !strings.HasPrefix(p.message, "the file is not UTF-8") {
		s.report(&s.found.Errors, api.Ref{}, *p)
		return nil, s.found, counted.n, nil
	}
	rest := io.MultiReader(bytes.NewReader(bytes.TrimPrefix(head, bom)), counted)
	if t := bytes.TrimLeft(head, "\xef\xbb\xbf \t\r\n"); len(t) > 0 && t[0] == '{' {
		err = s.json(rest)
	} else {
		err = s.yaml(bufio.NewReaderSize(rest, 1<<16))
	}
	return s.objects, s.found, counted.n, err
}

type countReader struct {
	in io.Reader
	n  int64
}

func (c *countReader) Read(p []byte) (int, error) {
	n, err := c.in.Read(p)
	c.n += int64(n)
	return n, err
}

// stream decodes input that is too large to have in memory.
type stream struct {
	reader
	slimmed int // objects before this one hold only what is needed
}

// docs decodes documents, the first of which begins on a line.
func (s *stream) docs(docs []document) {
	for _, doc := range docs {
		for _, p := range doc.problems {
			s.report(&s.found.Errors, identity(doc.root, "", ""), p)
		}
		if doc.root != nil {
			s.usable = len(doc.problems) == 0
			s.document(doc.root)
		}
	}
	s.slim()
}

// item decodes an item of a list. header is what is known of the list: kubectl writes
// its kind behind the items, which have kinds of their own then.
func (s *stream) item(header, n *node, problems []problem, i int) {
	for _, p := range problems {
		s.report(&s.found.Errors, identity(n, "", ""), p)
	}
	if n == nil || n.kind == badNode {
		return
	}
	s.usable = len(problems) == 0
	version, kind := "", ""
	if list := header.get("kind").str(); list != "List" && strings.HasSuffix(list, "List") {
		version, kind = header.get("apiVersion").str(), strings.TrimSuffix(list, "List")
	}
	s.listItem(n, i, version, kind, func(n *node, path, message, hint string) {
		s.report(&s.found.Errors, api.Ref{}, problem{line: n.line, path: path, message: message, hint: hint})
	})
	s.slim()
}

// slim lets go of what no policy sees of the objects read since the last call.
func (s *stream) slim() {
	for _, o := range s.objects[s.slimmed:] {
		if meta, _ := metaOf(o.Value); meta != nil && IsCluster(o) {
			meta.ManagedFields = nil
		}
		pod, ok := o.Value.(*corev1.Pod)
		if !ok {
			continue
		}
		pod.Annotations, pod.Spec.Volumes, pod.Spec.Tolerations, pod.Spec.Affinity = nil, nil, nil, nil
		o.Annotations = nil
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses = nil, nil, nil
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				list[i] = corev1.Container{Name: list[i].Name, Ports: list[i].Ports, RestartPolicy: list[i].RestartPolicy}
			}
		}
	}
	s.slimmed = len(s.objects)
}

// mark is a place to go back to when a document turns out to be no list.
type mark struct{ objects, errors, warnings int }

func (s *stream) mark() mark {
	return mark{len(s.objects), len(s.found.Errors), len(s.found.Warnings)}
}

func (s *stream) reset(m mark) {
	s.objects, s.slimmed = s.objects[:m.objects], m.objects
	s.found.Errors, s.found.Warnings = s.found.Errors[:m.errors], s.found.Warnings[:m.warnings]
}

// yaml cuts a stream at its "---" lines, and a document with items at those.
func (s *stream) yaml(in *bufio.Reader) error {
	y := yamlStream{stream: s}
	for {
		line, err := in.ReadBytes('\n')
		if len(line) > 0 {
			y.number++
			y.line(line)
		}
		if errors.Is(err, io.EOF) {
			y.endDocument()
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// yamlStream collects lines until they are a document, or an item of a list.
type yamlStream struct {
	*stream
	number int // of the line read last

	text  bytes.Buffer // of the document so far, without its items
	first int          // line of text
	start mark

	header  *node // the document as far as it is known before its items
	inItems bool
	indent  int // of the items' dashes; -1: no item yet
	items   int
	item    bytes.Buffer
	itemAt  int // line of item
}

func (y *yamlStream) line(line []byte) {
	trimmed := bytes.TrimRight(line, "\r\n")
	switch {
	case isMarker(trimmed):
		y.endDocument()
		y.keep(line)
	case y.inItems:
		y.inList(line, trimmed)
	default:
		y.keep(line)
		if key, rest, ok := bytes.Cut(trimmed, []byte(":")); ok && isItems(string(key)) && len(bytes.TrimSpace(rest)) == 0 {
			y.inItems, y.indent, y.items, y.header = true, -1, 0, nil
			if docs := parseYAML(y.text.Bytes()); len(docs) == 1 {
				y.header = docs[0].root
			}
		}
	}
}

// keep adds a line to the document's own text.
func (y *yamlStream) keep(line []byte) {
	if y.text.Len() == 0 {
		y.first, y.start = y.number, y.mark()
	}
	y.text.Write(line)
}

func isItems(key string) bool { return strings.EqualFold(key, "items") }

// inList takes a line behind "items:".
func (y *yamlStream) inList(line, trimmed []byte) {
	content := bytes.TrimLeft(trimmed, " ")
	indent := len(trimmed) - len(content)
	dash := len(content) > 0 && content[0] == '-' && (len(content) == 1 || content[1] == ' ')
	switch {
	case len(content) == 0 || content[0] == '#' && indent <= max(y.indent, 0):
		y.addToItem(line) // belongs to whatever it stands in
	case dash && (indent == y.indent || y.indent < 0):
		y.endItem()
		y.indent, y.itemAt = indent, y.number
		y.item.Write(line)
	case y.indent >= 0 && indent > y.indent:
		y.item.Write(line)
	default: // the list has ended
		y.endItem()
		y.inItems = false
		y.keep(line)
	}
}

func (y *yamlStream) addToItem(line []byte) {
	if y.item.Len() > 0 {
		y.item.Write(line)
	}
}

func (y *yamlStream) endItem() {
	if y.item.Len() == 0 {
		return
	}
	defer y.item.Reset()
	if p := notText(y.item.Bytes()); p != nil {
		p.line += y.itemAt - 1
		y.report(&y.found.Errors, api.Ref{}, *p)
		return
	}
	for _, doc := range parseYAML(y.item.Bytes()) {
		move(doc.root, doc.problems, y.itemAt-1)
		if doc.root == nil || doc.root.kind != listNode {
			y.stream.item(y.header, doc.root, doc.problems, y.items)
			continue
		}
		for _, it := range doc.root.items {
			y.stream.item(y.header, it, doc.problems, y.items)
		}
	}
	y.items++
}

// move shifts the lines of a tree.
func move(n *node, problems []problem, by int) {
	for i := range problems {
		problems[i].line += by
	}
	var walk func(n *node)
	walk = func(n *node) {
		if n == nil {
			return
		}
		n.line += by
		for i := range n.fields {
			n.fields[i].line += by
			walk(n.fields[i].value)
		}
		for _, it := range n.items {
			walk(it)
		}
	}
	walk(n)
}

// endDocument decodes the document, whose items are decoded already.
func (y *yamlStream) endDocument() {
	y.endItem()
	hadItems := y.inItems || y.items > 0
	y.inItems, y.items = false, 0
	if y.text.Len() == 0 {
		return
	}
	defer y.text.Reset()
	if p := notText(y.text.Bytes()); p != nil {
		p.line += y.first - 1
		y.report(&y.found.Errors, api.Ref{}, *p)
		return
	}
	docs := parseYAML(y.text.Bytes())
	for i := range docs {
		move(docs[i].root, docs[i].problems, y.first-1)
		if root := docs[i].root; hadItems && root != nil {
			y.endList(root, y.start)
		}
	}
	y.docs(docs)
}

// endList completes a document whose items have been decoded since start: of one that
// is no list they were no objects.
func (s *stream) endList(root *node, start mark) {
	for i := range root.fields {
		if f := &root.fields[i]; isItems(f.key) && f.value.kind == nullNode {
			f.value.kind = listNode
		}
	}
	if kind := root.get("kind").str(); !strings.HasSuffix(kind, "List") {
		s.reset(start)
	}
}

// json reads a stream of JSON values.
func (s *stream) json(in io.Reader) error {
	lines := &lineReader{in: in, line: 1}
	dec := json.NewDecoder(lines)
	dec.UseNumber()
	for {
		err := s.jsonDocument(dec, lines)
		if errors.Is(err, io.EOF) {
			return nil
		}
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, errJSON) {
			message := err.Error()
			if errors.Is(err, io.ErrUnexpectedEOF) {
				message = "unexpected end of file"
			}
			s.report(&s.found.Errors, api.Ref{}, problem{line: lines.at(dec.InputOffset()), message: "not valid JSON: " + message, hint: "check commas, quotes and brackets at this place"})
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var errJSON = errors.New("expected an object")

// jsonDocument reads one top-level object, the items of a list one by one.
func (s *stream) jsonDocument(dec *json.Decoder, lines *lineReader) error {
	tok, err := dec.Token()
	if err != nil {
		return err
	}
	if tok != json.Delim('{') {
		return errJSON
	}
	root := &node{kind: mapNode, line: lines.at(dec.InputOffset())}
	doc, start := document{root: root}, s.mark()
	value := func() (*node, []problem, error) {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, nil, unexpected(err)
		}
		end := lines.at(dec.InputOffset())
		docs, bad := parseJSON(raw)
		if bad != nil {
			return nil, nil, fmt.Errorf("%w: %s", errJSON, bad.message)
		}
		move(docs[0].root, docs[0].problems, end-bytes.Count(raw, []byte("\n"))-1)
		return docs[0].root, docs[0].problems, nil
	}
	for dec.More() {
		tok, err := dec.Token()
		if err != nil {
			return unexpected(err)
		}
		key, _ := tok.(string)
		f := field{key: key, line: lines.at(dec.InputOffset())}
		if !isItems(key) {
			n, problems, err := value()
			if err != nil {
				return err
			}
			f.value = n
			doc.problems = append(doc.problems, problems...)
			root.fields = append(root.fields, f)
			continue
		}
		f.value = &node{kind: listNode, line: f.line}
		root.fields = append(root.fields, f)
		if tok, err = dec.Token(); err != nil {
			return unexpected(err)
		}
		if tok == nil {
			continue
		}
		if tok != json.Delim('[') {
			return fmt.Errorf("%w: items is no list", errJSON)
		}
		for i := 0; dec.More(); i++ {
			n, problems, err := value()
			if err != nil {
				return err
			}
			s.item(root, n, problems, i)
		}
		if _, err := dec.Token(); err != nil {
			return unexpected(err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return unexpected(err)
	}
	s.endList(root, start)
	s.docs([]document{doc})
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// lineReader remembers where lines end between what was read and what was used.
type lineReader struct {
	in   io.Reader
	read int64
	ends []int64 // offsets behind newlines that are not used yet
	line int     // of the first of them
}

func (l *lineReader) Read(p []byte) (int, error) {
	n, err := l.in.Read(p)
	for i, c := range p[:n] {
		if c == '\n' {
			l.ends = append(l.ends, l.read+int64(i)+1)
		}
	}
	l.read += int64(n)
	return n, err
}

// at returns the line of an offset that does not go back.
func (l *lineReader) at(offset int64) int {
	used := 0
	for used < len(l.ends) && l.ends[used] <= offset {
		used++
	}
	l.ends = l.ends[used:]
	l.line += used
	return l.line
}
