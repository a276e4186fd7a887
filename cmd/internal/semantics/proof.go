package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Tree knows every test and fixture of a module and the numbers each shows.
type Tree struct {
	proofs map[string]numbers // by proof in text form
}

// numbers are those of one test or fixture.
type numbers struct {
	shown map[Number]bool // beside a case: a row, an assertion, a verdict, a finding
	cited map[Number]bool // anywhere, prose included
}

func newNumbers(text string) numbers {
	return numbers{shown: map[Number]bool{}, cited: numbersIn(text)}
}

// show adds the numbers in the text of a case.
func (n numbers) show(text string) {
	for c := range numbersIn(text) {
		n.shown[c] = true
	}
}

// cited matches a number, or two with an ellipsis between: all from one to the
// other.
var cited = regexp.MustCompile(`\b(S[0-4]|X)-(\d+)(?:\s?(?:…|\.\.\.)\s?(?:(S[0-4]|X)-)?(\d+))?`)

// numbersIn returns the numbers a text cites.
func numbersIn(text string) map[Number]bool {
	out := map[Number]bool{}
	for _, m := range cited.FindAllStringSubmatch(text, -1) {
		_, first := Number("-" + m[2]).split()
		_, last := Number("-" + m[4]).split()
		if m[4] == "" || m[3] != "" && m[3] != m[1] || last-first > 200 {
			last = first
		}
		for n := first; n <= last; n++ {
			out[number(m[1], n)] = true
		}
	}
	return out
}

// Scan reads all tests and fixtures below root, a folder with a go.mod.
func Scan(root string) (*Tree, error) {
	t := &Tree{proofs: map[string]numbers{}}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if strings.HasPrefix(d.Name(), ".") && p != root {
				return filepath.SkipDir
			}
			return nil
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if !strings.HasSuffix(rel, "_test.go") && !strings.HasSuffix(rel, ".txtar") {
			return nil
		}
		data, err := os.ReadFile(p)
		switch {
		case err != nil:
			return err
		case strings.HasSuffix(rel, ".txtar"):
			t.proofs[rel] = fixtureNumbers(data)
			return nil
		default:
			tests, err := testNumbers(p, data)
			for name, n := range tests {
				t.proofs[Proof{Package: path.Dir(rel), Test: name}.String()] = n
			}
			return err
		}
	})
	if err != nil {
		return nil, fmt.Errorf("read tests: %w", err)
	}
	return t, nil
}

var (
	errNoProof = errors.New("does not exist")
	errSilent  = errors.New("does not cite the number")
	errProse   = errors.New("cites the number in prose only: write it beside the case that shows it")
)

// Check reports whether a proof exists and has a case for the number.
func (t *Tree) Check(p Proof, n Number) error {
	have, ok := t.proofs[p.String()]
	switch {
	case !ok:
		return fmt.Errorf("%s %w", p, errNoProof)
	case have.shown[n]:
		return nil
	case have.cited[n]:
		return fmt.Errorf("%s %w", p, errProse)
	}
	return fmt.Errorf("%s %w", p, errSilent)
}

// Cites returns the proofs that have a case for a number, sorted.
func (t *Tree) Cites(n Number) []string {
	var out []string
	for p, have := range t.proofs {
		if have.shown[n] {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}
