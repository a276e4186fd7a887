package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// logFiles returns the files of a log, oldest first, the one being written last if it
// exists.
func logFiles(path string) ([]string, error) {
	files, err := rotated(path)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(path); err == nil {
		files = append(files, path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("audit: %w", err)
	}
	return files, nil
}

// verifyFiles verifies the files given, oldest first.
func verifyFiles(names ...string) (*Chain, error) {
	c := &Chain{}
	for _, name := range names {
		f, err := Open(name)
		if err != nil {
			return c, err
		}
		err = c.Verify(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return c, fmt.Errorf("%s: %w", name, err)
		}
	}
	return c, nil
}
