package audit

import (
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// archive looks after rotated files, in a goroutine of its own: it compresses
// them and removes those that are too many or too old.
type archive struct {
	path     string
	mode     fs.FileMode
	compress bool
	keep     int
	keepFor  time.Duration
	wall     func() time.Time
	log      *slog.Logger
	wake     chan struct{}
}

// rotated tells it that there is another file.
func (a *archive) rotated() {
	select {
	case a.wake <- struct{}{}:
	default: // told already
	}
}

// run works until ctx is done; what it leaves half done the next run takes up.
func (a *archive) run(ctx context.Context) {
	tick := time.NewTicker(time.Minute) // files get too old without a rotation
	defer tick.Stop()
	a.clean()
	for {
		if err := a.tidy(ctx); err != nil && ctx.Err() == nil {
			a.log.Warn("audit log files not archived", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.wake:
		case <-tick.C:
		}
	}
}

// clean removes what an earlier run left half done.
func (a *archive) clean() {
	dir, base := filepath.Split(a.path)
	if dir == "" {
		dir = "."
	}
	list, _ := os.ReadDir(dir) // not there: nothing to clean
	for _, e := range list {
		name, isTmp := strings.CutSuffix(e.Name(), tmpSuffix)
		_, isOurs := rotatedAt(base, name)
		_, isPlain := rotatedAt(base, e.Name()+gzSuffix)
		switch {
		case isTmp && isOurs:
		case isPlain && !strings.HasSuffix(e.Name(), gzSuffix):
			// Plain and compressed: compressing ended, removing did not.
			if _, err := os.Stat(filepath.Join(dir, e.Name()+gzSuffix)); err != nil {
				continue
			}
		default:
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			a.log.Warn("audit log file not removed", "file", e.Name(), "error", err)
		}
	}
}

func (a *archive) tidy(ctx context.Context) error {
	files, err := rotated(a.path)
	if err != nil {
		return err
	}
	var errs []error
	oldest := 0
	if a.keep > 0 {
		oldest = max(len(files)-a.keep, 0)
	}
	for i, name := range files {
		at, _ := rotatedAt(filepath.Base(a.path), filepath.Base(name))
		if i < oldest || a.keepFor > 0 && a.wall().Sub(at) > a.keepFor {
			errs = append(errs, os.Remove(name))
			continue
		}
		if a.compress && !strings.HasSuffix(name, gzSuffix) {
			errs = append(errs, a.shrink(ctx, name))
		}
	}
	return errors.Join(errs...)
}

// shrink compresses a file. The compressed one appears under its name complete
// and on disk, and only then the plain one goes.
func (a *archive) shrink(ctx context.Context, name string) (err error) {
	in, err := os.Open(name)
	if err != nil {
		return err
	}
	defer in.Close()
	tmp := name + tmpSuffix
	out, err := os.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, a.mode)
	if err != nil {
		return err
	}
	defer func() {
		out.Close()
		if err != nil {
			_ = os.Remove(tmp) // or clean does, at the next start
		}
	}()
	if err := out.Chmod(a.mode); err != nil {
		return err
	}
	z, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return err
	}
	chunk := make([]byte, 256<<10)
	for {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		n, rerr := in.Read(chunk)
		if _, err := z.Write(chunk[:n]); err != nil {
			return err
		}
		if errors.Is(rerr, io.EOF) {
			break
		}
		if rerr != nil {
			return rerr
		}
	}
	if err := errors.Join(z.Close(), out.Sync()); err != nil {
		return fmt.Errorf("compress %s: %w", name, err)
	}
	if err := os.Rename(tmp, name+gzSuffix); err != nil {
		return err
	}
	return os.Remove(name)
}
