// Package sarif writes findings in SARIF 2.1.0, the format that code hosts show
// beside the lines of a change
// (https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html). It has what
// we fill in, and nothing else of the format.
package sarif

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Rule is a kind of finding. Its ID stays the same in every version.
type Rule struct {
	ID, Name string
	Level    string // error, warning or note
	Text     string // one sentence
	Help     string // a page about it
}

// Place is a line of a file; line 0 counts as 1.
type Place struct {
	File string
	Line int
}

// Log is one run.
type Log struct {
	version string
	rules   []Rule
	results []result
}

// New returns an empty log of a version of the program.
func New(version string, rules ...Rule) *Log { return &Log{version: version, rules: rules} }

type (
	text struct {
		Text string `json:"text"`
	}
	location struct {
		Physical physical `json:"physicalLocation"`
		Message  *text    `json:"message,omitempty"`
	}
	physical struct {
		Artifact struct {
			URI string `json:"uri"`
		} `json:"artifactLocation"`
		Region struct {
			StartLine int `json:"startLine"`
		} `json:"region"`
	}
	result struct {
		RuleID       string            `json:"ruleId"`
		RuleIndex    int               `json:"ruleIndex"`
		Level        string            `json:"level"`
		Message      text              `json:"message"`
		Locations    []location        `json:"locations"`
		Related      []location        `json:"relatedLocations,omitempty"`
		Fingerprints map[string]string `json:"partialFingerprints"`
	}
	descriptor struct {
		ID      string `json:"id"`
		Name    string `json:"name"`
		Short   text   `json:"shortDescription"`
		HelpURI string `json:"helpUri"`
		Default struct {
			Level string `json:"level"`
		} `json:"defaultConfiguration"`
	}
)

// Add adds a finding of a rule. also may be nil. The message is plain text: what
// its readers would make a link of (section 3.11.6) is taken apart.
func (l *Log) Add(ruleID, message string, at Place, also *Place) {
	message = strings.ReplaceAll(message, "](", "] (")
	i := slices.IndexFunc(l.rules, func(r Rule) bool { return r.ID == ruleID })
	sum := sha256.Sum256([]byte(ruleID + "\x00" + at.File + "\x00" + message))
	r := result{
		RuleID: ruleID, RuleIndex: i, Level: l.rules[i].Level, Message: text{message}, Locations: []location{locate(at, "")},
		// Lines move; what is said about which file tells findings of two runs apart.
		Fingerprints: map[string]string{"tierwall/v1": hex.EncodeToString(sum[:16])},
	}
	if also != nil {
		r.Related = []location{locate(*also, "the test")}
	}
	l.results = append(l.results, r)
}

func locate(p Place, message string) location {
	var l location
	l.Physical.Artifact.URI = uri(p.File)
	l.Physical.Region.StartLine = max(1, p.Line)
	if message != "" {
		l.Message = &text{message}
	}
	return l
}

// uri makes a reference of a path, relative to the working directory where the file
// is below it: code hosts run us at the root of the repository.
func uri(path string) string {
	if here, err := os.Getwd(); err == nil && filepath.IsAbs(path) {
		if rel, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(rel) {
			path = rel
		}
	}
	path = filepath.ToSlash(filepath.Clean(path))
	if strings.HasPrefix(path, "/") {
		return (&url.URL{Scheme: "file", Path: path}).String()
	}
	return (&url.URL{Path: path}).String() // "./" before a first part with a colon
}

// Write writes the log.
func (l *Log) Write(w io.Writer) error {
	rules := make([]descriptor, len(l.rules))
	for i, r := range l.rules {
		rules[i] = descriptor{ID: r.ID, Name: r.Name, Short: text{r.Text}, HelpURI: r.Help}
		rules[i].Default.Level = r.Level
	}
	if l.results == nil {
		l.results = []result{}
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]any{
		"$schema": "https://json.schemastore.org/sarif-2.1.0.json",
		"version": "2.1.0",
		"runs": []any{map[string]any{
			"tool": map[string]any{"driver": map[string]any{
				"name": "tierwall", "version": l.version, "informationUri": "https://github.com/tierwall/tierwall", "rules": rules, "language": "en-US",
			}},
			"language":         "en-US",
			"newlineSequences": []string{"\r\n", "\n"},
			"results":          l.results,
			"columnKind":       "utf16CodeUnits",
		}},
	})
}
