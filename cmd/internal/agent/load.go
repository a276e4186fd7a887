package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	yaml3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// Load reads a configuration file over the defaults. An unknown key, a key
// given twice, a value of the wrong type or a second document is an error, which
// names the key. Keys are compared exactly: encoding/json would take failmode for
// failMode, and the later one of both.
func Load(path string) (Config, error) {
	c := Default()
	b, err := os.ReadFile(path)
	if err != nil {
		return c, fmt.Errorf("configuration: %w", err)
	}
	if err := c.decode(b); err != nil {
		return c, fmt.Errorf("configuration %s: %w", path, err)
	}
	return c, nil
}

func (c *Config) decode(b []byte) error {
	if err := oneDocument(b); err != nil {
		return err
	}
	given, err := yaml.YAMLToJSONStrict(b)
	if err != nil {
		return err
	}
	known, err := json.Marshal(c)
	if err != nil {
		return err
	}
	return c.set("", given, known, func(v json.RawMessage) (json.RawMessage, error) { return v, nil })
}

// oneDocument refuses what follows a first document: nobody would read it.
func oneDocument(b []byte) error {
	d := yaml3.NewDecoder(bytes.NewReader(b))
	for n := 0; ; n++ {
		var doc any
		switch err := d.Decode(&doc); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case n > 0 && doc != nil:
			return errors.New("more than one YAML document: want one")
		}
	}
}

// set decodes into c the values of given, which is what the file says under the
// key path ("" is all of it). known is what c says there: it has every key there
// is. wrap puts a value at its place in the whole. Every value is decoded by
// itself, so that its error can say whose it is.
func (c *Config) set(path string, given, known json.RawMessage, wrap func(json.RawMessage) (json.RawMessage, error)) error {
	if bytes.Equal(given, []byte("null")) {
		return nil
	}
	if known[0] != '{' {
		whole, err := wrap(given)
		if err != nil {
			return err
		}
		var wrong *json.UnmarshalTypeError
		switch err := json.Unmarshal(whole, c); {
		case errors.As(err, &wrong):
			return fmt.Errorf("%s: %s is no %s", path, given, wrong.Type)
		case err != nil:
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	}
	var values, keys map[string]json.RawMessage
	if err := json.Unmarshal(known, &keys); err != nil {
		return err
	}
	if json.Unmarshal(given, &values) != nil {
		return fmt.Errorf("%s: %s where keys belong, such as %q", path, given, slices.Sorted(maps.Keys(keys))[0])
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(values)) {
		at := key
		if path != "" {
			at = path + "." + key
		}
		if keys[key] == nil {
			errs = append(errs, fmt.Errorf("%s: unknown key", at))
			continue
		}
		errs = append(errs, c.set(at, values[key], keys[key], func(v json.RawMessage) (json.RawMessage, error) {
			v, err := json.Marshal(map[string]json.RawMessage{key: v})
			if err != nil {
				return nil, err
			}
			return wrap(v)
		}))
	}
	return errors.Join(errs...)
}
