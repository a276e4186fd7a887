package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/manifests"
)

// Input is a directory of manifests, as far as it could be understood.
type Input struct {
	Objects  []*api.Object
	Snapshot *inventory.Snapshot
	Set      rule.Set
	Findings diag.List
	// Table is nil when there are error findings.
	Table *classifier.Table
}

// Load reads a directory, a file or "-" (stdin; nil is os.Stdin) exactly as the daemon
// does and compiles it for a node; "" makes every pod local. Pods written
// without an address get one of their own, with a warning, so that manifests
// that never saw a cluster can be asked about.
//
// What is wrong with the manifests is in Findings, not in the error: the error
// says that the question makes no sense, such as a directory or a node that does
// not exist.
func Load(dir, node string, stdin io.Reader) (*Input, error) {
	return LoadWith(lower.Options{}, dir, node, stdin)
}

// LoadWith is Load for a daemon with these options.
func LoadWith(opt lower.Options, dir, node string, stdin io.Reader) (*Input, error) {
	if dir != manifests.Stdin {
		if _, err := os.Stat(dir); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
	}
	loader := manifests.Loader{
		Kinds: lower.Kinds(), Inventory: inventory.Options{AssignAddresses: true}, Stdin: stdin,
	}
	objs, snap, found := loader.Load(dir)
	in := &Input{Objects: objs, Snapshot: snap, Findings: found}
	if snap != nil {
		set, found := opt.Build(objs, snap)
		in.Set = set
		in.Findings.Add(found)
	}
	in.Findings.Sort()
	if len(in.Findings.Errors) > 0 {
		return in, nil
	}
	world, err := snap.WorldOf(node)
	if err != nil {
		return in, err
	}
	snap.FillSets(world, &in.Set)
	if in.Table, _, err = classifier.Compile(in.Set, world, classifier.Options{}); err != nil {
		return in, fmt.Errorf("compile the policies: %w", err)
	}
	return in, nil
}

// Lint adds the warnings about policies that are valid and probably not what
// their author meant. It says nothing about manifests with errors: what was not
// understood cannot be judged.
func (in *Input) Lint() {
	if in.Table == nil {
		return
	}
	in.Findings.Add(lint.Check(in.Objects, &in.Set, in.Snapshot))
	in.Findings.Sort()
}

// Findings is the JSON form of a list of findings. Both lists are always there.
type Findings struct {
	Errors   []diag.Diagnostic `json:"errors"`
	Warnings []diag.Diagnostic `json:"warnings"`
}

// WriteFindings prints a list of findings: JSON, or for people one line each
// with its hint below.
func WriteFindings(w io.Writer, s Style, asJSON bool, l *diag.List) error {
	if asJSON {
		f := Findings{Errors: l.Errors, Warnings: l.Warnings}
		if f.Errors == nil {
			f.Errors = []diag.Diagnostic{}
		}
		if f.Warnings == nil {
			f.Warnings = []diag.Diagnostic{}
		}
		return WriteJSON(w, f)
	}
	var errs []error
	for _, d := range l.Errors {
		errs = append(errs, writeFinding(w, s, s.Red("error"), d))
	}
	for _, d := range l.Warnings {
		errs = append(errs, writeFinding(w, s, s.Yellow("warning"), d))
	}
	return errors.Join(errs...)
}

func writeFinding(w io.Writer, s Style, severity string, d diag.Diagnostic) error {
	hint := d.Hint
	d.Hint = ""
	if _, err := fmt.Fprintf(w, "%s: %s\n", severity, d); err != nil {
		return err
	}
	if hint == "" {
		return nil
	}
	_, err := fmt.Fprintf(w, "  %s %s\n", s.Dim("hint:"), hint)
	return err
}

// Summary is one line about what was read: "3 policies: 1 error, 2 warnings".
func (in *Input) Summary() string {
	policies := "1 policy"
	if n := len(in.Objects); n != 1 {
		policies = fmt.Sprintf("%d policies", n)
	}
	return policies + ": " + plural(len(in.Findings.Errors), "error") + ", " + plural(len(in.Findings.Warnings), "warning")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
