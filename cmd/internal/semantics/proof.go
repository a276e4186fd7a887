package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Tree knows every test and fixture of a module and the numbers each cites.
type Tree struct {
	cites map[string]map[Number]bool // proof in text form → numbers
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
	t := &Tree{cites: map[string]map[Number]bool{}}
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
		switch {
		case strings.HasSuffix(rel, "_test.go"):
			return t.goFile(p, path.Dir(rel))
		case strings.HasSuffix(rel, ".txtar"):
			data, err := os.ReadFile(p)
			t.cites[rel] = numbersIn(string(data))
			return err
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read tests: %w", err)
	}
	return t, nil
}

// goFile adds the test functions of a file.
func (t *Tree) goFile(file, dir string) error {
	src, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, file, src, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") && !strings.HasPrefix(fn.Name.Name, "Fuzz") {
			continue
		}
		first := fn.Pos()
		if fn.Doc != nil {
			first = fn.Doc.Pos()
		}
		// The comment behind a function's last line belongs to it.
		last := fset.Position(fn.End()).Offset
		if i := strings.IndexByte(string(src[last:]), '\n'); i >= 0 {
			last += i
		}
		t.cites[Proof{Package: dir, Test: fn.Name.Name}.String()] = numbersIn(string(src[fset.Position(first).Offset:last]))
	}
	return nil
}

var (
	errNoProof = errors.New("does not exist")
	errSilent  = errors.New("does not cite the number")
)

// Check reports whether a proof exists and cites the number.
func (t *Tree) Check(p Proof, n Number) error {
	cites, ok := t.cites[p.String()]
	switch {
	case !ok:
		return fmt.Errorf("%s %w", p, errNoProof)
	case !cites[n]:
		return fmt.Errorf("%s %w", p, errSilent)
	}
	return nil
}

// Cites returns the proofs that cite a number, sorted.
func (t *Tree) Cites(n Number) []string {
	var out []string
	for p, cites := range t.cites {
		if cites[n] {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out
}
