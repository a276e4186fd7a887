package manifests

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxDirDepth bounds nested directories, symbolic links included.
const maxDirDepth = 32

// isManifest reports whether a file name is one we read. Case does not matter: a
// policy in POLICY.YAML must not be skipped in silence.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	switch strings.ToLower(filepath.Ext(name)) {
	case ".yaml", ".yml", ".json":
		return true
	}
	return false
}

// walk calls visit for every manifest file under path in order, and visitDir, if
// not nil, for every directory. Symbolic links are followed; a link back to a
// directory around it is not entered again. info describes the link's target.
//
// A file or directory that vanishes while being walked is left out: its removal
// is the next change. Other errors are joined and returned; the walk goes on.
func walk(path string, visit func(path string, info fs.FileInfo), visitDir func(path string)) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		visit(path, info)
		return nil
	}
	w := walker{visit: visit, visitDir: visitDir}
	w.dir(path, info, nil)
	return errors.Join(w.errs...)
}

type walker struct {
	visit    func(string, fs.FileInfo)
	visitDir func(string)
	errs     []error
}

func (w *walker) dir(path string, info fs.FileInfo, around []fs.FileInfo) {
	if slices.ContainsFunc(around, func(a fs.FileInfo) bool { return os.SameFile(a, info) }) {
		return
	}
	if len(around) >= maxDirDepth {
		w.errs = append(w.errs, fmt.Errorf("%s: directories nested deeper than %d", path, maxDirDepth))
		return
	}
	if w.visitDir != nil {
		w.visitDir(path)
	}
	entries, err := os.ReadDir(path) // sorted by name
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.errs = append(w.errs, err)
	}
	around = append(around, info)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		sub := filepath.Join(path, e.Name())
		if !e.IsDir() && e.Type()&fs.ModeSymlink == 0 && !isManifest(e.Name()) {
			continue
		}
		info, err := os.Stat(sub)
		switch {
		case err != nil:
			// A dangling link with a manifest's name is a policy that is missing.
			if e.Type()&fs.ModeSymlink != 0 && isManifest(e.Name()) || !errors.Is(err, fs.ErrNotExist) {
				w.errs = append(w.errs, err)
			}
		case info.IsDir():
			w.dir(sub, info, around)
		case isManifest(e.Name()):
			w.visit(sub, info)
		}
	}
}
