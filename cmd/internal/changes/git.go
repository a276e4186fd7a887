package changes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Checkout writes a directory or file as it is in a revision of its git repository
// to dir, and returns where it is there. path may be gone in the working tree, as
// long as a directory around it is there. The index and the working tree are not
// touched.
func Checkout(ctx context.Context, path, revision, dir string) (string, error) {
	if strings.HasPrefix(revision, "-") {
		return "", fmt.Errorf("%q is no git revision", revision)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	around := abs
	for {
		if info, err := os.Stat(around); err == nil && info.IsDir() {
			break
		}
		if around == filepath.Dir(around) {
			return "", fmt.Errorf("read %s: no such directory", path)
		}
		around = filepath.Dir(around)
	}
	top, err := git(ctx, around, nil, nil, "rev-parse", "--show-toplevel")
	if err != nil {
		return "", fmt.Errorf("%s is in no git repository: %w", path, err)
	}
	root := strings.TrimSpace(string(top))
	if resolved, err := filepath.EvalSymlinks(around); err == nil { // git answers with the real path
		abs = filepath.Join(resolved, strings.TrimPrefix(abs, around))
	}
	rel, err := filepath.Rel(root, abs)
	if err != nil {
		return "", err
	}
	commit, err := git(ctx, root, nil, nil, "rev-parse", "--verify", "--quiet", revision+"^{commit}")
	if err != nil {
		return "", fmt.Errorf("no git revision %s in %s (a shallow clone has only the last: fetch the base, too)", revision, root)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		return "", err
	}
	// An index of our own: what the user has staged stays as it is.
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(dir, ".index")}
	if _, err := git(ctx, root, nil, index, "read-tree", strings.TrimSpace(string(commit))); err != nil {
		return "", fmt.Errorf("read revision %s: %w", revision, err)
	}
	files, err := git(ctx, root, nil, index, "ls-files", "-z", "--", rel)
	if err != nil {
		return "", fmt.Errorf("read revision %s: %w", revision, err)
	}
	if len(files) == 0 {
		return "", fmt.Errorf("%s is not in revision %s: the two have no files in common", filepath.ToSlash(rel), revision)
	}
	if _, err := git(ctx, root, files, index, "checkout-index", "-z", "--stdin", "--prefix="+dir+"/"); err != nil {
		return "", fmt.Errorf("read revision %s: %w", revision, err)
	}
	if err := os.Remove(filepath.Join(dir, ".index")); err != nil {
		return "", err
	}
	return filepath.Join(dir, rel), staysIn(dir)
}

// Commit returns the commit that a directory or file was checked out from, and
// whether it was changed since. ok is false outside of a git repository.
func Commit(ctx context.Context, path string) (commit string, changed, ok bool) {
	dir := path
	if info, err := os.Stat(path); err != nil || !info.IsDir() {
		dir = filepath.Dir(path)
	}
	head, err := git(ctx, dir, nil, nil, "rev-parse", "--verify", "--quiet", "HEAD")
	if err != nil {
		return "", false, false
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", false, false
	}
	status, err := git(ctx, dir, nil, []string{"GIT_OPTIONAL_LOCKS=0"}, "status", "--porcelain", "--", abs)
	return strings.TrimSpace(string(head)), len(status) > 0, err == nil
}

// staysIn refuses symbolic links that lead out of a directory: a revision must not
// read what it does not have.
func staysIn(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink == 0 {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if filepath.IsAbs(to) || !filepath.IsLocal(filepath.Join(filepath.Dir(rel), to)) {
			return fmt.Errorf("%s is a link to %s, outside of the repository", rel, to)
		}
		return nil
	})
}

func git(ctx context.Context, dir string, in []byte, env []string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	cmd.Env, cmd.Stdin = append(os.Environ(), env...), bytes.NewReader(in)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		if text := strings.TrimSpace(errOut.String()); text != "" {
			return nil, errors.New(text)
		}
		return nil, err
	}
	return out, nil
}
