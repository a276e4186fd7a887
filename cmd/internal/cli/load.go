package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/tierwall/tierwall/classifier"
	"github.com/tierwall/tierwall/classifier/rule"
	"github.com/tierwall/tierwall/policy/api"
	"github.com/tierwall/tierwall/policy/assure"
	"github.com/tierwall/tierwall/policy/diag"
	"github.com/tierwall/tierwall/policy/inventory"
	"github.com/tierwall/tierwall/policy/lint"
	"github.com/tierwall/tierwall/policy/lower"
	"github.com/tierwall/tierwall/policy/source/manifests"
)

// Input is a directory of manifests or a cluster, as far as it could be
// understood and read.
type Input struct {
	Objects  []*api.Object
	Snapshot *inventory.Snapshot
	Set      rule.Set
	Findings diag.List
	// Table is nil when there are error findings; with Live, when they leave no
	// policy that could be in force.
	Table *classifier.Table
	// Live says that it is a cluster's, and Gaps what of it could not be read.
	Live bool
	Gaps []Gap

	unfit   bool                       // Set does not hold: there are errors about all of it
	read    []*api.Object              // Objects, and of a cluster those left out
	refused map[api.Ref]bool           // Live: those left out
	removed map[api.Ref]bool           // by Remove
	files   int                        // WithFiles: policies that are the files'
	only    func(diag.Diagnostic) bool // WithFiles: the findings to show; nil = all
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
	return LoadWith(lower.Options{}, []string{dir}, node, stdin)
}

// LoadWith is Load of several directories and files, which add up, for a daemon
// with these options.
func LoadWith(opt lower.Options, paths []string, node string, stdin io.Reader) (*Input, error) {
	in, err := Read(opt, paths, stdin)
	if err != nil {
		return nil, err
	}
	return in, in.compile(node)
}

// Read is LoadWith for callers that need no table: there is none in the result.
func Read(opt lower.Options, paths []string, stdin io.Reader) (*Input, error) {
	objs, snap, found, err := readManifests(paths, stdin)
	if err != nil {
		return nil, err
	}
	in := &Input{Objects: objs, Snapshot: snap, Findings: found, read: objs}
	if snap != nil {
		set, found := opt.Build(objs, snap)
		in.Set = set
		in.Findings.Add(found)
	}
	in.Findings.Sort()
	in.unfit = len(in.Findings.Errors) > 0
	return in, nil
}

// readManifests reads what offline tools ask about. The error says that a path
// does not exist.
func readManifests(paths []string, stdin io.Reader) ([]*api.Object, *inventory.Snapshot, diag.List, error) {
	for _, path := range paths {
		if path == manifests.Stdin {
			continue
		}
		if _, err := os.Stat(path); err != nil {
			return nil, nil, diag.List{}, fmt.Errorf("read manifests: %w", err)
		}
	}
	loader := manifests.Loader{Kinds: lower.Kinds(), Inventory: inventory.Options{AssignAddresses: true, Workloads: true}, Offline: true, Stdin: stdin}
	objs, snap, found := loader.Load(paths...)
	return objs, snap, found, nil
}

// compile makes the table, if there is a set to make it of.
func (in *Input) compile(node string) error {
	if in.unfit {
		return nil
	}
	world, err := in.Snapshot.WorldOf(node)
	if err != nil {
		return err
	}
	in.Snapshot.FillSets(world, &in.Set)
	if in.Table, _, err = classifier.Compile(in.Set, world, classifier.Options{}); err != nil {
		return fmt.Errorf("compile the policies: %w", err)
	}
	return nil
}

// Lint adds the warnings about policies that are valid and probably not what
// their author meant. It says nothing about manifests with errors: what was not
// understood cannot be judged.
func (in *Input) Lint() {
	if in.Table == nil {
		return
	}
	found := lint.Check(in.Objects, &in.Set, in.Snapshot)
	if in.only != nil {
		other := func(d diag.Diagnostic) bool { return !in.only(d) }
		found.Warnings = slices.DeleteFunc(found.Warnings, other)
		found.Notes = slices.DeleteFunc(found.Notes, other)
	} else {
		// That an Allow opens what others isolate is news of a change; of policies
		// as they are it is what administrators write Allow rules for.
		found.Notes = nil
	}
	in.Findings.Add(found)
	in.Findings.Sort()
}

// Findings is the JSON form of a list of findings. Errors and warnings are always
// there.
type Findings struct {
	Errors   []diag.Diagnostic `json:"errors"`
	Warnings []diag.Diagnostic `json:"warnings"`
	Notes    []diag.Diagnostic `json:"notes,omitempty"`
}

// FindingsOf is a list of findings in its JSON form.
func FindingsOf(l *diag.List) Findings {
	f := Findings{Errors: l.Errors, Warnings: l.Warnings, Notes: l.Notes}
	if f.Errors == nil {
		f.Errors = []diag.Diagnostic{}
	}
	if f.Warnings == nil {
		f.Warnings = []diag.Diagnostic{}
	}
	return f
}

// WriteFindings prints a list of findings: JSON, or for people one line each
// with its hint below.
func WriteFindings(w io.Writer, s Style, asJSON bool, l *diag.List) error {
	if asJSON {
		return WriteJSON(w, FindingsOf(l))
	}
	var errs []error
	for _, d := range l.Errors {
		errs = append(errs, writeFinding(w, s, s.Red("error"), d))
	}
	for _, d := range l.Warnings {
		errs = append(errs, writeFinding(w, s, s.Yellow("warning"), d))
	}
	for _, d := range l.Notes {
		errs = append(errs, writeFinding(w, s, s.Dim("note"), d))
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
	_, err := fmt.Fprintf(w, "  %s %s\n", s.Dim("hint:"), Escape(hint))
	return err
}

// Summary is one line about what was read: "3 policies: 1 error, 2 warnings".
func (in *Input) Summary() string {
	n, staged := len(in.Objects), 0
	for _, o := range in.Objects {
		// Of a cluster with files in it, the files' are meant.
		if o != nil && (in.only == nil || o.File != "") && lower.Staged(o.Annotations) {
			staged++
		}
	}
	if in.only != nil {
		n = in.files
	}
	policies := Plural(n, "policy")
	if staged > 0 {
		policies += fmt.Sprintf(", %d of them staged (not enforced)", staged)
	}
	out := policies + ": " + Plural(len(in.Findings.Errors), "error") + ", " + Plural(len(in.Findings.Warnings), "warning")
	if n := len(in.Findings.Notes); n > 0 {
		out += ", " + Plural(n, "note")
	}
	return out
}

// State is what was read, for package assure.
func (in *Input) State() assure.State { return assure.State{Snapshot: in.Snapshot, Set: in.Set} }

// Fit reports whether there is an answer: no errors, or none that concern all.
func (in *Input) Fit() bool { return !in.unfit }

// Rename makes findings name another place than the one that was read, such as a
// temporary directory.
func (in *Input) Rename(from, to string) {
	for _, list := range [][]diag.Diagnostic{in.Findings.Errors, in.Findings.Warnings, in.Findings.Notes} {
		for i := range list {
			if rest, ok := strings.CutPrefix(list[i].File, from); ok {
				list[i].File = to + rest
			}
			list[i].Message = strings.ReplaceAll(list[i].Message, from, to)
		}
	}
}
