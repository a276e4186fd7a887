package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/tools/txtar"
)

// Refusal is one error the fixtures of a dialect have written down.
type Refusal struct {
	Dialect   string // folder of policy/lower
	Situation string // "Kind name" of the object, whose name says what is wrong with it
	Field     string // path, without the numbers of list items
	Message   string // with the hint in brackets
}

var (
	finding = regexp.MustCompile(`^error: (?:\S+\.yaml(?::\d+)?: )?(?:([A-Z]\w+ \S+): )?(?:((?:specs?|metadata|apiVersion|kind|status)(?:\[[^\]]*\]|\.\w+)*): )?(.*)$`)
	item    = regexp.MustCompile(`\[\d+\]`)
)

// Refusals reads the golden findings of every dialect's fixtures, in the order
// of folders, files and lines. What differs only in the number of a list's item
// comes once.
func Refusals(root string) ([]Refusal, error) {
	files, err := filepath.Glob(filepath.Join(root, "policy", "lower", "*", "testdata", "*.txtar"))
	if err != nil {
		return nil, err
	}
	seen := map[Refusal]bool{}
	var out []Refusal
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		dialect := filepath.Base(filepath.Dir(filepath.Dir(file)))
		for _, f := range txtar.Parse(data).Files {
			if f.Name != "findings" {
				continue
			}
			for _, line := range strings.Split(string(f.Data), "\n") {
				m := finding.FindStringSubmatch(line)
				if m == nil {
					continue
				}
				r := Refusal{dialect, m[1], item.ReplaceAllString(m[2], "[]"), item.ReplaceAllString(m[3], "[]")}
				if !seen[r] {
					seen[r] = true
					out = append(out, r)
				}
			}
		}
	}
	return out, nil
}

// The generated part of the document is between these lines.
const (
	refusalsBegin = "<!-- refusals: written by go run ./cmd/internal/semantics -update -->"
	refusalsEnd   = "<!-- end of refusals -->"
)

// refusalText is the generated part.
func refusalText(refusals []Refusal) string {
	var b strings.Builder
	cell := strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`, "_", `\_`).Replace
	for i, r := range refusals {
		if i == 0 || refusals[i-1].Dialect != r.Dialect {
			n := 0
			for _, o := range refusals {
				if o.Dialect == r.Dialect {
					n++
				}
			}
			fmt.Fprintf(&b, "\n### %s: %d\n\n| Situation | Field | Message |\n|---|---|---|\n", r.Dialect, n)
		}
		field := ""
		if r.Field != "" {
			field = "`" + strings.ReplaceAll(r.Field, "|", `\|`) + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", cell(r.Situation), field, cell(r.Message))
	}
	return b.String() + "\n"
}

// replaceRefusals puts text between the two marks of a document.
func replaceRefusals(doc, text string) (string, error) {
	begin, rest, ok := strings.Cut(doc, refusalsBegin+"\n")
	_, end, ok2 := strings.Cut(rest, refusalsEnd)
	if !ok || !ok2 {
		return "", fmt.Errorf("no place for the refusals: want the lines %q and %q", refusalsBegin, refusalsEnd)
	}
	return begin + refusalsBegin + "\n" + text + refusalsEnd + end, nil
}
