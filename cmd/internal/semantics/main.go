package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Document is the table's path below the module's root.
const Document = "docs/semantics.md"

func main() {
	var opts options
	flag.BoolVar(&opts.missing, "missing", false, "list every line without a proof, with the reason")
	flag.BoolVar(&opts.cites, "cites", false, "list the tests and fixtures that cite each number")
	flag.BoolVar(&opts.run, "run", false, "run the proofs; one that fails or is skipped does not count")
	flag.BoolVar(&opts.update, "update", false, "write the list of refusals anew from the fixtures")
	flag.Parse()
	if err := report(os.Stdout, opts); err != nil {
		fmt.Fprintln(os.Stderr, "semantics:", err)
		os.Exit(1)
	}
}

type options struct{ missing, cites, run, update bool }

// report prints what is asked for. Anything wrong with the table is an error.
func report(w io.Writer, opts options) error {
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	doc, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(Document)))
	if err != nil {
		return err
	}
	rows, errs := Parse(string(doc))
	errs = append(errs, Problems(rows)...)
	refusals, err := Refusals(root)
	if err != nil {
		return err
	}
	current, err := replaceRefusals(string(doc), refusalText(refusals))
	switch {
	case err != nil:
		errs = append(errs, err)
	case current != string(doc) && opts.update:
		if err := os.WriteFile(filepath.Join(root, filepath.FromSlash(Document)), []byte(current), 0o644); err != nil {
			return err
		}
	case current != string(doc):
		errs = append(errs, errors.New("the list of refusals is not that of the fixtures: go run ./cmd/internal/semantics -update"))
	}
	tree, err := Scan(root)
	if err != nil {
		return err
	}
	if opts.cites {
		for _, s := range Seeds {
			for n := 1; n <= s.Lines; n++ {
				fmt.Fprintf(w, "%s %s\n", number(s.Prefix, n), strings.Join(tree.Cites(number(s.Prefix, n)), " "))
			}
		}
		return errors.Join(errs...)
	}
	holds := func(p Proof, n Number) bool { return tree.Check(p, n) == nil }
	if opts.run {
		ran, err := runProofs(root, rows)
		if err != nil {
			return err
		}
		stated := holds
		holds = func(p Proof, n Number) bool { return stated(p, n) && ran.passed(p) }
	}
	for _, r := range rows {
		switch {
		case r.State.needsProof():
			for _, p := range r.Proofs {
				if err := tree.Check(p, r.Number); err != nil {
					errs = append(errs, fmt.Errorf("line %d: %s: %w", r.Line, r.Number, err))
				} else if !holds(p, r.Number) {
					errs = append(errs, fmt.Errorf("line %d: %s: %s did not pass", r.Line, r.Number, p))
				}
			}
		case opts.missing:
			fmt.Fprintf(w, "%s %s: %s\n", r.Number, r.State, r.Reason)
		}
	}
	if err := WriteCounts(w, CountRows(rows, holds)); err != nil {
		return err
	}
	return errors.Join(errs...)
}

// moduleRoot is the nearest folder above that has a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the current folder")
		}
		dir = parent
	}
}
