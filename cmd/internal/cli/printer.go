package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"
)

// Printer turns JSON values into another form.
type Printer func(in io.Reader, out io.Writer) error

// printerForms are the forms that are made of JSON, for error texts.
var printerForms = []string{"yaml", "jsonpath=…", "custom-columns=…"}

// printerFor returns the printer of a form that is made of JSON; nil: there is none.
func printerFor(form string) (Printer, error) {
	if form == "yaml" {
		return printYAML, nil
	}
	if text, ok := strings.CutPrefix(form, "jsonpath="); ok {
		path, err := newPath(text)
		if err != nil {
			return nil, err
		}
		return func(in io.Reader, out io.Writer) error {
			return eachValue(in, func(v any) error {
				if err := path.Execute(out, v); err != nil {
					return err
				}
				_, err := io.WriteString(out, "\n")
				return err
			})
		}, nil
	}
	if text, ok := strings.CutPrefix(form, "custom-columns="); ok {
		return columns(text)
	}
	return nil, nil
}

func newPath(text string) (*jsonpath.JSONPath, error) {
	if !strings.HasPrefix(text, "{") && !strings.Contains(text, "{") {
		text = "{." + strings.TrimPrefix(text, ".") + "}"
	}
	p := jsonpath.New("output").AllowMissingKeys(true)
	if err := p.Parse(text); err != nil {
		return nil, fmt.Errorf("jsonpath: %w", err)
	}
	return p, nil
}

func eachValue(in io.Reader, do func(v any) error) error {
	dec := json.NewDecoder(in)
	for {
		var v any
		err := dec.Decode(&v)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := do(v); err != nil {
			return err
		}
	}
}

func printYAML(in io.Reader, out io.Writer) error {
	first := true
	return eachValue(in, func(v any) error {
		text, err := yaml.Marshal(v)
		if err != nil {
			return err
		}
		if !first {
			text = append([]byte("---\n"), text...)
		}
		first = false
		_, err = out.Write(text)
		return err
	})
}

// columns prints a line for each element of the answer's one list, or for the answer.
func columns(text string) (Printer, error) {
	var heads []string
	var paths []*jsonpath.JSONPath
	for _, column := range strings.Split(text, ",") {
		head, path, ok := strings.Cut(column, ":")
		if !ok || head == "" || path == "" {
			return nil, fmt.Errorf("custom-columns: want HEADER:.path[,HEADER:.path…], got %q", column)
		}
		p, err := newPath(path)
		if err != nil {
			return nil, err
		}
		heads, paths = append(heads, head), append(paths, p)
	}
	return func(in io.Reader, out io.Writer) error {
		w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
		fmt.Fprintln(w, strings.Join(heads, "\t")) // Flush reports the error
		err := eachValue(in, func(v any) error {
			for _, row := range rowsOf(v) {
				cells := make([]string, len(paths))
				for i, p := range paths {
					var b strings.Builder
					if err := p.Execute(&b, row); err != nil {
						return err
					}
					if cells[i] = Escape(b.String()); cells[i] == "" {
						cells[i] = "<none>"
					}
				}
				fmt.Fprintln(w, strings.Join(cells, "\t"))
			}
			return nil
		})
		return errors.Join(err, w.Flush())
	}, nil
}

// rowsOf are the elements of the first list of an answer, by name; of one without a
// list the answer itself.
func rowsOf(v any) []any {
	m, ok := v.(map[string]any)
	if !ok {
		return []any{v}
	}
	var names []string
	for name, list := range m {
		if _, is := list.([]any); is && name != "incomplete" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return []any{v}
	}
	return m[slices.Min(names)].([]any)
}
