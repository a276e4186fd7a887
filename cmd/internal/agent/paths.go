package agent

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
)

// Paths are directories and files. In the configuration they are a list or one
// string, of which "" is none; as a flag every use adds one.
type Paths []string

// UnmarshalJSON takes a string or a list of strings.
func (p *Paths) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*p = nil
		if one != "" {
			*p = Paths{one}
		}
		return nil
	}
	var list []string
	if json.Unmarshal(b, &list) != nil || slices.Contains(list, "") {
		return errors.New("want a path or a list of paths")
	}
	*p = list
	return nil
}

// String is the paths for people.
func (p *Paths) String() string { return strings.Join(*p, ", ") }

// Type names the value in help texts.
func (p *Paths) Type() string { return "PATH" }

// Set adds a path.
func (p *Paths) Set(path string) error {
	if path == "" {
		return errors.New("the path is empty")
	}
	*p = append(*p, path)
	return nil
}
