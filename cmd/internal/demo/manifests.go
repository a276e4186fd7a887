package demo

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tierwall/tierwall/cmd/internal/world"
	"github.com/tierwall/tierwall/deploy/examples"
)

// writeManifests fills dir with the world's description and the policies: those
// of directories and files, or the built-in ones when there are none.
func writeManifests(dir string, policies []string) error {
	inventory, err := world.Manifests()
	if err != nil {
		return err
	}
	to := filepath.Join(dir, "policies")
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "world.yaml"), inventory, 0o644); err != nil {
		return err
	}
	if len(policies) == 0 {
		from, err := fs.Sub(examples.FS, "demo")
		if err != nil {
			return err
		}
		_, err = copyManifests(from, to)
		return err
	}
	for i, from := range policies {
		part := to
		if len(policies) > 1 { // files of two directories may have one name
			part = filepath.Join(to, strconv.Itoa(i+1))
			if err := os.Mkdir(part, 0o755); err != nil {
				return err
			}
		}
		if err := copyPolicies(from, part); err != nil {
			return fmt.Errorf("policies: %w", err)
		}
	}
	return nil
}

// copyPolicies copies a directory's manifests, or a file.
func copyPolicies(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, filepath.Base(from)), b, 0o644)
	}
	n, err := copyManifests(os.DirFS(from), to)
	if err == nil && n == 0 {
		err = fmt.Errorf("%s has no .yaml, .yml or .json file", from)
	}
	return err
}

// copyManifests copies the files a manifests directory is read for and returns
// their number.
func copyManifests(from fs.FS, to string) (n int, err error) {
	err = fs.WalkDir(from, ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case path != "." && strings.HasPrefix(d.Name(), "."):
			if d.IsDir() {
				return fs.SkipDir
			}
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, path), 0o755)
		case !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
			return nil
		}
		b, err := fs.ReadFile(from, path)
		if err != nil {
			return err
		}
		n++
		return os.WriteFile(filepath.Join(to, path), b, 0o644)
	})
	return n, err
}
